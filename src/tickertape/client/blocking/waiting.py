"""Waits of a thread: for the outcome of a call, and for the steps of a call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from typing import TypeVar

from tickertape.base.errors import TickertapeError
from tickertape.client.common.waiting import LOOKS, no_answer
from tickertape.client.limits import sql_interrupt_seconds
from tickertape.client.protocol.transactions import onward

Step = TypeVar("Step")
Outcome = TypeVar("Outcome")


class ThreadWaiter:
    """The outcome of one call: one thread sets it, another thread waits for it."""

    __slots__ = ("_outcome", "_settled")

    def __init__(self) -> None:
        self._settled = threading.Lock()
        self._settled.acquire()
        self._outcome: object = None

    @property
    def settled(self) -> bool:
        """Whether the outcome is set."""
        return not self._settled.locked()

    def settle(self, outcome: object) -> None:
        """Set the outcome. Only the first outcome counts."""
        if self._settled.locked():
            self._outcome = outcome
            self._settled.release()

    def wait(self, timeout: float | None, what: str, whole: float | None = None) -> object:
        """Wait for the outcome and return it, or raise it if it is an error.

        Raises `TimedOut` after `timeout` seconds. `whole`: the full timeout for the error text, if `timeout`
        is only the rest of it.
        """
        if not self._settled.acquire(timeout=-1 if timeout is None else timeout):
            raise no_answer(what, timeout if whole is None else whole)
        return self._taken()

    def wait_idle(self, seconds: float, what: str, busy: Callable[[], bool]) -> object:
        """Wait as `wait` does, but count only time in which `busy()` is false.

        `busy()` is polled. A slow handler delays the answers behind its message.
        """
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
    """Perform each step with `take`, send its answer or error to the generator, and return the outcome."""
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
                except Exception as error:  # noqa: BLE001 - the generator handles it
                    answer = error
    finally:
        del answer  # Its traceback references this frame.


def in_thread(work: Callable[[], Outcome], interrupt: Callable[[], object]) -> Outcome:
    """Return the result of `work` in a thread, because DuckDB does not always notice signals.

    If a signal handler raises (Ctrl-C), interrupt `work`, wait for its end, and raise the exception. This
    wait ignores exceptions of further signals.
    """
    outcomes: list[Outcome] = []
    errors: list[BaseException] = []
    done = threading.Event()  # `join` is wrong about the thread after an exception of a signal handler

    def run() -> None:
        try:
            outcomes.append(work())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=run, name="tickertape-sql", daemon=True)
    try:
        thread.start()
        while not done.wait(sql_interrupt_seconds):
            """A wait without a timeout misses a signal that arrives just before it."""
    except BaseException:
        while thread.ident is not None and not done.is_set():
            with suppress(BaseException):
                interrupt()  # has no effect before the start of `work`, so it is repeated
                done.wait(sql_interrupt_seconds)
        raise
    if errors:
        raise errors.pop()
    return outcomes.pop()
