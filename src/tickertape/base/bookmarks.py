"""Parse and format bookmarks, timestamps, start points and ranges.

Readers find a bookmark in a log and decide what to do if the log does not hold it. The form of a value
decides its kind:

* `0` is EPOCH and `0|1|` is NOW;
* a value with a `|` is a bookmark. If it is not two unsigned 64-bit numbers, each followed by `|`, it is an
  *unknown* bookmark. It is treated like one that the log does not hold and is never an error;
* a comma-separated list holds bookmarks. As a start, EPOCH wins (it is the earliest) and NOW counts only if
  nothing else is known (it is the latest);
* anything else is a timestamp, `YYYYmmddTHHMMSS[.ffffff][Z]` and always UTC, or an error;
* with `[` or `(` at its front it is a range: `[begin:end)`, each side one of the above.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, NoReturn

import msgspec

from tickertape.base.errors import BadBookmark
from tickertape.base.limits import bookmarks_per_list_max
from tickertape.base.text_format import shown

TIMESTAMP_FORM: Final = (
    "YYYYmmddTHHMMSS, then optionally a fraction of 1 to 6 digits, then optionally Z (UTC always)"
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SHAPE: Final = re.compile(
    r"([0-9]{4})([0-9]{2})([0-9]{2})T([0-9]{2})([0-9]{2})([0-9]{2})(?:\.([0-9]{1,6}))?Z?"
)

timestamp_micros_min: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The first moment of the year 1, the earliest that has a text form."""
timestamp_micros_max: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The last microsecond of the year 9999, the latest that has a text form."""


def parse_timestamp(text: str) -> int:
    """Microseconds since 1970 UTC of `text`, which must be a whole timestamp without blanks around it.

    Raises `BadBookmark` for another shape, a date or time that does not exist, and any zone but `Z`.
    """
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise BadBookmark(f"{shown(text)} is not a timestamp: the form is {TIMESTAMP_FORM}")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    micro = int((match[7] or "0").ljust(6, "0"))
    try:
        moment = datetime(year, month, day, hour, minute, second, micro, tzinfo=UTC)
    except ValueError as error:
        raise BadBookmark(f"{shown(text)} is not a timestamp: {error}") from None
    return (moment - _EPOCH) // _MICROSECOND


def format_timestamp(micros: int) -> str:
    """`YYYYmmddTHHMMSS.ffffffZ` of `micros` since 1970 UTC; `parse_timestamp` reads the same number back.

    Raises `BadBookmark` outside the years 1 to 9999.
    """
    moment = to_datetime(micros)
    return (
        f"{moment.year:04}{moment.month:02}{moment.day:02}T"
        f"{moment.hour:02}{moment.minute:02}{moment.second:02}.{moment.microsecond:06}Z"
    )


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970 UTC. An aware `moment` is converted, a naive one is UTC (never local time)."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MICROSECOND


def to_datetime(micros: int) -> datetime:
    """Return the aware UTC `datetime` of `micros`. Raises `BadBookmark` outside the years 1 to 9999."""
    if not timestamp_micros_min <= micros <= timestamp_micros_max:
        raise BadBookmark(f"{micros} microseconds is outside the years 1 to 9999, which have a timestamp")
    return _EPOCH + timedelta(microseconds=micros)


# -- bookmarks ----------------------------------------------------------------------------------------


EPOCH: Final = "0"
"""Start with the first message of the log."""
NOW: Final = "0|1|"
"""Start with the next message that comes."""
MOST_RECENT: Final = "recent"
"""Start where the client's bookmark store says. Known to clients only; never on the wire."""

START_WORDS: Final = {"epoch": EPOCH, "now": NOW, "recent": MOST_RECENT, "most_recent": MOST_RECENT}
"""Words for start points, in any case, and their texts."""

UNKNOWN: Final = "?|?|"
"""How an unknown bookmark is written: of a bookmark's shape, and none."""

