"""Range options of the Spark source, combined into one text that the server resolves.

A bookmark or a plain timestamp is exclusive as a start and inclusive as an end, so the end of one job is the
start of the next. startingTimestamp and endingTimestamp are [start, end), as in Spark's Kafka source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tickertape.base.bookmarks import (
    EPOCH,
    NOW,
    TIMESTAMP_FORM,
    AtBookmarks,
    AtTime,
    EndPoint,
    Epoch,
    FromNow,
    Range,
    StartPoint,
    parse_bookmark,
    parse_timestamp,
    timestamp_micros_min,
    to_datetime,
    to_micros,
)
from tickertape.base.errors import BadBookmark, BadOption

STARTS: Final = ("startingBookmark", "startingTimestamp")
ENDS: Final = ("endingBookmark", "endingTimestamp")

_MILLISECONDS: Final = re.compile(r"[0-9]{12,15}")
"""From 1973 on: fewer digits are more likely a date such as 20130101 than a time in the early seventies."""


class RangeText(NamedTuple):
    """A range, as texts that the server resolves."""

    whole: str
    rest: str
    """The same range, starting with the first message in the log."""


def range_text(options: Mapping[str, str]) -> RangeText:
    """Return the range of the options in `STARTS` and `ENDS`. Raises `BadBookmark`, `BadOption`."""
    whole = _whole(options)
    if isinstance(whole, Range):
        rest = Range(begin=Epoch(), begin_inclusive=False, end=whole.end, end_inclusive=whole.end_inclusive)
        return RangeText(str(whole), str(rest))
    return RangeText(str(whole), EPOCH)


def start_text(options: Mapping[str, str]) -> RangeText:
    """Return the range of a streaming query, which has no end. See `range_text`."""
    asked = range_text(options)
    if any(name in options for name in ENDS):
        raise BadOption(f"A streaming query has no end. Omit {' and '.join(_present(options, ENDS))}.")
    if isinstance(parse_bookmark(asked.whole), Range):
        raise BadOption(
            "A streaming query has no end. Set startingBookmark to a start point, not to a range."
        )
    return asked


def _whole(options: Mapping[str, str]) -> StartPoint | Range:
    _exclude(options, *STARTS)
    _exclude(options, *ENDS)
    begin, inclusive = _begin(options)
    if isinstance(begin, Range):
        for name in _present(options, ENDS):
            raise BadOption(f"Option startingBookmark is a range with an end. Omit {name}.")
        return begin
    end, end_inclusive = _end(options)
    if end is not None:
        return Range(begin=begin, begin_inclusive=inclusive, end=end, end_inclusive=end_inclusive)
    if isinstance(begin, AtTime) and inclusive:
        # A plain timestamp starts strictly after itself.
        return AtTime(max(begin.micros - 1, timestamp_micros_min))
    return begin


def _begin(options: Mapping[str, str]) -> tuple[StartPoint | Range, bool]:
    if "startingTimestamp" in options:
        return AtTime(_moment(options, "startingTimestamp")), True
    point = _point("startingBookmark", options.get("startingBookmark", "epoch"))
    if isinstance(point, AtBookmarks) and not point.bookmarks:
        raise BadBookmark(
            f"Invalid option startingBookmark {options['startingBookmark']!r}. Use the bookmark of a message."
        )
    return point, False


def _end(options: Mapping[str, str]) -> tuple[EndPoint | None, bool]:
    if "endingTimestamp" in options:
        return AtTime(_moment(options, "endingTimestamp")), False
    text = options.get("endingBookmark", "now")
    point = _point("endingBookmark", text)
    if isinstance(point, FromNow):
        return None, True
    if isinstance(point, AtTime) or (isinstance(point, AtBookmarks) and point.bookmarks):
        return point, True
    raise BadBookmark(f"Invalid option endingBookmark {text!r}. Use a bookmark, a timestamp or now.")


def _point(name: str, text: str) -> StartPoint | Range:
    named = {"epoch": EPOCH, "now": NOW}
    try:
        return parse_bookmark(named.get(text.lower(), text))
    except BadBookmark as error:
        raise BadBookmark(f"Invalid option {name}: {error}") from None


def _moment(options: Mapping[str, str], name: str) -> int:
    """Return the microseconds since 1970 UTC of a timestamp option."""
    text = options[name]
    try:
        if _MILLISECONDS.fullmatch(text):
            return to_micros(to_datetime(int(text) * 1000))
        return parse_timestamp(text)
    except BadBookmark:
        raise BadBookmark(
            f"Invalid option {name} {text!r}. Use {TIMESTAMP_FORM}, "
            f"or milliseconds since 1970 UTC (12 digits or more)."
        ) from None


def _exclude(options: Mapping[str, str], *names: str) -> None:
    both = _present(options, names)
    if len(both) > 1:
        raise BadOption(f"Options {' and '.join(both)} exclude each other. Remove one of them.")


def _present(options: Mapping[str, str], names: Iterable[str]) -> list[str]:
    return [name for name in names if name in options]
