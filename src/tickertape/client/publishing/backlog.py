"""Owns what of a publish store is still to be sent again on a connection, and how much of it is on its way.

Must never read more of a store than is sent next, nor change what it holds: a store on disk may hold far more
than memory has room for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import Final

from tickertape.base.limits import republish_bytes_max
from tickertape.client.publish_store.protocol import PublishStore, Stored

AFTER_BACKLOG: Final = -1
"""Stands for the last frame of the backlog, whose number is not known before it is sent."""


class ResendWindow:
    """The batches of `store` in order: those it held at the beginning, then what it was given meanwhile."""

    def __init__(self, store: PublishStore) -> None:
        self._store = store
        self._pieces: Iterator[Stored] = iter(store.held())
        self._through = 0
        """Up to here everything was given out or is settled."""
        self._frames: deque[tuple[int, int]] = deque()
        self._bytes = 0

    def room(self, oldest: int | None) -> bool:
        """Whether more may be sent; `oldest` is the first frame without an answer, None when all have one."""
        frames = self._frames
        while frames and (oldest is None or frames[0][0] < oldest):
            self._bytes -= frames.popleft()[1]
        return self._bytes < republish_bytes_max

    def take(self) -> Stored | None:
        """The next batch; None when the store holds no more. Raises `StoreError` where it cannot be read."""
        piece = next(self._pieces, None)
        if piece is None:
            held = self._store.held()
            more = bisect_right(held, self._through, key=_last)
            self._pieces = iter(held[more:])
            piece = next(self._pieces, None)
        if piece is not None:
            self._through = piece.last
        return piece

    def sent(self, frame: int, nbytes: int) -> None:
        """The batch that was taken went out, as frames up to `frame`."""
        self._frames.append((frame, nbytes))
        self._bytes += nbytes

    def discarded(self, sequence: int) -> None:
        """The store let go of everything up to `sequence`, perhaps of more than was sent here."""
        if sequence > self._through:
            self._through = sequence
            self._pieces = iter(())


def _last(stored: Stored) -> int:
    return stored.last
