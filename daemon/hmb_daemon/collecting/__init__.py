# SPDX-License-Identifier: Apache-2.0
"""From ring to spool: start and re-attachment."""
