"""Archive read queue: shares the threads that read the archive fairly between connections.

Invariants:
- A connection has at most its share of the threads, and no second turn while another waits for its first.
- Requests of closed connections are not carried out.
"""

from __future__ import annotations

import threading
from collections import Counter, deque

from tickertape.engine.runtime.effects import ArchiveRead
from tickertape.server.limits import archive_threads_per_connection_max


class ArchiveReadQueue:
    """Requests that wait, by their connection. May be used by several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: dict[int, deque[ArchiveRead]] = {}
        """By connection; whose turn comes first is first."""
        self._busy: Counter[int] = Counter()
        """Requests of each connection that are being carried out."""
        self._stopped = False

    def put(self, effect: ArchiveRead) -> None:
        """It is to be carried out."""
        with self._changed:
            self._lines.setdefault(effect.conn, deque()).append(effect)
            self._changed.notify()

    def take(self) -> ArchiveRead | None:
        """Wait for the next one, which counts as under way until `done`; None: no more are carried out."""
        with self._changed:
            while not self._stopped:
                for conn, line in self._lines.items():
                    if self._busy[conn] < archive_threads_per_connection_max:
                        return self._begin(conn, line)
                self._changed.wait()
            return None

    def _begin(self, conn: int, line: deque[ArchiveRead]) -> ArchiveRead:
        effect = line.popleft()
        self._busy[conn] += 1
        del self._lines[conn]
        if line:
            self._lines[conn] = line  # at the end: others go first
        return effect

    def done(self, effect: ArchiveRead) -> None:
        """It was carried out."""
        with self._changed:
            self._busy[effect.conn] -= 1
            if not self._busy[effect.conn]:
                del self._busy[effect.conn]
            self._changed.notify()

    def drop(self, conn: int) -> list[ArchiveRead]:
        """Drop the waiting requests of a closed connection; returns them."""
        with self._changed:
            return list(self._lines.pop(conn, ()))

    def stop(self) -> None:
        """Nothing more is carried out."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
