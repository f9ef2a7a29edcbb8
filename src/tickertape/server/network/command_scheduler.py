"""Command scheduler: after commands of much effort, further commands of their connection wait.

Invariants:
- The commands of a connection keep their order.
- The server does not read from a connection with waiting commands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import TypeAlias

from tickertape.base.interfaces import Now
from tickertape.engine.limits import turn_effort_max
from tickertape.wire.connection import Received, Violation

Incoming: TypeAlias = Received | Violation


class CommandScheduler:
    """Round-robin scheduler of waiting commands, by connection.

    `take(conn, incoming, now)` passes a command to the engine and returns its effort
    (`InterestCompiler.effort`). Commands that arrive together have the same object `now`, and are a turn."""

    def __init__(self, take: Callable[[int, Incoming, Now], int]) -> None:
        self._take = take
        self._turn: Now | None = None
        self._effort = 0
        """Effort of the commands of the turn."""
        self._waiting: dict[int, deque[Incoming]] = {}
        """Queues by connection, in the order of their turns. An empty queue delays the next command."""
        self.waiting: Collection[int] = self._waiting.keys()
        """Not empty while commands wait for `step`."""

    def received(self, conn: int, incoming: Incoming, now: Now) -> bool:
        """Process a command now, or queue it. Return whether to stop reading from its connection."""
        waiting = self._waiting.get(conn)
        if waiting is None:
            if now is not self._turn:
                self._turn, self._effort = now, 0
            self._effort += self._take(conn, incoming, now)
            if self._effort >= turn_effort_max:
                self._waiting[conn] = deque()
            return False
        waiting.append(incoming)
        return len(waiting) == 1

    def step(self, now: Now) -> int | None:
        """Process commands of the next connection, up to `turn_effort_max`.

        Return the connection to read from again, if any."""
        if not self._waiting:
            return None
        conn, waiting = next(iter(self._waiting.items()))
        waited, effort = bool(waiting), 0
        while waiting and effort < turn_effort_max:
            effort += max(1, self._take(conn, waiting.popleft(), now))
        del self._waiting[conn]
        if waiting or effort >= turn_effort_max:
            self._waiting[conn] = waiting
        return conn if waited and not waiting else None

    def drop(self, conn: int) -> list[Incoming]:
        """Remove a closed connection. Return its unprocessed commands."""
        waiting = self._waiting.get(conn)
        if waiting is None:
            return []
        left = [*waiting]
        waiting.clear()
        return left
