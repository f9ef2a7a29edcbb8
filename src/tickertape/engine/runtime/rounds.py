"""Owns whose turn it is: lines of those who have something to do, one line for each who must not keep others
waiting by having many of them.

Must never let a line have two turns while another has none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """A turn for the first of each line, line after line."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, deque[Item]] = {}
        self._order: deque[Hashable] = deque()

    def __bool__(self) -> bool:
        return bool(self._order)

    def put(self, line: Hashable, item: Item) -> None:
        """It stands at the end of a line."""
        waiting = self._lines.get(line)
        if waiting is None:
            waiting = self._lines[line] = deque()
            self._order.append(line)
        waiting.append(item)

    def next(self) -> Item:
        """Take out whose turn it is; there is somebody."""
        line = self._order.popleft()
        waiting = self._lines[line]
        item = waiting.popleft()
        if waiting:
            self._order.append(line)
        else:
            del self._lines[line]
        return item
