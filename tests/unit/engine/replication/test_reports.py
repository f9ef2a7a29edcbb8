"""Reports of the logs of a group, against the model of replication."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from tests.models.replication.instance import Instance
from tests.models.replication.records import Covered, Linked, Place
from tests.models.replication.rules import Rules
from tickertape.engine.replication.places import KnownPlaces, LogStart, LogStarts
from tickertape.engine.replication.reports import Group, Reports
from tickertape.journal.format.replication_records import CoveredRecord, LogPlace, covered

HERE, THERE, THIRD = (bytes([number]) * 16 for number in (1, 2, 3))


def report(number: int, position: int, *places: LogPlace, stamp: int = 5, start: int = 20) -> CoveredRecord:
    return covered(number, start, position, list(places), [HERE, THERE], stamp)


def group(places: KnownPlaces | None = None, sources: frozenset[bytes] = frozenset()) -> Group:
    return Group(frozenset((HERE, THERE)), sources, places or KnownPlaces())


STARTS = LogStarts(HERE, [LogStart(10, 0)])


def test_stable_position_is_the_reported_place() -> None:
    reports = Reports(HERE)
    assert reports.stable(group(), STARTS, 100) == 0
    reports.note(THERE, report(1, 50, LogPlace(HERE, 10, 40)))
    assert reports.stable(group(), STARTS, 100) == 40
    assert reports.stable_stamp(group()) == 5


def test_older_report_and_own_report_are_ignored() -> None:
    reports = Reports(HERE)
    reports.note(THERE, report(2, 50, LogPlace(HERE, 10, 40)))
    reports.note(THERE, report(1, 30, LogPlace(HERE, 10, 20)))
    assert not reports.is_news(HERE, report(9, 50))
    assert reports.stable(group(), STARTS, 100) == 40


def test_report_of_a_source_counts_when_the_link_passed_the_report() -> None:
    reports, places = Reports(HERE), KnownPlaces()
    reports.note(THERE, report(1, 50, LogPlace(HERE, 10, 40)))
    direct = group(places, frozenset((THERE,)))
    places.note(LogPlace(THERE, 20, 50))
    assert reports.stable(direct, STARTS, 100) == 0
    places.note(LogPlace(THERE, 20, 51))
    assert reports.stable(direct, STARTS, 100) == 40


def test_report_of_another_group_does_not_count() -> None:
    reports = Reports(HERE)
    reports.note(THERE, report(1, 50, LogPlace(HERE, 10, 40)))
    larger = Group(frozenset((HERE, THERE, THIRD)), frozenset(), KnownPlaces())
    smaller = Group(frozenset((HERE, THIRD)), frozenset(), KnownPlaces())
    assert reports.stable(larger, STARTS, 100) == reports.stable(smaller, STARTS, 100) == 0


def test_single_log_is_stable_at_the_end() -> None:
    alone = Group(frozenset((HERE,)), frozenset(), KnownPlaces())
    assert Reports(HERE).stable(alone, STARTS, 100) == 100
    assert Reports(HERE).stable_stamp(alone) == 0


def test_reporter_remains_until_an_operator_removes_the_log() -> None:
    reports = Reports(HERE)
    reports.note(THERE, report(1, 50, LogPlace(HERE, 10, 40)))
    reports.note(THERE, report(2, 60))
    reports.note_reporter(THIRD)
    assert reports.reporters == {THERE, THIRD}
    reports.forget(THERE)
    assert reports.reporters == {THIRD}
    assert reports.stable(group(), STARTS, 100) == 0


class _Report(NamedTuple):
    log: int
    number: int
    place: Place
    places: dict[int, Place]
    whole: bool


_positions = st.integers(0, 12)
_reports = st.builds(
    _Report,
    st.integers(2, 3),
    st.integers(1, 9),
    st.builds(Place, st.integers(20, 21), _positions),
    st.dictionaries(st.integers(1, 3), st.builds(Place, st.sampled_from((2, 7)), _positions)),
    st.booleans(),
)
_links = st.builds(Linked, st.integers(2, 3), st.builds(Place, st.integers(20, 21), _positions))


@given(st.lists(st.one_of(_reports, _links), max_size=12), st.sets(st.integers(2, 3)))
def test_stable_position_equals_the_model(rows: list[_Report | Linked], sources: set[int]) -> None:
    model = Instance(0, Rules(), count(1))
    model.members = frozenset((1, 2, 3))
    reports, places = Reports(HERE), KnownPlaces()
    logs = {model.log_id: HERE, 2: THERE, 3: THIRD}
    for row in rows:
        log = logs[row.source if isinstance(row, Linked) else row.log]
        if isinstance(row, Linked):
            model.add(row)
            places.note(LogPlace(log, *row.place))
            continue
        members = model.members if row.whole else frozenset((1, 2))
        listed = [LogPlace(logs[of], *place) for of, place in row.places.items()]
        record = covered(row.number, *row.place, listed, [logs[member] for member in members], row.number)
        if reports.is_news(log, record):
            known = tuple(row.places.items())
            model.add(Covered(row.number, row.log, row.place, known, members, row.number))
        reports.note(log, record)
    model.sync()
    starts = LogStarts(HERE, [LogStart(*start) for start in model.log.starts])
    of_logs = Group(frozenset(logs.values()), {logs[source] for source in sources}, places)
    assert reports.stable(of_logs, starts, model.log.synced) == model.stable(model.members, sources)
    assert reports.stable_stamp(of_logs) == model._stable_stamp(model.members, sources)
    assert reports.reporters == {logs[log] for log in model.fold.reporters}


def test_report_has_the_places_that_other_reports_brought() -> None:
    reports, places = Reports(HERE), KnownPlaces()
    reports.note(THERE, report(1, 50, LogPlace(HERE, 10, 40), LogPlace(THIRD, 30, 7)))
    assert reports.known_logs == {HERE, THERE}
    assert reports.place_in(THERE) == LogPlace(HERE, 10, 40)
    assert reports.place_in(THIRD) is None
    indirect = group(places)
    assert reports.reached(indirect) == [LogPlace(THIRD, 30, 7), LogPlace(THERE, 20, 50)]
    direct = group(places, frozenset((THERE,)))
    assert reports.reached(direct) == [], "the link of the reporter has not passed the report"
    assert [reports.has_reached(THIRD, one) for one in (direct, indirect)] == [False, True]
    places.note(LogPlace(THERE, 20, 51))
    assert reports.reached(direct) == [LogPlace(THIRD, 30, 7)]
    assert reports.has_reached(THIRD, direct)
    assert reports.reached(group(places, frozenset((THERE, THIRD)))) == [], "the own link has a place"


def test_later_report_gives_the_place_of_a_log() -> None:
    reports = Reports(HERE)
    reports.note(THERE, report(1, 50, LogPlace(THIRD, 30, 7)))
    reports.note(THIRD, report(1, 60, start=30))
    assert LogPlace(THIRD, 30, 60) in reports.reached(group())
    reports.note(THERE, report(2, 70, LogPlace(THIRD, 30, 65)))
    assert LogPlace(THIRD, 30, 65) in reports.reached(group())
