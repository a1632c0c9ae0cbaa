# SPDX-License-Identifier: Apache-2.0
"""The ioctl side of the kernel module: what a consumer asks of /dev/nvme<N>-hmbtrace."""

from hmb_trace.live.device import (
    ADVANCE_TAIL,
    GET_INFO,
    Info,
    InfoFlag,
    advance_tail,
    check_header,
    consumer_pid,
    get_info,
    map_region,
)

__all__ = [
    "ADVANCE_TAIL",
    "GET_INFO",
    "Info",
    "InfoFlag",
    "advance_tail",
    "check_header",
    "consumer_pid",
    "get_info",
    "map_region",
]
