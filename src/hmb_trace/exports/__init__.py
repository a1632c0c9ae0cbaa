# SPDX-License-Identifier: Apache-2.0
"""Dumps for other tools: CTF, Perfetto, Parquet and Arrow. One module each; none knows another."""
