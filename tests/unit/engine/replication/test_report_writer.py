"""Writer of reports: pace, contents and numbers, against a list of all appended rows."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickertape.base.interfaces import Now
from tickertape.base.names import LINK_TOPIC
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.replication.places import KnownPlaces
from tickertape.engine.replication.reports import Group, ReportWriter
from tickertape.engine.runtime.publisher_ids import CONTROL_TOPIC
from tickertape.journal.format.link_records import LinkRecord, encode_link
from tickertape.journal.format.replication_records import (
    CoveredRecord,
    LogPlace,
    after,
    as_foreign,
    covered,
    encode_record,
    reporter,
    started,
)

HERE, THERE, THIRD = (bytes([number]) * 16 for number in (1, 2, 3))
WALL = 1_760_000_000_000_000


class Row(NamedTuple):
    """Topic and body of a row. `reported`: a report follows."""

    topic: str
    body: bytes
    reported: bool


ROWS = {
    "message": Row("orders", b"x", True),
    "queue": Row("$queue", b"x", True),
    "place": Row(LINK_TOPIC, encode_link(LinkRecord(THERE, 1, 5)), False),
    "start": Row(CONTROL_TOPIC, encode_record(started(1, 0, 0)), True),
    "after": Row(CONTROL_TOPIC, encode_record(after(HERE, 5, 1, 9)), True),
    "own report": Row(CONTROL_TOPIC, encode_record(covered(1, 1, 5, [], [HERE], 0)), False),
    "report": Row(CONTROL_TOPIC, encode_record(as_foreign(covered(1, 1, 5, [], [HERE], 0), THERE)), False),
    "reporter": Row(CONTROL_TOPIC, encode_record(reporter(THERE)), False),
    "unreadable": Row(CONTROL_TOPIC, b"\x81", True),
}


def batch(*names: str) -> MessageBatch:
    builder = BatchBuilder()
    for name in names:
        row = ROWS[name]
        builder.add(row.topic, row.body, kind=0 if name == "message" else 1)
    return builder.build()


def group() -> Group:
    places = KnownPlaces()
    places.note(LogPlace(THERE, 1, 5))
    places.note(LogPlace(THERE, 2, 9))
    places.note(LogPlace(THIRD, 3, 7))
    return Group(frozenset((THIRD, HERE, THERE)), frozenset(), places)


def report(writer: ReportWriter, mono: float = 0.0, wall: int = WALL) -> CoveredRecord:
    return writer.report(Now(mono, wall), LogPlace(HERE, 8, 100), group(), 77)


def test_report_has_the_newest_place_of_each_log() -> None:
    assert report(ReportWriter(0)) == covered(
        WALL, 8, 100, [LogPlace(THERE, 2, 9), LogPlace(THIRD, 3, 7)], [HERE, THERE, THIRD], 77
    )


@pytest.mark.parametrize("name", list(ROWS))
def test_row_needs_a_report_unless_the_row_is_about_reports(name: str) -> None:
    writer = ReportWriter(0)
    assert writer.due(0.0) is None
    writer.appended(batch(name))
    assert writer.due(0.0) == (0.0 if ROWS[name].reported else None)


def test_number_rises_over_a_restored_copy_and_a_clock_that_steps_back() -> None:
    assert report(ReportWriter(5)).number == WALL
    writer = ReportWriter(WALL + 7)
    assert [report(writer, wall=wall).number for wall in (WALL, WALL, 3, WALL + 99)] == [
        WALL + 8,
        WALL + 9,
        WALL + 10,
        WALL + 99,
    ]


STEPS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]), st.lists(st.sampled_from(list(ROWS)), max_size=3)),
    max_size=30,
)


@given(STEPS)
def test_reports_follow_rows_at_most_once_a_second(steps: list[tuple[float, list[str]]]) -> None:
    writer, now = ReportWriter(0), 50.0
    times, rows = list[float](), list[tuple[float, bool]]()
    for wait, names in steps:
        now += wait
        if names:
            writer.appended(batch(*names))
            rows += [(now, ROWS[name].reported) for name in names]
        last = times[-1] if times else -1.0
        waiting = any(wanted and at >= last for at, wanted in rows)
        assert writer.due(now) == (max(last + 1.0 - now, 0.0) if waiting else None)
        if writer.due(now) == 0.0:
            report(writer, now)
            times.append(now)
            rows.clear()