_BOOKMARK: Final = re.compile(r"([0-9]{1,20})\|([0-9]{1,20})\|")
_RANGE_MARKS: Final = re.compile(r"[\[\]():]")
_BLANKS: Final = " \t"
_NUMBER_MAX: Final = 2**64 - 1
BOOKMARK_FORM: Final = "a bookmark (publisher|sequence|)"
LIST_FORM: Final = "a comma-separated list of them"
TIME_FORM: Final = f"a timestamp ({TIMESTAMP_FORM})"
RANGE_FORM: Final = "a range such as [begin:end)"
_ALLOWED: Final = f"{BOOKMARK_FORM}, {LIST_FORM}, {EPOCH} (EPOCH), {NOW} (NOW), {TIME_FORM}, or {RANGE_FORM}"


class Bookmark(NamedTuple):
    """One message: who published it and its sequence there, both unsigned 64-bit."""

    publisher: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.publisher}|{self.sequence}|"


class Epoch(msgspec.Struct, frozen=True):
    """The first message of the log."""

    def __str__(self) -> str:
        return EPOCH


class FromNow(msgspec.Struct, frozen=True):
    """After the last message of the log."""

    def __str__(self) -> str:
        return NOW


class AtBookmarks(msgspec.Struct, frozen=True):
    """At bookmarks, in the order given: at a begin their earliest in the log counts, at an end their latest.

    `unknown` says that the text also had members that cannot be in any log; `bookmarks` is empty when all
    were such.
    """

    bookmarks: tuple[Bookmark, ...]
    unknown: bool = False

    def __str__(self) -> str:
        texts = [str(bookmark) for bookmark in self.bookmarks]
        if self.unknown:
            texts.append(UNKNOWN)
        return ",".join(texts)


class AtTime(msgspec.Struct, frozen=True):
    """At a moment, in microseconds since 1970 UTC. As a plain start point: strictly after it."""

    micros: int

    def __str__(self) -> str:
        return format_timestamp(self.micros)


StartPoint = Epoch | FromNow | AtBookmarks | AtTime
EndPoint = AtBookmarks | AtTime


class Range(msgspec.Struct, frozen=True):
    """A replay with a stop. `inclusive`: the named message, or one stamped just then, is part of it."""

    begin: StartPoint
    begin_inclusive: bool
    end: EndPoint
    end_inclusive: bool

    def __str__(self) -> str:
        opening = "[" if self.begin_inclusive else "("
        return f"{opening}{self.begin}:{self.end}{']' if self.end_inclusive else ')'}"


def parse_bookmark(text: str, allowed: str = _ALLOWED) -> StartPoint | Range:
    """Parse the bookmark of a subscription. `str()` of the result parses to an equal value.

    Raises `BadBookmark` with the offending part, its position in `text` (from 0) and what is `allowed`, for
    callers who take less or more; and for lists of more than `bookmarks_per_list_max` members. Bookmarks that
    merely cannot exist do not raise: see `AtBookmarks.unknown`.
    """
    if text.count(",") >= bookmarks_per_list_max:
        raise BadBookmark(
            f"a list of {text.count(',') + 1:,} bookmarks: at most {bookmarks_per_list_max:,} are looked up"
        )
    try:
        return _parse(text)
    except BadBookmark as error:
        raise BadBookmark(f"{error}; allowed are {allowed}") from None


def _parse(text: str) -> StartPoint | Range:
    at, part = _trimmed(text, 0, len(text))
    if part[:1] in ("[", "("):
        return _parse_range(part, at)
    marked = _RANGE_MARKS.search(part)
    if marked is not None:
        _refuse(
            part, at + marked.start(), f"{marked[0]!r} belongs to a range, and a range begins with [ or ("
        )
    return _parse_begin(part, at)


def bookmark_text(value: str | datetime | Bookmark | Sequence[str | Bookmark]) -> str:
    """Return the text of a start point: a word (`START_WORDS`) as its text, other text unchanged, a
    `datetime` as a time (naive = UTC), a list or tuple as a list of bookmarks.

    Raises `BadBookmark` for other types.
    """
    if isinstance(value, str):
        return START_WORDS.get(value.lower(), str(value))
    if isinstance(value, datetime):
        return format_timestamp(to_micros(value))
    if isinstance(value, Bookmark):
        return str(value)
    if isinstance(value, list | tuple):
        for member in value:
            if not isinstance(member, str | Bookmark):
                raise BadBookmark(f"a list has bookmarks as text, not {type(member).__name__}")
        return ",".join(map(str, value))
    raise BadBookmark(f"a {type(value).__name__} is no start point; allowed are {_ALLOWED}")


