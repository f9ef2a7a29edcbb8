"""Exact duplicate filter: the highest sequence of each publisher, and the holes below it."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple


class Hole(NamedTuple):
    """Sequences above `low` and up to `high` that may exist in other logs."""

    low: int
    high: int
    proven: bool = True
    """The messages exist in other logs. Otherwise a publisher without a claim may have skipped them."""
    opened: int = 0
    """Position of the row that opened it."""

    def __contains__(self, sequence: object) -> bool:
        return isinstance(sequence, int) and self.low < sequence <= self.high


class SequenceFilter:
    """Known sequences of all publishers."""

    def __init__(self) -> None:
        self.highest: defaultdict[int, int] = defaultdict(int)
        self.holes: defaultdict[int, list[Hole]] = defaultdict(list)
        self.changed: set[int] = set()
        """Publishers whose holes changed."""

    def in_hole(self, publisher: int, sequence: int, proven: bool = False) -> bool:
        """Return whether a sequence is in a hole, or in a proven hole."""
        return any(sequence in hole and (hole.proven or not proven) for hole in self.holes[publisher])

    def knows(self, publisher: int, sequence: int, proven: bool = False) -> bool:
        """Return whether a message is a duplicate. With `proven`, only proven holes admit it."""
        return sequence <= self.highest[publisher] and not self.in_hole(publisher, sequence, proven)

    def open(self, publisher: int, after: int, proven: bool = True, position: int = 0) -> None:
        """Open a hole up to `after` if the highest sequence is below it."""
        highest = self.highest[publisher]
        if after > highest:
            self.holes[publisher].append(Hole(highest, after, proven, position))
            self.changed.add(publisher)
            self.highest[publisher] = after

    def close(self, stable: int) -> int:
        """Close the holes that rows before `stable` opened, and return their number."""
        closed = 0
        for publisher, holes in self.holes.items():
            left = [hole for hole in holes if hole.opened >= stable]
            if len(left) < len(holes):
                closed += len(holes) - len(left)
                self.holes[publisher] = left
                self.changed.add(publisher)
        return closed

    def raise_highest(self, publisher: int, sequence: int) -> None:
        """Enter a sequence, and leave the holes as they are."""
        self.highest[publisher] = max(self.highest[publisher], sequence)

    def enter(self, publisher: int, sequence: int) -> None:
        """Enter a message: it is the highest, or leaves a hole."""
        if sequence > self.highest[publisher]:
            self.highest[publisher] = sequence
            return
        self.changed.add(publisher)
        parts: list[Hole] = []
        for hole in self.holes[publisher]:
            if sequence in hole:
                parts += (hole._replace(high=sequence - 1), hole._replace(low=sequence))
            else:
                parts.append(hole)
        self.holes[publisher] = [part for part in parts if part.low < part.high]
