"""Command scheduler: a command that has a filter compiled makes the next ones of its connection wait.

Invariants:
- The commands of a connection keep their order.
- While commands of a connection wait, nothing more is read from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from tickertape.base.interfaces import Now
from tickertape.wire.connection import Received, Violation

Incoming: TypeAlias = Received | Violation

_TURN_COMMANDS_MAX: Final = 64
"""Commands that one turn takes while nothing is compiled for them."""


class CommandScheduler:
    """Connections whose commands wait for their turn.

    `take(conn, incoming, now)` passes a command to the engine and returns whether a filter was compiled."""

    def __init__(self, take: Callable[[int, Incoming, Now], bool]) -> None:
        self._take = take
        self._waiting: dict[int, deque[Incoming]] = {}
        """By connection, in the order of their turns; an empty queue delays the next command."""

    def received(self, conn: int, incoming: Incoming, now: Now) -> bool:
        """Take a command at once unless it has to wait; returns whether to stop reading its connection."""
        waiting = self._waiting.get(conn)
        if waiting is None:
            if self._take(conn, incoming, now):
                self._waiting[conn] = deque()
            return False
        waiting.append(incoming)
        return len(waiting) == 1

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return bool(self._waiting)

    def step(self, now: Now) -> int | None:
        """Take commands of the next connection until one has a filter compiled; returns the connection to
        read from again, if any."""
        if not self._waiting:
            return None
        conn, waiting = next(iter(self._waiting.items()))
        waited, compiled, taken = bool(waiting), False, 0
        while waiting and taken < _TURN_COMMANDS_MAX and not compiled:
            compiled = self._take(conn, waiting.popleft(), now)
            taken += 1
        del self._waiting[conn]
        if waiting or compiled:
            self._waiting[conn] = waiting
        return conn if waited and not waiting else None

    def drop(self, conn: int) -> list[Incoming]:
        """Forget a closed connection; returns its commands that were not taken."""
        waiting = self._waiting.get(conn)
        if waiting is None:
            return []
        left = [*waiting]
        waiting.clear()
        return left
