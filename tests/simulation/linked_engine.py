"""One whole engine of a simulation of links, and the connections between two such engines.

Must never repair a frame, and never decide which rows a link owes: the simulation of servers does.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final, cast

from tests.helpers.replication import make_replication
from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tests.simulation.journal_world import drive, read_log
from tickertape.base.errors import TickertapeError
from tickertape.batch import RUN_LATE, MessageBatch
from tickertape.engine.broker import Broker
from tickertape.engine.replication.levels.policy import DowngradePolicy
from tickertape.engine.replication.link_facts import OutgoingLink
from tickertape.engine.replication.links.replication import NO_DOWNGRADES
from tickertape.engine.replication.log_facts import LogFacts
from tickertape.engine.runtime.effects import (
    CloseConnection,
    Effect,
    LinkEnded,
    PauseReading,
    ResumeReading,
    Send,
    SendLink,
)
from tickertape.engine.runtime.publisher_ids import PublisherDirectory
from tickertape.journal.journal import Journal
from tickertape.journal.retention import RetentionPolicy
from tickertape.testing.disk import StrictDisk
from tickertape.wire.connection import Violation
from tickertape.wire.link import DestinationCommand, SourceCommand
from tickertape.wire.link_connection import LinkConnection, LinkRole

TOPICS: Final = ("orders", "trades")
Key = tuple[int, int]
"""Publisher and sequence of a message."""


def body_of(publisher: int, sequence: int) -> bytes:
    """Return the body of a message: it has one body, wherever it is stored."""
    return f"{publisher}/{sequence}:".encode() * (1 + sequence % 9)


class LinkedEngine(EngineWorld):
    """An engine with links to `destinations`, by the names of their instances."""

    token: str | None = None
    """Token of incoming links."""

    def __init__(
        self,
        seed: int,
        number: int,
        destinations: tuple[OutgoingLink, ...],
        counts: Counter[str],
        retention: RetentionPolicy | None = None,
        *,
        acknowledge: int | None = None,
        downgrades: Mapping[str, DowngradePolicy] = NO_DOWNGRADES,
    ) -> None:
        self.downgrades = downgrades
        self.acknowledge = acknowledge
        self.on_acknowledged: Callable[[LinkedEngine, Peer], None] | None = None
        """Called when a client gets an acknowledgement."""
        self.on_collected: Callable[[LinkedEngine], None] | None = None
        """Called after the effects of an input."""
        self.instance = f"server-{number}"
        self.log_id = bytes([number + 50]) * 16
        self.destinations = destinations
        self.ends: dict[int, PipeEnd] = {}
        """Connections of links, by the numbers of the driver."""
        self.ended: list[LinkEnded] = []
        self.persisted: dict[int, Key] = {}
        """Messages on the disk by position, also those that retention has removed."""
        self.late = 0
        """Runs with late messages."""
        self.starts = 0
        super().__init__(seed, counts=counts, segment_bytes=4_096, retention=retention)
        self.wall += Random(seed).choice((0, 0, -700_000, 900_000))

    def make_broker(self, journal: Journal, registry: PublisherDirectory, *more: Any, **named: Any) -> Broker:
        """Return the engine, after its first row."""
        facts = drive(self.disk, LogFacts.recover(journal, registry))
        assert facts.damage == []
        replication = make_replication(
            journal,
            *self.destinations,
            facts=facts,
            start=self.rng.getrandbits(63) + 1,
            token=self.token,
            acknowledge=self.acknowledge,
            downgrades=self.downgrades,
        )
        broker = super().make_broker(journal, registry, *more, replication=replication, **named)
        broker.begin_replication(self.now())
        return broker

    def open(self) -> None:
        """Start the engine on the contents of the disk."""
        for end in [*self.ends.values()]:
            end.vanish()
        super().open()
        self.starts += 1
        self.fatal = None
        end_of_log = self.broker.journal.commits.persisted_end
        self.persisted = {at: key for at, key in self.persisted.items() if at < end_of_log}
        for first, batch in read_log(self.broker.journal, self.disk):
            self._keep(first, batch)
        self.collect()

    def restart(self, *, power: bool = False) -> None:
        """Start the engine again after the end of its process, or after a loss of power."""
        self.disk = self.disk.crash_clone(self.rng) if power else self.disk.kill_clone(self.rng)
        self.open()

    def copy(self) -> StrictDisk:
        """Return a copy of the data directory of the running engine."""
        return self.disk.kill_clone(self.rng)

    def restore(self, copy: StrictDisk) -> None:
        """Start the engine on an old copy of its data directory."""
        self.disk = copy
        self.persisted.clear()
        self.open()

    def _keep(self, first: int, batch: MessageBatch) -> None:
        self.late += sum(bool(run.flags & RUN_LATE) for run in map(batch.run, range(batch.run_count)))
        for index in range(batch.count):
            if batch.topic(index) in TOPICS:
                key = batch.publisher(index), batch.sequence(index)
                assert bytes(batch.body(index)) == body_of(*key)
                assert self.persisted.get(first + index, key) == key
                self.persisted[first + index] = key

    def acknowledged(self, peer: Peer) -> None:
        """Publishers record their acknowledgements themselves."""
        if self.on_acknowledged is not None:
            self.on_acknowledged(self, peer)

    def run_job(self) -> None:
        """The disk completes its oldest job, or writes its commit and syncs it in another turn."""
        super().run_job()
        for commit in self.broker._acknowledged:
            self._keep(commit.first_position, commit.batch)

    def perform(self, effect: Effect) -> None:
        """Execute an effect."""
        if isinstance(effect, LinkEnded):
            self.ended.append(effect)
            self.counts["links refused" if effect.refused else "links ended"] += 1
            return
        end = self.ends.get(getattr(effect, "conn", -1))
        if end is None:
            assert not isinstance(effect, SendLink), "a closed connection sends nothing"
            super().perform(effect)
        elif isinstance(effect, SendLink):
            end.send(b"".join(end.line.send(effect.command, effect.batch)))
        elif isinstance(effect, Send):
            end.send(b"".join(effect.buffers))
        elif isinstance(effect, CloseConnection):
            self.counts[f"closed: {effect.reason}"] += 1
            end.hang_up()
        elif isinstance(effect, PauseReading | ResumeReading):
            end.reading = isinstance(effect, ResumeReading)
            self.counts["links not read"] += not end.reading
        else:
            super().perform(effect)

    def collect(self) -> None:
        """Execute the effects of an input."""
        super().collect()
        if self.on_collected is not None:
            self.on_collected(self)

    def link_to(self, other: LinkedEngine) -> PipeEnd:
        """Connect to another engine, and open a link."""
        mine, theirs = PipeEnd(self, "source"), PipeEnd(other, "destination")
        mine.peer, theirs.peer = theirs, mine
        other.broker.connected(theirs.conn)
        mine.send(mine.line.preface())
        self.broker.link_connected(mine.conn, other.instance, other.token, self.now())
        self.collect()
        return mine


class PipeEnd:
    """One end of a connection of a link. Bytes arrive when the simulation delivers them."""

    peer: PipeEnd

    def __init__(self, engine: LinkedEngine, role: LinkRole) -> None:
        self.engine = engine
        engine._conn += 1
        self.conn = engine._conn
        engine.ends[self.conn] = self
        self.line = LinkConnection(role)
        self.open = True
        """Whether the engine has the connection."""
        self.reading = True
        self.incoming: deque[bytes] = deque()
        self.closing = False
        """Whether nothing more arrives: the connection ends after the bytes on the way."""

    @property
    def whole(self) -> bool:
        """Whether both ends have the connection."""
        return self.open and self.peer.open

    def send(self, data: bytes) -> None:
        """Send bytes to the other end."""
        if data and not self.peer.closing:
            self.peer.incoming.append(data)

    def hang_up(self) -> None:
        """The engine closed the connection. The other end learns of it after the bytes on the way."""
        self.open = False
        self.engine.ends.pop(self.conn, None)
        self.incoming.clear()
        self.peer.closing = True

    def vanish(self) -> None:
        """The process of this end is gone."""
        self.hang_up()

    def lose_bytes(self, rng: Random) -> None:
        """Bytes on the way to this end are lost, or a part of them, and the connection with them."""
        kept = rng.randint(0, len(self.incoming))
        while len(self.incoming) > kept:
            self.incoming.pop()
        self.closing = self.peer.closing = True

    def deliver(self) -> int:
        """The oldest bytes arrive, or the end of the connection. Return 0 without either."""
        engine = self.engine
        if not self.open or not self.reading:
            return 0
        if not self.incoming:
            if not self.closing:
                return 0
            engine.broker.disconnected(self.conn)
            engine.collect()
            self.hang_up()
            return 1
        for event in self.line.feed(self.incoming.popleft()):
            if self.conn not in engine.ends:
                break
            assert not isinstance(event, Violation), event.error
            command = cast("SourceCommand | DestinationCommand", event.command)
            engine.broker.link_received(self.conn, command, event.batch, engine.now())
            engine.collect()
        return 1


def texts_of(ended: list[LinkEnded]) -> list[str]:
    """Return the texts of the errors of ended links."""
    return [str(one.error) for one in ended if isinstance(one.error, TickertapeError)]
