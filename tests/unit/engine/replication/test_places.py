"""Places of logs, and the start of a link."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.sow_model import Published
from tests.models.replication.log import Log, Places
from tests.models.replication.records import Place, Started, Stored
from tickertape.base.limits import link_places_max, link_starts_max
from tickertape.engine.replication.places import (
    KnownPlaces,
    LinkStart,
    LogStart,
    LogStarts,
    SourceFacts,
    StartRefused,
    link_start,
)
from tickertape.journal.format.replication_records import LogPlace

HERE, OTHER = b"h" * 16, b"o" * 16
STARTS = LogStarts(HERE, [LogStart(7, 0), LogStart(8, 500), LogStart(9, 700)])


def facts(first: int = 0, end: int = 900, reporters: frozenset[bytes] = frozenset()) -> SourceFacts:
    return SourceFacts(STARTS, first, end, reporters)


def at(start: int, position: int) -> LogPlace:
    return LogPlace(HERE, start, position)


def test_place_has_the_start_of_the_row_before() -> None:
    assert [STARTS.place(position).start for position in (0, 1, 500, 501, 700, 701, 900)] == [
        0,
        7,
        7,
        8,
        8,
        9,
        9,
    ]


def test_place_behind_the_end_of_a_start_means_the_end() -> None:
    assert STARTS.resume(at(7, 900), 900) == 500
    assert STARTS.resume(at(9, 950), 900) == 900
    assert STARTS.resume(at(8, 600), 900) == 600


def test_place_of_an_unknown_start_has_no_position() -> None:
    assert STARTS.resume(at(6, 10), 900) is None


def test_starts_are_bounded() -> None:
    starts = LogStarts(HERE, [LogStart(n + 1, n * 10) for n in range(link_starts_max + 2)])
    assert len(list(starts)) == link_starts_max
    assert starts.resume(at(2, 15), 10**6) is None
    assert starts.resume(at(3, 25), 10**6) == 25


def test_link_continues_at_the_place_of_the_destination() -> None:
    assert link_start(facts(), OTHER, [at(9, 800)]) == LinkStart(800, None, False)


def test_link_to_a_new_destination_starts_at_the_first_row() -> None:
    assert link_start(facts(), OTHER, []) == LinkStart(0, None, False)
    assert link_start(facts(first=30), OTHER, []) == LinkStart(30, None, True)


def test_link_of_a_log_without_the_lost_end_continues_at_the_end() -> None:
    assert link_start(facts(), OTHER, [at(9, 1_000)]) == LinkStart(900, 100, False)
    assert link_start(facts(), OTHER, [at(7, 650)]) == LinkStart(500, 150, False)


def test_link_of_an_old_copy_continues_at_the_newest_known_start() -> None:
    assert link_start(facts(), OTHER, [at(99, 1_500), at(8, 650), at(7, 500)]) == LinkStart(650, 850, False)


def test_link_without_a_known_start_begins_at_the_first_row() -> None:
    assert link_start(facts(), OTHER, [at(99, 1_500)]) == LinkStart(0, 1_500, False)


def test_link_is_refused_when_retention_removed_rows_that_the_destination_lacks() -> None:
    refused = link_start(facts(first=600), OTHER, [at(8, 550)])
    assert refused == StartRefused(550, 600)
    assert isinstance(refused, StartRefused)
    assert refused.text("ny-2") == (
        "Cannot replicate to 'ny-2': it has only the rows before position 550, and retention removed the "
        "rows before 600. Drain 'ny-2', and start it with an empty data directory."
    )
    assert link_start(facts(first=550), OTHER, [at(8, 550)]) == LinkStart(550, None, False)


def test_link_to_an_old_copy_without_a_place_is_refused() -> None:
    refused = link_start(facts(first=600, reporters=frozenset((OTHER,))), OTHER, [])
    assert refused == StartRefused(None, 600)
    assert isinstance(refused, StartRefused)
    assert "it reported rows of this log earlier, and has none now" in refused.text("ny-2")
    assert link_start(facts(reporters=frozenset((OTHER,))), OTHER, []) == LinkStart(0, None, False)


def test_known_places_keep_the_last_position_of_each_start() -> None:
    places = KnownPlaces()
    for start, position in ((1, 10), (2, 9), (1, 8), (1, 12)):
        places.note(at(start, position))
        assert places.newest() == [at(start, position)]
    assert places.of(HERE) == [at(1, 12), at(2, 9)]
    assert places.passed(at(1, 11))
    assert not places.passed(at(1, 12))
    assert not places.passed(at(3, 0))
    assert not places.passed(LogPlace(OTHER, 1, 0))
    places.forget(HERE)
    assert places.of(HERE) == places.newest() == []


def test_known_places_of_a_log_are_bounded() -> None:
    places = KnownPlaces()
    for start in range(1, link_places_max + 3):
        places.note(at(start, start))
    kept = places.of(HERE)
    assert [place.start for place in kept] == list(range(link_places_max + 2, 2, -1))


def test_link_reports_lost_history_once_if_the_destination_continues_at_the_end_of_the_start() -> None:
    places = KnownPlaces()
    source = SourceFacts(LogStarts(HERE, [LogStart(1, 0), LogStart(2, 6)]), 0, 20, frozenset())
    places.note(at(1, 9))
    assert link_start(source, OTHER, places.of(HERE)) == LinkStart(6, 3, False)
    places.note(at(1, 6))
    assert link_start(source, OTHER, places.of(HERE)) == LinkStart(6, None, False)


steps = st.lists(st.tuples(st.sampled_from("rcn"), st.integers(0, 6)), max_size=40)


@given(steps)
def test_links_start_at_the_position_of_the_model(program: list[tuple[str, int]]) -> None:
    """Rows, restarts that lose the end of the log, and notes of a reader, against the model."""
    log, numbers, model, product = Log(1), iter(range(1, 100)), Places(), KnownPlaces()
    log.append(Started(next(numbers)))
    log.commit()
    content = Published(b"", 1, 1, 1, b"", {})
    starts = LogStarts(HERE)
    for what, count in program:
        if what == "r":
            for _ in range(count):
                log.append(Stored(1, 1, (1,), content))
            log.commit()
        elif what == "c":
            log.cut(log.commits[max(len(log.commits) - 1 - count, 0)])
            log.append(Started(next(numbers)))
            log.commit()
        elif what == "n":
            starts = LogStarts(HERE, [LogStart(*start) for start in log.starts])
            position = max(log.end - count, model.resume(log) or 0)  # a reader never goes back
            expected = log.place(position)
            assert starts.place(position) == at(*expected)
            model.note(1, expected)
            product.note(at(*expected))
    starts = LogStarts(HERE, [LogStart(*start) for start in log.starts])
    result = link_start(SourceFacts(starts, 0, log.end, frozenset()), OTHER, product.of(HERE))
    assert isinstance(result, LinkStart)
    assert result.position == (model.resume(log) or 0)
    assert result.lost is None or result.lost >= 0
    newest = model.newest(1)
    whole = newest is None or log.resume(Place(*newest)) == newest.position
    assert (result.lost is None) == whole
