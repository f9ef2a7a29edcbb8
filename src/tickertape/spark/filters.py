"""Owns what of Spark's filters the log answers by itself: moments, single bookmarks and the topic.

Must never take a filter that it does not answer exactly: every other one goes back to Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from tickertape.base.bookmarks import AtBookmarks, AtTime, Epoch, Range, parse_bookmark
from tickertape.base.errors import BadBookmark
from tickertape.base.timestamps import timestamp_micros_max, to_micros

_Comparison = EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
_COLUMNS: Final = frozenset({"topic", "bookmark", "publisher", "sequence", "timestamp", "data"})


@dataclass(frozen=True)
class Narrowing:
    """What rows must be beside lying in the range that was asked for."""

    since: int | None = None
    """Stamped at this moment or later, microseconds since 1970 UTC."""
    before: int | None = None
    """Stamped before this moment."""
    bookmarks: tuple[str, ...] = ()
    """Having each of these bookmarks."""
    nothing: bool = False
    """No row of this topic is wanted."""

    def ranges(self) -> list[str]:
        """Ranges of the log, as the server reads them: rows of the topic that lie in all of them, and no
        others, are wanted."""
        ranges = [f"[{bookmark}:{bookmark}]" for bookmark in self.bookmarks]
        if self.since is not None or self.before is not None:
            begin = Epoch() if self.since is None else AtTime(self.since)
            end = AtTime(timestamp_micros_max if self.before is None else self.before)
            ranges.append(str(Range(begin, True, end, self.before is None)))
        return ranges


def narrow(filters: Iterable[Filter], topic: str) -> tuple[Narrowing, list[Filter]]:
    """What `filters`, all of which must hold, say of the rows of `topic`, and those left to Spark."""
    narrowing = Narrowing()
    left = []
    for wanted in filters:
        taken = _taken(narrowing, wanted, topic)
        if taken is None:
            left.append(wanted)
        else:
            narrowing = taken
    return narrowing, left


def _taken(narrowing: Narrowing, wanted: Filter, topic: str) -> Narrowing | None:
    """`narrowing` with one more filter; None when Spark must look at it."""
    if isinstance(wanted, IsNotNull) and len(wanted.attribute) == 1 and wanted.attribute[0] in _COLUMNS:
        return narrowing  # nothing of ours is ever null
    if isinstance(wanted, EqualTo | In) and wanted.attribute == ("topic",):
        names = wanted.value if isinstance(wanted, In) else (wanted.value,)
        return narrowing if topic in names else replace(narrowing, nothing=True)
    if isinstance(wanted, EqualTo) and wanted.attribute == ("bookmark",) and _is_bookmark(wanted.value):
        return replace(narrowing, bookmarks=(*narrowing.bookmarks, wanted.value))
    if (
        isinstance(wanted, _Comparison)
        and wanted.attribute == ("timestamp",)
        and isinstance(wanted.value, datetime)
        and wanted.value.tzinfo is not None
    ):
        return _at_times(narrowing, wanted, to_micros(wanted.value))
    return None


def _at_times(narrowing: Narrowing, wanted: _Comparison, micros: int) -> Narrowing:
    since, before = narrowing.since, narrowing.before
    if isinstance(wanted, EqualTo | GreaterThan | GreaterThanOrEqual):
        first = micros + 1 if isinstance(wanted, GreaterThan) else micros
        since = first if since is None else max(since, first)
    if isinstance(wanted, EqualTo | LessThan | LessThanOrEqual):
        after = micros if isinstance(wanted, LessThan) else micros + 1
        before = after if before is None else min(before, after)
    latest = timestamp_micros_max
    # Beyond what has a text nothing is stamped, and behind all of it is no end at all.
    nothing = narrowing.nothing or (since is not None and since > latest)
    before = None if before is not None and before > latest else before
    return replace(narrowing, since=None if nothing else since, before=before, nothing=nothing)


def _is_bookmark(text: object) -> bool:
    """Whether `text` is just as a message's bookmark is written."""
    if not isinstance(text, str):
        return False
    try:
        point = parse_bookmark(text)
    except BadBookmark:
        return False
    return isinstance(point, AtBookmarks) and len(point.bookmarks) == 1 and str(point) == text
