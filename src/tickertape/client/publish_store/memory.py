"""Memory publish store: survives a lost connection, not the end of the process.

Invariant: a message is dropped only when it was persisted or rejected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from tickertape.batch.derive import slice_batch
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.limits import publish_store_bytes_default
from tickertape.client.publish_store.protocol import Stored, StoreOptions, WhenFull, another


class MemoryPublishStore(StoreOptions):
    """Keeps encoded batches in memory until the server says that they are persisted.

    `bytes_max`: int (bytes) or str such as `"64MB"` (powers of 1024), default 64 MB. What the client is still
    gathering counts too.
    `when_full`: `"block"` (default) lets a publish wait for acknowledgements, as long as the client's
    `timeout`;
    `"raise"` raises `StoreFull` at once.

    Raises `BadOption` for any other value.
    """

    def __init__(
        self,
        bytes_max: int | str = publish_store_bytes_default,
        when_full: WhenFull = "block",
    ) -> None:
        super().__init__(bytes_max, when_full)
        self._held: deque[Stored] = deque()
        self._size_bytes = 0
        self._last_sequence = 0
        self._name = ""
        self.never_logged_on = True
        """Whether no server ever accepted a logon with this store."""

    def note_logon(self) -> None:
        """Note that a server accepted a logon."""
        self.never_logged_on = False

    def attach(self, name: str) -> None:
        """The client `name` uses it; another one only while it is empty, else `StoreOfAnother` is raised."""
        if self._held and self._name and name != self._name:
            raise another(f"this publish store in memory with {len(self._held)} batch(es)", self._name, name)
        self._name = name

    def close(self) -> None:
        """Nothing happens: there are neither files nor locks."""

    @property
    def size_bytes(self) -> int:
        """Encoded bytes held now."""
        return self._size_bytes

    @property
    def last_sequence(self) -> int:
        """The highest sequence ever put; 0 for a fresh store."""
        held = self._held
        return max(self._last_sequence, held[-1].last) if held else self._last_sequence

    def put(self, stored: Stored) -> None:
        """Keep one batch; its sequences are above all others put before.

        The append decides: an exception that a signal handler raises comes before it or after it.
        """
        assert stored.first > self.last_sequence, "sequences rise"
        self._size_bytes += stored.batch.nbytes
        self._held.append(stored)
        self._last_sequence = stored.last

    def discard(self, sequence: int) -> None:
        """Let go of what is persisted: every message up to and including `sequence`."""
        held = self._held
        while held and held[0].last <= sequence:
            self._last_sequence = max(self._last_sequence, held[0].last)
            self._size_bytes -= held.popleft().batch.nbytes
        if not held:
            self._size_bytes = 0  # whatever an interrupted step counted
        elif held[0].first <= sequence:
            first, last, batch = held[0]
            keep = int(np.searchsorted(batch.sequences, np.uint64(sequence), side="right"))
            self.replace(first, last, slice_batch(batch, keep, batch.count))

    def replace(self, first: int, last: int, rest: MessageBatch | None) -> None:
        """Let go of the messages `first` to `last`, which lie in one batch, but keep `rest` of them."""
        for index, (begin, end, batch) in enumerate(self._held):
            if begin >= first and end <= last:
                self._size_bytes -= batch.nbytes
                if rest is None:
                    del self._held[index]
                else:
                    sequences = rest.sequences
                    self._held[index] = Stored(int(sequences[0]), int(sequences[-1]), rest)
                    self._size_bytes += rest.nbytes
                return

    def oldest(self) -> Stored | None:
        """The batch with the lowest sequences."""
        return self._held[0] if self._held else None

    def forget_oldest(self) -> None:
        """Let go of it: it is kept elsewhere."""
        oldest = self._held[0]
        self._last_sequence = max(self._last_sequence, oldest.last)
        self._size_bytes = self._size_bytes - oldest.batch.nbytes if len(self._held) > 1 else 0
        self._held.popleft()

    def held(self) -> Sequence[Stored]:
        """What is held, in the order of sequences."""
        return tuple(self._held)

    def unpersisted_count(self) -> int:
        """Messages held."""
        return sum(batch.count for _, _, batch in self._held)
