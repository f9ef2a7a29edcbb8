"""Owns what waits for live subscriptions that lack credit or whose connection is full, under one bound for
all of them together.

What many wait for is held, and counted, once. Must never hold more than `unrecorded_held_bytes_max` in all,
or `unrecorded_backlog_bytes_max` for one subscription: who holds most is ended as slow, so that nothing is
dropped in silence and nobody else is disturbed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tickertape.base.limits import (
    unrecorded_backlog_bytes_max,
    unrecorded_held_bytes_max,
    unrecorded_reference_bytes,
)
from tickertape.engine.pieces import Pieces
from tickertape.engine.session import Session


class LiveSubscription:
    """A subscription to an unrecorded topic."""

    def __init__(self, session: Session, sub_id: str, topic: str, credit: int) -> None:
        self.session = session
        self.sub_id = sub_id
        self.topic = topic
        self.credit = credit
        self.window = credit
        """Credit when nothing is outstanding."""
        self.since = 0
        """Number of the first publish that is for it."""
        self.over = False
        self.backlog: deque[Pieces] = deque()
        self.piece = 0
        """Piece of the first of them that is next, and its message that is next."""
        self.message = 0
        self.backlog_bytes = 0


class Backlogs:
    """All that waits. `end(session)` ends a connection, and with it its subscriptions."""

    def __init__(self, end: Callable[[Session], None]) -> None:
        self.bytes_max = unrecorded_held_bytes_max
        self.held_bytes = 0
        """Memory of all that waits."""
        self._end = end
        self._held: dict[Session, int] = {}
        """What of it each connection waits for; what several wait for counts for each."""

    def hold(self, sub: LiveSubscription, pieces: Pieces, piece: int = 0, message: int = 0) -> None:
        """`sub` waits for `pieces`, from a piece and a message of it on; it may be over afterwards."""
        session = sub.session
        if not sub.backlog:
            sub.piece, sub.message = piece, message
        sub.backlog.append(pieces)
        sub.backlog_bytes += pieces.left_bytes(piece)
        if not pieces.holders:
            self.held_bytes += pieces.memory_bytes
        waiting = pieces.holders.get(session, 0)
        pieces.holders[session] = waiting + 1
        self.held_bytes += unrecorded_reference_bytes
        added = unrecorded_reference_bytes + (0 if waiting else pieces.memory_bytes)
        self._held[session] = self._held.get(session, 0) + added
        if sub.backlog_bytes > unrecorded_backlog_bytes_max:
            self._end(session)
        if self.held_bytes > self.bytes_max:
            self._make_room()

    def advance(self, sub: LiveSubscription, piece: int, message: int) -> None:
        """`sub` was sent everything before this message of a piece of the first that it waits for."""
        pieces = sub.backlog[0]
        sub.backlog_bytes -= pieces.left_bytes(sub.piece) - pieces.left_bytes(piece)
        sub.piece, sub.message = piece, message
        if piece == pieces.count:
            sub.backlog.popleft()
            sub.piece = 0
            self._release(sub.session, pieces)

    def drop(self, sub: LiveSubscription) -> None:
        """It is over."""
        for pieces in sub.backlog:
            self._release(sub.session, pieces)
        sub.backlog.clear()
        sub.backlog_bytes = 0

    def _release(self, session: Session, pieces: Pieces) -> None:
        freed = unrecorded_reference_bytes
        self.held_bytes -= unrecorded_reference_bytes
        waiting = pieces.holders.pop(session) - 1
        if waiting:
            pieces.holders[session] = waiting
        else:
            freed += pieces.memory_bytes
            if not pieces.holders:
                self.held_bytes -= pieces.memory_bytes
        left = self._held[session] - freed
        if left:
            self._held[session] = left
        else:
            del self._held[session]

    def _make_room(self) -> None:
        """End the connections that hold most until the rest is within the bound."""
        # What one holds does not change when another is ended, so one look at all of them is enough.
        for session in sorted(self._held, key=self._held.__getitem__, reverse=True):
            if self.held_bytes <= self.bytes_max:
                return
            self._end(session)
