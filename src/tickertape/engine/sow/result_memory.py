"""Result memory: the memory of the results of all queries, counted as it changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from tickertape.engine.limits import query_run_rows_max
from tickertape.engine.sow.state.blocks import BodyBlocks


class ResultMemory:
    """Memory of all results: their rows and sort keys, and freed blocks that only they still need."""

    def __init__(self) -> None:
        self._row_bytes = 0
        self.garbage: deque[Any] = deque()
        """Memory of ended results that `free` frees."""
        self._users: dict[BodyBlocks, int] = {}
        """Number of results of each SOW topic."""

    @property
    def nbytes(self) -> int:
        """All memory. The time grows with the number of queried SOW topics, at most `sow_topics_max`."""
        return self._row_bytes + sum(blocks.held_bytes for blocks in self._users)

    def count(self, nbytes: int) -> None:
        """Count rows, keys and frames of a result that are more, or with a negative number fewer."""
        self._row_bytes += nbytes

    def discard(self, memory: Iterable[Any]) -> None:
        """Free lists, columns and blocks of an ended result later, in bounded steps. A list may have millions
        of keys. Another piece is at most a column of `query_chunk_rows_max` rows, or one block."""
        self.garbage.extend(memory)

    def free(self) -> None:
        """Free a bounded part of the discarded memory, at least one piece."""
        last = self.garbage[-1]
        if isinstance(last, list):
            del last[-query_run_rows_max:]
            if last:
                return
        self.garbage.pop()

    def begin(self, blocks: Iterable[BodyBlocks]) -> None:
        """Count a result of some SOW topics, until `end`."""
        for one in blocks:
            self._users[one] = self._users.get(one, 0) + 1

    def end(self, blocks: Iterable[BodyBlocks]) -> None:
        """End the result of some SOW topics."""
        for one in blocks:
            self._users[one] -= 1
            if not self._users[one]:
                del self._users[one]
