"""Settlement look-ups: reads of the messages that the settlements of a publish frame name.

A connection is not read while its settlements are looked up. Its earlier input waits in order.
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
    """Look-up for the settlements of a frame. Later frames of the connection wait."""

    def __init__(self, session: Session, frame: PublishFrame, settlements: Settlements) -> None:
        super().__init__(settlements.look_up(), session.conn)
        self.session = session
        self.frame = frame
        self.settlements = settlements
        self.waiting: deque[PublishFrame | Callable[[], None]] = deque()


class SettlementLookups:
    """Look-ups in progress, at most one per connection."""

    def __init__(self, reads: LogReads, throttle: ReadThrottle) -> None:
        self._reads = reads
        self._throttle = throttle
        self.by_conn: dict[int, SettlementLookup] = {}
        """Look-up of each connection. Callers must not change it."""

    def begin(self, lookup: SettlementLookup) -> bool:
        """Start a look-up. Return whether it is done at once."""
        self.by_conn[lookup.conn] = lookup
        return self._reads.run(lookup)

    def done(self, lookup: SettlementLookup) -> None:
        """Remove a look-up that is done."""
        del self.by_conn[lookup.conn]

    def drop(self, conn: int) -> SettlementLookup | None:
        """Remove and return the look-up of a closed connection."""
        lookup = self.by_conn.pop(conn, None)
        if lookup is not None:
            self._reads.drop(lookup)
        return lookup

    def pause_or_resume(self, conn: int) -> None:
        """Read from a connection, unless its look-up is in progress."""
        if conn in self.by_conn:
            self._throttle.pause(conn, "settling")
        else:
            self._throttle.resume(conn, "settling")
