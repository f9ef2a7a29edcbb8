"""Engine clock: the time of the input that the engine is handling."""

from __future__ import annotations

from tickertape.base.interfaces import Now


class EngineClock:
    """Time that the broker sets once at each input; the parts of the engine read it."""

    def __init__(self) -> None:
        self.set(Now(0.0, 0))

    def set(self, now: Now) -> None:
        """Take over the time of an input."""
        self.now = now
        self.mono, self.wall = now
