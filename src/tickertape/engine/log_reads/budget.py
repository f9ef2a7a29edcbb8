"""Read budget: one memory bound for all reads of the log, and another for reads of the archive.

A reader reserves bytes before it reads, and releases them when what was read is used up.

Invariants:
- No more than `bytes_max` are held, except by a single read that is larger.
- A reader that waits for its consumer does not keep others from reading: it is evicted, and reads again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from tickertape.journal.reading.archive_reader import ArchiveRequest
from tickertape.journal.reading.log_view import ReadRequest

READ_BYTES_LEAST: Final = 4096
"""A read counts as this much at least: it has objects beside its bytes."""


class _WaitingRead(NamedTuple):
    """A reader in the queue."""

    size: int
    granted: Callable[[], None]


class ReadBudget:
    """Bytes held by readers; a reader is any object."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._held: dict[object, int] = {}
        self._idle: dict[object, Callable[[], None]] = {}
        """Holders that wait for their consumer, the one that waits longest first, and how they let go."""
        self._queue: dict[object, _WaitingRead] = {}
        """Readers that wait for memory, in order."""

    def reserve(self, reader: object, size: int, granted: Callable[[], None]) -> bool:
        """Return whether `reader` may read `size` bytes now; if not, `granted` is called when it may ask
        again. What it held before is replaced. A reader to which this is granted reads, or calls `idle` or
        `forget`."""
        size = max(size, READ_BYTES_LEAST)
        if self._held.get(reader, 0) >= size:
            self._hold(reader, size)
            return True
        if not self._queue and self._fits(reader, size):
            self._hold(reader, size)
            return True
        # Who queues holds nothing, or two could wait for each other.
        self._queue[reader] = _WaitingRead(size, granted)
        self.release(reader)
        return False

    def extend(self, reader: object, size: int) -> bool:
        """Return whether `reader` holds `size` bytes from now on, without waiting; if not, what it holds
        stays."""
        if self._queue or not self._fits(reader, size):
            return False
        self._hold(reader, size)
        return True

    def idle(self, reader: object, evict: Callable[[], None]) -> None:
        """Note that `reader` waits for its consumer: `evict` is called if its memory is needed elsewhere."""
        if reader in self._held and reader not in self._idle:
            self._idle[reader] = evict
            self._admit()

    def busy(self, reader: object) -> None:
        """Note that `reader` goes on: what it holds stays."""
        self._idle.pop(reader, None)

    def release(self, reader: object) -> None:
        """Release what `reader` held and has used up."""
        if reader in self._held:
            self._drop(reader)
            self._admit()

    def forget(self, reader: object) -> None:
        """Forget a reader."""
        if self._queue.pop(reader, None) is not None or reader in self._held:
            if reader in self._held:
                self._drop(reader)
            self._admit()

    def _fits(self, reader: object, size: int) -> bool:
        """Whether there is room beside the others; the reader that has been idle longest is evicted first."""
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
    """The bounds for log and archive. A reader holds memory of one of them at a time. There are two because
    an archive may take minutes to answer: its readers must hold nothing that others need to read the log."""

    log: ReadBudget
    archive: ReadBudget

    def reserve(
        self, reader: object, request: ReadRequest | ArchiveRequest, granted: Callable[[], None]
    ) -> bool:
        """As `ReadBudget.reserve`, for a request to log or archive."""
        used, other = (self.log, self.archive)
        if not isinstance(request, ReadRequest):
            used, other = other, used
        other.forget(reader)
        return used.reserve(reader, request.size, granted)

    def idle(self, reader: object, evict: Callable[[], None]) -> None:
        """As `ReadBudget.idle`."""
        for one in self:
            one.idle(reader, evict)

    def busy(self, reader: object) -> None:
        """As `ReadBudget.busy`."""
        for one in self:
            one.busy(reader)

    def release(self, reader: object) -> None:
        """As `ReadBudget.release`."""
        for one in self:
            one.release(reader)

    def forget(self, reader: object) -> None:
        """As `ReadBudget.forget`."""
        for one in self:
            one.forget(reader)
