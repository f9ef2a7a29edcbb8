"""Retention: which segments may be removed, and the facts to gather from them before.

Pure. Whole sealed segments are removed, oldest first, by the log time of their last commit or by the size of
all files.

Invariant: the segment of the last message, a segment behind one that stays, and a segment with a position
that is still needed are kept.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple

import numpy as np

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import JournalCorrupt
from tickertape.base.interfaces import Buffer
from tickertape.journal.format.retired_state import (
    NOTHING_HIGHEST,
    Numbers,
    RetiredState,
    StoredMessage,
    with_records,
)
from tickertape.journal.format.segment import CONTROL_TOPIC
from tickertape.journal.index.segment_index import publisher_spans
from tickertape.journal.limits import read_bytes_target
from tickertape.journal.reading.log_reader import LogReader
from tickertape.journal.reading.log_view import LogPart, LogSegment, LogView, ReadRequest, last_of


class RetentionPolicy(NamedTuple):
    """Kept messages: those younger than `age_seconds`, segments of at most `size_bytes`. None: no bound."""

    age_seconds: float | None = None
    size_bytes: int | None = None
    archive_required: bool = False
    """Keep everything that the archive does not have."""

    @property
    def active(self) -> bool:
        """Whether anything is ever removed."""
        return self.age_seconds is not None or self.size_bytes is not None


class RetiredFacts(NamedTuple):
    """Facts to record before segments are removed, and the first message behind them."""

    retired: RetiredState
    first: StoredMessage | None
    first_unknown: bool = False
    """That message cannot be read; without this there is none when `first` is None."""


Gathering = Generator[ReadRequest | None, Buffer, RetiredFacts]
"""Asks for reads; None lets others go first, and is answered with nothing (`b""`)."""
LastSearch = Generator[ReadRequest, Buffer, int]


def removable(view: LogView, sealed_through: int) -> list[LogSegment]:
    """Return the segments that may be removed: sealed durably, and before the last message.

    The last message stays at any age, so that a bookmark of a reader that has read everything is known:
    control records behind it do not count, unless `view.last_message` is unknown."""
    last = view.end_position - 1 if view.last_message is None else view.last_message
    found = []
    for segment in view.segments[:-1]:
        if segment.number > sealed_through or segment.end_position > last:
            break
        found.append(segment)
    return found


def due(segments: Sequence[LogSegment], policy: RetentionPolicy, wall: int, total_bytes: int) -> int:
    """How many of `segments`, from the oldest, the policy does not keep at `wall` (microseconds) while all
    files take `total_bytes`."""
    for count, segment in enumerate(segments):
        old = policy.age_seconds is not None and segment.timestamp < wall - policy.age_seconds * 1e6
        large = policy.size_bytes is not None and total_bytes > policy.size_bytes
        if not old and not large:
            return count
        total_bytes -= segment.file_bytes
    return len(segments)


def unneeded(segments: Sequence[LogSegment], oldest: int | None) -> int:
    """How many of `segments`, from the oldest, end before the position `oldest` (None: none is needed)."""
    for count, segment in enumerate(segments):
        if oldest is not None and segment.end_position > oldest:
            return count
    return len(segments)


def gather(view: LogView, journal_id: bytes, count: int) -> Gathering:
    """Gather the facts that outlive the first `count` segments, which stay readable meanwhile.

    Raises `JournalCorrupt`: segments that cannot be read are not removed."""
    before = view.retired
    highest = before.highest if before is not None else NOTHING_HIGHEST
    records: list[bytes] = []
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
    except JournalCorrupt:  # its readers get this error; it does not keep old segments
        first_unknown = True
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
            records=with_records(before.records if before is not None else (), records),
        ),
        first,
        first_unknown,
    )


def find_last_message(view: LogView) -> LastSearch:
    """Find the last message that is not a control record; without one the last record.

    Searched from the end, `read_bytes_target` at a time, so that each byte is read about once. Damage counts
    as a message, because it may hold one."""
    for segment in reversed(view.segments):
        stop, index, edge = segment.end_position, segment.index, segment.end
        # By offsets, not by numbers of blocks: the index may become coarser between two reads.
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
    """Position of the last message from `start` up to `stop`; None when all are control records."""
    reader = LogReader(view, start)
    found: int | None = None
    while reader.position < stop and (parts := (yield from _next(reader))) is not None:
        for part in parts:
            last = last_of(part.batch, stop - part.first_position)
            found = found if last is None else part.first_position + last
    return found


def first_message(view: LogView, position: int) -> Generator[ReadRequest, Buffer, StoredMessage | None]:
    """The first message from `position` on; None when nothing but control records is persisted there."""
    reader = LogReader(view, position)
    while (parts := (yield from _next(reader))) is not None:
        for part in parts:
            found = first_of(part, position)
            if found is not None:
                return found
    return None


def first_of(part: LogPart, position: int) -> StoredMessage | None:
    """Return the first message of a part, from `position` on, that is not a control record."""
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


def _records(part: LogPart, stop: int) -> list[bytes]:
    """Bodies of the log's own control records of a part below the position `stop`."""
    kinds = part.batch.kinds
    if kinds is None or CONTROL_TOPIC not in part.batch.topics:
        return []
    found = []
    for index in kinds.nonzero()[0].tolist():
        if part.batch.topic(index) != CONTROL_TOPIC:
            continue  # of a queue: what its messages need is not removed
        at = part.first_position + index if part.positions is None else int(part.positions[index])
        if at < stop:
            found.append(bytes(part.batch.body(index)))
    return found


def _read_highest(
    view: LogView, segment: LogSegment
) -> Generator[ReadRequest, Buffer, tuple[Numbers, Numbers]]:
    """The highest sequence of each publisher of a segment whose index does not say it: read them all."""
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
    """Return the next parts of a reader, perhaps none; None at the persisted end."""
    step = reader.poll()
    return reader.answer((yield step)) if isinstance(step, ReadRequest) else step
