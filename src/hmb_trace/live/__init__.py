# SPDX-License-Identifier: Apache-2.0
"""A ring or a daemon that runs now."""
