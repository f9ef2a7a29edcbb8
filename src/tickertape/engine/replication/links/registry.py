"""Link registry: the replication links of one server, in both directions.

It opens and ends links, lets each of them take bounded steps in turn, and has the state that all links share.

Invariants:
- A lost connection of a source or to a destination is ended before another one starts.
- A destination learns of a place of this log only when it is persisted.
- Each outgoing connection ends with one `LinkEnded`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tickertape.base.errors import (
    AuthenticationFailed,
    BadLink,
    BadVersion,
    LimitReached,
    LinkRefused,
    NameInUse,
    NotReady,
    PublisherCollision,
    TickertapeError,
    error_from_code,
)
from tickertape.base.text_format import shown
from tickertape.batch import MessageBatch
from tickertape.engine.limits import incoming_links_max, link_heartbeat_seconds
from tickertape.engine.replication.destination.link_places import LinkPlaces
from tickertape.engine.replication.destination.place_records import FactPlaceRecords
from tickertape.engine.replication.destination.run_intake import ReplicatedLog
from tickertape.engine.replication.links.destination_end import DestinationEnd, IncomingState
from tickertape.engine.replication.links.link_row import LinkRow
from tickertape.engine.replication.links.parts import LinkParts
from tickertape.engine.replication.links.pins import LinkPins
from tickertape.engine.replication.links.replication import Replication
from tickertape.engine.replication.links.reporting import Reporting
from tickertape.engine.replication.links.sides import ServerFacts, has_start, refusal
from tickertape.engine.replication.links.source_end import OutgoingState, SourceEnd
from tickertape.engine.replication.source.link_source import LinkSource
from tickertape.engine.replication.source.routed_log import SourceLog
from tickertape.engine.retention import RetentionPin
from tickertape.engine.runtime.effects import CloseConnection, LinkEnded, LogonAccepted, SendLink
from tickertape.engine.runtime.holes import forgotten_holes
from tickertape.engine.runtime.scheduling import Pending
from tickertape.journal.journal import AcceptedBatch
from tickertape.wire.commands import Goodbye, Heartbeat, LinkMismatch
from tickertape.wire.link import DestinationCommand, LinkOpen, LinkOpened, LinkSide, SourceCommand

_OPERATOR_ERRORS: Final = (
    AuthenticationFailed,
    BadVersion,
    LimitReached,
    LinkRefused,
    PublisherCollision,
)
"""Errors with causes that only an operator can change."""
_MILLISECONDS: Final = 1_000


class LinkRegistry:
    """All links of one server."""

    def __init__(self, parts: LinkParts, replication: Replication) -> None:
        exact = parts.writer.exact
        assert exact is not None
        facts = replication.facts
        self._parts = parts
        self._clock = parts.clock
        self._outbox = parts.outbox
        self._commits = parts.journal.commits
        self._start = replication.start
        self._policy = replication.policy
        self._facts = facts
        self._places = LinkPlaces(exact, FactPlaceRecords(facts), [*facts.places])
        self._log = ReplicatedLog(
            parts.journal.journal_id,
            self._commits.level,
            parts.writer,
            exact,
            parts.directory,
            facts.origins,
            facts.reports,
            self._places,
        )
        self._source_log = SourceLog(parts.journal.view, parts.reads, facts.starts, facts.origins)
        self._server = ServerFacts(
            parts.instance, replication.group, parts.software, replication.topics, replication.destinations
        )
        derived = replication.topics.derived
        self._outgoing = {link.destination: OutgoingState(link, derived) for link in replication.destinations}
        self._incoming: dict[str, IncomingState] = {}
        self._reporting = Reporting(parts, exact, facts, self._outgoing)
        self._pins = LinkPins(parts.journal.view, facts, self._outgoing.values())
        self._stopping = False
        self._begun = 0
        """Position of the record of this run."""
        self._early: dict[int, LinkOpen] = {}
        """Handshakes that wait for the record of this run, to send or to answer. Others could remember a run
        that this log has forgotten after a power loss."""
        self.connections: dict[int, SourceEnd | DestinationEnd | None] = {}
        """Connections of links. None before the handshake of an incoming one. Callers must not change it."""
        self._ready: dict[SourceEnd | DestinationEnd, None] = {}
        """Ends with work, in the order of their turns."""
        self.pending: Pending = (self._ready,)
        """Not empty while `step` has work."""

    def begin(self) -> None:
        """Append the record of this run of the server, as its first row."""
        self._begun = self._commits.accepted_end
        self._reporting.begin(self._start)

    # -- connections ----------------------------------------------------------------------------------

    def connected(self, conn: int, destination: str, token: str | None) -> None:
        """Open the link to a configured destination on an established connection."""
        state = self._outgoing[destination]
        if state.end is not None:
            self.end(state.end.conn, _taken_over(destination))
        end = SourceEnd(conn, state, self._side(destination))
        state.end = self.connections[conn] = end
        heartbeat = int(link_heartbeat_seconds * _MILLISECONDS)
        self._parts.heartbeats.begin(conn, heartbeat, link=True)
        self._early[conn] = LinkOpen(side=end.side, token=token, heartbeat_ms=heartbeat)
        self._take_early()

    def accept(self, conn: int) -> None:
        """Add an accepted connection, whose first command is a command of a link."""
        self.connections[conn] = None

    def end(self, conn: int, error: TickertapeError, mismatches: tuple[LinkMismatch, ...] = ()) -> None:
        """Send a goodbye with an error, and close the connection."""
        self._outbox.close(conn, error, mismatches)
        self._remove(conn, error)

    def lost(self, conn: int) -> None:
        """Remove a closed connection."""
        self._remove(conn, None)

    def set_writable(self, conn: int, *, writable: bool) -> None:
        """Stop or resume sending to a connection."""
        end = self.connections[conn]
        if end is not None:
            end.writable = writable
            self._refresh(end)

    def stop(self) -> None:
        """Start a clean stop: take no new links. The others acknowledge the rows that are persisted."""
        self._stopping = True

    def _remove(self, conn: int, error: TickertapeError | None) -> None:
        end = self.connections.pop(conn, None)
        self._early.pop(conn, None)
        for part in (self._parts.throttle, self._outbox):
            part.forget(conn)
        self._parts.heartbeats.drop(conn)
        if end is None:
            return
        self._ready.pop(end, None)
        state = end.state
        state.refused = isinstance(error, _OPERATOR_ERRORS)
        state.error = state.error if error is None else str(error)
        opened = isinstance(end, DestinationEnd) or end.source is not None
        state.counters.disconnects += opened
        if isinstance(end, SourceEnd):
            end.state.ended(end)
            self._outbox.put(LinkEnded(conn, end.name, error, state.refused))
        else:
            end.state.end = None
        if opened or error is not None:
            event = "link_refused" if state.refused else "link_disconnected"
            self._event(event, end, warning=True, error=error)

    def _event(
        self,
        name: str,
        end: SourceEnd | DestinationEnd,
        *,
        warning: bool = False,
        error: TickertapeError | None = None,
        **fields: str | int,
    ) -> None:
        """Log an event of a link."""
        other = {"destination": end.name} if isinstance(end, SourceEnd) else {"source": end.name}
        cause = {} if error is None else {"code": error.code, "text": str(error)}
        self._outbox.log_event(name, warning, {**other, **fields, **cause})

    # -- commands -------------------------------------------------------------------------------------

    def received(
        self, conn: int, command: SourceCommand | DestinationCommand, batch: MessageBatch | None
    ) -> None:
        """Handle a command of the other end. The first one of an accepted connection is `LinkOpen`."""
        if conn not in self.connections:
            return  # ended meanwhile
        end = self.connections[conn]
        try:
            if self._commits.failure is not None:
                raise self._commits.failure
            if isinstance(command, Goodbye):
                self._left(conn, error_from_code(command.code, command.text))
            elif isinstance(command, Heartbeat):
                return
            elif end is None:
                self._early[conn] = self._first(conn, command)
                self._take_early()
            elif isinstance(end, SourceEnd):
                self._to_source(end, command)
            else:
                end.received(command, batch)
                self._refresh(end)
        except TickertapeError as error:
            self.end(conn, error)

    def _left(self, conn: int, error: TickertapeError) -> None:
        """Close a connection after the goodbye of the other end."""
        self._outbox.put(CloseConnection(conn, error.code, str(error)))
        self._remove(conn, error)

    def _first(self, conn: int, command: SourceCommand | DestinationCommand) -> LinkOpen:
        """Return the first command of a source."""
        if not isinstance(command, LinkOpen) or conn in self._early:
            raise BadLink(
                f"Unexpected {type(command).__name__} before the handshake of a link. "
                "Report the defect of the source."
            )
        return command

    def _take_early(self) -> None:
        """Send or answer handshakes, once the record of this run is persisted."""
        if self._commits.persisted_end <= self._begun:
            return
        early, self._early = self._early, {}
        for conn, command in early.items():
            if isinstance(self.connections[conn], SourceEnd):
                self._outbox.put(SendLink(conn, command))
            else:
                self._open(conn, command)

    def _open(self, conn: int, command: LinkOpen) -> None:
        """Answer the handshake of a source."""
        side = command.side
        try:
            self._policy.admit_link(side.instance, command.token, self._clock.now)
            if self._stopping:
                raise NotReady("Cannot open a link: the server is stopping. Wait until it runs again.")
            state = self._incoming_state(side.instance)
            self._parts.heartbeats.begin(conn, command.heartbeat_ms, link=True)
            self._end_earlier(side)
            own = self._side(side.instance)
            refused = refusal(side, own)
        except TickertapeError as error:
            self._refuse(conn, side, error)
            return
        if refused is not None:
            if state.end is None:  # otherwise another server has the name
                state.error, state.refused, state.log = str(refused.error), True, side.log
            self._refuse(conn, side, refused.error, refused.mismatches)
            return
        end = DestinationEnd(conn, state, self._log, side)
        self.connections[conn] = state.end = end
        state.log, state.error, state.refused = side.log, "", False
        state.counters.connects += 1
        self._reporting.source_known(side.log)
        self._outbox.put(LogonAccepted(conn))
        self._outbox.put(SendLink(conn, end.taker.opened(own)))
        self._event("link_connected", end, log=side.log.hex())

    def _refuse(
        self,
        conn: int,
        side: LinkSide,
        error: TickertapeError,
        mismatches: tuple[LinkMismatch, ...] = (),
    ) -> None:
        fields: dict[str, str | int] = {"source": side.instance, "code": error.code, "text": str(error)}
        self._outbox.log_event("link_refused", True, fields)
        self.end(conn, error, mismatches)

    def _incoming_state(self, name: str) -> IncomingState:
        """Return the state of a link from an instance. Raises `LimitReached` for too many links."""
        known = self._incoming.get(name)
        if known is not None:
            return known
        if len(self._incoming) >= incoming_links_max:
            idle = [state.name for state in self._incoming.values() if state.end is None]
            if not idle:
                raise LimitReached(
                    f"Cannot open a link: the server has {incoming_links_max} links, the largest number. "
                    "Remove a link."
                )
            del self._incoming[idle[0]]
        self._incoming[name] = IncomingState(name)
        return self._incoming[name]

    def _end_earlier(self, side: LinkSide) -> None:
        """End a lost connection of the same source, or of an earlier run of it."""
        for conn, end in [*self.connections.items()]:
            if (
                isinstance(end, DestinationEnd)
                and (end.side.instance, end.side.log) == (side.instance, side.log)
                and has_start(side, end.start)
            ):
                self.end(conn, _taken_over(end.name))

    def _side(self, peer: str) -> LinkSide:
        """Return the facts of this server for a handshake with `peer`."""
        sources = [end.reported for end in self.connections.values() if isinstance(end, DestinationEnd)]
        return self._server.side(peer, self._facts.starts, sources)

    def _to_source(self, end: SourceEnd, command: SourceCommand | DestinationCommand) -> None:
        """Handle a command of a destination."""
        if end.source is None and isinstance(command, LinkOpened):
            self._opened(end, command)
        else:
            end.received(command)
            if end.take_resynced():
                self._event("link_resynced", end)
        self._refresh(end)

    def _opened(self, end: SourceEnd, command: LinkOpened) -> None:
        """Start the stream after the answer of a destination."""
        state = end.state
        refused = refusal(end.side, command.side)
        if refused is not None:
            self.end(end.conn, refused.error, refused.mismatches)
            return
        start = end.opened(command, self._source_log, self._parts.catalog, self._facts.reporters)
        state.log, state.error = command.side.log, ""
        state.counters.connects += 1
        self._reporting.destination_known(end.name, state.log)
        self._outbox.put(LogonAccepted(end.conn))
        self._event("link_connected", end, log=state.log.hex(), position=start.position)
        if start.lost is not None:
            self._event("history_lost", end, warning=True, positions=start.lost, position=start.position)
        if end.take_resynced():
            self._event("link_resynced", end)

    # -- the log --------------------------------------------------------------------------------------

    def accepted(self, batches: Iterable[AcceptedBatch]) -> None:
        """Note batches that were appended to the log."""
        self._reporting.accepted(batches)
        event = forgotten_holes(self._parts.writer.take_closed_holes())
        if event is not None:
            self._outbox.put(event)

    def log_persisted(self) -> None:
        """Continue after more of the log was persisted, or after space became free."""
        end = self._commits.persisted_end
        self._places.log_persisted(end)
        self._reporting.close_holes()
        self._take_early()
        for one in [*self.connections.values()]:
            if isinstance(one, DestinationEnd):
                one.taker.log_persisted(end)
            if one is not None:
                self._refresh(one)

    def read_done(self, holder: object) -> bool:
        """Resume the holder of a reader of the log. Return False for another holder."""
        if not isinstance(holder, LinkSource):
            return False
        for end in self.connections.values():
            if isinstance(end, SourceEnd) and end.source is holder:
                self._refresh(end)
        return True

    def wake(self) -> None:
        """Write the report that is due."""
        self._reporting.wake()

    # -- steps ----------------------------------------------------------------------------------------

    def step(self) -> None:
        """Execute one bounded step of the link whose turn it is."""
        if not self._ready:
            return
        end = next(iter(self._ready))
        del self._ready[end]
        try:
            if isinstance(end, SourceEnd):
                for command, batch in end.step():
                    self._outbox.put(SendLink(end.conn, command, batch))
                if end.take_resynced():
                    self._event("link_resynced", end)
            else:
                self._take_rows(end)
        except TickertapeError as error:
            self.end(end.conn, error)
        else:
            self._refresh(end)

    def _take_rows(self, end: DestinationEnd) -> None:
        end.step()
        self._reporting.append_reporters()
        if end.taker.take_expired():
            self._event("places_expired", end, warning=True)

    def _refresh(self, end: SourceEnd | DestinationEnd) -> None:
        """Send the commands that need no step, and note whether an end has work."""
        if self.connections.get(end.conn) is not end:
            return
        if isinstance(end, DestinationEnd):
            for command in end.take_commands():
                self._outbox.put(SendLink(end.conn, command))
            if end.overfull:
                self._parts.throttle.pause(end.conn, "replication")
            else:
                self._parts.throttle.resume(end.conn, "replication")
        if end.has_work:
            self._ready[end] = None
        else:
            self._ready.pop(end, None)

    # -- outputs --------------------------------------------------------------------------------------

    def oldest_needed(self) -> RetentionPin | None:
        """Return the lowest position that other logs need."""
        return self._pins.oldest_needed()

    def rows(self) -> list[LinkRow]:
        """Return the state of all links: configured destinations, then sources in the order of their first
        links."""
        outgoing = [state.row(self._pins.of(state)) for state in self._outgoing.values()]
        return outgoing + [state.row(self._position_of(state.log)) for state in self._incoming.values()]

    def _position_of(self, log: bytes) -> int:
        """Return the persisted place in the log of a source."""
        places = self._places.persisted.of(log)
        return places[0].position if places else 0


def _taken_over(name: str) -> NameInUse:
    return NameInUse(
        f"Cannot keep the link with {shown(name)}: another connection replaced it. Check that only one "
        "server uses its data directory."
    )
