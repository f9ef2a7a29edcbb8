"""Owns one read of the log at a time, for somebody in a queue, and what it takes to read.

Must never have two under way, or take it for a failure that retention has removed what is read.
"""

from __future__ import annotations

from typing import NamedTuple

from tickertape.base.errors import TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.engine.log_reads.budget import ReadBudget
from tickertape.engine.runtime.outbox import Outbox
from tickertape.journal.journal import Journal
from tickertape.journal.reading.log_reader import LogReader
from tickertape.journal.reading.log_view import LogPart, ReadRequest


class LogAccess(NamedTuple):
    """What it takes to read the log."""

    journal: Journal
    outbox: Outbox
    budget: ReadBudget


class PendingRead:
    """At most one read. To the budget it is this object that holds what was read."""

    def __init__(self, access: LogAccess) -> None:
        self._access = access
        self._token: int | None = None
        self._segment = 0
        """Number of the segment that is read."""
        self._queued = False
        self.failure: TickertapeError | None = None
        """What was wanted cannot be read."""

    @property
    def waiting(self) -> bool:
        """Whether it is under way."""
        return self._token is not None or self._queued

    def ask(self, request: ReadRequest) -> None:
        """Read, as soon as there is room for it."""
        budget = self._access.budget
        budget.busy(self)
        self._queued = True
        if budget.reserve(self, request.size, lambda: self._send(request)):
            self._send(request)

    def ended(self, token: int) -> bool:
        """Whether it is this one that was answered; then it is over."""
        if token != self._token:
            return False
        self._token = None
        return True

    def parts(self, reader: LogReader, data: Buffer | TickertapeError) -> list[LogPart] | None:
        """What the answer to it holds. None: it failed (`failure`), or retention has removed meanwhile what
        was read: nobody needs that any more."""
        try:
            if isinstance(data, TickertapeError):
                raise data
            return reader.answer(data)
        except TickertapeError as error:
            if self._access.journal.view.has_number(self._segment):
                self.failure = error
            return None

    def stop(self) -> None:
        """Nothing more is wanted; an answer that is still to come is ignored."""
        self._token, self._queued = None, False
        self._access.budget.forget(self)

    def _send(self, request: ReadRequest) -> None:
        self._queued = False
        self._token, self._segment = self._access.outbox.read(request), request.segment
