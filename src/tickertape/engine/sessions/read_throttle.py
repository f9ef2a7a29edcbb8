"""Read throttle: connections that are not read from, and the reasons (back-pressure).

Invariants:
- The driver is asked once for each connection and reason.
- A connection is read from again when its last reason is over.
"""

from __future__ import annotations

from collections.abc import Set
from typing import get_args

from tickertape.engine.runtime.effects import PauseReading, PauseReason, ResumeReading
from tickertape.engine.runtime.outbox import Outbox


class ReadThrottle:
    """Connections that are not read from, by reason."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._paused: dict[PauseReason, set[int]] = {reason: set() for reason in get_args(PauseReason)}

    def of(self, reason: PauseReason) -> Set[int]:
        """Return the connections that are not read from for a reason; not to be changed."""
        return self._paused[reason]

    def pause(self, conn: int, reason: PauseReason) -> None:
        """Stop reading from a connection for a reason."""
        paused = self._paused[reason]
        if conn not in paused:
            paused.add(conn)
            self._outbox.put(PauseReading(conn, reason))

    def resume(self, conn: int, reason: PauseReason) -> None:
        """Remove a reason of a connection."""
        paused = self._paused[reason]
        if conn in paused:
            paused.discard(conn)
            self._outbox.put(ResumeReading(conn, reason))

    def resume_all(self, reason: PauseReason) -> None:
        """Remove a reason of all connections."""
        for conn in sorted(self._paused[reason]):
            self.resume(conn, reason)

    def forget(self, conn: int) -> None:
        """Forget a connection."""
        for paused in self._paused.values():
            paused.discard(conn)
