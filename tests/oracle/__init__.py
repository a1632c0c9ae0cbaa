# SPDX-License-Identifier: Apache-2.0
"""The referee: a slow, obvious consumer and dump reader, written from docs/format.md alone.

Nothing here shares code with libhmbtrace or hmb_trace; that is the point.
"""
