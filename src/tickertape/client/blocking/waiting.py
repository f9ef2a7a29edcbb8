"""Waiting of a thread: for an outcome that another thread sets, and for the steps of a call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import closing
from typing import TypeVar

from tickertape.base.errors import TickertapeError
from tickertape.client.common.waiting import LOOKS, no_answer
from tickertape.client.protocol.transactions import onward

Step = TypeVar("Step")
Outcome = TypeVar("Outcome")


class ThreadWaiter:
    """The outcome of one call, set on one thread and waited for on another."""

    __slots__ = ("_outcome", "_settled")

    def __init__(self) -> None:
        self._settled = threading.Lock()
        self._settled.acquire()
        self._outcome: object = None

    @property
    def settled(self) -> bool:
        """Whether `wait` would not wait."""
        return not self._settled.locked()

    def settle(self, outcome: object) -> None:
        """Set the outcome; the first one stays."""
        if self._settled.locked():
            self._outcome = outcome
            self._settled.release()

    def wait(self, timeout: float | None, what: str, whole: float | None = None) -> object:
        """The outcome; raises it when it is an error, and `TimedOut` after `timeout` seconds without one.

        `whole`: what the error says instead, where `timeout` is only the rest of it.
        """
        if not self._settled.acquire(timeout=-1 if timeout is None else timeout):
            raise no_answer(what, timeout if whole is None else whole)
        return self._taken()

    def wait_idle(self, seconds: float, what: str, busy: Callable[[], bool]) -> object:
        """As `wait`, but only time counts in which not `busy()`, which it looks at now and then: an answer
        may stand behind what a handler takes its time for."""
        idle = 0
        while not self._settled.acquire(timeout=seconds / LOOKS):
            if not busy():
                idle += 1
            if idle == LOOKS:
                raise no_answer(what, seconds)
        return self._taken()

    def _taken(self) -> object:
        if isinstance(self._outcome, TickertapeError):
            raise self._outcome
        return self._outcome


def perform(steps: Generator[Step, object, Outcome], take: Callable[[Step], object]) -> Outcome:
    """Take each step and send its answer, or its error, to the steps; return their outcome."""
    answer: object = None
    try:
        with closing(steps):
            while True:
                try:
                    step = onward(steps, answer)
                except StopIteration as done:
                    outcome: Outcome = done.value
                    return outcome
                try:
                    answer = take(step)
                except Exception as error:  # noqa: BLE001 - the steps say what becomes of it
                    answer = error
    finally:
        del answer  # its traceback holds this frame
