# SPDX-License-Identifier: Apache-2.0
"""Every command over one table of captures: one verdict, one count, everywhere."""
