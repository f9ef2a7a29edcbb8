"""Memory limit for cached field values, shared by all filter indexes.

It decides how many values are kept and which. Evicting a value changes no result: the value is evaluated
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


class Table(Protocol):
    """Something that remembers."""

    @property
    def remembered_bytes(self) -> int:
        """Bytes that it can release."""

    def forget(self) -> None:
        """Give it back."""


class ValueCache:
    """What some tables remember together: at most `bytes_max`, and a sixteenth more until they are counted
    again; above it all forget."""

    def __init__(self, bytes_max: int = index_memory_bytes_max) -> None:
        self.bytes_max = bytes_max
        self._tables: WeakSet[Table] = WeakSet()
        self._grown = 0
        self._marks = array("q", bytes(8 * _MARKS))
        """Of texts that were met, each in its pair of places until two others have those: no text is kept for
        its first time, so that texts which come only once are not. Of one place each, two texts that take
        turns would never be met again."""
        self._numbers = count(1)

    def enter(self, table: Table) -> int:
        """Count `table` for as long as it lives; return the tag of its texts."""
        self._tables.add(table)
        return next(self._numbers) * _SPREAD % _SALT_MAX

    def is_met_again(self, salt: int, text: str) -> bool:
        """Return whether a text is known to be met before, and record it."""
        mark = hash(text) ^ salt
        marks, place = self._marks, mark % _MARKS & ~1
        latest = marks[place]
        if latest == mark:
            return True
        known = marks[place + 1] == mark
        marks[place], marks[place + 1] = mark, latest
        return known

    def grown(self, by_bytes: int) -> None:
        """A table remembers so much more. It may have to forget all of it now."""
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
"""For all indexes of a process."""
