"""Read buffer: messages read from the log but not consumed yet, filtered piece by piece.

Invariants:
- At most one piece is filtered ahead. No message is filtered twice while it is buffered.
"""

from __future__ import annotations

from collections import deque

from tickertape.engine.log_reads.selection import Selection, restrict, selections
from tickertape.engine.matching.interest import Interest
from tickertape.journal.reading.log_view import LogPart


class ReadBuffer:
    """Selections in log order. Call `fill` when it is empty, then `next_selection` and `consumed` in turn."""

    def __init__(self) -> None:
        self._raw: deque[Selection] = deque()
        self._at = 0
        """Index of the first unfiltered message of the first selection."""
        self._piece: Selection | None = None

    def __bool__(self) -> bool:
        return bool(self._raw) or self._piece is not None

    def fill(self, parts: list[LogPart], interest: Interest) -> None:
        """Append consecutive parts of the log."""
        self._raw.extend(selections(parts, interest))

    def clear(self) -> None:
        """Discard the content, which is read again later."""
        self._raw.clear()
        self._at = 0
        self._piece = None

    def next_selection(
        self, interest: Interest | None, position: int, *, project: bool = True
    ) -> tuple[Selection, int]:
        """Return the next messages from `position` on, and the number of examined bytes.

        Without an `interest` they are not filtered. Without `project` the bodies are not projected."""
        if self._piece is not None:
            return self._piece, 0
        raw = self._raw[0]
        low = max(self._at, raw.index_at(position))
        content, batch = None if interest is None else interest.content, raw.batch
        if content is None or batch is None or low >= batch.count:
            self._take_first()
            self._piece = raw
            return raw, 0
        high = content.piece_end(batch, low)
        looked_at = int(batch.offsets[high]) - int(batch.offsets[low])
        self._at = high
        if high == batch.count:
            self._take_first()
        self._piece = restrict(raw, low, high, content, project)
        return self._piece, looked_at

    def consumed(self) -> None:
        """Mark the selection as consumed."""
        self._piece = None

    def _take_first(self) -> None:
        self._raw.popleft()
        self._at = 0
