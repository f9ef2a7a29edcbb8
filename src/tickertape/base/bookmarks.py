"""Parse and format bookmarks, timestamps, start points and ranges.

This module does not look up bookmarks in a log. The form of a value determines its kind:

* `0` is EPOCH and `0|1|` is NOW.
* A value with `|` is a bookmark: two unsigned 64-bit numbers, each followed by `|`. Any other value with `|`
  is an *unknown* bookmark. It is never an error and counts as a bookmark that the log does not hold.
* A comma-separated list holds bookmarks. As a start, EPOCH takes precedence, and NOW applies only if the
  list has no known bookmark.
* A value that starts with `[` or `(` is a range: `[start:end)`, each side in one of the other forms.
* Anything else must be a timestamp, `YYYYmmddTHHMMSS[.ffffff][Z]`, always in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, NoReturn, TypeVar

import msgspec

from tickertape.base.errors import BadBookmark
from tickertape.base.limits import bookmarks_per_list_max
from tickertape.base.text_format import did_you_mean, shown, wrong_type

TIMESTAMP_FORM: Final = "YYYYmmddTHHMMSS in UTC, with an optional fraction (1 to 6 digits) and an optional Z"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SHAPE: Final = re.compile(
    r"([0-9]{4})([0-9]{2})([0-9]{2})T([0-9]{2})([0-9]{2})([0-9]{2})(?:\.([0-9]{1,6}))?Z?"
)

timestamp_micros_min: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""First microsecond of the year 1, the earliest timestamp with a text form."""
timestamp_micros_max: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""Last microsecond of the year 9999, the latest timestamp with a text form."""


def parse_timestamp(text: str) -> int:
    """Return the microseconds since 1970 UTC of a timestamp without surrounding blanks.

    Raises `BadBookmark` for another form, a date or time that does not exist, and any zone except `Z`.
    """
    try:
        return _timestamp_micros(text)
    except ValueError as error:
        raise BadBookmark(f"Invalid timestamp {shown(text)}: {error}. Use {TIMESTAMP_FORM}.") from None


def _timestamp_micros(text: str) -> int:
    """Return the microseconds of a timestamp. Raises `ValueError` with the reason."""
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise ValueError("not a timestamp")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    micro = int((match[7] or "0").ljust(6, "0"))
    moment = datetime(year, month, day, hour, minute, second, micro, tzinfo=UTC)
    return (moment - _EPOCH) // _MICROSECOND


def format_timestamp(micros: int) -> str:
    """Return `micros` since 1970 UTC as `YYYYmmddTHHMMSS.ffffffZ`, the inverse of `parse_timestamp`.

    Raises `BadBookmark` outside the years 1 to 9999.
    """
    moment = to_datetime(micros)
    return (
        f"{moment.year:04}{moment.month:02}{moment.day:02}T"
        f"{moment.hour:02}{moment.minute:02}{moment.second:02}.{moment.microsecond:06}Z"
    )


def to_micros(moment: datetime) -> int:
    """Return the microseconds since 1970 UTC of `moment`. A naive `moment` is UTC, never local time."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MICROSECOND


def to_datetime(micros: int) -> datetime:
    """Return the aware UTC `datetime` of `micros`. Raises `BadBookmark` outside the years 1 to 9999."""
    if not timestamp_micros_min <= micros <= timestamp_micros_max:
        raise BadBookmark(f"Invalid timestamp '{micros}'. Use microseconds in the years 1 to 9999.")
    return _EPOCH + timedelta(microseconds=micros)


# -- bookmarks ----------------------------------------------------------------------------------------


EPOCH: Final = "0"
"""Start at the first message of the log."""
NOW: Final = "0|1|"
"""Start at the next new message."""
MOST_RECENT: Final = "recent"
"""Start at the recovery point of the client's bookmark store. For clients only, never on the wire."""

START_WORDS: Final = {"epoch": EPOCH, "now": NOW, "recent": MOST_RECENT, "most_recent": MOST_RECENT}
"""Words for start points, in any case, and their texts."""

UNKNOWN: Final = "?|?|"
"""Text of an unknown bookmark. It looks like a bookmark but is not one."""

_BOOKMARK: Final = re.compile(r"([0-9]{1,20})\|([0-9]{1,20})\|")
_RANGE_MARKS: Final = re.compile(r"[\[\]():]")
_BLANKS: Final = " \t"
_NUMBER_MAX: Final = 2**64 - 1
BOOKMARK_FORM: Final = "a bookmark (publisher|sequence|)"
LIST_FORM: Final = "a comma-separated list of bookmarks"
TIME_FORM: Final = "a UTC timestamp (20261120T090000)"
RANGE_FORM: Final = "a range such as [A:B)"
START_FORMS: Final = f"epoch, now, {BOOKMARK_FORM}, {LIST_FORM}, {TIME_FORM} or {RANGE_FORM}"
_END_FORMS: Final = f"{BOOKMARK_FORM}, {LIST_FORM} or {TIME_FORM}"
_IN_RANGE_FORMS: Final = f"0 (epoch), 0|1| (now), {_END_FORMS}"


