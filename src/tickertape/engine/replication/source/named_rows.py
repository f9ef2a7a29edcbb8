"""Named rows: rows of names that the destination may request, and the answers to its requests.

A row is kept until the destination has returned the credit of its frame, or has the rows of the frame on its
disk. So the credit bounds the memory.

Invariants:
- Answers have the order of the requests.
- It holds at most one read of the log, and reads only to answer.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tickertape.base.errors import BadLink
from tickertape.batch import MessageBatch, merge, slice_batch
from tickertape.batch.format import UInt64s
from tickertape.engine.limits import link_step_answers_max, link_step_bytes
from tickertape.engine.log_reads.log_scan import LogScan
from tickertape.engine.replication.source.link_frames import NamedSpans
from tickertape.engine.replication.source.routed_log import SourceLog, removed
from tickertape.journal.reading.log_view import LogPart


class _KeptNames(NamedTuple):
    """Rows of one frame of names."""

    rows_end: int
    """Number after its last row."""
    spans: NamedSpans
    spent: int
    """Cost of all frames up to this one."""
    end: int
    """`end` of the frame."""

    @property
    def first(self) -> int:
        """Number of its first row."""
        return self.rows_end - len(self.spans.positions)


class _RequestedSpan(NamedTuple):
    """A requested row: its number, the position of its first message, and the number of its messages."""

    row: int
    position: int
    messages: int


class RequestedBodies(NamedTuple):
    """Bodies of requested rows, one run for each."""

    rows: list[int]
    batch: MessageBatch


class NamedRows:
    """Named rows of one connection. `holder` is the owner that resumes after a read."""

    def __init__(self, log: SourceLog, holder: object) -> None:
        self._log = log
        self._holder = holder
        self._count = 0
        self._frames: deque[_KeptNames] = deque()
        self._requested: deque[_RequestedSpan] = deque()
        self._scan: LogScan | None = None
        self._parts: deque[LogPart] = deque()

    @property
    def oldest(self) -> int | None:
        """Lowest position of the rows that were or may be requested. None without any."""
        first = self._requested[0].position if self._requested else None
        if first is None and self._frames:
            first = int(self._frames[0].spans.positions[0])
        return first

    @property
    def has_work(self) -> bool:
        """Whether `bodies` can return some without further input, or raise an error."""
        return bool(self._requested) and (self._scan is None or not self._scan.waiting)

    def add(self, spans: NamedSpans, spent: int, end: int) -> None:
        """Add the rows of the next frame of names. `spent`: cost of all frames up to it."""
        self._count += len(spans.positions)
        self._frames.append(_KeptNames(self._count, spans, spent, end))

    def request(self, rows: UInt64s) -> None:
        """Request rows, by ascending numbers. Raises `BadLink` for a row that is not kept."""
        for row in rows.tolist():
            while self._frames and self._frames[0].rows_end <= row:
                self._frames.popleft()
            if not self._frames or row < self._frames[0].first:
                raise BadLink(
                    f"Invalid link frame: row {row} was requested, but it was not named, or the destination "
                    "has processed it. Report the defect of the destination."
                )
            frame = self._frames[0]
            at = row - frame.first
            self._requested.append(
                _RequestedSpan(row, int(frame.spans.positions[at]), int(frame.spans.counts[at]))
            )

    def returned(self, credit: int) -> None:
        """Drop the rows of frames whose credit was returned. `credit`: all credit that was returned."""
        while self._frames and self._frames[0].spent <= credit:
            self._frames.popleft()

    def acknowledged(self, durable: int) -> None:
        """Drop the rows of frames below `durable`."""
        while self._frames and self._frames[0].end < durable:
            self._frames.popleft()

    def bodies(self) -> RequestedBodies | None:
        """Return the bodies of the next requested rows. None while it reads, and without requests.

        Raises errors of reading, and `BookmarkExpired` if retention has removed a row."""
        rows: list[int] = []
        runs: list[MessageBatch] = []
        cost = 0
        while self._requested and len(rows) < link_step_answers_max:
            row, position, messages = self._requested[0]
            part = self._part_with(position)
            if part is None:
                break
            low = position - part.first_position
            run = slice_batch(part.batch, low, low + messages)
            cost += run.cost
            if rows and cost > link_step_bytes:
                break
            self._requested.popleft()
            rows.append(row)
            runs.append(run)
        if not self._requested:
            self.stop()
        return RequestedBodies(rows, merge(runs)) if rows else None

    def stop(self) -> None:
        """Stop reading."""
        if self._scan is not None:
            self._scan.stop()
        self._scan = None
        self._parts.clear()

    def _part_with(self, position: int) -> LogPart | None:
        """Return the commit with a position, not below the last one. None while it is read."""
        parts = self._parts
        while True:
            while parts and parts[0].end_position <= position:
                parts.popleft()
            if parts:
                if parts[0].first_position > position:
                    raise removed(position, parts[0].first_position)
                return parts[0]
            scan = self._scan
            if scan is not None and scan.waiting:
                return None
            if scan is None or (scan.failure is None and scan.position < position):
                scan = self._new_scan(position)
            parts.extend(scan.parts())
            if scan.failure is not None:
                raise scan.failure
            if scan.waiting:
                return None
            if not parts:
                raise removed(position, self._log.view.first_position)

    def _new_scan(self, position: int) -> LogScan:
        self._scan = LogScan(self._log.view, self._log.reads, position, None, self._holder)
        return self._scan
