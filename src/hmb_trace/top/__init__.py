# SPDX-License-Identifier: Apache-2.0
"""The live view of `hmb-trace top`: sources of numbers, a model over time, a frame of text.

Everything here only reads: the daemon's control socket, ring headers, and the tail of the
segment being written. Only `app` needs textual.
"""
