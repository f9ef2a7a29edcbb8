"""Locate: where in a snapshot a message lies, or what surrounds the place where it is absent."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tickertape.base.bookmarks import Bookmark
from tickertape.base.timestamps import format_timestamp
from tickertape.journal.format.retired_state import is_expired
from tickertape.journal.format.segment import segment_path
from tickertape.journal.offline.snapshot import SnapshotReader
from tickertape.journal.reading.log_reader import find_bookmark, find_time
from tickertape.journal.reading.log_view import LogView


class Location(NamedTuple):
    """One message and where it lies."""

    file: str
    offset: int
    """Of the commit that holds it."""
    commit: int
    position: int
    topic: str
    bookmark: str
    timestamp: int
    """Microseconds since 1970 UTC."""
    data_bytes: int
    control: bool


class Absent(NamedTuple):
    """Return why the message is absent."""

    reason: str


def locate(reader: SnapshotReader, position: int) -> Location | Absent:
    """The message at `position`."""
    view = reader.view
    if position >= view.end_position:
        return Absent(f"position {position} is above the last: the log ends before {view.end_position}")
    if position < view.first_position:
        removed = f"; {view.retired}" if view.retired is not None else ""
        begin = f"the log begins at {view.first_position}"
        return Absent(f"position {position} is below the first: {begin}{removed}")
    segment, header = reader.header_of(position)
    part = next(p for p in reader.parts(position, position + 1) if position < p.end_position)
    batch, index = part.batch, position - part.first_position
    return Location(
        file=segment_path(segment.number),
        offset=header.offset,
        commit=header.number,
        position=position,
        topic=batch.topic(index),
        bookmark=str(Bookmark(int(batch.publishers[index]), int(batch.sequences[index]))),
        timestamp=int(batch.timestamps[index]),
        data_bytes=len(batch.body(index)),
        control=batch.kinds is not None and bool(batch.kinds[index]),
    )


def locate_bookmark(reader: SnapshotReader, bookmark: Bookmark) -> Location | Absent:
    """The message with this bookmark."""
    position = reader.find(find_bookmark(reader.view, bookmark.publisher, bookmark.sequence))
    if position is not None:
        return locate(reader, position)
    return Absent(f"{bookmark}: {_why_absent(reader, bookmark)}")


def locate_time(reader: SnapshotReader, micros: int) -> Location | Absent:
    """The first message stamped at this moment or later."""
    position = reader.find(find_time(reader.view, micros, inclusive=True))
    if position < reader.view.end_position:
        return locate(reader, position)
    last = max((s.timestamp for s in reader.view.segments if s.index.blocks), default=None)
    if last is None:
        return Absent("the log is empty")
    return Absent(
        f"{format_timestamp(micros)} is above the last: no message is stamped later than "
        f"{format_timestamp(last)}"
    )


def _why_absent(reader: SnapshotReader, bookmark: Bookmark) -> str:
    if is_expired(reader.view.retired, bookmark):
        return f"it lies in what is gone, if it ever was: {reader.view.retired}"
    silent = [s.number for s in reader.view.segments if not s.index.knows_publishers]
    if silent:
        return (
            f"not in the log; which sequences of publisher {bookmark.publisher} it has is not known: "
            f"segments with too many publishers for their indexes do not say ({len(silent)} of "
            f"{len(reader.view.segments)}, the first is segment {silent[0]})"
        )
    low, high = _publisher_bounds(reader.view, bookmark.publisher)
    if low is None or high is None:
        return f"the log has no message of publisher {bookmark.publisher}"
    if bookmark.sequence < low:
        return f"below the first: the log has {low} as the publisher's lowest sequence"
    if bookmark.sequence > high:
        return f"above the last: the log has {high} as the publisher's highest sequence"
    before, after = _neighbours(reader, bookmark)
    return f"a gap: the publisher went from sequence {before} to {after}"


def _publisher_bounds(view: LogView, publisher: int) -> tuple[int | None, int | None]:
    bounds = [b for s in view.segments if (b := s.index.publisher_bounds(publisher)) is not None]
    return (bounds[0][0], bounds[-1][1]) if bounds else (None, None)


def _neighbours(reader: SnapshotReader, bookmark: Bookmark) -> tuple[int, int]:
    """The sequences of the publisher before and after one that it left out."""
    before, after = 0, 2**64 - 1
    for segment in reader.view.segments:
        bounds = segment.index.publisher_bounds(bookmark.publisher)
        if bounds is None:
            continue
        if bounds[1] < bookmark.sequence:
            before = bounds[1]
            continue
        if bounds[0] > bookmark.sequence:
            return before, min(after, bounds[0])
        for part in reader.parts(segment.first_position, segment.end_position):
            mine = part.batch.sequences[part.batch.publishers == np.uint64(bookmark.publisher)]
            below, above = mine[mine < bookmark.sequence], mine[mine > bookmark.sequence]
            if len(below):
                before = max(before, int(below[-1]))
            if len(above):
                return before, int(above[0])
    return before, after
