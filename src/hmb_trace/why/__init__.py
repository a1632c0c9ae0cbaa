# SPDX-License-Identifier: Apache-2.0
"""What is wrong in a capture: findings with numbers, places, and a way to look."""
