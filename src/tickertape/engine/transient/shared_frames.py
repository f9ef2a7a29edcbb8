"""Shared frames: one publish, cut into frames that all its receivers share.

A frame has memory of its own: it is no view of the publish frame.
"""

from __future__ import annotations

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
    """The messages of one publish to one topic, in order."""

    __slots__ = ("_left", "count", "pieces")

    def __init__(self, chosen: MessageBatch) -> None:
        self.pieces = _cut(chosen)
        self.count = len(self.pieces)
        messages = cost = 0
        self._left = [(0, 0)]
        for piece in reversed(self.pieces):
            messages += piece.batch.count
            cost += piece.batch.cost
            self._left.append((messages, cost))

    def left(self, piece: int, message: int) -> tuple[int, int]:
        """Messages from one of a piece on, and their cost."""
        messages, cost = self._left[self.count - piece]
        if message:
            cost -= self.pieces[piece].batch.cost_between(0, message)
        return messages - message, cost


def _cut(chosen: MessageBatch) -> list[SharedFrame]:
    if chosen.cost <= unrecorded_piece_bytes_max:
        return [SharedFrame(detach(chosen))]
    pieces = []
    start = 0
    while start < chosen.count:
        fitting = max(affordable_rows(chosen, start, chosen.count, unrecorded_piece_bytes_max), 1)
        pieces.append(SharedFrame(detach(slice_batch(chosen, start, start + fitting))))
        start += fitting
    return pieces


def detach(batch: MessageBatch) -> MessageBatch:
    """The batch in memory of its own: a few bytes that wait somewhere must not hold a whole frame."""
    return batch if len(batch.buffers()) == 1 else MessageBatch.parse(batch.encode())
