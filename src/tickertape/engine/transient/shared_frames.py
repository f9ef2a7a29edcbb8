"""Shared frames: messages for many receivers, in pieces that are sent as one frame each.

A piece has its own memory. It is not a view of the publish frame.
"""

from __future__ import annotations

from bisect import bisect_right

from tickertape.batch import MessageBatch, cost_between, slice_batch
from tickertape.engine.limits import unrecorded_piece_bytes_max
from tickertape.engine.subscriptions.credit import affordable_rows
from tickertape.journal.limits import batch_memory_bytes


class SharedFrame:
    """A batch for several receivers."""

    __slots__ = ("_crc", "batch")

    def __init__(self, batch: MessageBatch) -> None:
        self.batch = batch
        self._crc: int | None = None

    def crc(self) -> int:
        """Return the CRC32C of the encoded batch, computed once."""
        if self._crc is None:
            self._crc = self.batch.crc()
        return self._crc

    @property
    def memory_bytes(self) -> int:
        """Memory of the piece in bytes."""
        return self.batch.nbytes + batch_memory_bytes


class SharedFrames:
    """Consecutive messages, in pieces."""

    __slots__ = ("_starts", "cost", "count", "pieces")

    def __init__(self) -> None:
        self.pieces: list[SharedFrame] = []
        self._starts: list[int] = []
        """Index of the first message of each piece."""
        self.count = 0
        """Number of messages."""
        self.cost = 0

    def append(self, piece: SharedFrame) -> None:
        """Append a piece."""
        self.pieces.append(piece)
        self._starts.append(self.count)
        self.count += piece.batch.count
        self.cost += piece.batch.cost

    def put(self, piece: SharedFrame) -> None:
        """Replace all pieces by one with the same messages."""
        self.pieces, self._starts = [piece], [0]

    def piece_at(self, message: int) -> tuple[SharedFrame, int]:
        """Return the piece of a message, and the index of the first message of the piece."""
        at = bisect_right(self._starts, message) - 1
        return self.pieces[at], self._starts[at]

    def cost_from(self, message: int) -> int:
        """Return the cost of the messages from `message` on."""
        at = bisect_right(self._starts, message) - 1
        sent = cost_between(self.pieces[at].batch, 0, message - self._starts[at])
        return self.cost - sent - sum([piece.batch.cost for piece in self.pieces[:at]])

    @property
    def memory_bytes(self) -> int:
        """Memory of the pieces in bytes."""
        return sum([piece.memory_bytes for piece in self.pieces])


def cut(chosen: MessageBatch) -> SharedFrames:
    """Split the messages of one publish to one topic into pieces."""
    frames = SharedFrames()
    start = 0
    while start < chosen.count:
        fitting = max(affordable_rows(chosen, start, chosen.count, unrecorded_piece_bytes_max), 1)
        frames.append(SharedFrame(detach(slice_batch(chosen, start, start + fitting))))
        start += fitting
    return frames


def detach(batch: MessageBatch) -> MessageBatch:
    """Return the batch with its own memory, so that a small batch does not keep a large frame alive."""
    return batch if len(batch.buffers()) == 1 else MessageBatch.parse(batch.encode())
