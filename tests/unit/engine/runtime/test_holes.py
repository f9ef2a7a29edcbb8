"""Known sequences: named cases, limits, and work that does not depend on the number of messages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import numpy as np

from tickertape.engine.limits import holes_max, holes_per_publisher_max
from tickertape.engine.runtime.effects import LogEvent
from tickertape.engine.runtime.holes import ClosedHole, KnownSequences, forgotten_holes
from tickertape.journal.format.replication_records import HoleRange

P = 2**63 + 5


def batch(first: int, last: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.arange(first, last + 1, dtype=np.uint64)


def test_resent_messages_of_a_lost_instance_fill_the_hole_of_a_claim() -> None:
    known = KnownSequences({P: 80})
    known.open(P, 100, 7)
    assert known.holes(P) == [HoleRange(81, 100, 7, True)]
    split = known.split(P, batch(70, 110), from_link=False)
    assert (split.late.tolist(), split.above, split.duplicates) == (list(range(11, 31)), 31, 11)
    known.fill(P, batch(81, 100))
    assert P not in known
    assert known.split(P, batch(70, 100), from_link=False).duplicates == 31


def test_highest_possible_sequence_fills_a_hole() -> None:
    top = 2**64 - 1
    for stored, left in (([top], [(1, top - 1)]), ([1, top - 1, top], [(2, top - 2)])):
        known = KnownSequences({})
        known.open(1, top, 0)
        known.fill(1, np.array(stored, np.uint64))
        assert [(hole.first, hole.last) for hole in known.holes(1)] == left
        assert known.count == len(left)


def test_unproven_hole_admits_links_only() -> None:
    known = KnownSequences({P: 80})
    known.open(P, 100, 7, proven=False)
    assert known.split(P, batch(81, 100), from_link=False).duplicates == 20
    assert known.split(P, batch(81, 100), from_link=True).duplicates == 0


def test_gap_below_a_batch_is_not_a_hole() -> None:
    highest = {P: 80}
    known = KnownSequences(highest)
    assert known.split(P, batch(90, 95), from_link=False).above == 0
    highest[P] = 95
    assert P not in known
    assert known.split(P, batch(81, 95), from_link=True).duplicates == 15


def test_hole_above_the_limit_of_a_publisher_closes_the_oldest() -> None:
    highest = {P: 0}
    known = KnownSequences(highest)
    for number in range(holes_per_publisher_max + 2):
        known.open(P, 10 * number + 5, 100 + number)
        highest[P] = 10 * number + 9
    assert known.count == holes_per_publisher_max == 1_024
    assert known.take_closed() == [ClosedHole(P, 1, 5), ClosedHole(P, 10, 15)]
    assert known.take_closed() == []
    assert known.split(P, batch(1, 15), from_link=True).duplicates == 15


def test_hole_above_the_limit_of_all_publishers_closes_the_oldest_of_any() -> None:
    assert holes_max == 1_000_000
    highest: dict[int, int] = {}
    known = KnownSequences(highest, total_max=3)
    for position, publisher in enumerate((9, 8, 9, 7)):
        known.open(publisher, highest.get(publisher, 0) + 4, position)
    assert known.take_closed() == [ClosedHole(9, 1, 4)]
    assert known.take_changed() == [9, 8, 7]
    assert known.holes(9) == [HoleRange(5, 8, 2, True)]


def calls_of(work: Callable[[], object]) -> int:
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def calls_for(messages: int) -> int:
    """Return the calls to split and fill a batch whose every second message is in a hole."""
    known = KnownSequences({P: messages})
    known.open(P, 2 * messages, 1)
    sequences = batch(1, 2 * messages)[::2]

    def work() -> None:
        split = known.split(P, sequences, from_link=False)
        if messages < holes_per_publisher_max:
            known.fill(P, sequences[split.late])

    return calls_of(work)


def test_calls_do_not_depend_on_the_number_of_messages() -> None:
    assert calls_for(100) == calls_for(1_000) > 10
    assert calls_for(10_000) == calls_for(100_000) > 3


def test_forgotten_holes_are_one_event_with_the_first_hole() -> None:
    closed = [ClosedHole(P, 1, 5), ClosedHole(9, 10, 10)]
    assert forgotten_holes(closed) == LogEvent(
        "hole_forgotten",
        warning=True,
        fields={"holes": 2, "sequences": 6, "publisher": P, "first": 1, "last": 5},
    )
    assert forgotten_holes([]) is None
