"""Source end: one connection of an outgoing link, and the state of the link over all connections."""

from __future__ import annotations

from collections.abc import Iterable

from tickertape.base.errors import BadLink, LinkRefused
from tickertape.engine.replication.levels.backlog import LinkBacklog
from tickertape.engine.replication.link_facts import OutgoingLink
from tickertape.engine.replication.links.link_row import Level, LinkCounters, LinkRow, LinkState
from tickertape.engine.replication.places import LinkStart, StartRefused
from tickertape.engine.replication.routes import DestinationRoutes, PassThrough, RuleSet
from tickertape.engine.replication.source.link_frames import LinkFrame
from tickertape.engine.replication.source.link_source import LinkSource
from tickertape.engine.replication.source.routed_log import SourceLog
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.wire.link import (
    DestinationCommand,
    LinkAck,
    LinkCredit,
    LinkOpened,
    LinkRequest,
    LinkSide,
    SourceCommand,
)


class OutgoingState:
    """A configured destination."""

    def __init__(self, link: OutgoingLink, derived: Iterable[str], number: int | None = None) -> None:
        """`derived`: topics of recorded views. `number`: number of the synchronous link (`SyncLinks`)."""
        self.link = link
        self.number = number
        self.rules = RuleSet(link.rules, derived)
        self.end: SourceEnd | None = None
        """The connection, also before its handshake."""
        self.log = b""
        """Log id of the destination. Empty: it was not connected since the start of the server."""
        self.acknowledged: int | None = None
        """Position before which the destination had all rows on its disk at the end of its last connection.
        None: unknown."""
        self.error = ""
        """Text of the last error."""
        self.refused = False
        """Only an operator can change the cause of the last error."""
        self.counters = LinkCounters()
        self.backlog = LinkBacklog()
        self.stopped = False
        """Whether an operator has paused the link."""

    @property
    def name(self) -> str:
        """Name of the destination."""
        return self.link.destination

    @property
    def covered(self) -> int:
        """Position before which the destination has all rows for it on its disk, as far as known."""
        source = None if self.end is None else self.end.source
        return (self.acknowledged or 0) if source is None else source.covered

    @property
    def is_connected(self) -> bool:
        """Whether the link is open, and not paused."""
        return self.end is not None and self.end.source is not None and not self.stopped

    def ended(self, end: SourceEnd) -> None:
        """Note the end of the connection."""
        self.end = None
        if end.source is not None:
            self.acknowledged = end.source.durable
        end.stop()

    def needed(self) -> int | None:
        """Return the lowest position that the destination needs. None: unknown."""
        position = None if self.end is None or self.end.source is None else self.end.source.oldest_needed()
        return self.acknowledged if position is None else position

    def row(self, pinned: int, mono: float, level: Level, downgrades: int) -> LinkRow:
        """Return the state for statistics. `pinned`: position that retention keeps for it."""
        source = None if self.end is None else self.end.source
        return LinkRow(
            name=self.name,
            direction="out",
            state=self._state(),
            log=self.log.hex(),
            position=(self.acknowledged or 0) if source is None else source.durable,
            behind=0 if source is None else source.behind,
            unsent=0 if source is None else source.unsent,
            pinned=pinned,
            held=0,
            paused="",
            error=self.error,
            level=level,
            behind_seconds=self.backlog.seconds(self.covered, mono) or 0.0,
            stopped=self.stopped,
            downgrades=downgrades,
            counters=self.counters,
        )

    def _state(self) -> LinkState:
        if self.end is None:
            return "refused" if self.refused else "down"
        if self.end.source is None:
            return "opening"
        return "live" if self.end.source.resynced else "resync"


class SourceEnd:
    """One connection to a destination."""

    def __init__(self, conn: int, state: OutgoingState, side: LinkSide) -> None:
        """`side`: facts of this server in the handshake."""
        self.conn = conn
        self.state = state
        self.side = side
        self.source: LinkSource | None = None
        """None before the handshake."""
        self.writable = True
        self._resynced = False

    @property
    def name(self) -> str:
        """Name of the destination."""
        return self.state.name

    @property
    def has_work(self) -> bool:
        """Whether `step` can do something."""
        if self.state.stopped:
            return False
        return self.writable and self.source is not None and self.source.has_work

    def opened(
        self, command: LinkOpened, log: SourceLog, catalog: TopicCatalog, reporters: frozenset[bytes]
    ) -> LinkStart:
        """Start the stream after the validated answer of the destination. Raises `LinkRefused`."""
        passed = PassThrough(self.state.link.pass_through)
        routes = DestinationRoutes(self.state.rules, passed, command.side.log, catalog)
        source = LinkSource(log, routes, reporters)
        start = source.opened(command)
        if isinstance(start, StartRefused):
            raise LinkRefused(start.text(self.name))
        self.source = source
        return start

    def received(self, command: SourceCommand | DestinationCommand) -> None:
        """Handle a command of the destination after the handshake. Raises `BadLink`."""
        if self.source is None or not isinstance(command, LinkRequest | LinkAck | LinkCredit):
            raise BadLink(
                f"Unexpected {type(command).__name__} from the destination of a link. "
                "Report the defect of the destination."
            )
        self.state.counters.count(command)
        self.source.received(command)

    def take_resynced(self) -> bool:
        """Return once whether the destination has all rows that were persisted at the handshake."""
        news = not self._resynced and self.source is not None and self.source.resynced
        self._resynced = self._resynced or news
        return news

    def step(self) -> list[LinkFrame]:
        """Do a bounded piece of work. Return the frames to send. Raises errors after which the link ends."""
        if self.source is None:
            return []
        frames = self.source.step()
        for command, batch in frames:
            self.state.counters.count(command, batch)
        return frames

    def stop(self) -> None:
        """Stop at the end of the connection."""
        if self.source is not None:
            self.source.stop()
