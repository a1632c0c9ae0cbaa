# SPDX-License-Identifier: Apache-2.0
"""Records as text."""
