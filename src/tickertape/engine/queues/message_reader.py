"""Message readers: read messages of a queue by position.

Messages come from the end of the log in memory, or from disk.

Invariants:
- A reader has at most one read in progress.
- Only persisted messages are returned.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

import numpy as np

from tickertape.base.errors import JournalCorrupt, TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.batch import MessageBatch, merge, reorder, select, slice_batch
from tickertape.batch.format import I8, Int64s
from tickertape.engine.limits import delivery_bytes_max
from tickertape.engine.log_reads.log_reads import LogReads
from tickertape.engine.log_reads.log_scan import PersistedReader
from tickertape.engine.queues.log_records import QueueLog
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.outbox import Outbox
from tickertape.journal.journal import Journal
from tickertape.journal.reading.log_reader import LogReader
from tickertape.journal.reading.log_view import LogPart, ReadRequest

_NEAR: Final = 4_096
"""Maximum gap in positions that a reader skips instead of starting a new reader."""


class Fetched(NamedTuple):
    """Messages and their positions."""

    batch: MessageBatch
    positions: Int64s


class QueueAccess(NamedTuple):
    """Collaborators of all queues."""

    journal: Journal
    outbox: Outbox
    clock: EngineClock
    reads: LogReads
    log: QueueLog


class MessageReader(PersistedReader):
    """Reads messages of one queue by position."""

    def __init__(self, access: QueueAccess, topic: str | None, holder: object) -> None:
        super().__init__(access.journal.view, access.reads, topic, holder)
        self._reader: LogReader | None = None

    def get(self, wanted: Int64s) -> Fetched | None:
        """Return the first of the messages `wanted` (positions, at least one) that are in memory, in this
        order.

        Returns about `delivery_bytes_max`, or None while they are being read or if they cannot be read
        (`failure`)."""
        if self.waiting or self.failure is not None:
            return None
        first = int(wanted[0])
        view = self._view
        at = view.tail_at(first)
        if at is not None:
            if self._parts:
                self.discard()
            return _in_order(view.tail, wanted)
        found = self._now(wanted)
        if found is None:
            self._read_on(first)
            found = self._now(wanted)
        if found is not None:
            self.release_memory()
        return found

    def release_memory(self) -> None:
        """Allow other readers to use the memory. Call it only after the messages are used: otherwise two
        alternating readers would evict each other's data."""
        if not self.waiting:
            self._budget.idle(self, self._dropped)

    def _now(self, wanted: Int64s) -> Fetched | None:
        """Return the messages from the parts of the last read."""
        if _part_with(self._parts, int(wanted[0])) is None:
            return None
        return _in_order(self._parts, wanted)

    def read_done(self, data: Buffer | TickertapeError) -> None:
        """Handle the answer to the read."""
        assert self._reader is not None
        parts = self._answered(self._reader, data)
        if parts is None:
            self.discard()
        else:
            self._parts = parts

    def discard(self) -> None:
        """Discard the parts and release their memory."""
        self._dropped()
        if not self.waiting:
            self._budget.forget(self)

    # -- internals --------------------------------------------------------------------------------------

    def _dropped(self) -> None:
        """Discard the parts after their memory was released."""
        self._parts, self._reader = [], None

    def _read_on(self, first: int) -> None:
        reader = self._reader
        if reader is None or not reader.position <= first < reader.position + _NEAR:
            reader = self._reader = LogReader(self._view, first, self._topic)
        self._parts = []
        try:
            step = reader.poll()
        except JournalCorrupt as error:
            self.failure = error
            return
        if step is None:
            self.failure = JournalCorrupt(
                f"Cannot read position {first}, which a queue needs: it is not in the log. Run "
                "`tickertape journal verify`."
            )
        elif isinstance(step, ReadRequest):
            self._ask(step)
        else:
            self._parts = step


def _part_with(parts: list[LogPart], position: int) -> int | None:
    at = bisect_right(parts, position, key=_first_position) - 1
    return at if at >= 0 and position < parts[at].end_position else None


def _first_position(part: LogPart) -> int:
    return part.first_position


def _in_order(parts: list[LogPart], wanted: Int64s) -> Fetched:
    """Return the leading messages of `wanted` that the parts hold. The first one is in a part."""
    if (wanted[1:] > wanted[:-1]).all():
        return _rising(parts, wanted)
    inside = (wanted >= parts[0].first_position) & (wanted < parts[-1].end_position)
    wanted = wanted[: int(inside.argmin())] if not inside.all() else wanted
    rising = np.sort(wanted)
    sizes = np.empty(len(rising), I8)
    taken = 0
    while taken < len(rising):
        at = _part_with(parts, int(rising[taken]))
        if at is None:  # the parts omit messages on other topics
            return _in_order(parts, wanted[:1])
        stop = int(rising.searchsorted(parts[at].end_position))
        part, positions = parts[at], rising[taken:stop]
        indices = (
            positions - part.first_position
            if part.positions is None
            else part.positions.searchsorted(positions)
        )
        sizes[taken:stop] = part.batch.offsets[indices + 1] - part.batch.offsets[indices]
        taken = stop
    total = sizes[rising.searchsorted(wanted)].cumsum()
    wanted = wanted[: max(int(total.searchsorted(delivery_bytes_max)), 1)]
    rising = np.sort(wanted)
    fetched = _rising(parts, rising, whole=True)
    return Fetched(reorder(fetched.batch, rising.searchsorted(wanted)), wanted)


def _rising(parts: list[LogPart], wanted: Int64s, *, whole: bool = False) -> Fetched:
    """Return the result of `_in_order` for ascending positions. `whole`: the parts hold all of them, and the
    size is not limited."""
    batches: list[MessageBatch] = []
    taken = size = 0
    while taken < len(wanted) and (whole or size < delivery_bytes_max):
        at = _part_with(parts, int(wanted[taken]))
        if at is None:
            break
        stop = int(wanted.searchsorted(parts[at].end_position))
        batches.append(_some(parts[at], wanted[taken:stop]))
        size += batches[-1].nbytes
        taken = stop
    return Fetched(batches[0] if len(batches) == 1 else merge(batches), wanted[:taken])


def _some(part: LogPart, wanted: Int64s) -> MessageBatch:
    batch = part.batch
    if part.positions is None:
        low, count = int(wanted[0]) - part.first_position, len(wanted)
        if int(wanted[-1]) - int(wanted[0]) == count - 1:
            return batch if count == batch.count else slice_batch(batch, low, low + count)
        return select(batch, wanted - part.first_position)
    return select(batch, np.searchsorted(part.positions, wanted))
