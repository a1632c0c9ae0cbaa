# SPDX-License-Identifier: Apache-2.0
"""From spool to sealed segments."""
