"""Memory publish store: survives a lost connection, but not the end of the process.

Invariant: a message is removed only when it was persisted or rejected.
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
    """Publish store that keeps encoded batches in memory until the server has persisted them.

    Args:
        bytes_max: Capacity, int (bytes) or str such as `"64MB"` (powers of 1024). Default 64 MB. Messages
            that the client has not sent yet count too.
        when_full: `"block"` (default): a publish waits for acknowledgements, up to the client's `timeout`.
            `"raise"`: a publish raises `StoreFull` at once.

    Raises:
        BadOption: For an invalid option.

    Example:
        >>> store = tt.MemoryPublishStore("128MB")
        >>> with tt.Client("desk", uri, publish_store=store) as client:
        ...     sequence = client.publish("orders", {"id": 1})
        ...     client.publish_flush()
        >>> store.unpersisted_count()
        0
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
        self._session = 0
        self._name = ""
        self.persisted_sequence = 0
        """Highest sequence of a `discard`, at most `last_sequence`."""
        self.never_logged_on = True
        """Whether no server has ever accepted a logon with this store."""

    def note_logon(self) -> None:
        """Record that a server accepted a logon."""
        self.never_logged_on = False

    def next_session(self, clock: int) -> int:
        """Return the number of the next logon, at least `clock` and above all earlier ones."""
        self._session = max(clock, self._session + 1)
        return self._session

    def attach(self, name: str) -> None:
        """Prepare for use by client `name`.

        Raises `StoreOwnerMismatch` if the store holds messages of another client name.
        """
        if self._held and self._name and name != self._name:
            raise another(f"the memory publish store with {len(self._held)} batch(es)", self._name, name)
        self._name = name

    def close(self) -> None:
        """Do nothing, because the store has no files or locks."""

    @property
    def size_bytes(self) -> int:
        """Current size in encoded bytes."""
        return self._size_bytes

    @property
    def last_sequence(self) -> int:
        """Highest sequence ever stored. 0 for a fresh store."""
        held = self._held
        return max(self._last_sequence, held[-1].last) if held else self._last_sequence

    def put(self, stored: Stored) -> None:
        """Store one batch with sequences above all earlier ones.

        The append is atomic: an exception from a signal handler occurs before it or after it.
        """
        assert stored.first > self.last_sequence, "sequences increase"
        self._size_bytes += stored.batch.nbytes
        self._held.append(stored)
        self._last_sequence = stored.last

    def discard(self, sequence: int) -> None:
        """Remove all messages up to and including `sequence`. The server has persisted them."""
        held = self._held
        while held and held[0].last <= sequence:
            self._last_sequence = max(self._last_sequence, held[0].last)
            self._size_bytes -= held.popleft().batch.nbytes
        if not held:
            self._size_bytes = 0  # corrects a miscount of an interrupted step
        elif held[0].first <= sequence:
            first, last, batch = held[0]
            keep = int(np.searchsorted(batch.sequences, np.uint64(sequence), side="right"))
            self.replace(first, last, slice_batch(batch, keep, batch.count))
        # Never above the last stored sequence: a later message must not count as persisted.
        self.persisted_sequence = max(self.persisted_sequence, min(sequence, self.last_sequence))

    def replace(self, first: int, last: int, rest: MessageBatch | None) -> None:
        """Replace the messages `first` to `last`, which are in one batch, by `rest`. None removes them."""
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

    def held(self) -> Sequence[Stored]:
        """Return the stored batches in the order of sequences."""
        return tuple(self._held)

    def unpersisted_count(self) -> int:
        """Return the number of stored messages."""
        return sum(batch.count for _, _, batch in self._held)
