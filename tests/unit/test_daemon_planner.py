# SPDX-License-Identifier: Apache-2.0
"""The planner is a pure function: where segments end, held against what its rules say."""

from __future__ import annotations

import random

import pytest
from hmb_daemon.spool.causes import Cause
from hmb_daemon.writing.planner import Plan, Standing, Wish, next_plan, size_cut, weight


def place(pos: int, journal: int = 0, cause: Cause | None = None, epoch: int = 0) -> Plan:
    return Plan(pos, journal, b"", epoch, cause)


def standing(here: Plan, *, begin: int = 0, taken: int | None = None, beside: int = 0) -> Standing:
    return Standing(here, begin, here.pos if taken is None else taken, beside)


def test_nothing_asked_goes_to_the_snapshot() -> None:
    assert next_plan([], place(500), standing(place(0)), Wish()) == place(500)


def test_an_epoch_ends_a_segment_before_anything_else() -> None:
    epoch = place(100, 96, Cause.REINITIALISED, 1)
    wish = Wish(requested=Cause.ROTATE_REQUEST, interval_over=True)
    assert next_plan([place(50), epoch], place(500, 200), standing(place(0)), wish) == epoch


def test_a_request_comes_before_the_clock() -> None:
    wish = Wish(requested=Cause.SNAPSHOT, interval_over=True)
    assert next_plan([], place(5), standing(place(0)), wish).cause is Cause.SNAPSHOT
    assert next_plan([], place(5), standing(place(0)), Wish(interval_over=True)).cause is (
        Cause.ROTATE_TIME
    )


def test_r12_the_clock_does_not_cut_while_a_break_waits() -> None:
    wish = Wish(interval_over=True, break_waits=True)
    assert next_plan([], place(5), standing(place(0)), wish).cause is None
    asked = Wish(requested=Cause.ROTATE_REQUEST, interval_over=True, break_waits=True)
    assert next_plan([], place(5), standing(place(0)), asked).cause is Cause.ROTATE_REQUEST


def test_the_last_place_before_the_limit_is_the_cut() -> None:
    marks = [place(n * 100) for n in range(1, 20)]
    cut = next_plan(marks, place(2000), standing(place(0)), Wish(rotate_size=1050))
    assert (cut.pos, cut.cause) == (1000, Cause.ROTATE_SIZE)


def test_a_record_beyond_the_limit_stays_whole() -> None:
    cut = next_plan([place(5000)], place(6000), standing(place(0)), Wish(rotate_size=1000))
    assert cut.pos == 5000


def test_never_before_what_is_in_the_file() -> None:
    """After a restart with a smaller limit."""
    marks = [place(n * 100) for n in range(1, 20)]
    at = standing(place(700), taken=750)
    cut = next_plan(marks, place(1900), at, Wish(rotate_size=300))
    assert cut.pos == 800


def test_event_log_and_rejects_count() -> None:
    at = standing(place(100, 1000), beside=900)
    assert weight(at, place(150, 1500)) == 150 + 900 + 500
    cut = next_plan([], place(150, 1500), at, Wish(rotate_size=1000))
    assert (cut.pos, cut.journal, cut.cause) == (100, 1000, Cause.ROTATE_SIZE)


def test_a_flood_of_rejects_alone_is_cut() -> None:
    marks = [place(0, n * 400) for n in range(1, 10)]
    cut = next_plan(marks, place(0, 4000), standing(place(0)), Wish(rotate_size=1000))
    assert (cut.journal, cut.cause) == (800, Cause.ROTATE_SIZE)


def test_one_file_is_never_cut() -> None:
    marks = [place(9, 9, Cause.REINITIALISED)]
    assert next_plan(marks, place(99), standing(place(0)), Wish(1), whole=True) == place(99)


@pytest.mark.parametrize("seed", range(20))
def test_cuts_lie_at_places_and_always_get_on(seed: int) -> None:
    rng = random.Random(seed)
    pos = journal = begin = 0
    places = []
    for _ in range(200):
        pos, journal = pos + rng.choice([0, 8, 80, 800]), journal + rng.choice([0, 96, 960])
        places.append(place(pos, journal))
    here, limit = place(0), rng.choice([500, 2000, 9000])
    snapshot = places.pop()
    for _ in range(1000):
        left = [p for p in places if p.key > here.key]
        cut = next_plan(left, snapshot, standing(here, begin=begin), Wish(rotate_size=limit))
        assert cut.key >= here.key and cut.pos <= snapshot.pos
        if cut.cause is None:
            return
        assert cut.pos in {p.pos for p in [*places, snapshot, here]}
        assert cut.key > here.key
        here, begin = cut, cut.pos
    raise AssertionError("no end")


def test_size_cut_alone_may_find_nothing() -> None:
    assert size_cut([], place(0), standing(place(0)), 10) is None
