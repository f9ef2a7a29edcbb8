"""Log view: the persisted log for readers, as a list of segments and a tail in memory.

Invariant: readers see only messages below the persisted end whose commit matches its checksum.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from tickertape.base.checksum import crc32c
from tickertape.base.errors import BadBatch, JournalCorrupt
from tickertape.base.interfaces import Buffer
from tickertape.batch import MessageBatch
from tickertape.batch.format import KINDS, Int64s
from tickertape.journal.commit.active_segment import ActiveSegment
from tickertape.journal.commit.group_commit import PersistedCommit
from tickertape.journal.format.files import damaged_at
from tickertape.journal.format.retired_state import RetiredState, StoredMessage
from tickertape.journal.format.segment import (
    CommitHeader,
    CommitKind,
    SegmentHeader,
    decode_commit,
    segment_path,
)
from tickertape.journal.index.index_cache import IndexCache
from tickertape.journal.index.segment_index import SegmentIndex
from tickertape.journal.limits import (
    batch_memory_bytes,
    commit_header_bytes,
    segment_header_bytes,
    tail_cache_bytes,
)
from tickertape.journal.reading.archive_tier import ArchiveTier


class ReadRequest(NamedTuple):
    """A read of a segment file: `size` bytes at `offset`, or those of `pieces`, concatenated."""

    segment: int
    offset: int
    size: int
    pieces: tuple[tuple[int, int], ...] = ()
    """Offset and size of each piece. `size` is their sum."""

    def read(self, piece: Callable[[int, int], Buffer]) -> Buffer:
        """Return the bytes, using `piece(offset, size)` to read."""
        if not self.pieces:
            return piece(self.offset, self.size)
        return b"".join([piece(offset, size) for offset, size in self.pieces])


class LogPart(NamedTuple):
    """Messages of one commit. Message i has position `first_position + i`, or `positions[i]`."""

    first_position: int
    batch: MessageBatch
    positions: Int64s | None = None
    """Positions of the messages if others between them were left out."""
    end: int | None = None
    """Position after the last message of the commit, if `batch` ends earlier."""

    @property
    def end_position(self) -> int:
        """Position after the last message."""
        return self.first_position + self.batch.count if self.end is None else self.end

    def positions_of(self, indices: Int64s) -> Int64s:
        """Return the positions of the messages `indices`."""
        return indices + self.first_position if self.positions is None else self.positions[indices]

    def index_at(self, position: int) -> int:
        """Return the index of the first message at or above `position`."""
        if self.positions is None:
            return min(max(position - self.first_position, 0), self.batch.count)
        return int(self.positions.searchsorted(position))


def last_of(batch: MessageBatch, stop: int | None = None) -> int | None:
    """Return the index of the last message before `stop` that is not a control record."""
    count = batch.count if stop is None else max(min(stop, batch.count), 0)
    if not batch.columns & KINDS:
        return count - 1 if count else None
    assert batch.kinds is not None
    messages = np.flatnonzero(batch.kinds[:count] == 0)
    return int(messages[-1]) if len(messages) else None


def _first_position(part: LogPart) -> int:
    return part.first_position


class SealedSegment(NamedTuple):
    """A sealed segment of the log."""

    number: int
    header: SegmentHeader
    end: int
    """File length."""
    data_end: int
    """Offset of the seal, which is the end of the data."""
    end_position: int
    seal: CommitHeader
    blocks: SegmentIndex


class LogSegment:
    """A segment for readers. Everything before `end` is persisted."""

    def __init__(
        self,
        header: SegmentHeader,
        index: SegmentIndex,
        end: int,
        end_position: int,
        timestamp: int,
        file_bytes: int = 0,
    ) -> None:
        self.header = header
        self.number = header.number
        self.index = index
        self.end = end
        self.end_position = end_position
        self.timestamp = timestamp
        """Log time of its last persisted commit, microseconds."""
        self.file_bytes = file_bytes
        """Size of its file, including reserved bytes."""

    @property
    def first_position(self) -> int:
        """Position of its first message."""
        return self.header.first_position

    def advance(self, end: int, end_position: int, timestamp: int) -> None:
        """Move the end after another persisted commit."""
        self.end, self.end_position, self.timestamp = end, end_position, timestamp


class LogView:
    """The persisted log: its segments in order, and its tail in memory."""

    def __init__(
        self,
        sealed: list[SealedSegment],
        retired: RetiredState | None = None,
        archive: ArchiveTier | None = None,
    ) -> None:
        self.segments = [
            LogSegment(s.header, s.blocks, s.data_end, s.end_position, s.seal.timestamp, s.end)
            for s in sealed
        ]
        self.retired = retired
        """Facts about the segments removed by retention."""
        self.first: StoredMessage | None = None
        """First message of the log. None if it is unknown or does not exist."""
        self.first_unknown = False
        """`first` could not be read."""
        self.archive = archive
        """The archive with the messages before these segments, or None."""
        self.last_message: int | None = None
        """Position of the last message that is not a control record. None until it is known."""
        self._by_number = {s.number: s for s in self.segments}
        self.indexes = IndexCache()
        """The indexes of all segments except the active one."""
        for sealed_one in sealed:
            self.indexes.add(sealed_one.blocks)
        self.indexes.fit()
        self._active: LogSegment | None = None
        self._writing: ActiveSegment | None = None
        self.tail: list[LogPart] = []
        """The last commits, in order. At most `tail_bytes_max` plus one commit."""
        self.tail_bytes_max = tail_cache_bytes
        """Maximum size of the tail, encoded bytes."""
        self.tail_bytes = 0
        """Size of the tail, encoded bytes."""

    def opened(self, active: ActiveSegment) -> None:
        """Add a newly active segment. The previous one is sealed."""
        if self._active is not None and self._writing is not None:
            self.indexes.add(self._active.index)
            self._active.file_bytes = self._writing.offset
        self._writing = active
        self._active = segment = LogSegment(
            active.header,
            active.index,
            segment_header_bytes,
            active.header.first_position,
            0,
            active.capacity,
        )
        self.segments.append(segment)
        self._by_number[segment.number] = segment

    def persisted(self, commit: PersistedCommit) -> None:
        """Add a persisted commit, which readers may see from now on."""
        if self.indexes.nbytes > self.indexes.bytes_max:
            self.indexes.relieve()  # one per commit, to keep this call short
        segment = self._by_number[commit.segment]
        batch = commit.batch
        segment.advance(commit.end, commit.first_position + batch.count, batch.last_run.timestamp)
        last = last_of(commit.batch)
        if last is not None:
            self.last_message = commit.first_position + last
        self.tail.append(LogPart(commit.first_position, commit.batch))
        self.tail_bytes += commit.batch.nbytes + batch_memory_bytes
        if self.tail_bytes > self.tail_bytes_max:
            self._cut_tail()

    def copy_tail(self, position: int) -> None:
        """Copy the tail from a position on.

        Its bodies may be in mapped files and would keep their descriptors and disk space."""
        begin = self.tail_at(position) or 0
        for at, part in enumerate(self.tail[begin:], begin):
            self.tail[at] = LogPart(part.first_position, MessageBatch.parse(part.batch.encode()))

    def retire(
        self, retired: RetiredState, first: StoredMessage | None, *, first_unknown: bool = False
    ) -> None:
        """Remove segments from the view. `first_unknown`: the first message after them cannot be read."""
        gone = [segment for segment in self.segments if segment.number <= retired.through]
        self.segments = self.segments[len(gone) :]
        for segment in gone:
            del self._by_number[segment.number]
        self.indexes.forget(len(gone))
        self.retired = retired
        self.set_first(first, unknown=first_unknown)

    def set_first(self, first: StoredMessage | None, *, unknown: bool = False) -> None:
        """Set the first message of the log. `unknown`: it could not be read."""
        self.first, self.first_unknown = first, unknown

    def found_last_message(self, position: int) -> None:
        """Set the last message as found by a search, unless a later one was persisted meanwhile."""
        if self.last_message is None:
            self.last_message = position

    def _cut_tail(self) -> None:
        """Drop an eighth at once, so that many small commits do not move the list each time."""
        count = 0
        while self.tail_bytes > self.tail_bytes_max * 7 // 8 and count < len(self.tail) - 1:
            self.tail_bytes -= self.tail[count].batch.nbytes + batch_memory_bytes
            count += 1
        del self.tail[:count]

    def tail_at(self, position: int) -> int | None:
        """Return the index in `tail` of the part that holds `position`.

        Returns the length of `tail` at the end, and None if the position is older than the tail."""
        if not self.tail or position < self.tail[0].first_position:
            return None
        if position >= self.end_position:
            return len(self.tail)
        return bisect_right(self.tail, position, key=_first_position) - 1

    @property
    def first_position(self) -> int:
        """Position of the first message of the log, or of the next message if the log is empty."""
        return self.segments[0].first_position if self.segments else 0

    @property
    def end_position(self) -> int:
        """Position after the last persisted message."""
        return self.segments[-1].end_position if self.segments else 0

    def segment_of(self, position: int) -> LogSegment | None:
        """Return the segment that holds `position`: the first one for older positions, None above the end."""
        for segment in reversed(self.segments):
            if segment.first_position <= position < segment.end_position:
                return segment
        if self.segments and position < self.first_position:
            return self.segments[0]
        return None

    def has(self, segment: LogSegment) -> bool:
        """Return whether the segment is still part of the log and not removed by retention."""
        return segment.number in self._by_number

    def has_number(self, number: int) -> bool:
        """Return the same as `has`, by segment number."""
        return number in self._by_number

    def after(self, segment: LogSegment) -> LogSegment | None:
        """Return the following segment, if any."""
        return self._by_number.get(segment.number + 1)


Excuse = Callable[[CommitHeader, memoryview], bool]
"""Decides whether a commit with a damaged body may be skipped because it has no wanted message."""

_NOTHING: Final = memoryview(b"")


def decode_commits(
    segment: LogSegment,
    offset: int,
    data: Buffer,
    *,
    up_to_damage: bool = False,
    excuse: Excuse | None = None,
) -> tuple[list[tuple[CommitHeader, memoryview]], int]:
    """Return the complete commits in `data`, read at `offset`, and the size needed to read the next one.

    Raises `JournalCorrupt` with file and offset: below the persisted end all bytes must be valid. With
    `up_to_damage`, complete commits before a damaged one are returned, and only damage of the first one
    raises. A commit with a damaged body that `excuse` accepts is returned without a body."""
    view = memoryview(data)
    commits: list[tuple[CommitHeader, memoryview]] = []
    at = 0
    while at + commit_header_bytes <= len(view) and offset + at < segment.end:
        header = decode_commit(view, at)
        problem = header_problem(segment, offset + at, header)
        if header is not None and problem is None:
            end = at + commit_header_bytes + header.body_bytes
            if end > len(view):
                return commits, end - at
            body = view[at + commit_header_bytes : end]
            if crc32c(body) == header.body_crc:
                commits.append((header, body))
                at = end
                continue
            if excuse is not None and excuse(header, body):
                commits.append((header, _NOTHING))
                at = end
                continue
            problem = _mismatch(header)
        if commits and up_to_damage:
            break
        raise corrupt(segment, offset + at, problem or "no valid commit header")
    return commits, commit_header_bytes


def mismatch(segment: LogSegment, header: CommitHeader) -> JournalCorrupt:
    """Return the error for a commit with a damaged body."""
    return corrupt(segment, header.offset, _mismatch(header))


def _mismatch(header: CommitHeader) -> str:
    return f"commit {header.number} does not match its checksum"


def header_problem(segment: LogSegment, offset: int, header: CommitHeader | None) -> str | None:
    """Return the problem of a header at `offset` of a segment, or None."""
    if header is None or header.offset != offset or header.salt != segment.header.salt:
        return "no valid commit header"
    if header.end > segment.end:
        return f"commit {header.number} extends beyond the persisted end"
    return None


def commit_parts(segment: LogSegment, commits: list[tuple[CommitHeader, memoryview]]) -> list[LogPart]:
    """Return the message batches of data commits, except excused ones."""
    parts = []
    for header, body in commits:
        if header.kind is CommitKind.DATA and body:
            try:
                parts.append(LogPart(header.first_position, MessageBatch.parse(body)))
            except BadBatch as error:
                raise corrupt(segment, header.offset, f"commit {header.number}: {error}") from error
    return parts


def corrupt(segment: LogSegment, offset: int, what: str) -> JournalCorrupt:
    """Return the error for damage at an offset."""
    path = segment_path(segment.number)
    return damaged_at(path, offset, what)
