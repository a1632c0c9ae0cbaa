# SPDX-License-Identifier: Apache-2.0
"""The ioctl side of the kernel module."""
