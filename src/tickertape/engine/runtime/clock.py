"""Engine clock: the time of the input that the engine is processing, and the deadlines of its parts."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final, Protocol

from tickertape.base.interfaces import Now

_MICROS: Final = 1_000_000
_CLOCK_CHECK_SECONDS: Final = 1.0
"""Interval of checks for deadlines of the wall clock, which may be set forward."""


def earlier(first: float | None, second: float | None) -> float | None:
    """Return the earlier of two deadlines, each None without one."""
    return second if first is None or (second is not None and second < first) else first


class TimedPart(Protocol):
    """A part of the engine that has work at a later time."""

    def next_deadline(self) -> float | None:
        """Return the monotonic time (seconds) of that work, or None."""


class EngineClock:
    """Time that the broker sets once per input and the engine components read.

    A part announces itself when it has an earlier deadline than before. Only then is it asked for it. A
    deadline that became later needs no announcement: the engine wakes early, and asks all parts again.

    `parts` may have deadlines from the start."""

    def __init__(self, *parts: TimedPart) -> None:
        self.set(Now(0.0, 0))
        self._deadlines: dict[TimedPart, float | None] = {}
        self._announced: set[TimedPart] = set(parts)
        self.announce: Callable[[TimedPart], None] = self._announced.add
        """Announce a part that may have an earlier deadline."""
        self._first: float | None = None

    def set(self, now: Now) -> None:
        """Set the time of an input."""
        self.now = now
        self.mono, self.wall = now

    def reached(self, log_time: float | None) -> float | None:
        """Return the monotonic time (seconds) at which to check for a log time (microseconds).

        The wall clock may be set forward, so this is within a second."""
        if log_time is None:
            return None
        return self.mono + min(max((log_time - self.wall) / _MICROS, 0.0), _CLOCK_CHECK_SECONDS)

    def announce_all(self) -> None:
        """Ask all parts again for their deadlines."""
        self._announced.update(self._deadlines)

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of all parts, as a monotonic time (seconds), or None."""
        if self._announced:
            for part in self._announced:
                self._deadlines[part] = part.next_deadline()
            self._announced.clear()
            first = inf
            for at in self._deadlines.values():
                if at is not None and at < first:
                    first = at
            self._first = None if first == inf else first
        return self._first
