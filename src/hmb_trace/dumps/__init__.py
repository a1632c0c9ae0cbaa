# SPDX-License-Identifier: Apache-2.0
"""Dump files and what stands beside them: segments, sidecars, rejects, the walk."""
