"""Log reader: reads the log forward from a position, by requests that are data.

Pure. A reader of one topic skips blocks without it; of large commits in which the topic is rare it reads the
head, then only the runs that hold it.

Invariant: every message returned is covered by a verified checksum: its commit's, or its run's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from tickertape.base.errors import BadBatch, CorruptBatch
from tickertape.base.interfaces import Buffer
from tickertape.batch import BatchHead, MessageBatch
from tickertape.batch.format import Int64s
from tickertape.journal.format.segment import CommitHeader, CommitKind, decode_commit
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
)

_SPARSE = 8
"""A topic is rare in a commit with at most one message of it in this number of messages."""


class _Bodies(NamedTuple):
    """Bodies that were asked for: of these runs of this commit."""

    header: CommitHeader
    head: BatchHead
    runs: Int64s


class LogReader:
    """Reads forward from a position, optionally only blocks that may hold one topic.

    `poll()` returns parts from memory, a `ReadRequest`, or None at the persisted end; a request is answered
    with `answer(data)`. Parts may begin before `position` at the start, and hold other topics: the caller
    cuts them. After each call the next part begins at `position` or later."""

    def __init__(self, view: LogView, position: int, topic: str | None = None) -> None:
        self._view = view
        self._topic = topic
        self.position = max(position, view.first_position)
        self._segment: LogSegment | None = None
        self._offset = 0
        self._need = 0
        self._head_bytes = 0
        """Bytes to read first of the next commit, if its head may suffice; else 0."""
        self._bodies: _Bodies | None = None
        self._request: ReadRequest | None = None

    def poll(self) -> list[LogPart] | ReadRequest | None:
        """Return the next step (see the class)."""
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
        """The bytes of the last request. May give no part yet: poll again. Raises `JournalCorrupt`."""
        segment, request, position = self._segment, self._request, self.position
        assert segment is not None
        assert request is not None
        self._request = None
        if len(data) < request.size:
            at = request.offset + len(data)
            raise corrupt(segment, at, "the file is shorter than what was persisted")
        if self._bodies is not None:
            parts = self._answer_bodies(segment, self._bodies, data)
        elif self._head_bytes and self._answer_head(segment, request, data):
            parts = []
        else:
            parts = self._answer_commits(segment, request, data)
        # The block of a position begins before it: what was passed is not given again.
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
            self._head_bytes = self._rare(parts[-1].batch, self._topic)  # small ones between say nothing
        return parts

    def _not_wanted(self, header: CommitHeader, body: memoryview) -> bool:
        """Whether a commit may be damaged: it precedes the start, or its head shows that it lacks
        the topic."""
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
        """Return the bytes of a commit like this one to read first: its head, or 0 for all of it."""
        if batch.topic_index is None or topic not in batch.topics:
            return 0
        own = int(np.count_nonzero(batch.topic_index == batch.topics.index(topic)))
        head_bytes = commit_header_bytes + batch.head_bytes + batch.head_bytes // _SPARSE
        return head_bytes if own * _SPARSE <= batch.count else 0

    def _passed(self, header: CommitHeader) -> None:
        """Everything of a commit was considered."""
        self._offset = header.end
        self.position = max(self.position, header.first_position + header.messages)

    # -- few messages of large commits ----------------------------------------------------------------

    def _answer_head(self, segment: LogSegment, request: ReadRequest, data: Buffer) -> bool:
        """Look at the head of a commit; False when its answer is to be taken as whole commits."""
        header = decode_commit(memoryview(data))
        if header_problem(segment, request.offset, header) is not None:
            return False  # which says so
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

    # -- where to read --------------------------------------------------------------------------------

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
        """Move to a commit boundary to read from; False when `position` moved instead."""
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
        return min(reach - self._offset, commit_bytes_max)  # blocks are long when the index got coarser
