"""Owns getting the messages of a queue out of the log: from its end in memory, or by reading.

One reader a queue, which goes forward as long as what is wanted lies ahead of it. Must never hold more than
one read of the log for a queue, or hand out a message that is not persisted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from tickertape.base.errors import JournalCorrupt, TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.batch import MessageBatch, merge, reorder, select, slice_batch
from tickertape.batch.format import I8, Int64s
from tickertape.engine.limits import delivery_bytes_max
from tickertape.engine.log_reads.log_reads import LogAccess, PendingRead
from tickertape.journal.reading.log_reader import LogReader
from tickertape.journal.reading.log_view import LogPart, ReadRequest

_NEAR: Final = 4_096
"""Positions that a reader passes over rather than that another begins."""


class Fetched(NamedTuple):
    """Messages and where they stand."""

    batch: MessageBatch
    positions: Int64s


class MessageReader:
    """The messages of one queue. `came` is called when something that was waited for is there."""

    def __init__(
        self,
        access: LogAccess,
        topic: str | None,
        came: Callable[[], None],
    ) -> None:
        """`topic`: the only one that is wanted; None: there are several."""
        self._access = access
        self._topic = topic
        self._budget = access.budget
        self._came = came
        self._reader: LogReader | None = None
        self._parts: list[LogPart] = []
        """What the last read brought."""
        self._read = PendingRead(access)

    @property
    def failure(self) -> TickertapeError | None:
        """What was wanted cannot be read."""
        return self._read.failure

    @property
    def waiting(self) -> bool:
        """Whether a read is under way."""
        return self._read.waiting

    def get(self, wanted: Int64s) -> Fetched | None:
        """Of the messages `wanted` (positions, at least one) those at the front that are in memory, in this
        order, about `delivery_bytes_max` of them; None: they are being read, or cannot be (`failure`)."""
        if self.waiting or self.failure is not None:
            return None
        first = int(wanted[0])
        view = self._access.journal.view
        at = view.tail_at(first)
        if at is not None:
            if self._parts:
                self.let_go()
            return _in_order(view.tail, wanted)
        found = self._now(wanted)
        if found is None:
            self._read_on(first)
            found = self._now(wanted)
        if found is not None:
            self.rest()
        return found

    def rest(self) -> None:
        """What was read was used, or is not wanted now: it may be dropped if others want to read. Not before:
        two that read in turns would only drop what the other one read."""
        if not self.waiting:
            self._budget.idle(self._read, self._dropped)

    def _now(self, wanted: Int64s) -> Fetched | None:
        """Of what a reader brought."""
        if _part_with(self._parts, int(wanted[0])) is None:
            return None
        return _in_order(self._parts, wanted)

    def read_done(self, token: int, data: Buffer | TickertapeError) -> bool:
        """The answer to a read; False when it is none of ours."""
        if not self._read.ended(token):
            return False
        assert self._reader is not None
        parts = self._read.parts(self._reader, data)
        if parts is None:
            self.let_go()
        else:
            self._parts = parts
        self._came()
        return True

    def let_go(self) -> None:
        """Nothing of what was read is needed now."""
        self._dropped()
        if not self.waiting:
            self._budget.forget(self._read)

    def stop(self) -> None:
        """Nothing more is wanted; an answer that is still to come is ignored."""
        self._dropped()
        self._read.stop()

    # -- inside -----------------------------------------------------------------------------------------

    def _dropped(self) -> None:
        """What was read is needed elsewhere."""
        self._parts, self._reader = [], None

    def _read_on(self, first: int) -> None:
        reader = self._reader
        if reader is None or not reader.position <= first < reader.position + _NEAR:
            reader = self._reader = LogReader(self._access.journal.view, first, self._topic)
        self._parts = []
        try:
            step = reader.poll()
        except JournalCorrupt as error:
            self._read.failure = error
            return
        if step is None:
            self._read.failure = JournalCorrupt(f"position {first} is not in the log, and a queue needs it")
        elif isinstance(step, ReadRequest):
            self._read.ask(step)
        else:
            self._parts = step


def _part_with(parts: list[LogPart], position: int) -> int | None:
    at = bisect_right(parts, position, key=_first_position) - 1
    return at if at >= 0 and position < parts[at].end_position else None


def _first_position(part: LogPart) -> int:
    return part.first_position


def _in_order(parts: list[LogPart], wanted: Int64s) -> Fetched:
    """What of `wanted`, whose first is in one of `parts`, these hold, from the front."""
    if (wanted[1:] > wanted[:-1]).all():
        return _rising(parts, wanted)
    inside = (wanted >= parts[0].first_position) & (wanted < parts[-1].end_position)
    wanted = wanted[: int(inside.argmin())] if not inside.all() else wanted
    rising = np.sort(wanted)
    sizes = np.empty(len(rising), I8)
    taken = 0
    while taken < len(rising):
        at = _part_with(parts, int(rising[taken]))
        if at is None:  # the parts are of some topics: they leave out what is not of them
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
    """As `_in_order`, of rising positions; `whole`: parts have all of them, however large they are."""
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


class LogScan:
    """The log from `position` on. `came` is called when a read that was waited for has ended."""

    def __init__(self, access: LogAccess, position: int, topic: str | None, came: Callable[[], None]) -> None:
        """`topic`: the only one that is wanted; None: there are several."""
        self._access = access
        self._topic = topic
        self._reader = LogReader(access.journal.view, position, topic)
        self._came = came
        self._parts: list[LogPart] = []
        self._read = PendingRead(access)

    @property
    def waiting(self) -> bool:
        """Whether a read is under way."""
        return self._read.waiting

    @property
    def failure(self) -> TickertapeError | None:
        """The log cannot be read."""
        return self._read.failure

    @property
    def position(self) -> int:
        """Where the next part begins at the earliest, when no part is there."""
        return self._reader.position

    def parts(self) -> list[LogPart]:
        """The parts that come next, each once; none while it waits, has failed, or is at the end."""
        if not self._parts and not self.waiting and self.failure is None:
            self._poll()
        parts, self._parts = self._parts, []
        return parts

    def read_done(self, token: int, data: Buffer | TickertapeError) -> bool:
        """The answer to a read; False when it is none of ours."""
        if not self._read.ended(token):
            return False
        parts = self._read.parts(self._reader, data)
        if parts is not None:
            self._parts = parts
        elif self.failure is None:  # retention has removed it
            self._reader = LogReader(self._access.journal.view, self._reader.position, self._topic)
        self._access.budget.release(self._read)
        self._came()
        return True

    def stop(self) -> None:
        """Nothing more is wanted; an answer that is still to come is ignored."""
        self._parts = []
        self._read.stop()

    def _poll(self) -> None:
        try:
            step = self._reader.poll()
        except TickertapeError as error:
            self._read.failure = error
            return
        if isinstance(step, ReadRequest):
            self._read.ask(step)
        elif step is not None:
            self._parts = step
