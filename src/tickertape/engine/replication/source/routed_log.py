"""Routed log: the persisted log in pieces, with the rows of each piece that a link sends or names.

Invariants:
- Pieces are consecutive, and no row is filtered twice.
- It holds at most one read and one piece of it. It reads when it has no piece.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from tickertape.base.errors import BookmarkExpired, JournalCorrupt
from tickertape.base.names import LINK_TOPIC
from tickertape.batch import MessageBatch, merge, message_costs
from tickertape.batch.format import Bools, Int64s
from tickertape.engine.limits import link_step_bytes
from tickertape.engine.log_reads.log_reads import LogReads
from tickertape.engine.log_reads.log_scan import LogScan
from tickertape.engine.replication.origins import Origins
from tickertape.engine.replication.places import LogStarts
from tickertape.engine.replication.routes import DestinationRoutes, RoutedRows, RunOrigin
from tickertape.journal.limits import read_bytes_target
from tickertape.journal.reading.log_view import LogPart, LogView


class SourceLog(NamedTuple):
    """The log of a source, and its facts."""

    view: LogView
    reads: LogReads
    starts: LogStarts
    origins: Origins


class LogStretch(NamedTuple):
    """Consecutive commits as one batch. Row i has position `first_position + i`."""

    first_position: int
    batch: MessageBatch
    costs: Int64s
    """Cost of all rows before each row, and before the end."""


class RoutedPiece:
    """Rows of one piece of the log that the link sends or names, in log order."""

    def __init__(self, stretch: LogStretch, low: int, high: int, routed: RoutedRows) -> None:
        rows = np.concatenate(routed)
        order = rows.argsort()
        named: Bools = order >= len(routed.sent)
        self.stretch = stretch
        self.batch = stretch.batch
        self.end = stretch.first_position + high
        """Position after the piece."""
        self.moved_end = _moved_end(stretch, low, high)
        """Position after the last row that moves places. 0 without one."""
        self._rows: Int64s = rows[order]
        self._named = named
        self._edges: Int64s = np.append((named[1:] != named[:-1]).nonzero()[0] + 1, len(rows))
        """Indices at which the treatment of the rows changes."""
        self._at = 0

    @property
    def over(self) -> bool:
        """Whether all rows were taken."""
        return self._at == len(self._rows)

    @property
    def position(self) -> int:
        """Position of the next row, or the end of the piece."""
        return self.end if self.over else self.stretch.first_position + int(self._rows[self._at])

    @property
    def is_named(self) -> bool:
        """Whether the next rows are named."""
        return bool(self._named[self._at])

    def next_rows(self) -> Int64s:
        """Return the next rows with one treatment, at least one unless it is over."""
        return self._rows[self._at : int(self._edges[self._edges.searchsorted(self._at, "right")])]

    def take(self, count: int) -> None:
        """Remove the next rows."""
        self._at += count


class RoutedLog:
    """The log from a position on, for one link. `holder` is the owner that resumes after a read."""

    def __init__(self, log: SourceLog, routes: DestinationRoutes, position: int, holder: object) -> None:
        self._log = log
        self._routes = routes
        self._scan = LogScan(log.view, log.reads, position, None, holder)
        self._parts: deque[LogPart] = deque()
        self._stretch: LogStretch | None = None
        self._next = position
        """Position after the last piece."""
        self._piece: RoutedPiece | None = None
        self._origins: dict[int, RunOrigin] = {}

    @property
    def passed(self) -> int:
        """Position before which all rows were taken, or are not for the link."""
        return self._next if self._piece is None else self._piece.position

    @property
    def has_work(self) -> bool:
        """Whether `piece` can return a piece without further input, or raise an error."""
        return self._piece is not None or (
            self._next < self._log.view.end_position and not self._scan.waiting
        )

    def piece(self) -> RoutedPiece | None:
        """Return the piece with rows that were not taken yet, or the next one. None while it reads, and at
        the end.

        Raises `JournalCorrupt`, errors of reading, and `BookmarkExpired` if retention has removed the next
        rows."""
        if self._piece is None and (self._stretch is not None or self._read()):
            self._piece = self._split()
        return self._piece

    def done(self) -> None:
        """Drop the piece, whose rows were taken."""
        self._piece = None

    def stop(self) -> None:
        """Stop reading."""
        self._scan.stop()
        self._parts.clear()
        self._stretch = self._piece = None

    def _read(self) -> bool:
        """Get the next commits. Return False without any."""
        parts = self._parts
        parts.extend(self._scan.parts() if not parts else ())
        if self._scan.failure is not None:
            raise self._scan.failure
        if not parts:
            return False
        if parts[0].first_position > self._next:
            raise removed(self._next, parts[0].first_position)
        group = [parts.popleft()]
        size = group[0].batch.nbytes
        while parts and size + parts[0].batch.nbytes <= read_bytes_target:
            size += parts[0].batch.nbytes
            group.append(parts.popleft())
        batch = merge([part.batch for part in group])
        self._stretch = LogStretch(group[0].first_position, batch, _running(message_costs(batch)))
        for number in np.unique(batch.runs["origin"]).tolist():
            if number and number not in self._origins:
                self._origins[number] = self._origin(number)
        return True

    def _split(self) -> RoutedPiece:
        """Split the next piece."""
        stretch = self._stretch
        assert stretch is not None
        low = self._next - stretch.first_position
        most = int(stretch.costs.searchsorted(stretch.costs[low] + link_step_bytes, "right")) - 1
        high = min(self._routes.piece_end(stretch.batch, low), max(most, low + 1))
        piece = RoutedPiece(stretch, low, high, self._routes.split(stretch.batch, low, high, self._origins))
        self._next = piece.end
        if high == stretch.batch.count:
            self._stretch = None
        return piece

    def _origin(self, number: int) -> RunOrigin:
        try:
            origin = self._log.origins[number]
        except KeyError:
            raise JournalCorrupt(
                f"Cannot replicate the log: the log has no record of server number {number}, which "
                f"sent the messages at position {self._next:,}. Run 'tickertape journal verify'."
            ) from None
        return RunOrigin(origin.group, origin.path)


def removed(position: int, first: int) -> BookmarkExpired:
    """Return the error for rows that retention has removed, although the link needs them."""
    return BookmarkExpired(
        f"Cannot replicate the rows from position {position:,} on: retention removed the rows before "
        f"{first:,}. Report the defect."
    )


def _running(costs: Int64s) -> Int64s:
    total = np.zeros(len(costs) + 1, np.int64)
    costs.cumsum(out=total[1:])
    return total


def _moved_end(stretch: LogStretch, low: int, high: int) -> int:
    """Return the position after the last row that is not a place. Rows of places alone move no place, because
    two servers would answer each other without end."""
    batch = stretch.batch
    if LINK_TOPIC not in batch.topics:
        return stretch.first_position + high
    if batch.topic_index is None:
        return 0
    others = (batch.topic_index[low:high] != batch.topics.index(LINK_TOPIC)).nonzero()[0]
    return stretch.first_position + low + int(others[-1]) + 1 if len(others) else 0