def _parse_range(text: str, at: int) -> Range:
    if len(text) < 2 or text[-1] not in "])":
        _refuse(text, at + len(text), "a range ends with ] (inclusive) or ) (exclusive)")
    for mark in _RANGE_MARKS.finditer(text, 1, len(text) - 1):
        if mark[0] != ":":
            _refuse(
                text, at + mark.start(), f"{mark[0]!r} inside a range: brackets stand at its two ends only"
            )
    colon = text.find(":")
    if colon < 0:
        _refuse(text, at + len(text) - 1, "a range has a colon between begin and end")
    second = text.find(":", colon + 1)
    if second >= 0:
        _refuse(text, at + second, "a range has one colon; timestamps have none")
    begin_at, begin = _trimmed(text, 1, colon)
    end_at, end = _trimmed(text, colon + 1, len(text) - 1)
    return Range(
        begin=_parse_begin(begin, at + begin_at),
        begin_inclusive=text[0] == "[",
        end=_parse_end(end, at + end_at),
        end_inclusive=text[-1] == "]",
    )


def _parse_begin(text: str, at: int) -> StartPoint:
    if "," not in text:
        return _parse_one(text, at)
    known, unknown, epoch, now = _parse_list(text, at)
    if epoch:
        return Epoch()
    if now and not known:
        return FromNow()
    return AtBookmarks(known, unknown)


def _parse_end(text: str, at: int) -> EndPoint:
    if "," not in text:
        point = _parse_one(text, at)
        if isinstance(point, AtBookmarks | AtTime):
            return point
        _refuse(
            text,
            at,
            "EPOCH and NOW can only begin a range; it ends at bookmarks or a timestamp",
        )
    known, unknown, epoch, now = _parse_list(text, at)
    if epoch or now:
        _refuse(
            text, at, "EPOCH and NOW can only begin a range, so they are no members of the list at its end"
        )
    return AtBookmarks(known, unknown)


def _parse_one(text: str, at: int) -> StartPoint:
    if text == EPOCH:
        return Epoch()
    if text == NOW:
        return FromNow()
    if "|" in text:
        found = _bookmark(text)
        return AtBookmarks((), unknown=True) if found is None else AtBookmarks((found,))
    if not text:
        _refuse(text, at, "nothing where a bookmark or timestamp should be")
    if text.lower() in (MOST_RECENT, "most_recent"):
        _refuse(
            text, at, "MOST_RECENT is looked up by a client with a bookmark store; it is no value of its own"
        )
    try:
        return AtTime(parse_timestamp(text))
    except BadBookmark as error:
        raise BadBookmark(f"{error} (at position {at})") from None


def _parse_list(text: str, at: int) -> tuple[tuple[Bookmark, ...], bool, bool, bool]:
    """Return the known bookmarks in the order given, each once; and whether there were unknown ones, EPOCH,
    NOW."""
    known: dict[Bookmark, None] = {}
    unknown = epoch = now = False
    start = 0
    for raw in text.split(","):
        member_at, member = _trimmed(text, start, start + len(raw))
        start += len(raw) + 1
        if member == EPOCH:
            epoch = True
        elif member == NOW:
            now = True
        elif "|" not in member:
            what = (
                "a list has a bookmark between commas"
                if not member
                else "only bookmarks can be members of a list"
            )
            _refuse(member, at + member_at, what)
        else:
            found = _bookmark(member)
            if found is None:
                unknown = True
            else:
                known[found] = None
    return tuple(known), unknown, epoch, now


def _bookmark(text: str) -> Bookmark | None:
    match = _BOOKMARK.fullmatch(text)
    if match is None:
        return None
    found = Bookmark(int(match[1]), int(match[2]))
    # Written with more zeros it would still look like NOW, and be it once it is written again.
    return found if max(found) <= _NUMBER_MAX and str(found) != NOW else None


def _trimmed(text: str, start: int, stop: int) -> tuple[int, str]:
    """`text[start:stop]` without blanks around it, and where it begins in `text`."""
    part = text[start:stop]
    left = part.lstrip(_BLANKS)
    return start + len(part) - len(left), left.rstrip(_BLANKS)


def _refuse(part: str, at: int, why: str) -> NoReturn:
    raise BadBookmark(f"{why} (at position {at}, in {shown(part)})")