class Bookmark(NamedTuple):
    """Id of one message: publisher id and sequence number, each an unsigned 64-bit number.

    `str(bookmark)` is its text `publisher|sequence|`.
    """

    publisher: int
    """Publisher id."""
    sequence: int
    """Sequence number of the message among those of its publisher."""

    def __str__(self) -> str:
        return f"{self.publisher}|{self.sequence}|"


_PLACE_FIRST: Final = 2**64 - 2**48 + 1
"""Sequence of the place at position 0. Messages have lower sequences."""


def place_at(publisher: int, position: int) -> Bookmark:
    """Return the bookmark of a place: `publisher` belongs to one start of a server (`place_id`).

    A place in a list means that all messages of that log before `position` were delivered."""
    return Bookmark(publisher, _PLACE_FIRST + position)


def is_place(bookmark: Bookmark) -> bool:
    """Return whether a bookmark is a place, not a message."""
    return bookmark.sequence >= _PLACE_FIRST


def position_of_place(bookmark: Bookmark) -> int:
    """Return the position of a place."""
    return bookmark.sequence - _PLACE_FIRST


def sequences_and_holes(bookmarks: Iterable[Bookmark]) -> dict[int, tuple[int, list[tuple[int, int]]]]:
    """Return the last sequence and the holes of each publisher in a list with places.

    The highest bookmark of a publisher belongs to its last message. The others are pairs: the sequence before
    a hole, and the last one of the hole. A hole is returned as its first and last sequence."""
    found: dict[int, list[int]] = {}
    for publisher, sequence in bookmarks:
        found.setdefault(publisher, []).append(sequence)
    result = {}
    for publisher, sequences in found.items():
        *ends, last = sorted(sequences)
        pairs = zip(ends[::2], ends[1::2], strict=False)
        result[publisher] = last, [(low + 1, high) for low, high in pairs]
    return result


class Epoch(msgspec.Struct, frozen=True):
    """Start at the first message of the log."""

    def __str__(self) -> str:
        return EPOCH


class FromNow(msgspec.Struct, frozen=True):
    """Start after the last message of the log."""

    def __str__(self) -> str:
        return NOW


class AtBookmarks(msgspec.Struct, frozen=True):
    """Bookmarks in the given order. At a start the earliest in the log counts, at an end the latest.

    `unknown` is True if the text also had members that no log can hold. `bookmarks` is empty if all members
    were unknown.
    """

    bookmarks: tuple[Bookmark, ...]
    unknown: bool = False

    def __str__(self) -> str:
        texts = [str(bookmark) for bookmark in self.bookmarks]
        if self.unknown:
            texts.append(UNKNOWN)
        return ",".join(texts)


class AtTime(msgspec.Struct, frozen=True):
    """A time in microseconds since 1970 UTC. A plain start point starts strictly after it."""

    micros: int

    def __str__(self) -> str:
        return format_timestamp(self.micros)


StartPoint = Epoch | FromNow | AtBookmarks | AtTime
EndPoint = AtBookmarks | AtTime
_Point = TypeVar("_Point")


class Range(msgspec.Struct, frozen=True):
    """Replay with a start and an end. An inclusive side includes the message, or messages of that time."""

    begin: StartPoint
    begin_inclusive: bool
    end: EndPoint
    end_inclusive: bool

    def __str__(self) -> str:
        opening = "[" if self.begin_inclusive else "("
        return f"{opening}{self.begin}:{self.end}{']' if self.end_inclusive else ')'}"


class _InvalidPoint(Exception):
    """An invalid point, as part of a text."""

    def __init__(self, part: str, why: str) -> None:
        super().__init__()
        self.part = part
        self.why = why
        self.kind = ""
        """The side of a range, or "" for a text that is not a range."""
        self.forms = ""


