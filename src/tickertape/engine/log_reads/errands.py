"""Owns generators that ask for reads of the log, one for each key, until they have their outcome.

Must never run two for one key, or go on with one that was dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from tickertape.base.errors import TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.engine.log_reads.budget import ReadBudget
from tickertape.engine.runtime.effects import Effect, ReadLog
from tickertape.journal.reading.log_view import ReadRequest

Steps = Generator[ReadRequest | None, Buffer, Any]
"""Asks for reads; None lets others go first, and is answered with nothing (`b""`)."""


class _Lookup:
    def __init__(self, key: int, steps: Steps, done: Callable[[Any], None]) -> None:
        self.key = key
        self.steps = steps
        self.done = done
        self.dropped = False


class LogLookups:
    """All errands under way. Appends its reads to the effects it is given."""

    def __init__(self, effects: list[Effect], new_token: Callable[[], int], budget: ReadBudget) -> None:
        self._effects = effects
        self._new_token = new_token
        self._budget = budget
        self._by_key: dict[int, _Lookup] = {}
        self._reading: dict[int, _Lookup] = {}
        self._ready: deque[_Lookup] = deque()

    def begin(self, key: int, steps: Steps, done: Callable[[Any], None]) -> None:
        """Run `steps`; `done` is told the outcome, perhaps at once. The steps answer for their errors
        themselves: one that they let out is the outcome."""
        errand = _Lookup(key, steps, done)
        self._by_key[key] = errand
        self._advance(errand, None)

    def drop(self, key: int) -> None:
        """Nobody waits for it any more."""
        errand = self._by_key.pop(key, None)
        if errand is not None:
            errand.dropped = True
            errand.steps.close()
            if errand not in self._reading.values():
                self._budget.forget(errand)

    def read_done(self, token: int, data: Buffer | TickertapeError) -> bool:
        """The answer to a read; False when it is none of ours."""
        errand = self._reading.pop(token, None)
        if errand is None:
            return False
        self._budget.forget(errand)
        if not errand.dropped:
            self._advance(errand, data)
        return True

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return bool(self._ready)

    def step(self) -> None:
        """Let one that let others go first go on."""
        if self._ready:
            errand = self._ready.popleft()
            if not errand.dropped:
                self._advance(errand, b"")

    def _advance(self, errand: _Lookup, data: Buffer | TickertapeError | None) -> None:
        try:
            if isinstance(data, TickertapeError):
                request = errand.steps.throw(data)
            else:
                request = next(errand.steps) if data is None else errand.steps.send(data)
        except StopIteration as outcome:
            self._finish(errand, outcome.value)
        except TickertapeError as error:
            self._finish(errand, error)
        else:
            if request is None:
                self._ready.append(errand)
            elif self._budget.reserve(errand, request.size, lambda: self._read(errand, request)):
                self._read(errand, request)

    def _finish(self, errand: _Lookup, outcome: Any) -> None:
        self._by_key.pop(errand.key, None)
        errand.done(outcome)

    def _read(self, errand: _Lookup, request: ReadRequest) -> None:
        token = self._new_token()
        self._reading[token] = errand
        self._effects.append(ReadLog(token, request))
