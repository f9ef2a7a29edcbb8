"""Retention: selects the segments to remove, and collects the facts to keep from them.

Pure. Whole sealed segments are removed, oldest first, by the log time of their last commit or by the total
size of all files.

Invariant: retention keeps the segment of the last message, every segment after a kept one, and every segment
with a position that is still needed.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import JournalCorrupt
from tickertape.base.interfaces import Buffer
from tickertape.journal.format.link_records import LinkRecord, encode_link
from tickertape.journal.format.replication_records import HoleRange, holes_of
from tickertape.journal.format.retired_state import (
    NOTHING_HIGHEST,
    ControlRecord,
    Numbers,
    RetiredState,
    StoredMessage,
    record_of,
    with_records,
)
from tickertape.journal.format.segment import CONTROL_TOPIC
from tickertape.journal.index.segment_index import publisher_spans
from tickertape.journal.limits import read_bytes_target
from tickertape.journal.reading.log_reader import LogReader
from tickertape.journal.reading.log_view import LogPart, LogSegment, LogView, ReadRequest, last_of
from tickertape.journal.reading.place_search import find_places


class RetentionPolicy(NamedTuple):
    """Retention limits: age of messages and size of all segment files. None means no limit."""

    age_seconds: float | None = None
    size_bytes: int | None = None
    archive_required: bool = False
    """Keep all messages that are not archived yet."""

    @property
    def active(self) -> bool:
        """Whether the policy ever removes segments."""
        return self.age_seconds is not None or self.size_bytes is not None


class RetiredFacts(NamedTuple):
    """Facts to record before segments are removed, and the first message after them."""

    retired: RetiredState
    first: StoredMessage | None
    first_unknown: bool = False
    """That message cannot be read. Otherwise `first` is None if no message follows."""


Gathering = Generator[ReadRequest | None, Buffer, RetiredFacts]
"""Yields read requests. Yields None to let other work run, and is sent `b""` for it."""
LastSearch = Generator[ReadRequest, Buffer, int]


def removable(view: LogView, sealed_through: int) -> list[LogSegment]:
    """Return the segments that may be removed: durably sealed, and before the last message.

    The last message is kept at any age, so that the bookmark of a reader that has read everything stays
    known. Control records after it do not count, unless `view.last_message` is unknown."""
    last = view.end_position - 1 if view.last_message is None else view.last_message
    found = []
    for segment in view.segments[:-1]:
        if segment.number > sealed_through or segment.end_position > last:
            break
        found.append(segment)
    return found


def due(segments: Sequence[LogSegment], policy: RetentionPolicy, wall: int, total_bytes: int) -> int:
    """Return how many of `segments`, oldest first, the policy no longer keeps.

    Args:
        segments: Removable segments.
        policy: Age and size limits.
        wall: Current time, microseconds.
        total_bytes: Size of all segment files."""
    for count, segment in enumerate(segments):
        old = policy.age_seconds is not None and segment.timestamp < wall - policy.age_seconds * 1e6
        large = policy.size_bytes is not None and total_bytes > policy.size_bytes
        if not old and not large:
            return count
        total_bytes -= segment.file_bytes
    return len(segments)


def unneeded(segments: Sequence[LogSegment], oldest: int | None) -> int:
    """Return how many of `segments`, oldest first, end at or before `oldest`. None: none is needed."""
    for count, segment in enumerate(segments):
        if oldest is not None and segment.end_position > oldest:
            return count
    return len(segments)


def gather(view: LogView, journal_id: bytes, count: int) -> Gathering:
    """Collect the facts that outlive the first `count` segments, which stay readable meanwhile.

    Raises `JournalCorrupt`: unreadable segments are not removed."""
    before = view.retired
    highest = before.highest if before is not None else NOTHING_HIGHEST
    records: list[ControlRecord] = []
    segments, following = view.segments[:count], view.segments[count]
    found: list[tuple[Numbers, Numbers]] = []
    for segment in segments:
        columns = segment.index.highest_columns()
        found.append(columns if columns is not None else (yield from _read_highest(view, segment)))
        yield None
    highest = highest.with_later(*(np.concatenate(column) for column in zip(*found, strict=True)))
    yield None
    reader = LogReader(view, view.first_position, CONTROL_TOPIC)
    while (parts := (yield from _next(reader))) is not None:
        for part in parts:
            records += _records(part, following.first_position)
        if reader.position >= following.first_position:
            break
    first: StoredMessage | None = None
    first_unknown = False
    try:
        first = yield from first_message(view, following.first_position)
    except JournalCorrupt:  # readers get this error, but it does not block retention
        first_unknown = True
    kept = yield from with_records(before.records if before is not None else (), records)
    raised, holes = yield from _holes_in(kept, before.holes if before is not None else {})
    highest = highest.with_later(*raised)
    places = (yield from find_places(view, following.first_position, strict=True)).places
    header = following.header
    return RetiredFacts(
        RetiredState(
            journal_id=journal_id,
            through=segments[-1].number,
            first_position=header.first_position,
            first_commit=header.first_commit,
            previous_chain=header.previous_chain,
            previous_end=header.previous_end,
            last_time=max(before.last_time if before is not None else 0, *(s.timestamp for s in segments)),
            removed_bytes=(before.removed_bytes if before is not None else 0)
            + sum(s.file_bytes for s in segments),
            highest=highest,
            records=kept,
            manifests=before.manifests if before is not None else {},
            links=tuple(encode_link(LinkRecord(*place)) for place in places),
            holes=holes,
        ),
        first,
        first_unknown,
    )


def find_last_message(view: LogView) -> LastSearch:
    """Find the last message that is not a control record. If all are control records, find the last one.

    The search starts at the end and reads `read_bytes_target` at a time, so each byte is read about once.
    Damage counts as a message, because it may contain one."""
    for segment in reversed(view.segments):
        stop, index, edge = segment.end_position, segment.index, segment.end
        # By offsets, not block numbers: the index may become coarser between two reads.
        while index.blocks and index.offsets[0] < edge and stop > segment.first_position:
            block = index.block_of_offset(max(edge - read_bytes_target, index.offsets[0]))
            edge, start = index.offsets[block], index.positions[block]
            try:
                found = yield from _last_between(view, start, stop)
            except JournalCorrupt:
                return stop - 1
            if found is not None:
                return found
            stop = start
    return view.end_position - 1


def _last_between(view: LogView, start: int, stop: int) -> Generator[ReadRequest, Buffer, int | None]:
    """Return the position of the last message in `[start, stop)`, or None if all are control records."""
    reader = LogReader(view, start)
    found: int | None = None
    while reader.position < stop and (parts := (yield from _next(reader))) is not None:
        for part in parts:
            last = last_of(part.batch, stop - part.first_position)
            found = found if last is None else part.first_position + last
    return found


def first_message(view: LogView, position: int) -> Generator[ReadRequest, Buffer, StoredMessage | None]:
    """Return the first message at or after `position`, or None if only control records follow."""
    reader = LogReader(view, position)
    while (parts := (yield from _next(reader))) is not None:
        for part in parts:
            found = first_of(part, position)
            if found is not None:
                return found
    return None


def first_of(part: LogPart, position: int) -> StoredMessage | None:
    """Return the first message of a part at or after `position` that is not a control record."""
    batch = part.batch
    low = max(position - part.first_position, 0)
    if batch.kinds is not None:
        messages = np.flatnonzero(batch.kinds[low:] == 0)
        if not len(messages):
            return None
        low += int(messages[0])
    if low >= batch.count:
        return None
    return StoredMessage(Bookmark(batch.publisher(low), batch.sequence(low)), int(batch.timestamps[low]))


def _records(part: LogPart, stop: int) -> list[ControlRecord]:
    """Return the control records on topic `$control` in a part, below the position `stop`."""
    kinds = part.batch.kinds
    if kinds is None or CONTROL_TOPIC not in part.batch.topics:
        return []
    found: list[ControlRecord] = []
    for index in kinds.nonzero()[0].tolist():
        if part.batch.topic(index) != CONTROL_TOPIC:
            continue  # a queue's record: it lives as long as the queue's messages
        at = part.first_position + index if part.positions is None else int(part.positions[index])
        if at < stop:
            found.append(record_of(bytes(part.batch.body(index))))
    return found


def _holes_in(
    records: Sequence[ControlRecord], before: Mapping[int, bytes]
) -> Generator[None, Buffer, tuple[tuple[Numbers, Numbers], dict[int, bytes]]]:
    """Return the highest sequences of publishers with records of holes, and the open holes of all.

    A record may raise the highest sequence above all messages in the log. `before` has holes of earlier
    removals, which publishers without a record keep. Yields None to let other work run."""
    highest: dict[int, int] = {}
    holes = dict(before)
    examined = 0
    for body in records:
        if isinstance(body, bytes) and b"holes" in body:
            record = holes_of(body)
            if record is not None:
                highest[record.publisher] = record.highest
                holes.pop(record.publisher, None)
                if record.ranges:
                    holes[record.publisher] = _pairs(record.ranges)
        examined += len(body)
        if examined > read_bytes_target:
            examined = 0
            yield None
    ids = sorted(highest)
    columns = np.array(ids, np.uint64), np.array([highest[publisher] for publisher in ids], np.uint64)
    return columns, holes


def _pairs(ranges: Sequence[HoleRange]) -> bytes:
    """Return the first and last sequences of holes. Adjacent ones become one."""
    firsts = np.array([hole.first for hole in ranges], "<u8")
    lasts = np.array([hole.last for hole in ranges], "<u8")
    apart = firsts[1:] - lasts[:-1] > 1
    begins, ends = np.append(True, apart), np.append(apart, True)
    return np.column_stack((firsts[begins], lasts[ends])).tobytes()


def _read_highest(
    view: LogView, segment: LogSegment
) -> Generator[ReadRequest, Buffer, tuple[Numbers, Numbers]]:
    """Return the highest sequence of each publisher of a segment whose index lacks them, by reading it."""
    highest: dict[int, int] = {}
    reader = LogReader(view, segment.first_position)
    while reader.position < segment.end_position:
        parts = yield from _next(reader)
        assert parts is not None
        for part in parts:
            if part.first_position < segment.end_position:
                for publisher, _, high in publisher_spans(part.batch):
                    highest[publisher] = max(high, highest.get(publisher, 0))
    count = len(highest)
    return np.fromiter(highest, np.uint64, count), np.fromiter(highest.values(), np.uint64, count)


def _next(reader: LogReader) -> Generator[ReadRequest, Buffer, list[LogPart] | None]:
    """Return the next parts of a reader, perhaps none, or None at the persisted end."""
    step = reader.poll()
    return reader.answer((yield step)) if isinstance(step, ReadRequest) else step
