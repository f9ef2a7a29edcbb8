"""Filters of Spark: which ones the log answers, and that it answers them exactly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from tickertape.base.timestamps import timestamp_micros_max
from tickertape.spark.filters import Narrowing, narrow

T = datetime(2013, 1, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
LATER = T + DAY
LAST = datetime.max.replace(tzinfo=UTC)
TEXT = "20130101T120000.000000Z"
NEXT = "20130101T120000.000001Z"
STAMP, TOPIC, BOOKMARK = ("timestamp",), ("topic",), ("bookmark",)


def narrowing(*filters: Filter) -> Narrowing:
    made, left = narrow(filters, "flights")
    assert left == []
    return made


@pytest.mark.parametrize(
    ("filters", "ranges"),
    [
        ([GreaterThan(STAMP, T)], [f"[{NEXT}:99991231T235959.999999Z]"]),
        ([GreaterThanOrEqual(STAMP, T)], [f"[{TEXT}:99991231T235959.999999Z]"]),
        ([LessThan(STAMP, T)], [f"[0:{TEXT})"]),
        ([LessThanOrEqual(STAMP, T)], [f"[0:{NEXT})"]),
        ([EqualTo(STAMP, T)], [f"[{TEXT}:{NEXT})"]),
        ([GreaterThanOrEqual(STAMP, T), LessThan(STAMP, LATER), LessThan(STAMP, T)], [f"[{TEXT}:{TEXT})"]),
        ([LessThan(STAMP, T), LessThan(STAMP, LATER)], [f"[0:{TEXT})"]),
        (
            [GreaterThan(STAMP, T), GreaterThan(STAMP, T - timedelta(1))],
            [f"[{NEXT}:99991231T235959.999999Z]"],
        ),
        ([LessThan(STAMP, T.astimezone(timezone(timedelta(hours=5))))], [f"[0:{TEXT})"]),
        ([LessThanOrEqual(STAMP, LAST)], []),
        ([EqualTo(BOOKMARK, "5|7|")], ["[5|7|:5|7|]"]),
        ([EqualTo(BOOKMARK, "5|7|"), EqualTo(BOOKMARK, "5|8|")], ["[5|7|:5|7|]", "[5|8|:5|8|]"]),
        ([EqualTo(TOPIC, "flights"), IsNotNull(TOPIC), In(TOPIC, ("a", "flights"))], []),
        ([IsNotNull(STAMP), IsNotNull(("data",))], []),
    ],
)
def test_what_the_log_answers_becomes_ranges(filters: list[Filter], ranges: list[str]) -> None:
    made = narrowing(*filters)
    assert made.ranges() == ranges
    assert not made.nothing


@pytest.mark.parametrize(
    "filters",
    [
        [EqualTo(TOPIC, "weather")],
        [In(TOPIC, ("a", "b"))],
        [EqualTo(TOPIC, "weather"), GreaterThan(STAMP, T)],
        [GreaterThan(STAMP, LAST)],
        [GreaterThan(STAMP, LAST), LessThan(STAMP, T)],
    ],
)
def test_what_no_row_can_be_leaves_nothing(filters: list[Filter]) -> None:
    assert narrowing(*filters).nothing
    assert narrowing(*reversed(filters)).nothing


@pytest.mark.parametrize(
    "left",
    [
        Not(EqualTo(TOPIC, "flights")),
        EqualNullSafe(STAMP, T),
        In(STAMP, (T,)),
        IsNull(STAMP),
        IsNotNull(("data", "inside")),
        IsNotNull(("elsewhere",)),
        EqualTo(BOOKMARK, "05|7|"),
        EqualTo(BOOKMARK, "5|7|,5|8|"),
        EqualTo(BOOKMARK, " 5|7|"),
        EqualTo(BOOKMARK, "0"),
        EqualTo(BOOKMARK, "0|1|"),
        EqualTo(BOOKMARK, "20130101T000000"),
        EqualTo(BOOKMARK, None),
        GreaterThan(BOOKMARK, "5|7|"),
        EqualTo(STAMP, T.replace(tzinfo=None)),
        EqualTo(("sequence",), 7),
        EqualTo(("timestamp", "inside"), T),
        StringStartsWith(TOPIC, "fl"),
    ],
)
def test_every_other_filter_goes_back_to_spark_itself(left: Filter) -> None:
    taken: Any = GreaterThan(STAMP, T)
    made, back = narrow([taken, left], "flights")
    assert back == [left]
    assert back[0] is left
    assert made == narrowing(taken)


def test_moments_have_bounds_within_what_has_a_text() -> None:
    assert narrowing(GreaterThanOrEqual(STAMP, LAST)).since == timestamp_micros_max
    first = datetime.min.replace(tzinfo=UTC)
    assert narrowing(LessThan(STAMP, first)).ranges() == ["[0:00010101T000000.000000Z)"]
