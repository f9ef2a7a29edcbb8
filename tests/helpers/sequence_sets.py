"""Sequences of publishers as sets of integers: the oracle of the filter of duplicates.

Must never use the arrays of the filter.
"""

from __future__ import annotations

from typing import NamedTuple

from tickertape.journal.format.replication_records import HoleRange


class Missing(NamedTuple):
    """A sequence that other logs may have."""

    opened: int
    proven: bool


class SequenceSets:
    """Highest sequence and missing sequences of each publisher."""

    def __init__(self, per_publisher_max: int = 1_024, total_max: int = 1_000_000) -> None:
        self.highest: dict[int, int] = {}
        self.missing: dict[int, dict[int, Missing]] = {}
        self.changed: set[int] = set()
        self.closed: list[tuple[int, int, int]] = []
        self._per_publisher_max = per_publisher_max
        self._total_max = total_max

    def open(self, publisher: int, after: int, opened: int, *, proven: bool) -> None:
        """Open a hole up to `after`."""
        highest = self.highest.get(publisher, 0)
        if after <= highest:
            return
        own = self.missing.setdefault(publisher, {})
        own.update((sequence, Missing(opened, proven)) for sequence in range(highest + 1, after + 1))
        self.highest[publisher] = after
        self.changed.add(publisher)
        self._limit(publisher)

    def admits(self, publisher: int, sequence: int, *, from_link: bool) -> bool:
        """Return whether a message is stored."""
        if sequence > self.highest.get(publisher, 0):
            return True
        missing = self.missing.get(publisher, {}).get(sequence)
        return missing is not None and (from_link or missing.proven)

    def store(self, publisher: int, sequences: list[int]) -> None:
        """Store messages."""
        own = self.missing.get(publisher, {})
        if any(sequence in own for sequence in sequences):
            self.changed.add(publisher)
        for sequence in sequences:
            own.pop(sequence, None)
        self.highest[publisher] = max(*sequences, self.highest.get(publisher, 0))
        self._limit(publisher)

    def ranges(self, publisher: int) -> list[HoleRange]:
        """Return the open holes of a publisher."""
        found: list[HoleRange] = []
        for sequence, missing in sorted(self.missing.get(publisher, {}).items()):
            if found and found[-1].last == sequence - 1 and found[-1][2:] == missing:
                found[-1] = found[-1]._replace(last=sequence)
            else:
                found.append(HoleRange(sequence, sequence, *missing))
        return found

    def all_ranges(self) -> dict[int, list[HoleRange]]:
        """Return the open holes of all publishers with one."""
        return {publisher: ranges for publisher in self.missing if (ranges := self.ranges(publisher))}

    def _limit(self, publisher: int) -> None:
        while len(own := self.ranges(publisher)) > self._per_publisher_max:
            self._close(publisher, min(own, key=lambda hole: (hole.opened, hole.first)))
        while True:
            ranges = [(hole, owner) for owner, holes in self.all_ranges().items() for hole in holes]
            if len(ranges) <= self._total_max:
                return
            hole, owner = min(ranges, key=lambda pair: (pair[0].opened, pair[0].first))
            self._close(owner, hole)

    def _close(self, publisher: int, hole: HoleRange) -> None:
        for sequence in range(hole.first, hole.last + 1):
            del self.missing[publisher][sequence]
        self.changed.add(publisher)
        self.closed.append((publisher, hole.first, hole.last))
