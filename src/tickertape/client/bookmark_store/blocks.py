"""Owns a block: messages that came one after the other in one subscription, and which of them are discarded.

Must never hold bodies, or an object for each message: 9 bytes a message, 17 where publishers alternate, 1
where one publisher's sequences have no gaps.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final

DELIVERED: Final = 0
"""Handed to the application since the subscription was last resumed."""
DISCARDED: Final = 1
EXPECTED: Final = 2
"""Handed to the application before; it comes again."""

MIXED: Final = -1
"""In the place of a publisher: they alternate."""

Numbers = range | array  # type: ignore[type-arg]  # array[int] exists for type checkers only
_AGAIN: Final = bytes([EXPECTED, DISCARDED, EXPECTED]) + bytes(range(3, 256))


class ProgressBlock:
    """`count` messages from the ordinal `base` on. `left` of them are not discarded."""

    __slots__ = (
        "_rows",
        "base",
        "connection",
        "count",
        "left",
        "publisher",
        "publishers",
        "sequences",
        "states",
    )

    def __init__(
        self, base: int, publisher: int, publishers: Numbers | None, sequences: Numbers, connection: int
    ) -> None:
        self.base = base
        self.publisher = publisher
        self.publishers = publishers
        self.sequences = sequences
        self.count = self.left = len(sequences)
        self.states = bytearray(self.count)
        self.connection = connection
        self._rows: dict[int, list[int]] | None = None

    def extend(self, publisher: int, publishers: Numbers | None, sequences: Numbers) -> None:
        """Add what came next."""
        count = len(sequences)
        if publishers is not None or publisher != self.publisher:
            own = self.publishers
            if own is None:
                own = array("Q", [self.publisher]) * self.count
            if publishers is None:
                publishers = array("Q", [publisher]) * count
            own.extend(publishers)  # type: ignore[union-attr]
            self.publisher, self.publishers = MIXED, own
            if self._rows is not None:
                self._index(publishers, self.count)
        mine = self.sequences
        if isinstance(mine, range):
            if isinstance(sequences, range) and mine.stop == sequences.start:
                self.sequences = range(mine.start, sequences.stop)
            else:
                self.sequences = array("Q", mine)
                self.sequences.extend(sequences)
        else:
            mine.extend(sequences)
        self.states += bytes(count)
        self.count += count
        self.left += count

    def find(self, publisher: int, sequence: int) -> int:
        """The row of a message; -1 when it is not here."""
        sequences = self.sequences
        if self.publishers is None:
            if publisher != self.publisher:
                return -1
            if isinstance(sequences, range):
                return sequence - sequences.start if sequence in sequences else -1
            row = bisect_left(sequences, sequence)
            return row if row < self.count and sequences[row] == sequence else -1
        if self._rows is None:
            self._rows = {}
            self._index(self.publishers, 0)
        rows = self._rows.get(publisher, [])
        place = bisect_left(rows, sequence, key=sequences.__getitem__)
        return rows[place] if place < len(rows) and sequences[rows[place]] == sequence else -1

    def _index(self, publishers: Numbers, row: int) -> None:
        rows = self._rows
        assert rows is not None
        for publisher in publishers:
            rows.setdefault(publisher, []).append(row)
            row += 1

    def expect(self, connection: int) -> None:
        """What is not discarded comes again, once, on this connection."""
        if self.connection != connection:
            self.states = self.states.translate(_AGAIN)
            self.connection = connection

    def awaits(self, connection: int) -> bool:
        """Whether messages are still to come again on this connection."""
        return self.left > 0 and (self.connection != connection or EXPECTED in self.states)

    def last_of_each(self, low: int, high: int) -> dict[int, int]:
        """Of each publisher with messages in the rows `[low, high)` the last row."""
        if self.publishers is None:
            return {self.publisher: high - 1}
        return dict(zip(self.publishers[low:high], range(low, high), strict=True))

    def first_of_each(self) -> dict[int, int]:
        """Of each publisher the first sequence."""
        if self.publishers is None:
            return {self.publisher: self.sequences[0]}
        return dict(zip(reversed(self.publishers), reversed(self.sequences), strict=True))
