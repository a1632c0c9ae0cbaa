# SPDX-License-Identifier: Apache-2.0
"""A histogram of u64 values with buckets at most 1/128 of their value wide.

Bounded memory for any number of values from 0 to 2^64-1. Minimum, maximum, sum and
count are exact; a quantile is at most 0.8 % too high, never too low.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_BITS = 7  # each power of two is cut into 2^7 buckets
_SUB = 1 << _BITS
_BUCKETS = (64 - _BITS + 1) * _SUB


class LogHistogram:
    """Counts of nanoseconds, bytes, or whatever else is a u64."""

    def __init__(self) -> None:
        self.counts = np.zeros(_BUCKETS, np.int64)
        self.count = 0
        self.total = 0
        self.minimum = 0
        self.maximum = 0

    def add(self, values: npt.NDArray[np.uint64]) -> None:
        """Count every value."""
        if not len(values):
            return
        low, high = int(values.min()), int(values.max())
        self.minimum = min(low, self.minimum) if self.count else low
        self.maximum = max(high, self.maximum)
        self.count += len(values)
        self.total += _exact_sum(values, high)
        self.counts += np.bincount(bucket_of(values), minlength=_BUCKETS)

    @property
    def mean(self) -> float:
        """Exact mean; 0 when empty."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, fraction: float) -> int:
        """The smallest bucket end below or at which `fraction` of the values lie; 0 when empty."""
        if not self.count:
            return 0
        rank = max(1, int(np.ceil(fraction * self.count)))
        bucket = int(np.searchsorted(np.cumsum(self.counts), rank))
        return max(self.minimum, min(bucket_end(bucket), self.maximum))

    def coarse(self) -> list[tuple[int, int, int]]:
        """(low, high, count) of buckets merged to four for each power of two, for drawing."""
        used = np.flatnonzero(self.counts)
        if not len(used):
            return []
        bars = [quarter(_bucket_start(bucket)) for bucket in used.tolist()]
        first, last = bars[0], bars[-1]
        merged = np.bincount(np.array(bars) - first, self.counts[used], last - first + 1)
        return [
            (quarter_start(first + i), quarter_start(first + i + 1) - 1, int(count))
            for i, count in enumerate(merged.tolist())
        ]


def quarter(value: int) -> int:
    """Number of the drawn bar of a value: four bars for each power of two."""
    octave = value.bit_length() - 3
    return value if octave < 1 else octave * 4 + (value >> octave)


def quarters(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    """quarter() of each value."""
    octave = np.maximum(np.frexp(values.astype(np.float64))[1] - 3, 0)
    found: npt.NDArray[np.intp] = octave * 4 + (values >> octave.astype(np.uint64)).astype(np.intp)
    return found


def quarter_start(number: int) -> int:
    """The least value of a bar."""
    if number < 8:
        return number
    octave = number // 4 - 1
    return (number - octave * 4) << octave


def bucket_of(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    """The bucket of each value."""
    exponent = np.frexp(values.astype(np.float64))[1] - 1
    shift = np.maximum(exponent - _BITS, 0)
    mantissa = values >> shift.astype(np.uint64)
    bucket: npt.NDArray[np.intp] = shift * _SUB + mantissa.astype(np.intp)
    return bucket


def bucket_end(bucket: int) -> int:
    """The largest value that falls into a bucket."""
    return _bucket_start(bucket + 1) - 1


def _bucket_start(bucket: int) -> int:
    if bucket < 2 * _SUB:
        return bucket
    shift = bucket // _SUB - 1
    return (bucket - shift * _SUB) << shift


def _exact_sum(values: npt.NDArray[np.uint64], high: int) -> int:
    if high < 1 << 32:  # 2^32 values of less than 2^32 each cannot overflow
        return int(values.sum(dtype=np.uint64))
    low = int((values & np.uint64(0xFFFFFFFF)).sum(dtype=np.uint64))
    return low + (int((values >> np.uint64(32)).sum(dtype=np.uint64)) << 32)