def parse_bookmark(text: str, allowed: str = START_FORMS, kind: str = "start point") -> StartPoint | Range:
    """Parse the bookmark of a subscription. `str()` of the result parses to an equal value.

    Raises `BadBookmark` with the invalid part, its position in `text` (from 0) and the `allowed` forms.
    `kind` is the name of the point in the error. Lists of more than `bookmarks_per_list_max` members are
    errors, unknown bookmarks are not (see `AtBookmarks.unknown`).
    """
    if text.count(",") >= bookmarks_per_list_max:
        raise BadBookmark(
            f"Invalid list of {text.count(',') + 1:,} bookmarks. Use at most {bookmarks_per_list_max:,}."
        )
    try:
        return _parse(text)
    except _InvalidPoint as error:
        word = did_you_mean(text, START_WORDS) if allowed is START_FORMS and not error.kind else ""
        raise BadBookmark(
            f"Invalid {error.kind or kind} {shown(error.part)}: {error.why}.{word} "
            f"Use {error.forms or allowed}."
        ) from None


def _parse(text: str) -> StartPoint | Range:
    found = _bookmark(text)  # the most frequent form
    if found is not None:
        return AtBookmarks((found,))
    at, part = _trimmed(text, 0, len(text))
    if part[:1] in ("[", "("):
        return _parse_range(part, at)
    marked = _RANGE_MARKS.search(part)
    if marked is not None:
        _refuse(part, at + marked.start(), f"{marked[0]!r} is valid only in a range that starts with [ or (")
    return _parse_begin(part, at)


def bookmark_text(value: str | datetime | Bookmark | Sequence[str | Bookmark]) -> str:
    """Return the text of a start point: a word of `START_WORDS` as its text, other text unchanged.

    A naive `datetime` is UTC, a list or tuple holds bookmarks.

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
                raise BadBookmark(wrong_type("bookmark", member, "str or Bookmark"))
        return ",".join(map(str, value))
    raise BadBookmark(wrong_type("start point", value, "str, datetime, Bookmark or list"))


def _parse_range(text: str, at: int) -> Range:
    if len(text) < 2 or text[-1] not in "])":
        _refuse(text, at + len(text), "a range ends with ] (inclusive) or ) (exclusive)")
    for mark in _RANGE_MARKS.finditer(text, 1, len(text) - 1):
        if mark[0] != ":":
            _refuse(text, at + mark.start(), f"{mark[0]!r} is valid only at the two ends of a range")
    colon = text.find(":")
    if colon < 0:
        _refuse(text, at + len(text) - 1, "a range has a colon between its start and its end")
    second = text.find(":", colon + 1)
    if second >= 0:
        _refuse(text, at + second, "a range has only one colon, and timestamps have none")
    begin_at, begin = _trimmed(text, 1, colon)
    end_at, end = _trimmed(text, colon + 1, len(text) - 1)
    return Range(
        begin=_side(_parse_begin, begin, at + begin_at, "start point", _IN_RANGE_FORMS),
        begin_inclusive=text[0] == "[",
        end=_side(_parse_end, end, at + end_at, "end point", _END_FORMS),
        end_inclusive=text[-1] == "]",
    )


def _side(parse: Callable[[str, int], _Point], text: str, at: int, kind: str, forms: str) -> _Point:
    """Parse one side of a range. Its error names the side and its forms."""
    try:
        return parse(text, at)
    except _InvalidPoint as error:
        error.kind, error.forms = kind, forms
        raise


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
        _refuse(text, at, "EPOCH and NOW are valid only as the start of a range")
    known, unknown, epoch, now = _parse_list(text, at)
    if epoch or now:
        _refuse(text, at, "EPOCH and NOW are valid only as the start of a range")
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
        _refuse(text, at, "a bookmark or timestamp is missing")
    if text.lower() in (MOST_RECENT, "most_recent"):
        _refuse(text, at, "only a client with a bookmark store resolves MOST_RECENT")
    try:
        return AtTime(_timestamp_micros(text))
    except ValueError as error:
        _refuse(text, at, str(error))


def _parse_list(text: str, at: int) -> tuple[tuple[Bookmark, ...], bool, bool, bool]:
    """Return the distinct known bookmarks in order, and whether the list has unknown ones, EPOCH and NOW."""
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
            why = "a list member is missing" if not member else "a list can only hold bookmarks"
            _refuse(member, at + member_at, why)
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
    publisher, sequence = int(match[1]), int(match[2])
    if publisher > _NUMBER_MAX or sequence > _NUMBER_MAX:
        return None
    # NOW with leading zeros matches too, but would format as NOW.
    return Bookmark(publisher, sequence) if publisher or sequence != 1 else None


def _trimmed(text: str, start: int, stop: int) -> tuple[int, str]:
    """Return `text[start:stop]` without surrounding blanks, and its position in `text`."""
    part = text[start:stop]
    left = part.lstrip(_BLANKS)
    return start + len(part) - len(left), left.rstrip(_BLANKS)


def _refuse(part: str, at: int, why: str) -> NoReturn:
    place = f" (at position {at})" if at else ""
    raise _InvalidPoint(part, f"{why}{place}") from None
