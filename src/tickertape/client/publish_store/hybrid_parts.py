"""Parts of the hybrid publish store: its memory and its files, with the calls for spilling."""

from __future__ import annotations

from tickertape.client.publish_store import format as records
from tickertape.client.publish_store.file import FilePublishStore
from tickertape.client.publish_store.memory import MemoryPublishStore
from tickertape.client.publish_store.protocol import Stored


class RecentBatches(MemoryPublishStore):
    """The memory of a hybrid store."""

    def oldest(self) -> Stored | None:
        """Return the batch with the lowest sequences, or None."""
        return self._held[0] if self._held else None

    def forget_oldest(self) -> None:
        """Remove the oldest batch, which the files keep."""
        oldest = self._held[0]
        self._last_sequence = max(self._last_sequence, oldest.last)
        self._size_bytes = self._size_bytes - oldest.batch.nbytes if len(self._held) > 1 else 0
        self._held.popleft()


class BacklogFiles(FilePublishStore):
    """The files of a hybrid store."""

    @property
    def last_put(self) -> int:
        """Highest sequence stored here, excluding sequences that are only reserved."""
        return self._last_put()

    def note_persisted(self, sequence: int) -> None:
        """Record at `close` that messages up to `sequence` are persisted, also those that were in memory."""
        self._settled = max(self._settled, sequence)

    def note_used(self, sequence: int) -> None:
        """Reserve the sequences up to `sequence` for messages that are not stored here."""
        self._write(records.USED, sequence, sequence, ())
        self._used = max(self._used, sequence)
