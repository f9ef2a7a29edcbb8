"""Settlement look-ups: reads of the messages that the settlements of a publish frame name.

A connection is not read from while its settlements are looked up; what it sent before that waits in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tickertape.batch import MessageBatch
from tickertape.engine.commands.frame_settlements import Settlements
from tickertape.engine.log_reads.log_reads import LogReads, ReadTask
from tickertape.engine.sessions.read_throttle import ReadThrottle
from tickertape.engine.sessions.session import Session
from tickertape.wire.commands import Publish


class PublishFrame(NamedTuple):
    """A publish frame."""

    command: Publish
    batch: MessageBatch


class SettlementLookup(ReadTask[None]):
    """Look-up for the settlements of a frame; later frames of the connection wait."""

    def __init__(self, session: Session, frame: PublishFrame, settlements: Settlements) -> None:
        super().__init__(settlements.look_up(), session.conn)
        self.session = session
        self.frame = frame
        self.settlements = settlements
        self.waiting: deque[PublishFrame | Callable[[], None]] = deque()


class SettlementLookups:
    """Look-ups under way, at most one for each connection."""

    def __init__(self, reads: LogReads, throttle: ReadThrottle) -> None:
        self._reads = reads
        self._throttle = throttle
        self._by_conn: dict[int, SettlementLookup] = {}

    def of(self, conn: int) -> SettlementLookup | None:
        """Return the look-up of a connection."""
        return self._by_conn.get(conn)

    def begin(self, lookup: SettlementLookup) -> bool:
        """Start a look-up; return whether it is done at once."""
        self._by_conn[lookup.conn] = lookup
        return self._reads.run(lookup)

    def done(self, lookup: SettlementLookup) -> None:
        """Forget a look-up that is done."""
        del self._by_conn[lookup.conn]

    def drop(self, conn: int) -> SettlementLookup | None:
        """End the look-up of a connection that is gone, and return it."""
        lookup = self._by_conn.pop(conn, None)
        if lookup is not None:
            self._reads.drop(lookup)
        return lookup

    def pause_or_resume(self, conn: int) -> None:
        """Read from a connection unless a look-up of it is under way."""
        if conn in self._by_conn:
            self._throttle.pause(conn, "settling")
        else:
            self._throttle.resume(conn, "settling")
