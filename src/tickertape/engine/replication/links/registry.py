"""Link registry: the replication links of one server, in both directions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tickertape.base.errors import TickertapeError
from tickertape.batch import MessageBatch
from tickertape.engine.log_reads.log_reads import LogReads
from tickertape.engine.replication.links.link_row import LinkRow
from tickertape.engine.replication.links.replication import Replication
from tickertape.engine.retention import RetentionPin
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.log_writer import LogWriter
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.runtime.publisher_ids import PublisherDirectory
from tickertape.engine.runtime.scheduling import Pending
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.engine.sessions.heartbeat import HeartbeatMonitor
from tickertape.engine.sessions.read_throttle import ReadThrottle
from tickertape.journal.journal import AcceptedBatch, Journal
from tickertape.wire.link import DestinationCommand, SourceCommand


class LinkParts(NamedTuple):
    """The parts of the engine that links use."""

    instance: str
    software: str
    journal: Journal
    directory: PublisherDirectory
    catalog: TopicCatalog
    writer: LogWriter
    outbox: Outbox
    clock: EngineClock
    reads: LogReads
    throttle: ReadThrottle
    heartbeats: HeartbeatMonitor


class LinkRegistry:
    """All links of one server."""

    def __init__(self, parts: LinkParts, replication: Replication) -> None:
        self._parts = parts
        self._replication = replication
        self.connections: dict[int, object] = {}
        self._ready: dict[object, None] = {}
        self.pending: Pending = (self._ready,)
        """Not empty while `step` has work."""

    def begin(self) -> None:
        """Append the record of this run of the server, as its first row."""
        raise NotImplementedError

    # -- inputs ---------------------------------------------------------------------------------------

    def connected(self, conn: int, destination: str, token: str | None) -> None:
        """Open the link to a destination on an established connection."""
        raise NotImplementedError

    def accept(self, conn: int) -> None:
        """Add an accepted connection, whose first command is a command of a link."""
        raise NotImplementedError

    def received(
        self, conn: int, command: SourceCommand | DestinationCommand, batch: MessageBatch | None
    ) -> None:
        """Handle a command of the other end. The first one of an accepted connection is `LinkOpen`."""
        raise NotImplementedError

    def end(self, conn: int, error: TickertapeError) -> None:
        """Close the connection of a link with an error."""
        raise NotImplementedError

    def lost(self, conn: int) -> None:
        """Remove a closed connection."""
        raise NotImplementedError

    def set_writable(self, conn: int, *, writable: bool) -> None:
        """Stop or resume sending to a connection."""
        raise NotImplementedError

    def accepted(self, batches: Iterable[AcceptedBatch]) -> None:
        """Note batches that were appended to the log."""
        raise NotImplementedError

    def log_persisted(self) -> None:
        """Continue after more of the log was persisted."""
        raise NotImplementedError

    def read_done(self, holder: object) -> bool:
        """Resume the holder of a reader of the log. Return False for another holder."""
        raise NotImplementedError

    def stop(self) -> None:
        """Start a clean stop: take no new links. Rows that are persisted are still acknowledged."""
        raise NotImplementedError

    def wake(self) -> None:
        """Execute what is due."""
        raise NotImplementedError

    def step(self) -> None:
        """Execute one bounded step of a link."""
        raise NotImplementedError

    # -- outputs --------------------------------------------------------------------------------------

    def oldest_needed(self) -> RetentionPin | None:
        """Return the lowest position that other logs need."""
        raise NotImplementedError

    def rows(self) -> list[LinkRow]:
        """Return the state of all links."""
        raise NotImplementedError
