"""Log reader: reads the log forward from a position, or searches a position in it.

Pure: reads are requests as data. A reader of one topic skips blocks without it. If the topic is rare in large
commits, it reads the head of a commit and then only the runs with the topic. A search by bookmark or time is
a generator: it yields `ReadRequest`s, is sent the bytes (or thrown the error), and returns the position. It
returns None for a bookmark without a persisted message. Segments may be removed between two reads: the result
applies to the log at the end of the search.

Invariant: every returned message is covered by a verified checksum of its commit or its run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

import numpy as np

from tickertape.base.bookmarks import Bookmark
from tickertape.base.checksum import crc32c
from tickertape.base.errors import BadBatch, CorruptBatch, JournalCorrupt, TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.batch import KIND_MESSAGE, RUN_LATE, BatchHead, MessageBatch, slice_batch
from tickertape.batch.format import Int64s
from tickertape.journal.format.retired_state import StoredMessage
from tickertape.journal.format.segment import CommitHeader, CommitKind, decode_commit
from tickertape.journal.index.segment_index import BlockAddress
from tickertape.journal.limits import commit_bytes_max, commit_header_bytes, read_bytes_target
from tickertape.journal.reading.log_view import (
    LogPart,
    LogSegment,
    LogView,
    ReadRequest,
    commit_parts,
    corrupt,
    decode_commits,
    header_problem,
    mismatch,
)

_SPARSE = 8
"""A topic is rare in a commit if at most one in this number of messages belongs to it."""


class _Bodies(NamedTuple):
    """A pending request for the bodies of some runs of a commit."""

    header: CommitHeader
    head: BatchHead
    runs: Int64s


class LogReader:
    """Reads forward from a position, optionally only blocks that may hold one topic.

    `poll()` returns parts from memory, a `ReadRequest`, or None at the persisted end. Answer a request with
    `answer(data)`. Parts may start before the first `position` and hold other topics, so the caller must cut
    them. After each call the next part starts at `position` or later."""

    def __init__(
        self, view: LogView, position: int, topic: str | None = None, *, first_bytes: int = 0
    ) -> None:
        """`first_bytes`: size of the first reads, if the topic is known to be rare. 0: a large read."""
        self._view = view
        self._topic = topic
        self.position = max(position, view.first_position)
        self._segment: LogSegment | None = None
        self._offset = 0
        self._need = 0
        self._head_bytes = first_bytes
        """Bytes of the next commit to read first if its head may suffice, else 0."""
        self._bodies: _Bodies | None = None
        self._request: ReadRequest | None = None

    def poll(self) -> list[LogPart] | ReadRequest | None:
        """Return the next step (see the class docstring)."""
        while self._bodies is None and self.position < self._view.end_position:
            at = self._view.tail_at(self.position)
            if at is not None:
                self._segment = None
                return self._from_tail(at)
            if self._seek():
                assert self._segment is not None
                wanted = self._head_bytes or max(self._wanted(), self._need)
                size = min(wanted, self._segment.end - self._offset)
                self._request = ReadRequest(self._segment.number, self._offset, size)
                return self._request
        return self._ask_for_bodies() if self._bodies is not None else None

    def answer(self, data: Buffer) -> list[LogPart]:
        """Process the bytes of the last request. Return parts, perhaps none yet. Raises `JournalCorrupt`."""
        segment, request, position = self._segment, self._request, self.position
        assert segment is not None
        assert request is not None
        self._request = None
        if len(data) < request.size:
            at = request.offset + len(data)
            raise corrupt(segment, at, "the file ends before the persisted end")
        if self._bodies is not None:
            parts = self._answer_bodies(segment, self._bodies, data)
        elif self._head_bytes and self._answer_head(segment, request, data):
            parts = []
        else:
            parts = self._answer_commits(segment, request, data)
        # The block of a position starts before it: skip parts that end before the position.
        return [part for part in parts if part.end_position > position]

    # -- whole commits --------------------------------------------------------------------------------

    def _answer_commits(self, segment: LogSegment, request: ReadRequest, data: Buffer) -> list[LogPart]:
        commits, self._need = decode_commits(
            segment, request.offset, data, up_to_damage=True, excuse=self._not_wanted
        )
        if commits:
            self._passed(commits[-1][0])
        parts = commit_parts(segment, commits)
        if self._topic is not None and parts and parts[-1].batch.nbytes > read_bytes_target:
            self._head_bytes = self._rare(parts[-1].batch, self._topic)  # small commits between do not count
        return parts

    def _not_wanted(self, header: CommitHeader, body: memoryview) -> bool:
        """Return whether a commit may be damaged because it precedes the start or, by its head, lacks the
        topic."""
        if header.first_position + header.messages <= self.position:
            return True
        head = body[: header.head_bytes]
        if self._topic is None or crc32c(head) != header.head_crc:
            return False
        try:
            return not len(BatchHead(head, header.body_bytes).runs_with(self._topic))
        except BadBatch:
            return False

    @staticmethod
    def _rare(batch: MessageBatch, topic: str) -> int:
        """Return the bytes of a commit like this one to read first: its head, or 0 to read it completely."""
        if batch.topic_index is None or topic not in batch.topics:
            return 0
        own = int(np.count_nonzero(batch.topic_index == batch.topics.index(topic)))
        head_bytes = commit_header_bytes + batch.head_bytes + batch.head_bytes // _SPARSE
        return head_bytes if own * _SPARSE <= batch.count else 0

    def _passed(self, header: CommitHeader) -> None:
        """Advance past a commit that was processed completely."""
        self._offset = header.end
        self.position = max(self.position, header.first_position + header.messages)

    # -- few messages of large commits ----------------------------------------------------------------

    def _answer_head(self, segment: LogSegment, request: ReadRequest, data: Buffer) -> bool:
        """Process the head of a commit. False if the data must be processed as complete commits."""
        header = decode_commit(memoryview(data))
        if header_problem(segment, request.offset, header) is not None:
            return False  # the caller then raises the error
        assert header is not None
        if header.kind is not CommitKind.DATA or commit_header_bytes + header.body_bytes <= len(data):
            return False
        end = commit_header_bytes + header.head_bytes
        if end > len(data):
            self._head_bytes = end
            return True
        encoded = memoryview(data)[commit_header_bytes:end]
        if crc32c(encoded) != header.head_crc:
            raise corrupt(segment, request.offset, f"the head of commit {header.number} is damaged")
        try:
            head = BatchHead(encoded, header.body_bytes)
        except BadBatch as error:
            raise corrupt(segment, request.offset, f"commit {header.number}: {error}") from error
        assert self._topic is not None
        runs = head.runs_with(self._topic)
        wanted = sum(last - first for first, last in head.ranges(runs))
        if not len(runs):
            self._passed(header)
        elif not 0 < wanted * 2 <= head.body_bytes:
            self._head_bytes = 0
            self._need = commit_header_bytes + header.body_bytes
        else:
            self._bodies = _Bodies(header, head, runs)
        return True

    def _ask_for_bodies(self) -> ReadRequest:
        assert self._bodies is not None
        assert self._segment is not None
        header, head, runs = self._bodies
        begin = header.offset + commit_header_bytes + header.head_bytes
        pieces = tuple([(begin + first, last - first) for first, last in head.ranges(runs)])
        size = sum(size for _, size in pieces)
        self._request = ReadRequest(self._segment.number, pieces[0][0], size, pieces)
        return self._request

    def _answer_bodies(self, segment: LogSegment, asked: _Bodies, data: Buffer) -> list[LogPart]:
        header, head, runs = asked
        self._bodies = None
        try:
            batch, indices = head.take(runs, data)
        except (BadBatch, CorruptBatch) as error:
            raise corrupt(segment, header.offset, f"commit {header.number}: {error}") from error
        self._passed(header)
        end = header.first_position + header.messages
        return [LogPart(header.first_position, batch, indices + header.first_position, end)]

    # -- positioning ----------------------------------------------------------------------------------

    def _from_tail(self, at: int) -> list[LogPart]:
        parts: list[LogPart] = []
        total = 0
        tail = self._view.tail
        while at < len(tail) and total < read_bytes_target:
            parts.append(tail[at])
            total += tail[at].batch.nbytes
            at += 1
        self.position = parts[-1].end_position
        return parts

    def _seek(self) -> bool:
        """Move to a commit boundary to read from. False if `position` moved instead."""
        if self._segment is None:
            segment = self._view.segment_of(self.position)
            assert segment is not None
            self._segment = segment
            block = segment.index.block_of_position(self.position)
            self._offset = segment.index.block_bounds(block)[0]
        segment = self._segment
        if self._offset >= segment.end:
            self.position = max(self.position, segment.end_position)
            self._segment = None
            return False
        if self._topic is None:
            return True
        return self._skip(segment, self._topic)

    def _skip(self, segment: LogSegment, topic: str) -> bool:
        block = segment.index.block_of_offset(self._offset)
        wanted = segment.index.next_block_with(topic, block)
        if wanted is None or segment.index.offsets[wanted] >= segment.end:
            self.position = max(self.position, segment.end_position)
            self._segment = None
            return False
        if wanted > block:
            self._offset = segment.index.offsets[wanted]
            self.position = max(self.position, segment.index.positions[wanted])
            self._need = 0
        return True

    def _wanted(self) -> int:
        assert self._segment is not None
        if self._topic is None:
            return read_bytes_target
        reach = self._segment.index.reach_with(self._topic, self._offset, read_bytes_target)
        return min(reach - self._offset, commit_bytes_max)  # a coarse index has long blocks


# -- lookup -------------------------------------------------------------------------------------------


Search = Generator[ReadRequest, Buffer, int]
MaybeSearch = Generator[ReadRequest, Buffer, int | None]


def next_block_with(view: LogView, topic: str, position: int) -> int:
    """Return the first position, not below `position`, whose block may hold `topic`.

    That is `position` itself if its own block may, and the persisted end if no block does. No message of
    `topic` lies between `position` and the result. Nothing is read: whole segments are skipped in
    microseconds."""
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
    """Return the position of the persisted message with this publisher and sequence. None without one."""
    damaged: list[JournalCorrupt] = []
    for segment in reversed(view.segments):
        if not view.has(segment):
            break  # retention removed it meanwhile
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
    while offset < end:  # once, unless a coarse index has long blocks
        size = min(max(need, commit_bytes_max), end - offset)
        data = yield ReadRequest(segment.number, offset, size)
        if len(data) < size:
            raise corrupt(segment, offset + len(data), "the file ends before the persisted end")
        commits, need = decode_commits(segment, offset, data, excuse=excuse)
        position = _in_parts(commit_parts(segment, commits), publisher, sequence)
        if position is not None:
            return position
        offset = commits[-1][0].end if commits else offset
    return None


def _of_tail(view: LogView, at: int, stop: int | None) -> list[LogPart]:
    """Return the parts of a range that are in memory."""
    end = view.tail_at(stop) if stop is not None else len(view.tail)
    return view.tail[at:end]


def _in_parts(parts: list[LogPart], publisher: int, sequence: int) -> int | None:
    """Return the position of a message in parts, by publisher and sequence."""
    for part in parts:
        found = _in_batch(part.batch, publisher, sequence)
        if found is not None:
            return part.first_position + found
    return None


def _in_batch(batch: MessageBatch, publisher: int, sequence: int) -> int | None:
    """Return the index of a message in a batch, by publisher and sequence."""
    if batch.run_count == 1:
        if batch.first_run.publisher != publisher:
            return None
        return _in_run(batch, 0, batch.count, sequence)
    runs = batch.runs
    mine = np.flatnonzero(runs["publisher"] == publisher)
    late = (runs["flags"][mine] & np.uint32(RUN_LATE)) != 0
    if late.any():  # their sequences are out of order
        rows, mine = mine[late].tolist(), mine[~late]
    else:
        rows = []
    at = int(np.searchsorted(runs["first_sequence"][mine], np.uint64(sequence), side="right")) - 1
    if at >= 0:
        rows.append(int(mine[at]))
    for row in rows:
        start = int(runs["count"][:row].sum())
        found = _in_run(batch, start, start + int(runs["count"][row]), sequence)
        if found is not None:
            return found
    return None


def _in_run(batch: MessageBatch, start: int, stop: int, sequence: int) -> int | None:
    sequences = batch.sequences[start:stop]
    at = int(np.searchsorted(sequences, np.uint64(sequence)))
    return start + at if at < len(sequences) and int(sequences[at]) == sequence else None


def find_time(view: LogView, micros: int, *, inclusive: bool) -> Search:
    """Return the position of the first persisted message later than `micros` (not earlier, if `inclusive`).

    Without one it is the persisted end. Log time never decreases, which allows a binary search."""
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
        # retention removed the segment meanwhile: search the remaining log


def _time_from(view: LogView, segment: LogSegment, after: int) -> Search:
    """Return the position of the first message with a timestamp of at least `after`, from `segment` on."""
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
    """Return the bookmark of the last persisted message before `position`. None if the log has none."""
    position = min(position, view.end_position)
    while position > view.first_position:
        part = yield from _part_with(view, position - 1)
        if part is None or (at := part.index_at(position)) == 0:
            return None  # retention removed it meanwhile
        kinds = part.batch.kinds
        messages = np.arange(at) if kinds is None else (kinds[:at] == KIND_MESSAGE).nonzero()[0]
        if len(messages):
            last = int(messages[-1])
            one = slice_batch(part.batch, last, last + 1)
            return Bookmark(one.publisher(0), one.sequence(0))
        position = part.first_position
    return None


def message_at(view: LogView, position: int) -> Generator[ReadRequest, Buffer, StoredMessage | None]:
    """Return the persisted message at `position`. None if the log has none there."""
    if position < view.first_position:
        return None
    part = yield from _part_with(view, position)
    if part is None or part.index_at(position) == part.index_at(position + 1):
        return None
    one = slice_batch(part.batch, part.index_at(position), part.index_at(position) + 1)
    if one.kinds is not None and int(one.kinds[0]) != KIND_MESSAGE:
        return None
    return StoredMessage(Bookmark(one.publisher(0), one.sequence(0)), one.timestamp(0))


def row_at(view: LogView, position: int) -> Generator[ReadRequest, Buffer, MessageBatch | None]:
    """Return a batch of the persisted message or control record at `position`. None if the log has none
    there."""
    if position < view.first_position:
        return None
    part = yield from _part_with(view, position)
    if part is None or part.index_at(position) == part.index_at(position + 1):
        return None
    return slice_batch(part.batch, part.index_at(position), part.index_at(position) + 1)


def _part_with(view: LogView, position: int) -> Generator[ReadRequest, Buffer, LogPart | None]:
    """Return the part that holds a persisted position."""
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
    """Pass every part that may hold `topic` to `take`, in order. Return the damage found.

    The rest of a damaged block is skipped. The server start needs these folds, and one damaged commit must
    not prevent the server from serving everything else."""
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
            reader = LogReader(view, after_damage(view, reader.position, error.offset), topic)
            continue
        for part in parts:
            take(part)


def after_damage(view: LogView, position: int, offset: int) -> int:
    """Return the first position after the block with byte `offset`, in the segment of `position`."""
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
    """Return positions of the persisted messages of a publisher with sequences `[first, first + count)`.

    Only positions below `before` are returned. The result is empty if the log lacks the first message and
    retention did not remove it. If retention removed it, the result starts with the first message in the log.
    Yields None to let other work run, and is sent `b""` for it."""
    found: list[Int64s] = [np.empty(0, np.int64)]
    low, end, left = first, first + count, count
    bounds = [b for s in view.segments if (b := s.index.publisher_bounds(publisher)) is not None]
    if bounds and first < bounds[0][0] < end:
        first = bounds[0][0]  # retention removed earlier ones
    position = yield from find_bookmark(view, publisher, first)
    if position is None:
        return found[0]
    if any(segment.index.may_have_late(publisher, low, end - 1) for segment in view.segments):
        return (yield from _positions_between(view, publisher, low, end - 1, before))
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


def _positions_between(
    view: LogView, publisher: int, low: int, high: int, before: int
) -> Generator[ReadRequest | None, Buffer, Int64s]:
    """Return the positions below `before` of the messages of a publisher from `low` to `high`, in any
    order of the log."""
    found: list[Int64s] = [np.empty(0, np.int64)]
    for segment in list(view.segments):
        for place in segment.index.places_between(publisher, low, high):
            end = segment.end_position if place.next_position is None else place.next_position
            reader = LogReader(view, place.first_position)
            while (
                view.has(segment)
                and reader.position < min(end, before)
                and (step := reader.poll()) is not None
            ):
                parts = reader.answer((yield step)) if isinstance(step, ReadRequest) else step
                for part in parts:
                    batch = part.batch
                    wanted = (batch.publishers == np.uint64(publisher)) & (batch.sequences >= np.uint64(low))
                    rows = (wanted & (batch.sequences <= np.uint64(high))).nonzero()[0]
                    found.append(rows + part.first_position)
                yield None
    positions = np.unique(np.concatenate(found))
    return positions[positions < before]
