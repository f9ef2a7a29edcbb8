"""Read buffer: what was read of the log and is not consumed yet, filtered a piece at a time.

Invariants:
- No more than one piece is filtered ahead, and nothing twice while it is kept.
"""

from __future__ import annotations

from collections import deque

from tickertape.engine.log_reads.selection import Selection, restrict, selections
from tickertape.engine.matching.interest import Interest
from tickertape.journal.reading.log_view import LogPart


class ReadBuffer:
    """Selections in the order of the log: `fill` when it is empty, then `piece` and `used` in turn."""

    def __init__(self) -> None:
        self._raw: deque[Selection] = deque()
        self._at = 0
        """The message of the first of them from which on nothing is narrowed yet."""
        self._piece: Selection | None = None

    def __bool__(self) -> bool:
        return bool(self._raw) or self._piece is not None

    def fill(self, parts: list[LogPart], interest: Interest) -> None:
        """Parts that follow one another were read."""
        self._raw.extend(selections(parts, interest))

    def clear(self) -> None:
        """Forget it: it is read again."""
        self._raw.clear()
        self._at = 0
        self._piece = None

    def next_selection(
        self, interest: Interest | None, position: int, *, project: bool = True
    ) -> tuple[Selection, int]:
        """Return the next messages from `position` on, and the bytes looked at to find them. They are not
        filtered without an `interest`, and are whole unless `project`."""
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
        """Note that the selection is consumed."""
        self._piece = None

    def _take_first(self) -> None:
        self._raw.popleft()
        self._at = 0
