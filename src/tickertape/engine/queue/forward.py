"""Owns reading the log forward, part by part, for somebody in a queue: entering, filters, sweeps.

Must never hold more than one read, or hand out what is not persisted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tickertape.base.errors import TickertapeError
from tickertape.base.ports import Buffer
from tickertape.engine.effects import Effect, Read
from tickertape.engine.read_budget import ReadBudget
from tickertape.journal.journal import Journal
from tickertape.journal.reader import LogReader
from tickertape.journal.reading import Part, ReadRequest


class LogAccess(NamedTuple):
    """What it takes to read the log."""

    journal: Journal
    effects: list[Effect]
    new_token: Callable[[], int]
    budget: ReadBudget


class Forward:
    """The log from `position` on. `came` is called when a read that was waited for has ended."""

    def __init__(self, access: LogAccess, position: int, topic: str | None, came: Callable[[], None]) -> None:
        """`topic`: the only one that is wanted; None: there are several."""
        self._access = access
        self._topic = topic
        self._reader = LogReader(access.journal.view, position, topic)
        self._came = came
        self._parts: list[Part] = []
        self._token: int | None = None
        self._segment = 0
        """Number of the segment that is read."""
        self._queued = False
        self.failure: TickertapeError | None = None

    @property
    def waiting(self) -> bool:
        """Whether a read is under way."""
        return self._token is not None or self._queued

    @property
    def position(self) -> int:
        """Where the next part begins at the earliest, when no part is there."""
        return self._reader.position

    def parts(self) -> list[Part]:
        """The parts that come next, each once; none while it waits, has failed, or is at the end."""
        if not self._parts and not self.waiting and self.failure is None:
            self._poll()
        parts, self._parts = self._parts, []
        return parts

    def read_done(self, token: int, data: Buffer | TickertapeError) -> bool:
        """The answer to a read; False when it is none of ours."""
        if token != self._token:
            return False
        self._token = None
        try:
            if isinstance(data, TickertapeError):
                raise data
            self._parts = self._reader.answer(data)
        except TickertapeError as error:
            view = self._access.journal.view
            if view.has_number(self._segment):
                self.failure = error
            else:  # retention has removed it meanwhile: what was in it is needed by nobody
                self._reader = LogReader(view, self._reader.position, self._topic)
        self._access.budget.release(self)
        self._came()
        return True

    def stop(self) -> None:
        """Nothing more is wanted; an answer that is still to come is ignored."""
        self._token, self._parts = None, []
        self._access.budget.forget(self)

    def _poll(self) -> None:
        try:
            step = self._reader.poll()
        except TickertapeError as error:
            self.failure = error
            return
        if isinstance(step, ReadRequest):
            if self._access.budget.reserve(self, step.size, lambda: self._granted(step)):
                self._send(step)
            else:
                self._queued = True
        elif step is not None:
            self._parts = step

    def _granted(self, request: ReadRequest) -> None:
        self._queued = False
        self._send(request)

    def _send(self, request: ReadRequest) -> None:
        self._token, self._segment = self._access.new_token(), request.segment
        self._access.effects.append(Read(self._token, request))
