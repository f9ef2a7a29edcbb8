"""Days of the demonstration, and the order of their departures."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from examples.demo.departures import Day, some_days


def _flights(*days: tuple[int, int, Sequence[int]]) -> list[bytes]:
    return [
        json.dumps({"month": month, "day": day, "sched_dep_time": time}).encode()
        for month, day, times in days
        for time in times
    ]


@pytest.mark.parametrize(
    ("days", "day", "minutes"),
    [
        (_flights((1, 1, [600, 515])), Day(1, 1), [315, 360]),
        (_flights((1, 1, [600]), (1, 2, [515])), Day(1, 2), [360, 1440 + 315]),
        (
            _flights((1, 1, [1]), (1, 2, [600]), (1, 3, [2359, 1]), (1, 4, [500])),
            Day(1, 3),
            [360, 1441, 2879],
        ),
        (_flights((12, 31, [5]), (2, 1, [5]), (1, 31, [5])), Day(2, 1), [5, 1445]),
    ],
    ids=["one", "two", "the last may be cut", "by the calendar"],
)
def test_departure_days_are_the_last_whole_day_and_the_day_before(
    days: list[bytes], day: Day, minutes: list[int]
) -> None:
    found, schedule = some_days(days)
    assert found == day
    assert [minute for minute, _ in schedule] == minutes


def test_day_has_a_filter_and_a_name() -> None:
    assert Day(2, 3).filter == "/month = 2 AND /day = 3"
    assert str(Day(2, 3)) == "2013-02-03"
