"""Destination end: one connection of an incoming link, and the state of the link over all connections."""

from __future__ import annotations

from tickertape.base.errors import BadLink
from tickertape.batch import MessageBatch
from tickertape.engine.limits import link_answer_bytes_max
from tickertape.engine.replication.destination.link_destination import LinkDestination
from tickertape.engine.replication.destination.run_intake import ReplicatedLog
from tickertape.engine.replication.links.link_row import LinkCounters, LinkRow, LinkState
from tickertape.engine.replication.links.sides import facts_of, linked_source, newest_start
from tickertape.engine.replication.routes import RuleSet
from tickertape.engine.replication.server_checks import origins_of_link
from tickertape.wire.link import (
    DestinationCommand,
    LinkAck,
    LinkCredit,
    LinkedSource,
    LinkHoles,
    LinkNames,
    LinkRequest,
    LinkRuns,
    LinkSide,
    SourceCommand,
)


class IncomingState:
    """A link from another instance."""

    def __init__(self, name: str) -> None:
        self.name = name
        """Name of the source."""
        self.end: DestinationEnd | None = None
        self.log = b""
        """Log id of the source at its last handshake."""
        self.error = ""
        """Text of the last error."""
        self.refused = False
        """The last handshake was refused."""
        self.counters = LinkCounters()

    def row(self, position: int) -> LinkRow:
        """Return the state for statistics. `position`: place of the source that is persisted here."""
        taker = None if self.end is None else self.end.taker
        state: LinkState = "live" if taker is not None else "refused" if self.refused else "down"
        return LinkRow(
            name=self.name,
            direction="in",
            state=state,
            log=self.log.hex(),
            position=position,
            behind=0,
            unsent=0,
            pinned=None,
            held=0 if taker is None else taker.held_frames,
            paused="" if taker is None else taker.paused or "",
            error=self.error,
            level="",
            behind_seconds=0.0,
            stopped=False,
            downgrades=0,
            counters=self.counters,
        )


class DestinationEnd:
    """One connection from a source, after its validated handshake."""

    def __init__(self, conn: int, state: IncomingState, log: ReplicatedLog, side: LinkSide) -> None:
        """`side`: facts of the source."""
        self.conn = conn
        self.state = state
        self.side = side
        self.start = newest_start(side)
        """Start of the running source."""
        facts = facts_of(side)
        origins = [] if facts.link is None else [*origins_of_link(facts, facts.link)]
        self.reported: LinkedSource = linked_source(side, origins)
        """The link as other handshakes of this server report it."""
        if facts.link is not None:
            log.whole.opened(RuleSet(facts.link.rules, facts.topics.derived), origins)
        self.taker = LinkDestination(log, side)
        self.writable = True

    @property
    def name(self) -> str:
        """Name of the source."""
        return self.state.name

    @property
    def has_work(self) -> bool:
        """Whether `step` can do something."""
        return self.taker.pending

    @property
    def overfull(self) -> bool:
        """Whether it holds more answers than `link_answer_bytes_max`. The connection is not read then."""
        return self.taker.answer_bytes > link_answer_bytes_max

    def received(self, command: SourceCommand | DestinationCommand, batch: MessageBatch | None) -> None:
        """Take a command of the source after the handshake. Raises `BadLink` or `CorruptBatch`."""
        if not isinstance(command, LinkHoles | LinkRuns | LinkNames):
            raise BadLink(
                f"Unexpected {type(command).__name__} from the source of a link. "
                "Report the defect of the source."
            )
        self.taker.received(command, batch)
        self.state.counters.count(command, batch)

    def step(self) -> None:
        """Append a bounded number of rows. Raises errors after which the link ends."""
        if self.taker.pending:
            self.taker.step()

    def take_commands(self) -> list[LinkRequest | LinkAck | LinkCredit]:
        """Return the commands to send now, in order."""
        if not self.writable:
            return []
        commands = self.taker.take_commands()
        for command in commands:
            self.state.counters.count(command)
        return commands
