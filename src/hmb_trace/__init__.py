# SPDX-License-Identifier: Apache-2.0
"""hmb_trace: the decoder library of hmb-trace."""

from hmb_trace.errors import HmbTraceError

__all__ = ["HmbTraceError"]
__version__ = "0.1.0"
