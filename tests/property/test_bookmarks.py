from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tickertape.base.bookmarks import (
    AtBookmarks,
    AtTime,
    Bookmark,
    Epoch,
    FromNow,
    Range,
    StartPoint,
    format_timestamp,
    parse_bookmark,
    parse_timestamp,
    timestamp_micros_max,
    timestamp_micros_min,
    to_datetime,
    to_micros,
)
from tickertape.base.errors import BadBookmark, BadOption
from tickertape.base.options import format_options, parse_options

numbers = st.integers(0, 2**64 - 1)
# 0|1| is NOW, so no bookmark can have that text
bookmarks = st.builds(Bookmark, numbers, numbers).filter(lambda bookmark: bookmark != (0, 1))
lists = st.lists(bookmarks, max_size=5, unique=True).flatmap(
    lambda members: st.builds(
        AtBookmarks, st.just(tuple(members)), st.just(True) if not members else st.booleans()
    )
)
micros = st.integers(timestamp_micros_min, timestamp_micros_max)
times = st.builds(AtTime, micros)
ends = st.one_of(lists, times)
begins: st.SearchStrategy[StartPoint] = st.one_of(ends, st.builds(Epoch), st.builds(FromNow))
ranges = st.builds(Range, begins, st.booleans(), ends, st.booleans())
blanks = st.text(" \t", max_size=3)
# pieces from which almost-right values are made
shaped = st.lists(
    st.one_of(
        st.sampled_from(
            [*"[]():,|0T.Z ", "0|1|", "1|2|", "20200604T000000", "?|", "recent", "99999999999999999999|"]
        ),
        st.text(max_size=3),
    ),
    max_size=12,
).map("".join)


@given(st.one_of(begins, ranges))
def test_bookmark_of_any_value_round_trips_through_text(value: StartPoint | Range) -> None:
    assert parse_bookmark(str(value)) == value


@pytest.mark.behaviour(6)
@given(ranges, blanks, blanks, blanks, blanks, blanks, blanks)
def test_range_with_blanks_around_parts_has_the_same_value(
    value: Range, a: str, b: str, c: str, d: str, e: str, f: str
) -> None:
    text = str(value)
    begin, end = text[1:-1].split(":")
    begin = begin.replace(",", f"{b},{c}")
    assert parse_bookmark(f"{a}{text[0]}{b}{begin}{c}:{d}{end}{e}{text[-1]}{f}") == value


@pytest.mark.behaviour(3)
@given(st.one_of(st.text(), shaped))
@example("[")
@example("[:")
@example("\ud800|")
def test_bookmark_of_any_text_raises_only_bad_bookmark(text: str) -> None:
    try:
        value = parse_bookmark(text)
    except BadBookmark:
        return
    # an accepted text has one meaning, which its canonical text keeps
    assert parse_bookmark(str(value)) == value


@given(micros)
def test_timestamp_round_trips_through_text_and_datetime(moment: int) -> None:
    assert parse_timestamp(format_timestamp(moment)) == moment
    assert to_micros(to_datetime(moment)) == moment


@pytest.mark.behaviour(2)
@given(st.datetimes(timezones=st.timezones()).filter(lambda moment: 1 < moment.year < 9999))
def test_timestamp_of_aware_datetime_is_converted_to_utc(moment: datetime) -> None:
    assert to_datetime(to_micros(moment)) == moment.astimezone(UTC)


@given(st.lists(micros, min_size=2, max_size=2))
def test_timestamp_texts_sort_like_timestamps(pair: list[int]) -> None:
    texts = [format_timestamp(moment) for moment in pair]
    assert (pair[0] < pair[1]) == (texts[0] < texts[1])


@given(st.text())
def test_timestamp_of_any_text_raises_only_bad_bookmark(text: str) -> None:
    try:
        moment = parse_timestamp(text)
    except BadBookmark:
        return
    assert timestamp_micros_min <= moment <= timestamp_micros_max


@pytest.mark.behaviour(3)
@given(st.one_of(st.text(), st.text("ab=,[]()'\" ", max_size=20)))
def test_options_of_any_text_raise_only_bad_option(text: str) -> None:
    try:
        options = parse_options(text)
    except BadOption:
        return
    # a lone `none` is the text of no options, and only then may a meaning get lost
    if options != {"none": None}:
        assert parse_options(format_options(options)) == options
