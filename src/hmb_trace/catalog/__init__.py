# SPDX-License-Identifier: Apache-2.0
"""What opcodes mean: the TOML catalog."""
