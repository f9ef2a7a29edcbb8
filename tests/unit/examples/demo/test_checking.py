"""Checks of the demonstration: failures for missing, extra and misplaced messages."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import tickertape as tt
from examples.demo.checking import (
    CheckFailed,
    LogReading,
    SparkRow,
    carrier_of,
    check_digests,
    check_spark,
    digests_of,
    read_log,
)
from examples.demo.flights import CarrierTruth, Digests, Flight
from tickertape.batch import batch_from_bodies

SOURCE = [b'{"carrier":"UA","n":%d}' % n for n in range(10)]


def reading(*runs: tuple[int, Sequence[int]], at: Sequence[int] = ()) -> LogReading:
    """Return the reading of a log with these runs: a publisher and the numbers of its messages."""
    batches = []
    sequences = dict.fromkeys((publisher for publisher, _ in runs), 100)
    for publisher, numbers in runs:
        bodies = [b'{"carrier":"UA","n":%d}' % n for n in numbers]
        batches.append(
            batch_from_bodies("flights", bodies, publisher=publisher, first_sequence=sequences[publisher])
        )
        sequences[publisher] += len(bodies)
    return read_log(batches, SOURCE, bookmarks_at=at)


def test_log_with_each_flight_once_passes() -> None:
    found = reading((1, range(4)), (2, range(6, 10)), (1, range(4, 6)), at=(3, 5, 9))
    found.check("flights")
    assert (found.messages, found.publishers) == (10, 2)
    assert found.order == [0, 1, 2, 3, 6, 7, 8, 9, 4, 5]
    assert found.bookmarks == ["1|103|", "2|101|", "1|105|"]


@pytest.mark.parametrize(
    ("runs", "text"),
    [
        ([(1, range(9))], "of 9 messages in the log, 1 missing"),
        ([(1, range(10)), (1, [9])], "of 11 messages in the log, 1 more than once"),
        ([(1, range(11))], "of 11 messages in the log, 1 not from the source"),
        ([(1, [0, 1, 3, 2, 4, 5, 6, 7, 8, 9])], "of 10 messages in the log, 1 out of order"),
        ([(1, [0, 0, 2]), (1, range(3, 10))], "of 10 messages in the log, 1 missing, 1 more than once"),
        ([], "of 0 messages in the log, 10 missing"),
    ],
)
def test_log_with_missing_or_extra_flights_fails(runs: list[tuple[int, Sequence[int]]], text: str) -> None:
    with pytest.raises(CheckFailed) as failed:
        reading(*runs).check("flights")
    assert str(failed.value) == f"Topic flights: {text}."


def test_check_ignores_the_order_between_publishers() -> None:
    reading((1, range(5, 10)), (2, range(5))).check("flights")


def test_digest_of_the_log_is_grouped_by_carrier() -> None:
    found = Digests()
    read_log([batch_from_bodies("flights", SOURCE, publisher=1, first_sequence=1)], SOURCE, digests=found)
    rows = check_digests(digests_of(Flight("UA", body) for body in SOURCE), found)
    assert [row[:3] for row in rows] == [["UA", "10", "10"]]


@pytest.mark.parametrize("bodies", [SOURCE[:9], SOURCE[::-1], [*SOURCE, SOURCE[9]], []])
def test_different_digests_fail_the_check(bodies: list[bytes]) -> None:
    found = digests_of(Flight("UA", body) for body in bodies)
    with pytest.raises(CheckFailed, match="Carrier UA: 10 flights in the file with digest"):
        check_digests(digests_of(Flight("UA", body) for body in SOURCE), found)


def test_message_without_a_carrier_fails_the_check() -> None:
    for body in (b"{}", b"not json", b'{"carrier":1}'):
        with pytest.raises(CheckFailed, match="has no carrier"):
            carrier_of(body)


def row(carrier: str = "UA", flights: int = 4, departed: int = 3, delay: int | None = 7) -> SparkRow:
    return SparkRow(carrier, flights, departed, delay, None if delay is None else delay / departed)


def test_spark_rows_must_equal_the_file() -> None:
    truth = {"UA": CarrierTruth(4, 3, 7)}
    check_spark(truth, [row()])
    for wrong in ([], [row(), row()], [row("AA")], [row(flights=5)], [row(departed=2)], [row(delay=8)]):
        with pytest.raises(CheckFailed):
            check_spark(truth, wrong)


def test_carrier_without_departures_has_no_mean_delay() -> None:
    check_spark({"OO": CarrierTruth(2, 0, 0)}, [SparkRow("OO", 2, 0, None, None)])


def test_bookmark_text_equals_the_product_format() -> None:
    assert reading((7, range(10)), at=(0,)).bookmarks == [str(tt.Bookmark(7, 100))]
