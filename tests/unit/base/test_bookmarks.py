from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tickertape.base.bookmarks import (
    EPOCH,
    MOST_RECENT,
    NOW,
    UNKNOWN,
    AtBookmarks,
    AtTime,
    Bookmark,
    Epoch,
    FromNow,
    Range,
    StartPoint,
    bookmark_text,
    parse_bookmark,
    parse_timestamp,
)
from tickertape.base.errors import BadBookmark

TOP = 2**64 - 1
A, B, C = Bookmark(1, 2), Bookmark(3, 4), Bookmark(12290412031115262887, 1484244707000000008)
JUNE_4 = parse_timestamp("20200604T000000")
JUNE_5 = parse_timestamp("20200605T000000")


def at(*bookmarks: Bookmark, unknown: bool = False) -> AtBookmarks:
    return AtBookmarks(bookmarks, unknown)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", Epoch()),
        (" 0 ", Epoch()),
        ("0|1|", FromNow()),
        ("\t0|1| ", FromNow()),
        ("1|2|", at(A)),
        ("12290412031115262887|1484244707000000008|", at(C)),
        (f"{TOP}|{TOP}|", at(Bookmark(TOP, TOP))),
        ("0|0|", at(Bookmark(0, 0))),
        ("0|2|", at(Bookmark(0, 2))),
        ("001|02|", at(A)),
        ("20150102T123500Z", AtTime(1420202100_000000)),
        ("20150102T123500", AtTime(1420202100_000000)),
        ("20210615T185233.126619Z", AtTime(1623783153_126619)),
        (" 20210615T185233.1 ", AtTime(1623783153_100000)),
    ],
)
def test_single_bookmark_parses_to_a_start_point(text: str, expected: StartPoint) -> None:
    assert parse_bookmark(text) == expected


@pytest.mark.behaviour(3)
@pytest.mark.parametrize(
    "text",
    [
        "abc|1|",
        "1|",
        "|",
        "||",
        "1|2",
        "1|2|3|",
        "1|2||",
        "|1|2|",
        "-1|2|",
        "+1|2|",
        "1|2.0|",
        "1 |2|",
        "1| 2|",
        f"{TOP + 1}|1|",
        f"1|{TOP + 1}|",
        "99999999999999999999999|1|",
        "00|1|",
        "0|01|",
        "9" * 10_000 + "|1|",
        "\u0661|\u0662|",
        "20150102T123500Z|1|",
        UNKNOWN,
    ],
)
def test_bookmark_shaped_but_invalid_is_an_unknown_bookmark(text: str) -> None:
    assert parse_bookmark(text) == AtBookmarks((), unknown=True)
    assert parse_bookmark(f"1|2|,{text}") == AtBookmarks((A,), unknown=True)
    ranged = parse_bookmark(f"[{text}:{text}]")
    assert isinstance(ranged, Range)
    assert ranged.begin == ranged.end == AtBookmarks((), unknown=True)


