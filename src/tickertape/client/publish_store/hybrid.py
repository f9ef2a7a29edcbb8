"""Hybrid publish store: keeps a little in memory and a large backlog on disk.

Invariants: no sequence is given twice and no message is dropped. The oldest messages go to disk first.
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
from tickertape.client.publish_store.file import FilePublishStore, Sync
from tickertape.client.publish_store.memory import MemoryPublishStore
from tickertape.client.publish_store.protocol import Stored, StoreOptions, WhenFull, checked_size
from tickertape.client.publish_store.unpersisted import UnpersistedView


class HybridPublishStore(StoreOptions, ClosesItself):
    """Keeps up to `memory_bytes_max` in memory and what is older than that in files.

    It survives a lost connection with a large backlog, and a clean end of the process: `close` (or leaving
    the context manager) writes what is in memory. When the process is killed, what was in memory is lost:
    `FilePublishStore` is for those who cannot have that. Sequences never repeat; some are skipped then.

    `path`, `bytes_max`, `when_full`, `sync`: as in `FilePublishStore`; `bytes_max` is for both together.
    `memory_bytes_max`: int (bytes) or str, default 64 MB. Raises what `FilePublishStore` raises.
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
        self._file = FilePublishStore(path, bytes_max, when_full, sync)
        self._memory = MemoryPublishStore(bytes_max, when_full)
        self._ahead = self._file.last_sequence
        forks.register(self)

    def attach(self, name: str) -> None:
        """The client `name` uses it. Raises `StoreOfAnother`, `StoreFailed`."""
        self._file.attach(name)

    def close(self) -> None:
        """Write what is in memory, and let go of the files. Raises `StoreFailed`; then nothing was let go."""
        if self._memory.unpersisted_count():
            self._spill(0)
        self._file.close()

    def forked(self) -> None:
        """Internal: this is a forked child. What is in memory is the parent's; the next put asks the file,
        which refuses."""
        self._memory = MemoryPublishStore(self.bytes_max, self.when_full)
        self._ahead = -1

    @property
    def size_bytes(self) -> int:
        """Encoded bytes held now. Where the disk takes no more it is full as soon as memory is."""
        if self._memory.size_bytes > self._memory_bytes_max:
            return self.bytes_max
        return self._file.size_bytes + self._memory.size_bytes

    @property
    def last_sequence(self) -> int:
        """The highest sequence ever put, or that may have been put by a process that was killed."""
        return self._memory.last_sequence or self._file.last_sequence

    def put(self, stored: Stored) -> None:
        """Keep one batch; its sequences are above all others put before. Raises `StoreFailed`."""
        if stored.last > self._ahead:
            ahead = stored.last + publish_store_sequences_ahead
            self._file.note_used(ahead)
            self._ahead = ahead
        self._memory.put(stored)
        if self._memory.size_bytes > self._memory_bytes_max:
            try:
                self._spill(self._memory_bytes_max)
            except StoreFailed:
                return  # all of it is in memory, and `size_bytes` says that there is no room for more

    def discard(self, sequence: int) -> None:
        """Let go of what is persisted: every message up to and including `sequence`."""
        self._memory.discard(sequence)
        self._file.discard(sequence)

    def replace(self, first: int, last: int, rest: MessageBatch | None) -> None:
        """Let go of the messages `first` to `last`, but keep `rest` of them."""
        self._memory.replace(first, last, rest)
        if first <= self._file.last_put:
            self._file.replace(first, last, rest)

    @property
    def never_logged_on(self) -> bool:
        """Whether no server ever accepted a logon with this store, in an earlier process either."""
        return self._file.never_logged_on

    def note_logon(self) -> None:
        """Note on disk that a server accepted a logon. Raises `StoreFailed`, `Closed`."""
        self._file.note_logon()

    def held(self) -> Sequence[Stored]:
        """What is held, in the order of sequences."""
        in_memory = self._memory.held()
        in_files = self._file.held()
        in_memory = in_memory[bisect_right(in_memory, self._file.last_put, key=attrgetter("first")) :]
        written = len(in_files)

        def stored(at: int) -> Stored:
            return in_files[at] if at < written else in_memory[at - written]

        return UnpersistedView(stored, range(written + len(in_memory)))

    def unpersisted_count(self) -> int:
        """Messages held."""
        return self._file.unpersisted_count() + self._memory.unpersisted_count()

    def _spill(self, bytes_max: int) -> None:
        """Write the oldest batches, until memory holds no more than that."""
        memory = self._memory
        while memory.size_bytes > bytes_max and (oldest := memory.oldest()) is not None:
            if oldest.first > self._file.last_put:
                self._file.put(oldest)
            memory.forget_oldest()
