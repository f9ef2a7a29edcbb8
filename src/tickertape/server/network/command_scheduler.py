"""Command scheduler: after a command with a slow step, further commands of its connection wait.

Invariants:
- The commands of a connection keep their order.
- The server does not read from a connection with waiting commands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Final, TypeAlias

from tickertape.base.interfaces import Now
from tickertape.wire.connection import Received, Violation

Incoming: TypeAlias = Received | Violation

_TURN_COMMANDS_MAX: Final = 64
"""Commands of one turn, if none of them takes a slow step."""


class CommandScheduler:
    """Round-robin scheduler of waiting commands, by connection.

    `take(conn, incoming, now)` passes a command to the engine and returns whether it took a slow step
    (`InterestCompiler.slow_steps`)."""

    def __init__(self, take: Callable[[int, Incoming, Now], bool]) -> None:
        self._take = take
        self._waiting: dict[int, deque[Incoming]] = {}
        """Queues by connection, in the order of their turns. An empty queue delays the next command."""
        self.waiting: Collection[int] = self._waiting.keys()
        """Not empty while commands wait for `step`."""

    def received(self, conn: int, incoming: Incoming, now: Now) -> bool:
        """Process a command now, or queue it. Return whether to stop reading from its connection."""
        waiting = self._waiting.get(conn)
        if waiting is None:
            if self._take(conn, incoming, now):
                self._waiting[conn] = deque()
            return False
        waiting.append(incoming)
        return len(waiting) == 1

    def step(self, now: Now) -> int | None:
        """Process commands of the next connection until one takes a slow step.

        Return the connection to read from again, if any."""
        if not self._waiting:
            return None
        conn, waiting = next(iter(self._waiting.items()))
        waited, slow, taken = bool(waiting), False, 0
        while waiting and taken < _TURN_COMMANDS_MAX and not slow:
            slow = self._take(conn, waiting.popleft(), now)
            taken += 1
        del self._waiting[conn]
        if waiting or slow:
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