@pytest.mark.behaviour(3)
@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("   ", 3),
        ("00", 0),
        ("1", 0),
        ("abc", 0),
        ("20150102", 0),
        ("20150102T1235", 0),
        ("2015-01-02T123500Z", 0),
        ("20150102T123500+01", 0),
        ("20150102T12:35:00Z", 11),
        ("20150102T123500+01:00", 18),
        ("20150102T123500z", 0),
        ("20150102T123500 Z", 0),
        ("20150102T123500CET", 0),
        ("20150102T123500.Z", 0),
        ("20150102T123500.1234567", 0),
        ("20150102T240000", 0),
        ("20150102T126000", 0),
        ("20150102T123460", 0),
        ("20150229T000000", 0),
        ("20151301T000000", 0),
        ("00000101T000000", 0),
        ("  nonsense", 2),
        ("1|2|,", 5),
        (",1|2|", 0),
        ("1|2|,,3|4|", 5),
        (",", 0),
        ("1|2|, 20150102T123500Z", 6),
        ("1|2|,5", 5),
        ("1|2|]", 4),
        ("1|2|:3|4|", 4),
        ("20150102T123500:20150103T123500", 15),
        ("1|2|)", 4),
        (":", 0),
        ("[", 1),
        ("(", 1),
        ("[]", 1),
        ("[1|2|]", 5),
        ("[1|2|:3|4|", 10),
        ("[1|2|:3|4|:5|6|]", 10),
        ("[[1|2|:3|4|]", 1),
        ("[1|2|:3|4|]]", 10),
        ("[1|2|:(3|4|]", 6),
        ("[:3|4|]", 1),
        ("[ : 3|4|]", 2),
        ("[1|2|:]", 6),
        ("[1|2|:nonsense]", 6),
        ("[2020:20200605T000000)", 1),
        ("[20200604T000000:20200605T000000) x", 35),
        ("[1|2|:0]", 6),
        ("[0:0|1|]", 3),
        ("[0:0|1|,1|2|]", 3),
        ("[0:1|2|,0]", 3),
        ("[1|2|,:3|4|]", 6),
    ],
)
def test_malformed_timestamps_and_ranges_are_refused(text: str, position: int) -> None:
    with pytest.raises(BadBookmark) as caught:
        parse_bookmark(text)
    assert (f" (at position {position})" in str(caught.value)) is (position > 0)
    assert "a bookmark (publisher|sequence|), a comma-separated list" in str(caught.value)
    assert caught.value.code == "bad_bookmark"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[0:now)", "Invalid end point 'now': not a timestamp (at position 3). Use a bookmark ("),
        (
            "[epoch:1|2|)",
            "Invalid start point 'epoch': not a timestamp (at position 1). Use 0 (epoch), 0|1| ",
        ),
        ("[0:0|1|]", "Invalid end point '0|1|': EPOCH and NOW are valid only as the start of a range"),
        ("soon", "Invalid start point 'soon': not a timestamp. Use epoch, now, a bookmark ("),
    ],
)
def test_error_of_a_range_names_the_side_and_the_forms(text: str, message: str) -> None:
    with pytest.raises(BadBookmark) as caught:
        parse_bookmark(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("text", [MOST_RECENT, "RECENT", "MOST_RECENT"])
def test_most_recent_is_refused_on_the_wire(text: str) -> None:
    with pytest.raises(BadBookmark, match="only a client with a bookmark store resolves"):
        parse_bookmark(text)


@pytest.mark.behaviour(6)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1|2|,3|4|", at(A, B)),
        ("3|4|,1|2|", at(B, A)),
        (" 1|2| ,  3|4| ", at(A, B)),
        ("1|2|,1|2|,3|4|,1|2|", at(A, B)),
        ("1|2|,abc|1|,3|4|", at(A, B, unknown=True)),
        ("abc|1|,1|", at(unknown=True)),
        ("0,1|2|", Epoch()),
        ("1|2|, 0", Epoch()),
        ("0,0|1|", Epoch()),
        ("0|1|,1|2|", at(A)),
        ("0|1|,0|1|", FromNow()),
        ("0|1|,abc|1|", FromNow()),
    ],
)
def test_lists_keep_every_known_member(text: str, expected: StartPoint) -> None:
    assert parse_bookmark(text) == expected


