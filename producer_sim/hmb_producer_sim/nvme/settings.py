# SPDX-License-Identifier: Apache-2.0
"""What kind of drive this is."""

from __future__ import annotations

from dataclasses import dataclass

HMB_UNIT = 4096  # bytes: HMPRE, HMMIN and HMMINDS count in these


@dataclass(frozen=True)
class DriveSettings:
    """Sizes in bytes, times in nanoseconds.

    Attributes:
        hmb_size, hmb_min: HMPRE and HMMIN; 0: the drive asks for no buffer.
        hmb_min_descriptor, hmb_max_descriptors: HMMINDS and HMMAXD; 0: no limit.
        ring_size: None takes the largest that the slice holds.
        restrict_idle: leave the buffer alone in non-operational states, HMNARE or not.
        drain_ns: how long a disable or reset waits until the host has read the ring.
    """

    serial: str = "HMBTRACE0001"
    model: str = "hmb-firmware-sim NVMe"
    firmware: str = "1"
    hmb_size: int = 64 << 20
    hmb_min: int = 0
    hmb_min_descriptor: int = 0
    hmb_max_descriptors: int = 0
    namespace_size: int = 16 << 20
    ring_size: int | None = None
    restrict_idle: bool = False
    drain_ns: int = 200_000_000
