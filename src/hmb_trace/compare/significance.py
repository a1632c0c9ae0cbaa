# SPDX-License-Identifier: Apache-2.0
"""Whether blocks differ by more than chance: permutation of blocks, all tests at once.

Each test is a row of numbers, one a block, whose mean is 0 if both sides are alike. The statistic
is Welch's t. Its null distribution comes from dealing the blocks to the two sides anew; the largest
statistic over all tests of each deal gives p-values that hold for all tests together (Westfall and
Young 1993), so that the false discovery rate is held as well, whatever the tests have in common.
What stays correlated from block to block makes the effective number of blocks smaller; the
statistic is divided accordingly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DEALS = 1999
_CHUNK = 512  # tests at once

Matrix = NDArray[np.float64]


def adjusted_p(base: Matrix, new: Matrix, *, seed: int = 0) -> tuple[Matrix, Matrix]:
    """Statistics and p-values of all tests.

    Args:
        base: shape (tests, blocks of the base); new: shape (tests, blocks of the new side).

    Returns:
        The statistics (positive: larger in new) and the p-values adjusted for all tests.
    """
    both = np.concatenate([base, new], axis=1)
    scale = np.sqrt(np.mean(both**2, axis=1, keepdims=True))
    both = np.divide(both, scale, out=np.zeros_like(both), where=scale > 0)
    sides = _deals(base.shape[1], new.shape[1], seed)
    largest = np.zeros(len(sides))
    actual = np.empty(len(both))
    for begin in range(0, len(both), _CHUNK):
        part = both[begin : begin + _CHUNK]
        statistics = _welch(part, sides)
        actual[begin : begin + _CHUNK] = statistics[0]
        largest = np.maximum(largest, np.abs(statistics).max(axis=1, initial=0))
    blocks = both.shape[1]
    factor = _inflation(both[:, : base.shape[1]], both[:, base.shape[1] :])
    actual = _normal_score(actual / factor, np.maximum(blocks / factor**2 - 2, 2))
    largest = np.abs(_normal_score(largest, np.full(len(largest), blocks - 2.0)))
    at_least = np.searchsorted(np.sort(-largest[1:]), -np.abs(actual), side="right")
    return actual, (1 + at_least) / len(sides)


def _deals(base: int, new: int, seed: int) -> Matrix:
    """Rows of 1 (new side) and 0 (base); the first is as it was."""
    random = np.random.default_rng(seed)
    first = np.concatenate([np.zeros(base), np.ones(new)])
    dealt = random.permuted(np.tile(first, (DEALS, 1)), axis=1)
    return np.concatenate([first[None, :], dealt])


def _welch(rows: Matrix, sides: Matrix) -> Matrix:
    """Welch's t of every row under every deal, shape (deals, rows)."""
    squares = rows**2
    in_new = sides.sum(axis=1, keepdims=True)
    in_base = sides.shape[1] - in_new
    new_sum, new_squares = sides @ rows.T, sides @ squares.T
    base_sum, base_squares = rows.sum(axis=1) - new_sum, squares.sum(axis=1) - new_squares
    new_mean, base_mean = new_sum / in_new, base_sum / in_base
    spread = _variance(new_squares, new_mean, in_new) / in_new
    spread += _variance(base_squares, base_mean, in_base) / in_base
    difference = new_mean - base_mean
    found: Matrix = np.zeros_like(difference)
    np.divide(difference, np.sqrt(spread), out=found, where=spread > 1e-18)
    return found


def _variance(squares: Matrix, mean: Matrix, count: Matrix) -> Matrix:
    found: Matrix = np.maximum(squares - count * mean**2, 0) / np.maximum(count - 1, 1)
    return found


def _normal_score(t: Matrix, freedom: Matrix) -> Matrix:
    """The normal deviate that is as unlikely as t (Wallace 1959): few degrees weigh less."""
    size = np.sqrt(freedom * np.log1p(t**2 / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    found: Matrix = np.copysign(size, t)
    return found


def _inflation(base: Matrix, new: Matrix) -> Matrix:
    """How much too small the standard error is, for blocks that are correlated in time.

    That of a first-order autoregressive process whose coefficient both sides give together.
    """
    products, power, count = np.zeros(len(base)), np.zeros(len(base)), 0
    for side in (base, new):
        centred = side - side.mean(axis=1, keepdims=True)
        products += (centred[:, 1:] * centred[:, :-1]).sum(axis=1)
        power += (centred**2).sum(axis=1)
        count += side.shape[1]
    rho = np.divide(products, power, out=np.zeros_like(power), where=power > 0)
    rho += 2 * (1 + 3 * np.maximum(rho, 0)) / count  # a mean taken from few blocks hides some of it
    rho = np.clip(rho, 0, 0.95)
    factor: Matrix = np.sqrt((1 + rho) / (1 - rho))
    return factor
