"""Engine clock: the time of the input that the engine is processing."""

from __future__ import annotations

from tickertape.base.interfaces import Now


class EngineClock:
    """Time that the broker sets once per input and the engine components read."""

    def __init__(self) -> None:
        self.set(Now(0.0, 0))

    def set(self, now: Now) -> None:
        """Set the time of an input."""
        self.now = now
        self.mono, self.wall = now
