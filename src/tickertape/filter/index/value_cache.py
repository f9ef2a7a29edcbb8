"""Memory limit for cached field values, shared by all filter indexes.

It decides how many and which values are kept. Eviction changes no result: an evicted value is evaluated
again.
"""

from __future__ import annotations

from array import array
from itertools import count
from typing import Final, Protocol
from weakref import WeakSet

from tickertape.filter.limits import index_memory_bytes_max

_MARKS: Final = 1 << 16
_SPREAD: Final = 0x1E3779B97F4A7C15
_SALT_MAX: Final = 1 << 62


class ValueTable(Protocol):
    """A cache with results."""

    @property
    def remembered_bytes(self) -> int:
        """Bytes that `forget` releases."""

    def forget(self) -> None:
        """Release the memory."""


class ValueCache:
    """Limits the memory of all tables to `bytes_max`, plus a sixteenth until they are counted again.

    Above it all tables are cleared."""

    def __init__(self, bytes_max: int = index_memory_bytes_max) -> None:
        self.bytes_max = bytes_max
        self._tables: WeakSet[ValueTable] = WeakSet()
        self._grown = 0
        self._marks = array("q", bytes(8 * _MARKS))
        """Hashes of strings seen once, in pairs of slots: a string stays until two others use its pair.

        A string is cached only at its second occurrence, so that unique strings are never cached. With one
        slot per hash, two alternating strings would evict each other forever."""
        self._numbers = count(1)

    def enter(self, table: ValueTable) -> int:
        """Register `table` while it is alive. Return the salt for its strings."""
        self._tables.add(table)
        return next(self._numbers) * _SPREAD % _SALT_MAX

    def is_met_again(self, salt: int, text: str) -> bool:
        """Return whether a string was seen before, and record it."""
        mark = hash(text) ^ salt
        marks, place = self._marks, mark % _MARKS & ~1
        latest = marks[place]
        if latest == mark:
            return True
        known = marks[place + 1] == mark
        marks[place], marks[place + 1] = mark, latest
        return known

    def grown(self, by_bytes: int) -> None:
        """Record that a table grew. All tables may be cleared."""
        self._grown += by_bytes
        if self._grown > self.bytes_max // 16:
            self._grown = 0
            if self.bytes > self.bytes_max:
                for table in [*self._tables]:
                    table.forget()

    @property
    def bytes(self) -> int:
        """Bytes of the cached values."""
        return sum(table.remembered_bytes for table in self._tables)


MEMORY: Final = ValueCache()
"""The cache limit of all indexes of a process."""
