"""Read budget: one memory limit for all reads of the log, and another for reads of the archive.

A reader reserves bytes before it reads, and releases them when it has consumed the data.

Invariants:
- Readers hold at most `bytes_max` together, except when a single read is larger.
- A reader that waits for its consumer does not block other readers: it is evicted, and reads again later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from tickertape.journal.reading.archive_reader import ArchiveRequest
from tickertape.journal.reading.log_view import ReadRequest

READ_BYTES_LEAST: Final = 4096
"""Minimum size that a read is charged: it has objects beside its bytes."""


class _WaitingRead(NamedTuple):
    """A reader in the queue."""

    size: int
    granted: Callable[[], None]


class ReadBudget:
    """Bytes held by readers. A reader is any hashable object."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._held: dict[object, int] = {}
        self._idle: dict[object, Callable[[], None]] = {}
        """Holders that wait for their consumer, longest wait first, each with its eviction callback."""
        self._queue: dict[object, _WaitingRead] = {}
        """Readers that wait for memory, in order of arrival."""

    def reserve(self, reader: object, size: int, granted: Callable[[], None]) -> bool:
        """Reserve `size` bytes for `reader`, in place of its earlier reservation. Return whether this
        succeeded.

        If not, `granted` is called as soon as the bytes are reserved. A reader with a reservation reads, or
        calls `idle` or `forget`."""
        size = max(size, READ_BYTES_LEAST)
        if self._held.get(reader, 0) >= size:
            self._hold(reader, size)
            return True
        if not self._queue and self._fits(reader, size):
            self._hold(reader, size)
            return True
        # A queued reader holds nothing. Otherwise two readers could wait for each other.
        self._queue[reader] = _WaitingRead(size, granted)
        self.release(reader)
        return False

    def extend(self, reader: object, size: int) -> bool:
        """Change the reservation of `reader` to `size` bytes without waiting. Return whether this succeeded.
        If not, the earlier reservation remains."""
        if self._queue or not self._fits(reader, size):
            return False
        self._hold(reader, size)
        return True

    def idle(self, reader: object, evict: Callable[[], None]) -> None:
        """Mark `reader` as waiting for its consumer. `evict` is called if another reader needs its memory."""
        if reader in self._held and reader not in self._idle:
            self._idle[reader] = evict
            self._admit()

    def busy(self, reader: object) -> None:
        """Mark `reader` as active again. It keeps its reservation."""
        self._idle.pop(reader, None)

    def release(self, reader: object) -> None:
        """Release the reservation of `reader`."""
        if reader in self._held:
            self._drop(reader)
            self._admit()

    def forget(self, reader: object) -> None:
        """Remove a reader: release its reservation and its place in the queue."""
        if self._queue.pop(reader, None) is not None or reader in self._held:
            if reader in self._held:
                self._drop(reader)
            self._admit()

    def _fits(self, reader: object, size: int) -> bool:
        """Return whether `size` bytes fit. Evict idle readers until they do, longest idle first."""
        others = self.held_bytes - self._held.get(reader, 0)
        while others + size > self.bytes_max and self._idle:
            longest, evict = next(iter(self._idle.items()))
            if longest is not reader:
                others -= self._held[longest]
            self._drop(longest)
            evict()
        return not others or others + size <= self.bytes_max

    def _admit(self) -> None:
        while self._queue:
            reader, waiting = next(iter(self._queue.items()))
            if not self._fits(reader, waiting.size):
                return
            del self._queue[reader]
            self._hold(reader, waiting.size)
            waiting.granted()

    def _hold(self, reader: object, size: int) -> None:
        self.held_bytes += size - self._held.get(reader, 0)
        self._held[reader] = size

    def _drop(self, reader: object) -> None:
        self._idle.pop(reader, None)
        self.held_bytes -= self._held.pop(reader)


class ReadBudgets(NamedTuple):
    """Separate budgets for log and archive. A reader holds memory of only one of them at a time.

    The archive may take minutes to answer. Its readers must not hold memory that readers of the log need."""

    log: ReadBudget
    archive: ReadBudget

    def reserve(
        self, reader: object, request: ReadRequest | ArchiveRequest, granted: Callable[[], None]
    ) -> bool:
        """Reserve memory for a request to the log or the archive (see `ReadBudget.reserve`)."""
        used, other = (self.log, self.archive)
        if not isinstance(request, ReadRequest):
            used, other = other, used
        other.forget(reader)
        return used.reserve(reader, request.size, granted)

    def idle(self, reader: object, evict: Callable[[], None]) -> None:
        """Mark a reader as idle (see `ReadBudget.idle`)."""
        for one in self:
            one.idle(reader, evict)

    def busy(self, reader: object) -> None:
        """Mark a reader as active (see `ReadBudget.busy`)."""
        for one in self:
            one.busy(reader)

    def release(self, reader: object) -> None:
        """Release a reservation (see `ReadBudget.release`)."""
        for one in self:
            one.release(reader)

    def forget(self, reader: object) -> None:
        """Remove a reader (see `ReadBudget.forget`)."""
        for one in self:
            one.forget(reader)
