from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tickertape.base.bookmarks import (
    format_timestamp,
    parse_timestamp,
    timestamp_micros_max,
    timestamp_micros_min,
    to_datetime,
    to_micros,
)
from tickertape.base.errors import BadBookmark


@pytest.mark.behaviour(2)
@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("19700101T000000", 0),
        ("19700101T000000Z", 0),
        ("19691231T235959.999999", -1),
        ("20150102T123500Z", 1420202100_000000),
        ("20210615T185233.126619Z", 1623783153_126619),
        ("20160509T171919.976304Z", 1462814359_976304),
        ("20160509T171919.9", 1462814359_900000),
        ("20160509T171919.000001", 1462814359_000001),
        ("20240229T000000", 1709164800_000000),
        ("00010101T000000", timestamp_micros_min),
        ("99991231T235959.999999Z", timestamp_micros_max),
    ],
)
def test_timestamps_are_utc_with_or_without_z(text: str, micros: int) -> None:
    assert parse_timestamp(text) == micros


@pytest.mark.behaviour(2)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        " 20150102T123500",
        "20150102T123500 ",
        "20150102T123500\n",
        "20150102T123500z",
        "20150102T123500+01:00",
        "20150102T123500-0000",
        "20150102T123500UTC",
        "20150102T123500ZZ",
        "20150102t123500",
        "20150102 123500",
        "20150102T123500.",
        "20150102T123500.Z",
        "20150102T123500,5",
        "20150102T123500.1234567",
        "20150230T000000",
        "20150100T000000",
        "20150001T000000",
        "20150102T240000",
        "20150102T006000",
        "20161231T235960Z",
        "00000101T000000",
        "\u0662\u0660\u0661\u0665\u0660\u0661\u0660\u0662T\u0661\u0662\u0663\u0665\u0660\u0660",
    ],
)
def test_only_the_literal_z_is_a_zone_and_the_rest_is_refused(text: str) -> None:
    with pytest.raises(BadBookmark, match="Invalid timestamp"):
        parse_timestamp(text)


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "19700101T000000.000000Z"),
        (-1, "19691231T235959.999999Z"),
        (1623783153_126619, "20210615T185233.126619Z"),
        (timestamp_micros_min, "00010101T000000.000000Z"),
        (timestamp_micros_max, "99991231T235959.999999Z"),
    ],
)
def test_format_timestamp_reads_back(micros: int, text: str) -> None:
    assert format_timestamp(micros) == text
    assert parse_timestamp(text) == micros


@pytest.mark.parametrize(
    "micros", [timestamp_micros_min - 1, timestamp_micros_max + 1, 2**63 - 1, -(2**63), 10**40]
)
def test_timestamp_outside_years_1_to_9999_is_refused(micros: int) -> None:
    with pytest.raises(BadBookmark, match="years 1 to 9999"):
        format_timestamp(micros)
    with pytest.raises(BadBookmark, match="years 1 to 9999"):
        to_datetime(micros)


@pytest.mark.behaviour(2)
def test_naive_datetimes_are_utc_and_aware_ones_converted() -> None:
    naive = datetime(2015, 1, 2, 12, 35)  # noqa: DTZ001  # naive on purpose
    assert to_micros(naive) == to_micros(naive.replace(tzinfo=UTC)) == 1420202100_000000
    east = naive.replace(tzinfo=timezone(timedelta(hours=1)))
    assert to_micros(east) == 1420202100_000000 - 3600_000000


@pytest.mark.behaviour(2)
def test_local_time_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert time.timezone == -9 * 3600
        naive = datetime(2015, 1, 2, 12, 35)  # noqa: DTZ001  # naive on purpose
        assert parse_timestamp("20150102T123500") == to_micros(naive) == 1420202100_000000
    finally:
        monkeypatch.undo()
        time.tzset()


def test_to_datetime_is_aware_and_exact() -> None:
    moment = to_datetime(1623783153_126619)
    assert moment == datetime(2021, 6, 15, 18, 52, 33, 126619, tzinfo=UTC)
    assert moment.utcoffset() == timedelta(0)
    assert to_micros(moment) == 1623783153_126619
