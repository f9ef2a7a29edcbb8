"""Owns whose next command has to wait: one that had a filter compiled took long, and others come first.

Must never change the order of what came from a connection, or hold more of it than came in one piece: while
something waits, nothing more is read from that connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from tickertape.base.interfaces import Now
from tickertape.wire.connection import Received, Violation

Incoming: TypeAlias = Received | Violation

_AT_ONCE_MAX: Final = 64
"""So many are taken in one turn when nothing is compiled for them."""


class CommandScheduler:
    """Connections whose commands wait for their turn. `take(conn, incoming, now)` hands one to the engine,
    `compiled()` says how often something was compiled so far, `read(conn, enabled)` stops and goes on reading
    from a connection."""

    def __init__(
        self,
        take: Callable[[int, Incoming, Now], None],
        compiled: Callable[[], int],
        read: Callable[[int, bool], None],
    ) -> None:
        self._take = take
        self._compiled = compiled
        self._read = read
        self._waiting: dict[int, deque[Incoming]] = {}
        """By connection, in the order of their turns; empty where nothing waits, but may not be taken now."""

    def came(self, conn: int, incoming: Incoming, now: Now) -> None:
        """Take what came from a connection at once, unless it has to wait for its turn."""
        waiting = self._waiting.get(conn)
        if waiting is not None:
            if not waiting:
                self._read(conn, False)
            waiting.append(incoming)
            return
        before = self._compiled()
        self._take(conn, incoming, now)
        if self._compiled() != before:
            self._waiting[conn] = deque()

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return bool(self._waiting)

    def step(self, now: Now) -> None:
        """It is the turn of the next connection, up to something that has a filter compiled."""
        if not self._waiting:
            return
        conn, waiting = next(iter(self._waiting.items()))
        before, waited = self._compiled(), bool(waiting)
        taken = 0
        while waiting and taken < _AT_ONCE_MAX and self._compiled() == before:
            self._take(conn, waiting.popleft(), now)
            taken += 1
        del self._waiting[conn]
        if waiting or self._compiled() != before:
            self._waiting[conn] = waiting
        if waited and not waiting:
            self._read(conn, True)

    def drop(self, conn: int) -> list[Incoming]:
        """The connection is gone; what came from it and was not taken."""
        waiting = self._waiting.get(conn)
        if waiting is None:
            return []
        left = [*waiting]
        waiting.clear()
        return left
