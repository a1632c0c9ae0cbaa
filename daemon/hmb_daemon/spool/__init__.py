# SPDX-License-Identifier: Apache-2.0
"""The spool file and its event journal."""
