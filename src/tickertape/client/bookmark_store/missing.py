"""Missing messages: sequences at or below the highest one of a publisher that were not delivered.

Servers that replicate deliver late messages, and a message may have different neighbours in the logs of two
servers. So the highest sequence does not show whether a message was delivered. Each notice of such a server
has the holes of its log. Between two notices the delivered sequences are recorded exactly.

Invariants:
- A delivered sequence is never missing.
- Without places of a server nothing is recorded, and nothing is missing.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from tickertape.base.bookmarks import Bookmark, sequences_and_holes
from tickertape.client.limits import recent_numbers_max

if TYPE_CHECKING:
    from tickertape.wire.link_rows import OpenHoles

Numbers: TypeAlias = "range | array[int]"
Ranges: TypeAlias = list[tuple[int, int]]
"""First and last sequences, ascending and disjoint."""
NOTHING: Final = -1
"""Highest sequence of a publisher without delivered messages."""


class Recent:
    """Sequences of a publisher that were delivered since the last notice."""

    __slots__ = ("mark", "parts")

    def __init__(self, mark: int) -> None:
        self.mark = mark
        """Highest delivered sequence at the last notice."""
        self.parts: list[Numbers] = []
        """In the order of delivery, each rising."""

    def __contains__(self, sequence: int) -> bool:
        return any(_has(part, sequence) for part in self.parts)

    def add(self, numbers: Numbers) -> int:
        """Add rising sequences. Return the number of stored values."""
        last = self.parts[-1] if self.parts else None
        if isinstance(last, range) and isinstance(numbers, range) and last.stop == numbers.start:
            self.parts[-1] = range(last.start, numbers.stop)
            return 0
        if isinstance(last, range) and len(last) == 1 and last[0] < numbers[0]:
            last = self.parts[-1] = array("Q", last)
        if isinstance(last, array) and last[-1] < numbers[0]:
            last.extend(numbers)
            return len(numbers)
        self.parts.append(numbers[:])  # a copy, because blocks of messages grow
        return 1 if isinstance(numbers, range) else len(numbers)


class MissingSequences:
    """Missing sequences of one subscription."""

    def __init__(self) -> None:
        self.exact = False
        """Whether a server sent places. Nothing is recorded before."""
        self.holes: dict[int, Ranges] = {}
        """Holes of publishers. Late messages may be in them."""
        self.recent: dict[int, Recent] = {}
        self._count = 0

    def begin(self) -> None:
        """Record deliveries from now on."""
        self.exact = True

    # -- deliveries -------------------------------------------------------------------------------------

    def delivered(self, publisher: int, seen: int, numbers: Numbers) -> None:
        """Record rising sequences that are delivered. `seen`: the highest sequence before."""
        if publisher in self.holes:
            self._cut(publisher, numbers)
        if not self.exact:
            return
        recent = self.recent.get(publisher)
        if recent is None:
            recent = self.recent[publisher] = Recent(seen)
            self._count += 1
        self._count += recent.add(numbers)
        if self._count > recent_numbers_max:
            self._shorten()

    def is_missing(self, publisher: int, sequence: int, seen: int) -> bool:
        """Return whether a sequence at or below the highest one `seen` was not delivered."""
        recent = self.recent.get(publisher)
        if self.exact and sequence > (seen if recent is None else recent.mark):
            return recent is None or sequence not in recent
        return any(first <= sequence <= last for first, last in self.holes.get(publisher, ()))

    def _cut(self, publisher: int, numbers: Numbers) -> None:
        """Remove delivered sequences from holes."""
        left: Ranges = []
        for first, last in self.holes[publisher]:
            left += _without(first, last, numbers)
        self._set(publisher, left)

    def _set(self, publisher: int, ranges: Ranges) -> None:
        if ranges:
            self.holes[publisher] = ranges
        else:
            self.holes.pop(publisher, None)

    def _shorten(self) -> None:
        """Record sequences with gaps as ranges: messages in the gaps count as delivered."""
        self._count = 0
        for recent in self.recent.values():
            low = min(part[0] for part in recent.parts) if recent.parts else 0
            high = max((part[-1] for part in recent.parts), default=-1)
            recent.parts = [range(low, high + 1)]
            self._count += 2

    def forget_recent(self) -> None:
        """Forget which messages were delivered since the last notice: lower ones count as delivered."""
        self.recent.clear()
        self._count = 0

    def restore_recent(self, publisher: int, mark: int, parts: list[Numbers]) -> None:
        """Restore the recent deliveries of a publisher from a file."""
        recent = self.recent[publisher] = Recent(mark)
        self._count += 1 + sum(map(recent.add, parts))

    # -- notices ----------------------------------------------------------------------------------------

    def noticed(self, found: Iterable[OpenHoles], seen_of: Callable[[int], int]) -> None:
        """Take the holes of a notice: all earlier messages of the log were delivered, or are not for the
        subscription. `seen_of(publisher)`: the highest delivered sequence."""
        for publisher, highest, ranges in found:
            recent = self.recent.get(publisher)
            mark = seen_of(publisher) if recent is None else recent.mark
            known = self.holes.get(publisher, [])
            left = [(max(first, highest + 1), last) for first, last in known if last > highest]
            for first, last in ranges:
                left += [(max(first, low), min(last, high)) for low, high in known]
                if last > mark:
                    left += _undelivered(max(first, mark + 1), last, recent)
            self._set(publisher, _merged(left))
        self.forget_recent()

    # -- recovery points --------------------------------------------------------------------------------

    def certain(self, publisher: int, sequence: int, late: Ranges | None = None) -> list[Bookmark]:
        """Return the bookmarks of a publisher whose messages up to `sequence` are discarded, except missing
        ones and `late` ones: two for each hole, then the last one. Later deliveries since the last notice are
        left out, because holes before them may be unknown."""
        recent = self.recent.get(publisher)
        if recent is not None:
            sequence = min(sequence, recent.mark)
        if sequence < 0:
            return []
        found: list[int] = []
        holes = self.holes.get(publisher, [])
        for first, last in _merged([*holes, *late]) if late else holes:
            if last < sequence:
                found += (first - 1, last)
        return [Bookmark(publisher, one) for one in (*found, sequence)]

    def restore(self, bookmarks: Iterable[Bookmark]) -> dict[int, int]:
        """Take the bookmarks of `certain`, and return the last sequence of each publisher."""
        lasts = {}
        for publisher, (last, holes) in sequences_and_holes(bookmarks).items():
            lasts[publisher] = last
            self._set(publisher, holes)
        return lasts


def _has(part: Numbers, sequence: int) -> bool:
    if isinstance(part, range):
        return sequence in part
    at = bisect_left(part, sequence)
    return at < len(part) and part[at] == sequence


def _without(first: int, last: int, numbers: Numbers) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range without rising sequences."""
    if isinstance(numbers, range):
        inside: Sequence[int] = range(max(first, numbers.start), min(last + 1, numbers.stop))
        if inside:
            if first < inside[0]:
                yield first, inside[0] - 1
            first = inside[-1] + 1
    else:
        at = bisect_left(numbers, first)
        while at < len(numbers) and numbers[at] <= last:
            if first < numbers[at]:
                yield first, numbers[at] - 1
            first = numbers[at] + 1
            at += 1
    if first <= last:
        yield first, last


def _undelivered(first: int, last: int, recent: Recent | None) -> Ranges:
    """Return the parts of a range that were not delivered since the last notice."""
    left: Ranges = [(first, last)]
    for part in () if recent is None else recent.parts:
        left = [piece for low, high in left for piece in _without(low, high, part)]
    return left


def _merged(ranges: Ranges) -> Ranges:
    """Return ranges in order, without empty ones, and neighbours joined."""
    found: Ranges = []
    for first, last in sorted(ranges):
        if first > last:
            continue
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found
