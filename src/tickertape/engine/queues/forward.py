"""Owns reading the log forward, part by part, for somebody in a queue: entering, filters, sweeps.

Must never hold more than one read, or hand out what is not persisted.
"""

from __future__ import annotations

from collections.abc import Callable

from tickertape.base.errors import TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.engine.log_reads.log_reads import LogAccess, PendingRead
from tickertape.journal.reading.log_reader import LogReader
from tickertape.journal.reading.log_view import LogPart, ReadRequest


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
