"""Link registry: the replication links of one server, in both directions.

It composes the machines of all links with the engine, and lets each link take bounded steps in turn.

Invariant: a place and an acknowledgement leave this log only when it is persisted beyond their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tickertape.base.errors import BadOption, TickertapeError, error_from_code
from tickertape.base.text_format import not_one_of, shown
from tickertape.batch import MessageBatch
from tickertape.engine.replication.destination.link_places import LinkPlaces
from tickertape.engine.replication.destination.place_records import FactPlaceRecords
from tickertape.engine.replication.destination.resent_messages import ResentTopics
from tickertape.engine.replication.destination.run_intake import ReplicatedLog
from tickertape.engine.replication.destination.whole_topics import WholeTopics
from tickertape.engine.replication.levels.link_levels import LinkLevels
from tickertape.engine.replication.links.connections import LinkConnections
from tickertape.engine.replication.links.destination_end import DestinationEnd
from tickertape.engine.replication.links.handshakes import Handshakes
from tickertape.engine.replication.links.link_row import Level, LinkRow
from tickertape.engine.replication.links.parts import LinkParts
from tickertape.engine.replication.links.pins import LinkPins
from tickertape.engine.replication.links.replication import Replication
from tickertape.engine.replication.links.reporting import Reporting
from tickertape.engine.replication.links.source_end import OutgoingState, SourceEnd
from tickertape.engine.replication.links.sync_topics import SyncTopics
from tickertape.engine.replication.reports import Group
from tickertape.engine.replication.source.link_source import LinkSource
from tickertape.engine.replication.source.routed_log import SourceLog
from tickertape.engine.retention import RetentionPin
from tickertape.engine.runtime.effects import SendLink
from tickertape.engine.runtime.holes import forgotten_holes
from tickertape.engine.runtime.scheduling import Pending
from tickertape.journal.format.replication_records import HoleRange
from tickertape.journal.journal import AcceptedBatch
from tickertape.wire.commands import Goodbye, Heartbeat
from tickertape.wire.link import DestinationCommand, LinkOpened, SourceCommand


class LinkRegistry:
    """All links of one server."""

    def __init__(self, parts: LinkParts, replication: Replication, sync: SyncTopics | None = None) -> None:
        """`sync`: the synchronous links, which this moves. None: no link is synchronous."""
        exact = parts.writer.exact
        assert exact is not None
        facts = replication.facts
        self._parts = parts
        self._clock = parts.clock
        self._outbox = parts.outbox
        self._commits = parts.journal.commits
        self._start = replication.start
        self._places = LinkPlaces(exact, FactPlaceRecords(facts), [*facts.places])
        whole = WholeTopics(facts.origins)
        log = ReplicatedLog(
            parts.journal.journal_id,
            self._commits.level,
            parts.writer,
            exact,
            parts.directory,
            facts.origins,
            facts.reports,
            self._places,
            whole,
        )
        self._resent = ResentTopics(parts.journal, exact.known, whole)
        exact.decide_resent_with(self._resent)
        source_log = SourceLog(parts.journal.view, parts.reads, facts.starts, facts.origins)
        derived = replication.topics.derived
        self._sync = None if sync is None else sync.links
        self._levels = None if sync is None else LinkLevels(parts, facts, sync, replication.downgrades)
        self._moved = False
        self.expirations = 0
        """Number of links that started behind removed rows of their sources."""
        numbers = {} if sync is None else sync.numbers
        self._outgoing = {
            link.destination: OutgoingState(link, derived, numbers.get(link.destination))
            for link in replication.destinations
        }
        self._reporting = Reporting(parts, exact, facts, self._outgoing)
        self._pins = LinkPins(parts.journal.view, facts, self._outgoing.values())
        self._connections = LinkConnections(parts)
        self._handshakes = Handshakes(parts, replication, self._connections, self._reporting, log, source_log)
        self.connections: Mapping[int, object] = self._connections.ends
        """Connections of links."""
        self.pending: Pending = (self._connections.ready,)
        """Not empty while `step` has work."""

    def begin(self) -> None:
        """Append the record of this run of the server, as its first row."""
        end, mono = self._commits.persisted_end, self._clock.mono
        for state in self._outgoing.values():
            state.backlog.note(end, mono)
        if self._levels is not None:
            self._levels.begin()
        self._handshakes.begin()
        self._reporting.begin(self._start)

    # -- connections ----------------------------------------------------------------------------------

    def connected(self, conn: int, destination: str, token: str | None) -> None:
        """Open the link to a configured destination on an established connection."""
        self._handshakes.open(conn, self._outgoing[destination], token)

    def accept(self, conn: int) -> None:
        """Add an accepted connection, whose first command is a command of a link."""
        self._connections.add(conn, None)

    def end(self, conn: int, error: TickertapeError) -> None:
        """Send a goodbye with an error, and close the connection."""
        self._connections.end(conn, error)

    def lost(self, conn: int) -> None:
        """Remove a closed connection."""
        self._connections.remove(conn, None)

    def set_writable(self, conn: int, *, writable: bool) -> None:
        """Stop or resume sending to a connection."""
        end = self._connections.ends[conn]
        if end is not None:
            end.writable = writable
            self._connections.refresh(end)

    def stop(self) -> None:
        """Start a clean stop: take no new links. The others acknowledge the rows that are persisted."""
        self._handshakes.stop()

    # -- commands -------------------------------------------------------------------------------------

    def received(
        self, conn: int, command: SourceCommand | DestinationCommand, batch: MessageBatch | None
    ) -> None:
        """Handle a command of the other end. The first one of an accepted connection is `LinkOpen`."""
        if conn not in self.connections:
            return  # ended meanwhile
        end = self._connections.ends[conn]
        try:
            if self._commits.failure is not None:
                raise self._commits.failure
            if isinstance(command, Goodbye):
                self._connections.left(conn, error_from_code(command.code, command.text))
            elif isinstance(command, Heartbeat):
                return
            elif end is None:
                self._handshakes.received(conn, command)
            elif isinstance(end, SourceEnd):
                self._to_source(end, command)
            else:
                end.received(command, batch)
                self._connections.refresh(end)
        except TickertapeError as error:
            self.end(conn, error)

    def _to_source(self, end: SourceEnd, command: SourceCommand | DestinationCommand) -> None:
        """Handle a command of a destination."""
        if end.source is None and isinstance(command, LinkOpened):
            self._handshakes.opened(end, command)
            self._reset(end)
        else:
            end.received(command)
            self._move(end)
            if end.take_resynced():
                self._connections.event("link_resynced", end)
        self._connections.refresh(end)

    # -- the log --------------------------------------------------------------------------------------

    def accepted(self, batches: Sequence[AcceptedBatch]) -> None:
        """Note batches that were appended to the log."""
        self._reporting.accepted(batches)
        if self._levels is not None:
            self._levels.accepted(batches)
        self._resent.accepted(batches)
        event = forgotten_holes(self._parts.writer.take_closed_holes())
        if event is not None:
            self._outbox.put(event)

    def log_persisted(self) -> None:
        """Continue after more of the log was persisted, or after space became free."""
        end = self._commits.persisted_end
        for state in self._outgoing.values():
            state.backlog.note(end, self._clock.mono)
        if self._levels is not None:
            self._moved = self._levels.log_persisted() or self._moved
        self._places.log_persisted(end)
        self._resent.log_persisted(end)
        self._reporting.close_holes()
        self._handshakes.take_early()
        for one in [*self._connections.ends.values()]:
            if isinstance(one, DestinationEnd):
                one.taker.log_persisted(end)
            if one is not None:
                self._connections.refresh(one)

    def read_done(self, holder: object) -> bool:
        """Resume the holder of a reader of the log. Return False for another holder."""
        if not isinstance(holder, LinkSource):
            return False
        for end in self._connections.ends.values():
            if isinstance(end, SourceEnd) and end.source is holder:
                self._connections.refresh(end)
        return True

    def wake(self) -> None:
        """Write the report that is due, and check the levels of links."""
        self._reporting.wake()
        if self._levels is not None:
            self._levels.wake()

    # -- steps ----------------------------------------------------------------------------------------

    def step(self) -> None:
        """Execute one bounded step of the link whose turn it is."""
        end = self._connections.take_ready()
        if end is not None:
            self._step(end)

    def step_sync(self) -> None:
        """Execute one bounded step of each synchronous link with work."""
        for end in self._connections.take_ready_sync():
            self._step(end)

    def _step(self, end: SourceEnd | DestinationEnd) -> None:
        try:
            if isinstance(end, SourceEnd):
                for command, batch in end.step():
                    self._outbox.put(SendLink(end.conn, command, batch))
                self._move(end)
                if end.take_resynced():
                    self._connections.event("link_resynced", end)
            else:
                self._take_rows(end)
        except TickertapeError as error:
            self.end(end.conn, error)
        else:
            self._connections.refresh(end)

    def _take_rows(self, end: DestinationEnd) -> None:
        end.step()
        self._reporting.append_reporters()
        if end.taker.take_expired():
            self.expirations += 1
            self._connections.event("places_expired", end, warning=True)

    def awaited(self) -> list[str]:
        """Return the destinations without an open link, or with a paused one, for which acknowledgements
        wait. With `any N`, none of them while N others are connected."""
        if self._levels is None or self._sync is None:
            return []
        counted = [state for state in self._outgoing.values() if self._levels.level(state.name) == "sync"]
        away = [state.name for state in counted if not state.is_connected]
        return away if self._sync.lacks(len(counted), len(counted) - len(away)) else []

    def hole_owners(self) -> list[int]:
        """Return the publishers with open holes."""
        return self._reporting.known.publishers()

    def holes_of(self, publisher: int) -> tuple[str, list[HoleRange]]:
        """Return the name of a publisher, and its open holes."""
        return self._parts.directory.name_of(publisher), self._reporting.known.holes(publisher)

    # -- operators ------------------------------------------------------------------------------------

    def change_level(self, destination: str, *, downgraded: bool) -> None:
        """Downgrade or upgrade the link to a destination, once the record of it is persisted.

        Raises `BadOption` for another destination, and the errors of `LinkLevels.change`."""
        state = self._destination(destination)
        if self._levels is None:
            action = "downgrade" if downgraded else "upgrade"
            raise BadOption(
                f"Cannot {action} the link to {shown(state.name)}: no topic of this server is synchronous. "
                "Set sync = true for a topic."
            )
        self._levels.change(destination, downgraded=downgraded)

    def set_stopped(self, destination: str, *, stopped: bool) -> None:
        """Pause or resume the link to a destination: a paused link sends no messages until it is resumed, or
        until the next start of the server. Raises `BadOption` for another destination."""
        state = self._destination(destination)
        if state.stopped is stopped:
            return
        state.stopped = stopped
        self._outbox.log_event(
            "link_paused" if stopped else "link_resumed", stopped, {"destination": destination}
        )
        if state.end is not None:
            self._connections.refresh(state.end)

    def _destination(self, name: str) -> OutgoingState:
        state = self._outgoing.get(name)
        if state is None:
            raise BadOption(
                not_one_of("Unknown destination", name, [*self._outgoing])
                if self._outgoing
                else f"Unknown destination {shown(name)}. This server has no destinations."
            )
        return state

    # -- synchronous links ----------------------------------------------------------------------------

    def take_moved(self) -> bool:
        """Return once whether a synchronous link has moved."""
        moved, self._moved = self._moved, False
        return moved

    def _move(self, end: SourceEnd) -> None:
        """Note which rows a destination has on its disk."""
        number, source = end.state.number, end.source
        if self._sync is None or number is None or source is None:
            return
        level = source.level or "written"  # unknown before the first acknowledgement
        self._moved = self._sync.durable(number, source.covered, level) or self._moved

    def _reset(self, end: SourceEnd) -> None:
        """Note the rows that a destination has on its disk at the start of a stream."""
        number, source = end.state.number, end.source
        if self._sync is not None and number is not None and source is not None:
            self._sync.reset(number, source.covered)
            self._moved = True
            if self._levels is not None:  # the destination may have lost rows
                self._clock.announce(self._levels)

    # -- outputs --------------------------------------------------------------------------------------

    def oldest_needed(self) -> RetentionPin | None:
        """Return the lowest position that other logs need."""
        return self._pins.oldest_needed()

    @property
    def group(self) -> Group:
        """The logs of the group, as far as they are known here."""
        return self._reporting.group

    @property
    def stable(self) -> int:
        """Position before which all logs of the group have the rows of this log, by their reports."""
        return self._reporting.stable

    def rows(self) -> list[LinkRow]:
        """Return the state of all links: configured destinations, then sources in the order of their first
        links."""
        outgoing = [self._row(state) for state in self._outgoing.values()]
        return outgoing + [
            state.row(self._position_of(state.log)) for state in self._handshakes.incoming.values()
        ]

    def _row(self, state: OutgoingState) -> LinkRow:
        level: Level = "async" if self._levels is None else self._levels.level(state.name)
        downgrades = 0 if self._levels is None else self._levels.downgrades(state.name)
        return state.row(self._pins.of(state), self._clock.mono, level, downgrades)

    def _position_of(self, log: bytes) -> int:
        """Return the persisted place in the log of a source."""
        places = self._places.persisted.of(log)
        return places[0].position if places else 0
