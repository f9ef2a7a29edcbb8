"""Log scans: read the persisted log forward for one holder, from its end in memory or from disk.

Invariants:
- A reader has at most one read in progress.
- Only persisted messages are returned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from tickertape.base.errors import TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.engine.log_reads.log_reads import LogReads
from tickertape.journal.reading.log_reader import LogReader
from tickertape.journal.reading.log_view import LogPart, LogView, ReadRequest


class PersistedReader(ABC):
    """Reads the log for its `holder`, which resumes after each answer."""

    def __init__(self, view: LogView, reads: LogReads, topic: str | None, holder: object) -> None:
        """`topic` is the only topic to read. None for several topics."""
        self.holder = holder
        self.waiting = False
        """Whether a read is in progress or waits for memory."""
        self.failure: TickertapeError | None = None
        """The error if the read failed."""
        self._view = view
        self._topic = topic
        self._reads = reads
        self._budget = reads.budgets.log
        self._parts: list[LogPart] = []
        """Parts of the last read."""
        self._segment = 0
        """Number of the segment of the current read."""

    @abstractmethod
    def read_done(self, data: Buffer | TickertapeError) -> None:
        """Handle the answer to the read."""

    def stop(self) -> None:
        """Stop. The answer to a read in progress is ignored."""
        self._parts = []
        self.waiting = False
        self._reads.drop(self)

    def _ask(self, request: ReadRequest) -> None:
        """Send a read as soon as its memory is reserved."""
        self._budget.busy(self)
        self.waiting, self._segment = True, request.segment
        self._reads.read_when_free(self, request)

    def _answered(self, reader: LogReader, data: Buffer | TickertapeError) -> list[LogPart] | None:
        """Return the parts in an answer, or None.

        None means that the read failed (`failure`), or that retention has deleted the segment. In that case
        its messages are no longer needed."""
        self.waiting = False
        try:
            if isinstance(data, TickertapeError):
                raise data
            return reader.answer(data)
        except TickertapeError as error:
            if self._view.has_number(self._segment):
                self.failure = error
            return None


class LogScan(PersistedReader):
    """Reads the log forward from `position`."""

    def __init__(
        self, view: LogView, reads: LogReads, position: int, topic: str | None, holder: object
    ) -> None:
        super().__init__(view, reads, topic, holder)
        self._reader = LogReader(view, position, topic)

    @property
    def position(self) -> int:
        """Lowest possible start of the next part, if no part is buffered."""
        return self._reader.position

    def parts(self) -> list[LogPart]:
        """Return the next parts, each once. Empty while it waits, after a failure, and at the end."""
        if not self._parts and not self.waiting and self.failure is None:
            self._poll()
        parts, self._parts = self._parts, []
        return parts

    def read_done(self, data: Buffer | TickertapeError) -> None:
        """Handle the answer to the read."""
        parts = self._answered(self._reader, data)
        if parts is not None:
            self._parts = parts
        elif self.failure is None:  # retention has deleted the segment
            self._reader = LogReader(self._view, self._reader.position, self._topic)
        self._budget.release(self)

    def _poll(self) -> None:
        try:
            step = self._reader.poll()
        except TickertapeError as error:
            self.failure = error
            return
        if isinstance(step, ReadRequest):
            self._ask(step)
        elif step is not None:
            self._parts = step
