"""One connection of a link between two simulated logs: both machines, and the bytes on their way.

Must never repair a frame: each violation of the protocol fails the run.
"""

from __future__ import annotations

from collections import Counter, deque
from random import Random

from tests.simulation.replicating_log import ReplicatingLog
from tickertape.batch import MessageBatch
from tickertape.engine.replication.destination.link_destination import LinkDestination
from tickertape.engine.replication.places import StartRefused
from tickertape.engine.replication.routes import DestinationRoutes, PassThrough, ReplicationRule, RuleSet
from tickertape.engine.replication.source.link_source import LinkSource
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.wire.connection import Event, Violation
from tickertape.wire.link import (
    LinkAck,
    LinkCredit,
    LinkHoles,
    LinkNames,
    LinkOpen,
    LinkOpened,
    LinkRequest,
    LinkRuns,
)
from tickertape.wire.link_connection import LinkConnection


class JoinedLink:
    """One connection from the log `source` to the log `destination`."""

    def __init__(
        self,
        source: ReplicatingLog,
        destination: ReplicatingLog,
        window: int,
        rng: Random,
        counts: Counter[str],
    ) -> None:
        self.source = source
        self.destination = destination
        self.window = window
        self.frames = 0
        """Frames of both sides."""
        self._rng = rng
        self._counts = counts
        self._from_source: deque[bytes] = deque()
        self._from_destination: deque[bytes] = deque()
        self._source_end = LinkConnection("source")
        self._destination_end = LinkConnection("destination")
        self.taker: LinkDestination | None = None
        """None before the handshake, and after the end of the connection at the destination."""
        self._taking = True
        routes = DestinationRoutes(
            RuleSet([ReplicationRule(topic=".*", sync=False)]),
            PassThrough(".*"),
            destination.id,
            TopicCatalog(),
        )
        self.sender: LinkSource | None = LinkSource(source.source_log, routes, source.facts.reporters)
        """None after the end of the connection at the source."""
        self._from_source.append(self._source_end.preface())
        self._from_source.append(b"".join(self._source_end.send(LinkOpen(side=source.side))))

    # -- ends -------------------------------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Whether both ends have the connection."""
        return self.sender is not None and self._taking

    def end_at_source(self) -> None:
        """The source loses the connection. Its bytes on the way may arrive."""
        if self.sender is not None:
            self.sender.stop()
            self.sender = None
            self._from_destination.clear()

    def end_at_destination(self) -> None:
        """The destination loses the connection. Its bytes on the way may arrive."""
        if self._taking and self.taker is not None:
            if self.taker.log_persisted in self.destination.on_persisted:
                self.destination.on_persisted.remove(self.taker.log_persisted)
            self._counts["frames held at an end"] += bool(self.taker._frames)
        self._taking, self.taker = False, None
        self._from_source.clear()

    def lose_bytes(self) -> None:
        """The bytes on the way are lost, or a part of them."""
        for queue in (self._from_source, self._from_destination):
            kept = self._rng.randint(0, len(queue))
            self._counts["frames lost on the way"] += len(queue) - kept
            while len(queue) > kept:
                queue.pop()

    # -- the source -------------------------------------------------------------------------------------

    def send(self) -> int:
        """The source takes a step. Return its frames."""
        sender = self.sender
        if sender is None or not sender.has_work:
            return 0
        frames = sender.step()
        for command, batch in frames:
            self._from_source.append(b"".join(self._source_end.send(command, batch)))
            self._count(command)
        self.frames += len(frames)
        return len(frames)

    def _count(self, command: LinkHoles | LinkRuns | LinkNames) -> None:
        if isinstance(command, LinkNames):
            self._counts["frames of names" if command.rows else "frames of ends"] += 1
        elif isinstance(command, LinkRuns):
            self._counts["frames of answers" if command.answers else "frames of runs"] += 1

    def deliver_to_source(self) -> int:
        """The oldest bytes of the destination arrive. Return 0 without any."""
        if self.sender is None or not self._from_destination:
            return 0
        for command in self._commands(self._source_end.feed(self._from_destination.popleft())):
            if isinstance(command, LinkOpened):
                start = self.sender.opened(command)
                assert not isinstance(start, StartRefused), start.text(self.destination.name)
                self._counts["links with lost history"] += start.lost is not None
                self._counts["links behind removed rows"] += start.behind_removed
                self.source.durable[self.destination.id] = self.sender.durable
            else:
                assert isinstance(command, LinkRequest | LinkAck | LinkCredit)
                self.sender.received(command)
                if isinstance(command, LinkAck):
                    self.source.durable[self.destination.id] = self.sender.durable
        return 1

    # -- the destination --------------------------------------------------------------------------------

    def deliver_to_destination(self) -> int:
        """The oldest bytes of the source arrive. Return 0 without any."""
        if not self._taking or not self._from_source:
            return 0
        for command, batch in self._received(self._destination_end.feed(self._from_source.popleft())):
            if isinstance(command, LinkOpen):
                self.taker = LinkDestination(self.destination.log, command.side, window_bytes=self.window)
                self.destination.on_persisted.append(self.taker.log_persisted)
                self._reply(self.taker.opened(self.destination.side))
                self._counts["handshakes"] += 1
            else:
                assert isinstance(command, LinkHoles | LinkRuns | LinkNames)
                assert self.taker is not None
                self.taker.received(command, batch)
        return 1

    def work(self) -> int:
        """The destination takes a step and sends its commands. Return 1 if it had work."""
        taker, log = self.taker, self.destination
        if taker is None:
            return 0
        log.clock.set(log.now())
        worked = taker.pending
        if worked:
            taker.step()
            log.note_accepted()
            log.append_reporters()
        for command in taker.take_commands():
            self._reply(command)
            self._counts["requests"] += isinstance(command, LinkRequest)
        return int(worked)

    def _reply(self, command: LinkOpened | LinkRequest | LinkAck | LinkCredit) -> None:
        self._from_destination.append(b"".join(self._destination_end.send(command)))
        self.frames += 1

    # -- bytes ------------------------------------------------------------------------------------------

    @staticmethod
    def _received(events: list[Event]) -> list[tuple[object, MessageBatch | None]]:
        found: list[tuple[object, MessageBatch | None]] = []
        for event in events:
            assert not isinstance(event, Violation), event.error
            found.append((event.command, event.batch))
        return found

    def _commands(self, events: list[Event]) -> list[object]:
        return [command for command, _ in self._received(events)]
