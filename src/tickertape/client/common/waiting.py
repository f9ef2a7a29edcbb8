"""Owns the clock of the fronts, and waiting, on a thread, for the outcome of one call.

Must never know what the call was.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable
from typing import Final

from tickertape.base.errors import TickertapeError, TimedOut
from tickertape.base.interfaces import Now
from tickertape.base.units import parse_interval, within


class Default(enum.Enum):
    """Type of `DEFAULT`."""

    DEFAULT = "the client's timeout"


DEFAULT: Final = Default.DEFAULT
"""Wait as long as the client's own `timeout` says."""

Timeout = float | str | None | Default
"""Seconds, text such as `"500ms"`, None = as long as the connection lasts, or `DEFAULT`."""


LONGEST_SECONDS: Final = threading.TIMEOUT_MAX / 2
"""The longest that a lock can be waited for is about 292 years; whoever says more than half of that waits
so long."""
LOOKS: Final = 10
"""How often in its time a wait looks whether anybody is busy with what came before the answer."""


def seconds_of(timeout: float | str | None) -> float | None:
    """A timeout of the application in seconds, at most `LONGEST_SECONDS`. Raises `BadOption`."""
    return None if timeout is None else min(parse_interval(timeout), LONGEST_SECONDS)


def no_answer(what: str, seconds: float | None) -> TimedOut:
    """The error that the call `what` had no answer in that time."""
    return TimedOut(f"no answer to {what} {within(seconds)}; it may still take effect")


def now() -> Now:
    """This moment, for the machine."""
    return Now(time.monotonic(), time.time_ns() // 1000)


def remaining(deadline: float | None) -> float | None:
    """Seconds until `deadline`, a time of the monotonic clock; None without one."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


class Waiter:
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
