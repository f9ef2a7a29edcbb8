"""Link backlog: how long the oldest row of the log has waited for a destination.

It is a pure machine: times are arguments, in monotonic seconds.

Invariant: the age is never above the true one, so that no policy acts early.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tickertape.engine.limits import link_backlog_marks_max

_SPACING_SECONDS: Final = 0.5
"""Shortest time between two marks."""


class LinkBacklog:
    """Rows that a destination lacks, as marks: a position, and the time when rows below it were persisted."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque()
        self._end = 0

    @property
    def end(self) -> int:
        """Position after the last noted row."""
        return self._end

    def note(self, end: int, mono: float) -> None:
        """Note that rows below `end` are persisted now."""
        if end <= self._end:
            return
        self._end = end
        if not self._marks or mono - self._marks[-1][1] >= _SPACING_SECONDS:
            self._marks.append((end, mono))
            if len(self._marks) > link_backlog_marks_max:
                self._marks = deque([*self._marks][::2])

    def seconds(self, covered: int, mono: float) -> float | None:
        """Return the age of the oldest row at or above `covered`. None: the destination has all rows.

        `covered`: position below which the destination has all rows on its disk."""
        if self._end <= covered:
            self._marks.clear()
            return None
        while self._marks and self._marks[0][0] <= covered:
            self._marks.popleft()
        if not self._marks:
            self._marks.append((self._end, mono))
        return mono - self._marks[0][1]
