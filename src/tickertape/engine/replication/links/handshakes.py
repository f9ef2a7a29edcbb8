"""Handshakes: open links to destinations, and answer those of sources.

Invariants:
- A lost connection of a source or to a destination is ended before another one starts.
- No handshake is sent or answered before the record of the run is persisted. Others could remember a run that
  this log has forgotten after a power loss.
"""

from __future__ import annotations

from typing import Final

from tickertape.base.errors import BadLink, LimitReached, NameInUse, NotReady, TickertapeError
from tickertape.base.text_format import shown
from tickertape.engine.limits import incoming_links_max, link_heartbeat_seconds
from tickertape.engine.replication.destination.run_intake import ReplicatedLog
from tickertape.engine.replication.links.connections import LinkConnections
from tickertape.engine.replication.links.destination_end import DestinationEnd, IncomingState
from tickertape.engine.replication.links.parts import LinkParts
from tickertape.engine.replication.links.replication import Replication
from tickertape.engine.replication.links.reporting import Reporting
from tickertape.engine.replication.links.sides import ServerFacts, has_start, refusal
from tickertape.engine.replication.links.source_end import OutgoingState, SourceEnd
from tickertape.engine.replication.source.routed_log import SourceLog
from tickertape.engine.runtime.effects import LogonAccepted, SendLink
from tickertape.wire.commands import LinkMismatch
from tickertape.wire.link import DestinationCommand, LinkOpen, LinkOpened, LinkSide, SourceCommand

_MILLISECONDS: Final = 1_000


