"""Read throttle: connections that are not read from, and the reasons (back-pressure).

Invariants:
- The driver is asked once for each connection and reason.
- Reading resumes when the last reason is removed.
"""

from __future__ import annotations

from tickertape.engine.runtime.effects import PauseReading, PauseReason, ResumeReading
from tickertape.engine.runtime.outbox import Outbox


class ReadThrottle:
    """Connections that are not read from, by reason."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.reasons: dict[PauseReason, set[int]] = {}
        """Connections by reason, without empty entries. Callers must not change it."""

    def pause(self, conn: int, reason: PauseReason) -> None:
        """Stop reading from a connection for a reason."""
        paused = self.reasons.setdefault(reason, set())
        if conn not in paused:
            paused.add(conn)
            self._outbox.put(PauseReading(conn, reason))

    def resume(self, conn: int, reason: PauseReason) -> None:
        """Remove a reason from a connection."""
        if self._remove(conn, reason):
            self._outbox.put(ResumeReading(conn, reason))

    def resume_all(self, reason: PauseReason) -> None:
        """Remove a reason from all connections."""
        for conn in sorted(self.reasons.get(reason, ())):
            self.resume(conn, reason)

    def forget(self, conn: int) -> None:
        """Remove a connection."""
        for reason in [*self.reasons]:
            self._remove(conn, reason)

    def _remove(self, conn: int, reason: PauseReason) -> bool:
        """Remove a reason from a connection. Return whether it had the reason."""
        paused = self.reasons.get(reason, set())
        if conn not in paused:
            return False
        paused.discard(conn)
        if not paused:
            del self.reasons[reason]
        return True
