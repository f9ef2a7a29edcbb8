"""Shared frames: messages for many receivers, in pieces of which each is sent as one frame.

A piece has memory of its own: it is no view of the publish frame.
"""

from __future__ import annotations

from bisect import bisect_right

from tickertape.batch import MessageBatch, slice_batch
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
        """CRC32C of the encoded batch, computed once."""
        if self._crc is None:
            self._crc = self.batch.crc()
        return self._crc

    @property
    def memory_bytes(self) -> int:
        """What it takes in memory."""
        return self.batch.nbytes + batch_memory_bytes


class SharedFrames:
    """Consecutive messages, in pieces."""

    __slots__ = ("_starts", "cost", "count", "pieces")

    def __init__(self) -> None:
        self.pieces: list[SharedFrame] = []
        self._starts: list[int] = []
        """The number of the first message of each piece."""
        self.count = 0
        """Messages."""
        self.cost = 0

    def append(self, piece: SharedFrame) -> None:
        """Append a piece."""
        self.pieces.append(piece)
        self._starts.append(self.count)
        self.count += piece.batch.count
        self.cost += piece.batch.cost

    def put(self, piece: SharedFrame) -> None:
        """Have all messages in this piece."""
        self.pieces, self._starts = [piece], [0]

    def piece_at(self, message: int) -> tuple[SharedFrame, int]:
        """Return the piece of a message, and the number of its first message."""
        at = bisect_right(self._starts, message) - 1
        return self.pieces[at], self._starts[at]

    def cost_from(self, message: int) -> int:
        """Return the cost of the messages from one on."""
        at = bisect_right(self._starts, message) - 1
        sent = self.pieces[at].batch.cost_between(0, message - self._starts[at])
        return self.cost - sent - sum([piece.batch.cost for piece in self.pieces[:at]])

    @property
    def memory_bytes(self) -> int:
        """What they take in memory."""
        return sum([piece.memory_bytes for piece in self.pieces])


def cut(chosen: MessageBatch) -> SharedFrames:
    """Cut the messages of one publish to one topic into pieces."""
    frames = SharedFrames()
    start = 0
    while start < chosen.count:
        fitting = max(affordable_rows(chosen, start, chosen.count, unrecorded_piece_bytes_max), 1)
        frames.append(SharedFrame(detach(slice_batch(chosen, start, start + fitting))))
        start += fitting
    return frames


def detach(batch: MessageBatch) -> MessageBatch:
    """The batch in memory of its own: a few bytes that wait somewhere must not hold a whole frame."""
    return batch if len(batch.buffers()) == 1 else MessageBatch.parse(batch.encode())