@pytest.mark.behaviour(6)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[20200604T000000:20200605T000000)", Range(AtTime(JUNE_4), True, AtTime(JUNE_5), False)),
        ("(20200604T000000Z:20200605T000000Z]", Range(AtTime(JUNE_4), False, AtTime(JUNE_5), True)),
        (" [ 20200604T000000 : 20200605T000000 ) ", Range(AtTime(JUNE_4), True, AtTime(JUNE_5), False)),
        ("[0:20200605T000000)", Range(Epoch(), True, AtTime(JUNE_5), False)),
        ("(0|1|:20200605T000000)", Range(FromNow(), False, AtTime(JUNE_5), False)),
        ("[1|2|:3|4|]", Range(at(A), True, at(B), True)),
        ("(1|2|:3|4|)", Range(at(A), False, at(B), False)),
        ("[ 1|2| , 3|4| :3|4| , 1|2| )", Range(at(A, B), True, at(B, A), False)),
        ("[20200604T000000:1|2|,3|4|]", Range(AtTime(JUNE_4), True, at(A, B), True)),
        ("[1|2|:20200605T000000)", Range(at(A), True, AtTime(JUNE_5), False)),
        ("[1|2|,x|:3|4|,y|]", Range(at(A, unknown=True), True, at(B, unknown=True), True)),
        ("[0,1|2|:3|4|]", Range(Epoch(), True, at(B), True)),
        ("[20200605T000000:20200604T000000]", Range(AtTime(JUNE_5), True, AtTime(JUNE_4), True)),
    ],
)
def test_range_text_parses_to_a_range(text: str, expected: Range) -> None:
    assert parse_bookmark(text) == expected


@pytest.mark.behaviour(4)
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Epoch(), EPOCH),
        (FromNow(), NOW),
        (at(A), "1|2|"),
        (at(A, B), "1|2|,3|4|"),
        (at(A, unknown=True), "1|2|,?|?|"),
        (at(unknown=True), "?|?|"),
        (AtTime(JUNE_4), "20200604T000000.000000Z"),
        (Range(at(A, B), True, AtTime(JUNE_5), False), "[1|2|,3|4|:20200605T000000.000000Z)"),
        (Range(Epoch(), False, at(A), True), "(0:1|2|]"),
    ],
)
def test_text_form_reads_back(value: StartPoint | Range, text: str) -> None:
    assert str(value) == text
    assert parse_bookmark(text) == value


@pytest.mark.behaviour(4)
def test_bookmarks_are_publisher_and_sequence() -> None:
    assert str(C) == "12290412031115262887|1484244707000000008|"
    assert C.publisher == 12290412031115262887
    assert C.sequence == 1484244707000000008


@pytest.mark.behaviour(2)
def test_datetimes_are_timestamps_in_utc() -> None:
    naive = datetime(2020, 6, 4, 1, 2, 3, 4)  # noqa: DTZ001  # naive on purpose
    aware = datetime(2020, 6, 4, 1, 2, 3, 4, tzinfo=timezone(timedelta(hours=2)))
    assert bookmark_text(naive) == "20200604T010203.000004Z"
    assert bookmark_text(naive.replace(tzinfo=UTC)) == "20200604T010203.000004Z"
    assert bookmark_text(aware) == "20200603T230203.000004Z"
    assert bookmark_text("1|2|") == "1|2|"


def test_a_list_or_tuple_is_a_list_of_bookmarks() -> None:
    assert bookmark_text(["1|2|", "3|4|"]) == bookmark_text(("1|2|", Bookmark(3, 4))) == "1|2|,3|4|"
    assert bookmark_text(Bookmark(1, 2)) == "1|2|"
    for wrong in (5, None, b"0", {"0"}, ["1|2|", 3], [datetime(2020, 1, 1, tzinfo=UTC)], [["1|2|"]]):
        with pytest.raises(BadBookmark):
            bookmark_text(wrong)  # type: ignore[arg-type]


def test_start_points_compare_and_hash_by_value() -> None:
    assert {at(A): 1}[at(A)] == 1
    assert hash(Range(at(A), True, at(B), False)) == hash(Range(at(A), True, at(B), False))
    assert at(A) != at(A, unknown=True)


def test_bookmark_error_shows_long_text_truncated_and_escaped() -> None:
    with pytest.raises(BadBookmark) as caught:
        parse_bookmark("\x1b[2J" + "x" * 100_000)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 600
