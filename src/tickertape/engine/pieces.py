"""Owns what a topic gets of one unrecorded publish: cut into pieces once, for all who are sent them or hold
them.

Must never hold memory of anything else: a piece is no view on the frame that brought it.
"""

from __future__ import annotations

from tickertape.base.limits import batch_memory_bytes, unrecorded_piece_bytes_max
from tickertape.batch import MessageBatch, slice_batch
from tickertape.engine.session import Session
from tickertape.engine.subscription import affordable


class Piece:
    """A batch that is sent to many."""

    __slots__ = ("_crc", "batch")

    def __init__(self, batch: MessageBatch) -> None:
        self.batch = batch
        self._crc: int | None = None

    def crc(self) -> int:
        """CRC32C of the encoded batch, computed once."""
        if self._crc is None:
            self._crc = self.batch.crc()
        return self._crc


class Pieces:
    """The messages of one publish to one topic, in order."""

    __slots__ = ("_left", "count", "holders", "memory_bytes", "pieces")

    def __init__(self, chosen: MessageBatch) -> None:
        self.pieces = _cut(chosen)
        self.count = len(self.pieces)
        self.holders: dict[Session, int] = {}
        """How many subscriptions of each connection wait for it."""
        sizes = [piece.batch.nbytes for piece in self.pieces]
        self.memory_bytes = sum(sizes) + batch_memory_bytes * len(sizes)
        """What all of it takes in memory."""
        self._left = [0]
        for size in reversed(sizes):
            self._left.append(self._left[-1] + size)

    def left_bytes(self, piece: int) -> int:
        """Encoded size from a piece on."""
        return self._left[self.count - piece]


def _cut(chosen: MessageBatch) -> list[Piece]:
    if chosen.cost <= unrecorded_piece_bytes_max:
        return [Piece(owned(chosen))]
    pieces = []
    start = 0
    while start < chosen.count:
        fitting = max(affordable(chosen, start, chosen.count, unrecorded_piece_bytes_max), 1)
        pieces.append(Piece(owned(slice_batch(chosen, start, start + fitting))))
        start += fitting
    return pieces


def owned(batch: MessageBatch) -> MessageBatch:
    """The batch in memory of its own: a few bytes that wait somewhere must not hold a whole frame."""
    return batch if len(batch.buffers()) == 1 else MessageBatch.parse(batch.encode())
