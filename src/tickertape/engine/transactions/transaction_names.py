"""Owns which names of transactions are known as committed, and which of them is forgotten for the next one.

Each has a place, that of its record in the log. Must never forget a name for one of a publisher that has as
many or more, nor hold more than `transaction_names_max` of them.
"""

from __future__ import annotations

from tickertape.base.errors import LimitReached
from tickertape.base.transaction_limits import (
    transaction_names_each_max,
    transaction_names_max,
    transaction_publishers_max,
)


class TransactionIdCache:
    """Names of each publisher, the oldest first."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, int]] = {}
        """Publisher to its names, each with its place."""
        self._holders: dict[int, tuple[str, str]] = {}
        """Place to the publisher and the name that have it."""
        self._free = 0
        """No place below is free."""
        self._sizes: dict[int, dict[str, None]] = {}
        """How many names to the publishers that have so many."""

    def knows(self, publisher: str, name: str) -> bool:
        """Whether it was committed, as far as is known."""
        return name in self._names.get(publisher, ())

    def take(self, place: int, publisher: str, name: str) -> None:
        """A name was committed, its record at `place`; what had that is forgotten."""
        before = self._holders.get(place)
        if before is not None and self._names.get(before[0], {}).get(before[1]) == place:
            self._forget(*before)
        self._holders[place] = publisher, name
        own = self._names.setdefault(publisher, {})
        self._resize(publisher, len(own), -1)
        own.pop(name, None)
        own[name] = place
        self._resize(publisher, len(own), 1)

    def check(self, publisher: str) -> None:
        """Raise `LimitReached` for a publisher too many."""
        if publisher not in self._names and len(self._names) >= transaction_publishers_max:
            raise LimitReached(
                f"names of transactions of {transaction_publishers_max} publishers are known, and this is "
                "one more: commit under a publisher that stays the same"
            )

    def place(self, publisher: str) -> int:
        """Where the next record of a publisher goes: where nothing is, or in the place of its own oldest or,
        while another has more, of the oldest of one that has most."""
        own = self._names.get(publisher, {})
        if len(own) >= transaction_names_each_max:
            return next(iter(own.values()))
        if len(self._holders) < transaction_names_max:
            while self._free in self._holders:
                self._free += 1
            return self._free
        most = max(self._sizes)
        giving = publisher if len(own) == most else next(iter(self._sizes[most]))
        return next(iter(self._names[giving].values()))

    def _forget(self, publisher: str, name: str) -> None:
        own = self._names[publisher]
        self._resize(publisher, len(own), -1)
        del own[name]
        if own:
            self._resize(publisher, len(own), 1)
        else:
            del self._names[publisher]

    def _resize(self, publisher: str, size: int, by: int) -> None:
        """Count a publisher among those of its size, or no longer."""
        if by > 0:
            self._sizes.setdefault(size, {})[publisher] = None
        elif size:
            del self._sizes[size][publisher]
            if not self._sizes[size]:
                del self._sizes[size]
