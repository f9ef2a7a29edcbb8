"""Hybrid publish store: keeps recent messages in memory and a large backlog on disk.

Invariants: no sequence is assigned twice and no message is dropped. The oldest messages are spilled first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

from tickertape.base.errors import StoreFailed
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.closing import ClosesItself
from tickertape.client.limits import (
    publish_store_bytes_default,
    publish_store_file_bytes_default,
    publish_store_sequences_ahead,
)
from tickertape.client.publish_store.file import Sync
from tickertape.client.publish_store.hybrid_parts import BacklogFiles, RecentBatches
from tickertape.client.publish_store.protocol import Stored, StoreOptions, WhenFull, checked_size
from tickertape.client.publish_store.unpersisted import UnpersistedView


class HybridPublishStore(StoreOptions, ClosesItself):
    """Publish store that keeps up to `memory_bytes_max` in memory and spills older messages to files.

    It can hold a large backlog while the connection is lost. Messages also survive a clean end of the
    process: `close` (or the end of the `with` block) writes the messages in memory to disk. A killed process
    loses the messages in memory. Use `FilePublishStore` to prevent this loss. Sequences never repeat, but a
    new process may skip up to 1,048,576 sequences.

    Args:
        path: As in `FilePublishStore`.
        memory_bytes_max: Limit of the memory, int (bytes) or str. Default 64 MB.
        bytes_max: Capacity of memory and files together, as in `FilePublishStore`. Default 1 GB.
        when_full: As in `FilePublishStore`.
        sync: As in `FilePublishStore`, for the messages in files.

    Raises:
        BadOption: For an invalid option.
        StoreError: As in `FilePublishStore`.

    Example:
        >>> store = tt.HybridPublishStore("desk-store", memory_bytes_max="16MB")
        >>> with store, tt.Client("desk", uri, publish_store=store) as client:
        ...     sequence = client.publish("orders", {"id": 1})
        ...     client.publish_flush()
        ...     store.unpersisted_count()
        0
    """

    def __init__(
        self,
        path: str | Path,
        memory_bytes_max: int | str = publish_store_bytes_default,
        bytes_max: int | str = publish_store_file_bytes_default,
        when_full: WhenFull = "block",
        sync: Sync = "never",
    ) -> None:
        self._memory_bytes_max = checked_size(memory_bytes_max, when_full, "memory_bytes_max")
        super().__init__(bytes_max, when_full)
        self.path = Path(path)
        self._file = BacklogFiles(path, bytes_max, when_full, sync)
        self._memory = RecentBatches(bytes_max, when_full)
        self._ahead = self._file.last_sequence
        forks.register(self, type(self)._refuse_in_child)

    def attach(self, name: str) -> None:
        """Prepare for use by the client `name`. Raises `StoreOwnerMismatch`, `StoreFailed`, `Closed`."""
        self._file.attach(name)

    def close(self) -> None:
        """Write the messages in memory to disk, then release the files. Raises `StoreFailed`."""
        if self._memory.unpersisted_count():
            self._spill(0)
        self._file.note_persisted(self._memory.persisted_sequence)
        self._ahead = -1  # so that the next `put` raises through the files
        self._file.close()

    def _refuse_in_child(self) -> None:
        """Drop the messages in memory in a forked child. The next `put` raises through the file
        store."""
        self._memory = RecentBatches(self.bytes_max, self.when_full)
        self._ahead = -1

    @property
    def size_bytes(self) -> int:
        """Current size in encoded bytes. After a failed write to disk it is `bytes_max`, as if full."""
        if self._memory.size_bytes > self._memory_bytes_max:
            return self.bytes_max
        return self._file.size_bytes + self._memory.size_bytes

    @property
    def last_sequence(self) -> int:
        """Highest sequence ever stored. 0 for a fresh store.

        A reopened store returns an upper bound of it, until the next message is stored.
        """
        return self._memory.last_sequence or self._file.last_sequence

    def put(self, stored: Stored) -> None:
        """Store one batch with sequences above all earlier ones. Raises `StoreFailed`, `Closed`."""
        if stored.last > self._ahead:
            ahead = stored.last + publish_store_sequences_ahead
            self._file.note_used(ahead)
            self._ahead = ahead
        self._memory.put(stored)
        if self._memory.size_bytes > self._memory_bytes_max:
            try:
                self._spill(self._memory_bytes_max)
            except StoreFailed:
                return  # the batch stays in memory, and `size_bytes` reports a full store

    def discard(self, sequence: int) -> None:
        """Remove all messages up to and including `sequence`. The server has persisted them."""
        self._memory.discard(sequence)
        self._file.discard(sequence)

    def replace(self, first: int, last: int, rest: MessageBatch | None) -> None:
        """Replace the messages `first` to `last` by `rest`. Remove them if `rest` is None."""
        self._memory.replace(first, last, rest)
        if first <= self._file.last_put:
            self._file.replace(first, last, rest)

    @property
    def never_logged_on(self) -> bool:
        """Whether no server has ever accepted a logon with this store, in this or an earlier process."""
        return self._file.never_logged_on

    def note_logon(self) -> None:
        """Record on disk that a server accepted a logon. Raises `StoreFailed`, `Closed`."""
        self._file.note_logon()

    @property
    def persisted_sequence(self) -> int:
        """Highest sequence of a `discard`, at most `last_sequence`. A killed process loses a part of it."""
        return max(self._memory.persisted_sequence, self._file.persisted_sequence)

    def next_session(self, clock: int) -> int:
        """Return the number of the next logon (see `FilePublishStore.next_session`)."""
        return self._file.next_session(clock)

    def held(self) -> Sequence[Stored]:
        """Return the stored batches in the order of sequences."""
        in_memory = self._memory.held()
        in_files = self._file.held()
        in_memory = in_memory[bisect_right(in_memory, self._file.last_put, key=attrgetter("first")) :]
        written = len(in_files)

        def stored(at: int) -> Stored:
            return in_files[at] if at < written else in_memory[at - written]

        return UnpersistedView(stored, range(written + len(in_memory)))

    def unpersisted_count(self) -> int:
        """Return the number of stored messages."""
        return self._file.unpersisted_count() + self._memory.unpersisted_count()

    def _spill(self, bytes_max: int) -> None:
        """Write the oldest batches to disk until memory holds at most `bytes_max`."""
        memory = self._memory
        while memory.size_bytes > bytes_max and (oldest := memory.oldest()) is not None:
            if oldest.first > self._file.last_put:
                self._file.put(oldest)
            memory.forget_oldest()
