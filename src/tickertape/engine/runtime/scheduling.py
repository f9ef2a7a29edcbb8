"""Scheduling: a queue of items by deadline, and a queue that is fair to its keys.

Invariants:
- Finding due items does not examine other items.
- Dropped items are purged before they outnumber the remaining items.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Sized
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeAlias, TypeVar

Item = TypeVar("Item")

_SWEEP_MIN = 64

Pending: TypeAlias = tuple[Sized, ...]
"""Containers of a part of the engine. It has work for its next step while one of them is not empty."""


class DeadlineQueue(Generic[Item]):
    """Items by the number (time or position) at which they are due. Each item is in it once."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Item]] = []
        self._ticket: dict[Item, tuple[float, int]] = {}
        self.items: Collection[Item] = self._ticket.keys()
        """Items in the queue. Its truth costs no call of Python."""
        self._tickets = count()

    def __len__(self) -> int:
        return len(self._ticket)

    def put(self, item: Item, at: float) -> None:
        """Set the deadline of `item` to `at`."""
        known = self._ticket.get(item)
        if known is not None and known[0] == at:
            return
        ticket = next(self._tickets)
        self._ticket[item] = (at, ticket)
        heappush(self._heap, (at, ticket, item))
        if len(self._heap) > _SWEEP_MIN and len(self._heap) > 2 * len(self._ticket):
            self._sweep()

    def drop(self, item: Item) -> None:
        """Remove `item`, if it is in the queue."""
        self._ticket.pop(item, None)
        if len(self._heap) > _SWEEP_MIN and len(self._heap) > 2 * len(self._ticket):
            self._sweep()

    def first(self) -> float | None:
        """Return the number at which the next item is due, or None."""
        heap = self._heap
        while heap and self._is_dead(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, reached: float, count_max: int | None = None) -> list[Item]:
        """Remove and return up to `count_max` items that are due at or below `reached`, earliest first."""
        items: list[Item] = []
        while (first := self.first()) is not None and first <= reached and len(items) != count_max:
            item = heappop(self._heap)[2]
            del self._ticket[item]
            items.append(item)
        return items

    def _is_dead(self, entry: tuple[float, int, Item]) -> bool:
        at, ticket, item = entry
        return self._ticket.get(item) != (at, ticket)

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if not self._is_dead(entry)]
        heapify(self._heap)


class FairQueue(Generic[Item]):
    """One FIFO queue per key, served round-robin."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, deque[Item]] = {}
        self.keys: deque[Hashable] = deque()
        """Keys with items, in the order of their turns."""

    def __bool__(self) -> bool:
        return bool(self.keys)

    def put(self, line: Hashable, item: Item) -> None:
        """Append an item to the queue of its key."""
        waiting = self._lines.get(line)
        if waiting is None:
            waiting = self._lines[line] = deque()
            self.keys.append(line)
        waiting.append(item)

    def next(self) -> Item:
        """Remove and return the next item. The queue must not be empty."""
        line = self.keys.popleft()
        waiting = self._lines[line]
        item = waiting.popleft()
        if waiting:
            self.keys.append(line)
        else:
            del self._lines[line]
        return item
