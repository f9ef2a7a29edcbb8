"""Accepted rows: keys of messages that are on their way to the disk, until they are folded.

Each key is read once: at the intake, where a message without a key is refused.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from tickertape.batch.format import Int64s

if TYPE_CHECKING:
    from tickertape.engine.sow.topic import StateTopic


class TopicKeys(NamedTuple):
    """Keys of the messages of one SOW topic in a batch."""

    topic: StateTopic
    rows: Int64s
    """Indices of the messages in the batch, ascending."""
    keys: list[bytes]


class KeptKeys(NamedTuple):
    """Keys of an accepted batch at the positions `[first, end)`."""

    first: int
    end: int
    topics: tuple[TopicKeys, ...]


class AcceptedRows:
    """Keys of accepted batches, in the order of their positions."""

    def __init__(self) -> None:
        self._kept: deque[KeptKeys] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, kept: KeptKeys) -> None:
        """Keep the keys of a batch that was appended after all others."""
        self._kept.append(kept)

    def at(self, position: int) -> KeptKeys | None:
        """Return the first batch that ends above `position`, and forget those before it."""
        kept = self._kept
        while kept and kept[0].end <= position:
            kept.popleft()
        return kept[0] if kept else None