class Handshakes:
    """The handshakes of one server, in both directions."""

    def __init__(
        self,
        parts: LinkParts,
        replication: Replication,
        connections: LinkConnections,
        reporting: Reporting,
        log: ReplicatedLog,
        source_log: SourceLog,
    ) -> None:
        self._parts = parts
        self._outbox = parts.outbox
        self._commits = parts.journal.commits
        self._connections = connections
        self._reporting = reporting
        self._log = log
        self._source_log = source_log
        self._policy = replication.policy
        self._facts = replication.facts
        self._server = ServerFacts(
            parts.instance, replication.group, parts.software, replication.topics, replication.destinations
        )
        self.incoming: dict[str, IncomingState] = {}
        """Links from other instances. Callers must not change it."""
        self._stopping = False
        self._begun = 0
        """Position of the record of this run."""
        self._early: dict[int, LinkOpen] = {}
        """Handshakes to send or to answer that wait for the record of this run."""

    def begin(self) -> None:
        """Note that the record of this run is appended next."""
        self._begun = self._commits.accepted_end

    def stop(self) -> None:
        """Take no new links."""
        self._stopping = True

    def take_early(self) -> None:
        """Send or answer handshakes, once the record of this run is persisted."""
        if not self._early or self._commits.persisted_end <= self._begun:
            return
        early, self._early = self._early, {}
        for conn, command in early.items():
            if conn not in self._connections.ends:
                continue
            if isinstance(self._connections.ends[conn], SourceEnd):
                self._outbox.put(SendLink(conn, command))
                # not earlier: the destination accepts no heartbeat before the handshake
                self._parts.heartbeats.begin(conn, command.heartbeat_ms, link=True)
            else:
                self._answer(conn, command)

    # -- of sources -----------------------------------------------------------------------------------

    def received(self, conn: int, command: SourceCommand | DestinationCommand) -> None:
        """Handle the first command of a source. Raises `BadLink`."""
        if not isinstance(command, LinkOpen) or conn in self._early:
            raise BadLink(
                f"Unexpected {type(command).__name__} before the handshake of a link. "
                "Report the defect of the source."
            )
        self._delay(conn, command)

    def _delay(self, conn: int, command: LinkOpen) -> None:
        """Send or answer a handshake, once the record of this run is persisted. Forget those of lost
        connections: others follow them for as long as the disk is full."""
        self._early = {one: kept for one, kept in self._early.items() if one in self._connections.ends}
        self._early[conn] = command
        self.take_early()

    def _answer(self, conn: int, command: LinkOpen) -> None:
        """Answer the handshake of a source."""
        side = command.side
        try:
            self._policy.admit_link(side.instance, command.token, self._parts.clock.now)
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
        state.end = end
        self._connections.add(conn, end)
        state.log, state.error, state.refused = side.log, "", False
        state.counters.connects += 1
        reached = self._facts.reports.has_reached(side.log, self._reporting.group)
        self._reporting.source_known(side.log)
        self._outbox.put(LogonAccepted(conn))
        self._outbox.put(SendLink(conn, end.taker.opened(own, reached=reached)))
        self._connections.event("link_connected", end, log=side.log.hex())

    def _refuse(
        self,
        conn: int,
        side: LinkSide,
        error: TickertapeError,
        mismatches: tuple[LinkMismatch, ...] = (),
    ) -> None:
        fields: dict[str, str | int] = {"source": side.instance, "code": error.code, "text": str(error)}
        self._outbox.log_event("link_refused", True, fields)
        self._connections.end(conn, error, mismatches)

    def _incoming_state(self, name: str) -> IncomingState:
        """Return the state of a link from an instance. Raises `LimitReached` for too many links."""
        known = self.incoming.get(name)
        if known is not None:
            return known
        if len(self.incoming) >= incoming_links_max:
            idle = [state.name for state in self.incoming.values() if state.end is None]
            if not idle:
                raise LimitReached(
                    f"Cannot open a link: the server has {incoming_links_max} links, the largest number. "
                    "Remove a link."
                )
            del self.incoming[idle[0]]
        self.incoming[name] = IncomingState(name)
        return self.incoming[name]

    def _end_earlier(self, side: LinkSide) -> None:
        """End a lost connection of the same source, or of an earlier run of it."""
        for conn, end in [*self._connections.ends.items()]:
            if (
                isinstance(end, DestinationEnd)
                and (end.side.instance, end.side.log) == (side.instance, side.log)
                and has_start(side, end.start)
            ):
                self._connections.end(conn, _taken_over(end.name))

    def _side(self, peer: str) -> LinkSide:
        """Return the facts of this server for a handshake with `peer`."""
        sources = [end.reported for end in self._connections.ends.values() if isinstance(end, DestinationEnd)]
        return self._server.side(peer, self._facts.starts, sources)

    # -- of this server -------------------------------------------------------------------------------

    def open(self, conn: int, state: OutgoingState, token: str | None) -> None:
        """Open the link to a destination on an established connection."""
        if state.end is not None:
            self._connections.end(state.end.conn, _taken_over(state.name))
        end = SourceEnd(conn, state, self._side(state.name))
        state.end = end
        self._connections.add(conn, end)
        heartbeat = int(link_heartbeat_seconds * _MILLISECONDS)
        self._delay(conn, LinkOpen(side=end.side, token=token, heartbeat_ms=heartbeat))

    def opened(self, end: SourceEnd, command: LinkOpened) -> None:
        """Start the stream after the answer of a destination. Raises `LinkRefused`."""
        state = end.state
        refused = refusal(end.side, command.side)
        if refused is not None:
            self._connections.end(end.conn, refused.error, refused.mismatches)
            return
        start = end.opened(command, self._source_log, self._parts.catalog, self._facts.reporters)
        state.log, state.error = command.side.log, ""
        state.counters.connects += 1
        self._reporting.destination_known(end.name, state.log)
        self._outbox.put(LogonAccepted(end.conn))
        self._connections.event("link_connected", end, log=state.log.hex(), position=start.position)
        if start.lost is not None:
            self._connections.event(
                "history_lost", end, warning=True, positions=start.lost, position=start.position
            )
        if end.take_resynced():
            self._connections.event("link_resynced", end)


def _taken_over(name: str) -> NameInUse:
    return NameInUse(
        f"Cannot keep the link with {shown(name)}: another connection replaced it. Check that only one "
        "server uses its data directory."
    )
