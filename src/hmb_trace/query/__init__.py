# SPDX-License-Identifier: Apache-2.0
"""Questions to records: selection, expressions, pairs, statistics, SQL."""
