# SPDX-License-Identifier: Apache-2.0
"""What changed between two captures: measured in blocks, tested by permutation, told in words."""
