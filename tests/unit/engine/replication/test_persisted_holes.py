"""Persisted holes: the rows of publishers in notices."""

from __future__ import annotations

from tickertape.engine.replication.subscribers.persisted_holes import PersistedHoles
from tickertape.engine.runtime.holes import KnownSequences
from tickertape.journal.format.replication_records import HoleRange
from tickertape.wire.link_rows import OpenHoles, decode_open_holes

P = 7


def test_rows_of_a_publisher_reach_the_end_of_the_log_after_the_last_change() -> None:
    """A subscriber closes its holes up to there: later messages followed without holes."""
    highest = {P: 100}
    holes = PersistedHoles(KnownSequences({}), highest)
    holes.note(P, 100, [HoleRange(40, 41, 0, True)])
    change = holes.change
    highest[P] = 110
    expected = [OpenHoles(P, 110, ((40, 41),))]
    assert decode_open_holes(holes.since(0, ())) == expected
    assert decode_open_holes(holes.since(change, {P})) == expected


def test_rows_include_holes_above_all_messages() -> None:
    holes = PersistedHoles(KnownSequences({}), {P: 100})
    holes.note(P, 120, [HoleRange(101, 120, 0, True)])
    assert decode_open_holes(holes.since(0, ())) == [OpenHoles(P, 120, ((101, 120),))]
