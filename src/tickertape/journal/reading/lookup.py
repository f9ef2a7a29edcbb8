"""Lookup: finds positions in the log by bookmark or by time.

Each search is a generator: it yields `ReadRequest`s, is sent the bytes (or thrown the error), and returns the
position; None for a bookmark without a persisted message. Segments may be removed between two reads: the
result is what the log has at the end of the search.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import JournalCorrupt, TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.batch import KIND_MESSAGE, MessageBatch, slice_batch
from tickertape.batch.format import Int64s
from tickertape.journal.format.retired_state import StoredMessage
from tickertape.journal.format.segment import CommitHeader
from tickertape.journal.index.segment_index import BlockAddress
from tickertape.journal.limits import commit_bytes_max
from tickertape.journal.reading.log_reader import LogReader
from tickertape.journal.reading.log_view import (
    LogPart,
    LogSegment,
    LogView,
    ReadRequest,
    commit_parts,
    corrupt,
    decode_commits,
    mismatch,
)

Search = Generator[ReadRequest, Buffer, int]
MaybeSearch = Generator[ReadRequest, Buffer, int | None]


def next_block_with(view: LogView, topic: str, position: int) -> int:
    """Return the first position, not below `position`, whose block may hold `topic`: `position` itself if its
    own block may, the persisted end if no block does.

    No message of `topic` lies between `position` and the result. Nothing is read: whole segments are skipped
    in microseconds."""
    at = max(position, view.first_position)
    segment = view.segment_of(at)
    while segment is not None and at < view.end_position:
        index = segment.index
        block = index.next_block_with(topic, index.block_of_position(at)) if index.blocks else None
        if block is not None and index.positions[block] < segment.end_position:
            return max(at, index.positions[block])
        at = max(at, segment.end_position)
        segment = view.after(segment)
    return max(at, view.end_position)


def find_bookmark(view: LogView, publisher: int, sequence: int) -> MaybeSearch:
    """Position of the persisted message with this publisher and sequence; None when the log has none."""
    damaged: list[JournalCorrupt] = []
    for segment in reversed(view.segments):
        if not view.has(segment):
            break  # retention went on meanwhile
        for place in segment.index.places_of_publisher(publisher, sequence):
            try:
                position = yield from _in_place(view, segment, place, publisher, sequence, damaged)
            except TickertapeError:
                if view.has(segment):
                    raise
                position = None
            if not view.has(segment):
                break
            if position is not None:
                return position
    if damaged:
        raise damaged[0]  # the damaged commit may hold it
    return None


def _in_place(
    view: LogView,
    segment: LogSegment,
    place: BlockAddress,
    publisher: int,
    sequence: int,
    damaged: list[JournalCorrupt],
) -> MaybeSearch:
    def excuse(header: CommitHeader, _: memoryview) -> bool:
        damaged.append(mismatch(segment, header))
        return True

    at = view.tail_at(place.first_position)
    if at is not None:
        return _in_parts(_of_tail(view, at, place.next_position), publisher, sequence)
    offset, need, end = place.offset, commit_bytes_max, min(place.end, segment.end)
    while offset < end:  # once, unless the blocks are long because the index got coarser
        size = min(max(need, commit_bytes_max), end - offset)
        data = yield ReadRequest(segment.number, offset, size)
        if len(data) < size:
            raise corrupt(segment, offset + len(data), "the file is shorter than what was persisted")
        commits, need = decode_commits(segment, offset, data, excuse=excuse)
        position = _in_parts(commit_parts(segment, commits), publisher, sequence)
        if position is not None:
            return position
        offset = commits[-1][0].end if commits else offset
    return None


def _of_tail(view: LogView, at: int, stop: int | None) -> list[LogPart]:
    """Return the persisted parts in memory of a range."""
    end = view.tail_at(stop) if stop is not None else len(view.tail)
    return view.tail[at:end]


def _in_parts(parts: list[LogPart], publisher: int, sequence: int) -> int | None:
    """Position of a message in parts by publisher and sequence."""
    for part in parts:
        found = _in_batch(part.batch, publisher, sequence)
        if found is not None:
            return part.first_position + found
    return None


def _in_batch(batch: MessageBatch, publisher: int, sequence: int) -> int | None:
    """Index of a message in a batch by publisher and sequence."""
    if batch.run_count == 1:
        if batch.run(0).publisher != publisher:
            return None
        return _in_run(batch, 0, batch.count, sequence)
    runs = batch.runs
    mine = np.flatnonzero(runs["publisher"] == publisher)
    if not len(mine):
        return None
    at = int(np.searchsorted(runs["first_sequence"][mine], np.uint64(sequence), side="right")) - 1
    if at < 0:
        return None
    row = int(mine[at])
    start = int(runs["count"][:row].sum())
    return _in_run(batch, start, start + int(runs["count"][row]), sequence)


def _in_run(batch: MessageBatch, start: int, stop: int, sequence: int) -> int | None:
    sequences = batch.sequences[start:stop]
    at = int(np.searchsorted(sequences, np.uint64(sequence)))
    return start + at if at < len(sequences) and int(sequences[at]) == sequence else None


def find_time(view: LogView, micros: int, *, inclusive: bool) -> Search:
    """Find the first persisted message later than `micros` (not earlier, when `inclusive`).

    Without one it is the persisted end. Log time never decreases, so this is a search."""
    after = micros if inclusive else micros + 1
    while True:
        segment = next((s for s in view.segments if s.index.blocks and s.timestamp >= after), None)
        if segment is None:
            return view.end_position
        try:
            position = yield from _time_from(view, segment, after)
        except TickertapeError:
            if view.has(segment):
                raise
        else:
            if view.has(segment):
                return position
        # retention has removed the segment meanwhile: once more, in what is left


def _time_from(view: LogView, segment: LogSegment, after: int) -> Search:
    """Position of the first message from `segment` on that is stamped at `after` or later."""
    block = segment.index.block_of_time(after)
    reader = LogReader(view, max(segment.index.positions[block], segment.first_position))
    while view.has(segment):
        step = reader.poll()
        if step is None:
            break
        parts = reader.answer((yield step)) if isinstance(step, ReadRequest) else step
        for part in parts:
            stamps = part.batch.timestamps
            if int(stamps[-1]) >= after:
                return part.first_position + int(np.searchsorted(stamps, after))
    return view.end_position


def last_before(view: LogView, position: int) -> Generator[ReadRequest, Buffer, Bookmark | None]:
    """The bookmark of the last persisted message before `position`; None where the log has none."""
    position = min(position, view.end_position)
    while position > view.first_position:
        part = yield from _part_with(view, position - 1)
        if part is None or (at := part.index_at(position)) == 0:
            return None  # retention has removed it meanwhile
        kinds = part.batch.kinds
        messages = np.arange(at) if kinds is None else (kinds[:at] == KIND_MESSAGE).nonzero()[0]
        if len(messages):
            last = int(messages[-1])
            one = slice_batch(part.batch, last, last + 1)
            return Bookmark(one.publisher(0), one.sequence(0))
        position = part.first_position
    return None


def message_at(view: LogView, position: int) -> Generator[ReadRequest, Buffer, StoredMessage | None]:
    """Find the persisted message at `position`; None if the log has none there."""
    if position < view.first_position:
        return None
    part = yield from _part_with(view, position)
    if part is None or part.index_at(position) == part.index_at(position + 1):
        return None
    one = slice_batch(part.batch, part.index_at(position), part.index_at(position) + 1)
    if one.kinds is not None and int(one.kinds[0]) != KIND_MESSAGE:
        return None
    return StoredMessage(Bookmark(one.publisher(0), one.sequence(0)), one.timestamp(0))


def _part_with(view: LogView, position: int) -> Generator[ReadRequest, Buffer, LogPart | None]:
    """The part that holds a persisted position."""
    reader = LogReader(view, position)
    while (step := reader.poll()) is not None:
        parts = reader.answer((yield step)) if isinstance(step, ReadRequest) else step
        for part in parts:
            if part.end_position > position:
                return part
    return None


def fold_topic(
    view: LogView, topic: str, take: Callable[[LogPart], None]
) -> Generator[ReadRequest, Buffer, list[JournalCorrupt]]:
    """Pass every part that may hold `topic` to `take`, in order; returns the damage found.

    A damaged block is skipped from the damage on: a start needs these folds, and one damaged commit must not
    keep everything else from being served."""
    damage: list[JournalCorrupt] = []
    reader = LogReader(view, view.first_position, topic)
    while True:
        try:
            step = reader.poll()
            if step is None:
                return damage
            parts = reader.answer((yield step)) if isinstance(step, ReadRequest) else step
        except JournalCorrupt as error:
            damage.append(error)
            reader = LogReader(view, _after_damage(view, reader.position, error.offset), topic)
            continue
        for part in parts:
            take(part)


def _after_damage(view: LogView, position: int, offset: int) -> int:
    """Return the first position of the block after the one with byte `offset` in the segment of
    `position`."""
    segment = view.segment_of(position)
    if segment is None:
        return view.end_position
    block = segment.index.block_of_offset(offset) + 1
    if block < segment.index.blocks:
        return max(segment.index.positions[block], position + 1)
    return segment.end_position


def positions_of_run(
    view: LogView, publisher: int, first: int, count: int, before: int
) -> Generator[ReadRequest | None, Buffer, Int64s]:
    """Positions of the persisted messages of a publisher with the sequences `[first, first + count)`, below
    the position `before`, from the first of them on that the log has: none when it does not have the first,
    and retention did not take it.

    None lets others go first, and is answered with nothing."""
    found: list[Int64s] = [np.empty(0, np.int64)]
    end, left = first + count, count
    bounds = [b for s in view.segments if (b := s.index.publisher_bounds(publisher)) is not None]
    if bounds and first < bounds[0][0] < end:
        first = bounds[0][0]  # retention has removed those before
    position = yield from find_bookmark(view, publisher, first)
    if position is None:
        return found[0]
    reader = LogReader(view, position)
    while left > 0 and reader.position < before and (step := reader.poll()) is not None:
        parts = reader.answer((yield step)) if isinstance(step, ReadRequest) else step
        for part in parts:
            batch = part.batch
            own = batch.publishers == np.uint64(publisher)
            wanted = own & (batch.sequences >= np.uint64(first)) & (batch.sequences < np.uint64(end))
            found.append(wanted.nonzero()[0] + part.first_position)
            left -= len(found[-1])
            if own.any() and int(batch.sequences[own][-1]) >= end - 1:
                left = 0
        yield None
    return np.unique(np.concatenate(found))
