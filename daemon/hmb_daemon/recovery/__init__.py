# SPDX-License-Identifier: Apache-2.0
"""What an earlier daemon or a dead host left."""
