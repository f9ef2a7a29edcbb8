"""Exact duplicate filter: the highest sequence of each publisher, and the holes below it."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple


class Hole(NamedTuple):
    """Sequences above `low` and up to `high` that may exist in other logs."""

    low: int
    high: int

    def __contains__(self, sequence: object) -> bool:
        return isinstance(sequence, int) and self.low < sequence <= self.high


class SequenceFilter:
    """Known sequences of all publishers."""

    def __init__(self) -> None:
        self.highest: defaultdict[int, int] = defaultdict(int)
        self.holes: defaultdict[int, list[Hole]] = defaultdict(list)
        self.changed: set[int] = set()
        """Publishers whose holes changed."""

    def in_hole(self, publisher: int, sequence: int) -> bool:
        return any(sequence in hole for hole in self.holes[publisher])

    def knows(self, publisher: int, sequence: int) -> bool:
        """Return whether a message is a duplicate."""
        return sequence <= self.highest[publisher] and not self.in_hole(publisher, sequence)

    def open(self, publisher: int, after: int) -> None:
        """Open a hole up to `after` if the highest sequence is below it."""
        highest = self.highest[publisher]
        if after > highest:
            self.holes[publisher].append(Hole(highest, after))
            self.changed.add(publisher)
            self.highest[publisher] = after

    def raise_highest(self, publisher: int, sequence: int) -> None:
        """Enter a sequence, and leave the holes as they are."""
        self.highest[publisher] = max(self.highest[publisher], sequence)

    def enter(self, publisher: int, sequence: int) -> None:
        """Enter a message: it is the highest, or leaves a hole."""
        if sequence > self.highest[publisher]:
            self.highest[publisher] = sequence
            return
        self.changed.add(publisher)
        self.holes[publisher] = [
            part
            for hole in self.holes[publisher]
            for part in (
                (Hole(hole.low, sequence - 1), Hole(sequence, hole.high)) if sequence in hole else (hole,)
            )
            if part.low < part.high
        ]
