"""Simulations of an engine with queues: clients publish, consume and settle, time passes, power fails.

Must never show the engine's state to the oracle: its inputs are the requests of clients, the log and the
received frames.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tests.simulation.journal_world import drive, read_log
from tests.simulation.queue_checks import adds_up, check_idle
from tests.simulation.queue_entries import MICROS, Key
from tests.simulation.queue_model import Arrived, QueueModel
from tickertape.base.interfaces import Now
from tickertape.base.names import is_pattern
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.broker import Broker
from tickertape.engine.queues.checkpoints import recover_queues
from tickertape.engine.queues.state.checkpoint import decode_covered
from tickertape.engine.runtime.publisher_ids import PublisherDirectory
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.journal.commit.group_commit import PersistedCommit
from tickertape.journal.format.queue_checkpoint import read_queues, write_queues
from tickertape.journal.journal import Journal
from tickertape.wire.commands import (
    Ack,
    Command,
    Deliver,
    Ended,
    LoggedOn,
    Publish,
    Rejected,
    Subscribe,
    Unsubscribe,
)
from tickertape.wire.settlement import QUEUE_TOPIC, Action, Settlement, encode_settlement, runs_of

CREDIT = 1 << 20


class Asked(NamedTuple):
    """A subscription to queues that is not answered yet."""

    sub_id: str
    topic: str
    max_backlog: int | None
    condition: str | None
    browse: bool


class Settling(NamedTuple):
    """A settlement as a client keeps it until it is acknowledged."""

    sequence: int
    queue: str
    action: Action
    keys: tuple[Key, ...] = ()
    condition: str | None = None
    extend_ms: int = 0

    def body(self) -> bytes:
        runs = runs_of([key[0] for key in self.keys], [key[1] for key in self.keys]) if self.keys else b""
        return encode_settlement(
            Settlement(
                queue=self.queue,
                action=self.action,
                runs=runs,
                filter=self.condition,
                extend_ms=self.extend_ms,
            )
        )


class QueuePeer(Peer):
    """A client of queues. It keeps its settlements until the server has them, as a publish store does."""

    world: QueueWorld

    def __init__(self, world: QueueWorld, conn: int, name: str) -> None:
        super().__init__(world, conn, name)
        self.asked: dict[int, Asked] = {}
        self.leaving: dict[int, str] = {}
        self.got: list[tuple[str, Key]] = []
        """Queue and bookmark of every delivery, in order."""
        self.browsed: dict[str, list[Key]] = {}
        self.unacknowledged: list[Settling] = []
        self.alone = False
        self.rejected: list[Rejected] = []
        self.ended: dict[str, Ended] = {}

    # -- received frames ------------------------------------------------------------------------------

    def _handle(self, command: Command, batch: MessageBatch | None) -> None:
        if isinstance(command, Ack) and command.id in self.asked:
            self._answered(self.asked.pop(command.id), command)
        elif isinstance(command, Ack) and command.id in self.leaving:
            self.world.model.parted(self.conn, self.leaving.pop(command.id))
        elif isinstance(command, Deliver) and (command.queue or command.sub_id in self.browsed):
            assert batch is not None
            self._out_of_queue(command, batch)
            return
        elif isinstance(command, Rejected):
            self.rejected.append(command)
        elif isinstance(command, Ended):
            self.ended[command.sub_id] = command
        super()._handle(command, batch)
        if isinstance(command, LoggedOn):
            self.world.last_sequence[self.name] = command.last_persisted

    def _answered(self, asked: Asked, answer: Ack) -> None:
        if answer.code:
            self.world.counts[f"refused: {answer.code}"] += 1
            return
        queues = self.world.fitting(asked.topic)
        if asked.browse:
            return
        self._check_backlog(asked, answer, queues)
        self.world.model.subscribed(self.conn, asked.sub_id, queues, answer.backlog, asked.condition)

    def _check_backlog(self, asked: Asked, answer: Ack, queues: Sequence[str]) -> None:
        """Check that the granted backlog is the least of the request and of the limits of the queues."""
        definitions = [self.world.model.queues[name].definition for name in queues]
        limits = [d.max_per_subscription_backlog for d in definitions if d.max_per_subscription_backlog]
        least = min([asked.max_backlog or 1, *limits])
        whole = min([least, *(d.max_backlog for d in definitions if d.max_backlog)])
        assert answer.backlog in (least, whole), f"granted {answer.backlog}: {least} is the least"

    def _out_of_queue(self, command: Deliver, batch: MessageBatch) -> None:
        batch.verify()
        self.received.append((command, batch))
        sub_id = command.sub_id
        keys = [(batch.publisher(i), batch.sequence(i)) for i in range(batch.count)]
        self.outstanding[sub_id] += batch.cost
        self.owed_credit[sub_id] += batch.cost
        if sub_id in self.browsed:
            assert not command.lease
            self.browsed[sub_id] += keys
            return
        assert sub_id not in self.ended, "nothing comes after the end"
        for i, key in enumerate(keys):
            entry = self.world.model.queues[command.queue].entries.get(key)
            assert entry is not None, f"{key} is not a message of {command.queue}"
            assert (batch.topic(i), batch.body(i)) == (entry.topic, entry.raw), "as it was published"
        self.world.counts["frames of several messages"] += batch.count > 1
        now = self.world.moment.wall
        self.world.model.delivered(self.conn, sub_id, command.queue, command.lease, command.once, keys, now)
        self.got += [(command.queue, key) for key in keys]

    # -- requests -------------------------------------------------------------------------------------

    def put(
        self, topic: str, bodies: Sequence[bytes], *, sequenced: bool = True, life_ms: int = 0
    ) -> list[Key]:
        """Publish messages, and return the bookmarks of those with sequences."""
        builder = BatchBuilder()
        for body in bodies:
            builder.add(topic, body, expiration_ms=life_ms)
        return self._publish(builder, sequenced=sequenced)

    def _publish(self, builder: BatchBuilder, *, sequenced: bool = True) -> list[Key]:
        assert self.logged_on is not None
        publisher = self.logged_on.publisher if sequenced else 0
        first = self.next_sequence if sequenced else 0
        self.frames += 1
        batch = MessageBatch.parse(builder.build(publisher, first_sequence=first).encode())
        if sequenced:
            self.next_sequence += batch.count
        self.world.about_to()
        self.send(Publish(frame=self.frames, sequenced=sequenced), batch)
        return [(publisher, first + i) for i in range(batch.count)] if sequenced else []

    def consume(
        self, sub_id: str, topic: str, *, max_backlog: int | None = None, filter: str | None = None,
        replace: bool = False, browse: bool = False,
    ) -> int:  # fmt: skip
        """Subscribe to queues, or browse them."""
        self.ids += 1
        for book in (self.heard, self.marks, self.stamps):
            book.setdefault(sub_id, [])
        if not replace:
            self.owed_credit[sub_id] = self.outstanding[sub_id] = 0
            self.ended.pop(sub_id, None)
            self.browsed.pop(sub_id, None)
        self.credit[sub_id] = CREDIT
        if browse:
            self.browsed[sub_id] = []
        options = [f"max_backlog={max_backlog}"] if max_backlog is not None else []
        options += ["browse"] if browse else []
        options += ["replace"] if replace else []
        self.asked[self.ids] = Asked(sub_id, topic, max_backlog, filter, browse)
        self.world.about_to(disturb=True)
        self.send(
            Subscribe(
                id=self.ids,
                sub_id=sub_id,
                topic=topic,
                filter=filter,
                options=",".join(options),
                credit=CREDIT,
            )
        )
        return self.ids

    def leave(self, sub_id: str) -> None:
        """Unsubscribe."""
        self.ids += 1
        self.world.about_to(disturb=True)
        if (self.conn, sub_id) in self.world.model.consumers:
            self.leaving[self.ids] = sub_id
            # The engine first delivers the commits that it has acknowledged.
            waits = bool(self.keep_unacknowledged() or self.world.broker._acknowledged)
            self.world.model.unsubscribed(self.conn, sub_id, waits=waits)
        self.send(Unsubscribe(id=self.ids, sub_ids=(sub_id,)))

    def settle(
        self, queue: str, action: Action, keys: Sequence[Key] = (), *, filter: str | None = None,
        extend_ms: int = 0, alone: bool = False,
    ) -> None:  # fmt: skip
        """Settle messages. `alone`: no other work is in flight until the settlement is done."""
        if alone:
            self.world.settle()
        self.alone = alone
        settling = Settling(self.next_sequence, queue, action, tuple(keys), filter, extend_ms)
        self.unacknowledged.append(settling)
        self.send_settlement(settling)
        if alone:
            self.world.settle()
        self.alone = False

    def send_settlement(self, settling: Settling) -> None:
        """Send one, for the first time or again after a connection was lost."""
        assert self.logged_on is not None
        self.next_sequence = settling.sequence
        known = self.world.last_sequence.get(self.name, 0)
        self.world.about_to(disturb=True)
        if settling.sequence > known and settling.queue in self.world.model.queues:
            self.world.last_sequence[self.name] = settling.sequence
            self.world.model.settle(
                self.conn,
                settling.queue,
                settling.action,
                (self.logged_on.publisher, settling.sequence),
                self.world.moment.wall,
                extend_ms=settling.extend_ms,
                keys=settling.keys,
                condition=settling.condition,
                late=self._is_late(settling),
            )
        builder = BatchBuilder()
        builder.add(QUEUE_TOPIC, settling.body())
        self._publish(builder)

    def _is_late(self, settling: Settling) -> bool:
        """Return whether the engine may have to read or wait for another settlement before it decides."""
        model = self.world.model
        waits = model.moved or any(s.sequence > self.acked_sequence for s in self.unacknowledged[:-1])
        mine = [c for c in model.consumers.values() if c.conn == self.conn]
        held = all(any((settling.queue, key) in c.held for c in mine) for key in settling.keys)
        return not self.alone and (waits or not held or settling.condition is not None)

    def keep_unacknowledged(self) -> list[Settling]:
        """Return the settlements to resend: those that the server has not acknowledged."""
        return [settling for settling in self.unacknowledged if settling.sequence > self.acked_sequence]


class QueueWorld(EngineWorld):
    """An engine with queues on a strict disk, and the oracle that watches it."""

    def __init__(
        self, seed: int, queues: Sequence[QueueDefinition], *, counts: Counter[str] | None = None, **more: Any
    ) -> None:
        self.definitions = list(queues)
        self.moment = Now(0.0, 0)
        """The last time that the engine received."""
        self.last_sequence: dict[str, int] = {}
        """Of each client, the highest sequence that an engine took."""
        counts = Counter() if counts is None else counts
        self.model = QueueModel(self.definitions, counts)
        self.durable: set[Key] = set()
        """Settlements that are in the log."""
        super().__init__(seed, counts=counts, **more)

    # -- the engine -----------------------------------------------------------------------------------

    def make_broker(
        self,
        journal: Journal,
        registry: PublisherDirectory,
        queues: Sequence[QueueDefinition] = (),
        **more: Any,
    ) -> Broker:
        broker = super().make_broker(journal, registry, queues or self.definitions, **more)
        take = journal.take_persisted

        def taken() -> list[PersistedCommit]:
            commits = take()
            for commit in commits:
                self._persisted(commit.first_position, commit.batch)
            return commits

        journal.take_persisted = taken  # type: ignore[method-assign]
        body = read_queues(self.disk, journal.journal_id)
        covered = {} if body is None else {one.queue: one for one in decode_covered(body)}
        self.counts["started with a checkpoint"] += bool(covered)
        recovering = recover_queues(broker.queues, journal, registry.others, covered, self.now())
        broker.begin_queues(drive(self.disk, recovering), self.now())
        return broker

    def make_peer(self, conn: int, name: str) -> QueuePeer:
        return QueuePeer(self, conn, name)

    def connect(self, name: str, **logon: object) -> QueuePeer:
        self.about_to(disturb=True)
        for other in [p for p in self.peers.values() if p.name == name]:
            self.model.gone(other.conn)
            del self.peers[other.conn]
        peer = super().connect(name, **logon)
        assert isinstance(peer, QueuePeer)
        return peer

    def now(self) -> Now:
        """Advance both clocks at one pace: the oracle would take a drift between them for a wrong lease."""
        self.wall += self.rng.randrange(0, 1_000)
        self.mono = (self.wall - 1_760_000_000_000_000) / MICROS + 100.0
        self.moment = Now(self.mono, self.wall)
        return self.moment

    def acknowledged(self, peer: Peer) -> None:
        """Record an acknowledged sequence: the next start checks that the log has it."""
        assert peer.logged_on is not None
        if peer.acked_sequence:
            self.promised.add((peer.logged_on.publisher, peer.acked_sequence))

    def fitting(self, topic: str) -> list[str]:
        """Return the queues to which a topic or pattern subscribes."""
        if is_pattern(topic):
            return [name for name in self.model.queues if re.search(topic, name)]
        return [topic] if topic in self.model.queues else []

    # -- inputs of the oracle -------------------------------------------------------------------------

    def _persisted(self, first: int, batch: MessageBatch) -> None:
        for message in arrived(first, batch):
            if message.topic == QUEUE_TOPIC:
                if message.key not in self.durable:
                    self.durable.add(message.key)
                    self.model.settled(message.key)
            else:
                self.model.persisted(message)

    def collect(self) -> None:
        super().collect()
        if self.fatal is None:
            for look in self.broker.queues.snapshots(self.moment):
                adds_up(look)

    def about_to(self, *, disturb: bool = False) -> None:
        """Note before a request whether invisible work of the engine is in flight."""
        self.model.moved = bool(self.jobs or self.reads or self.broker.has_work)
        self.model.disturbed |= disturb

    def hang_up(self, peer: QueuePeer) -> None:
        """Close the connection."""
        self.peers.pop(peer.conn, None)
        self.about_to(disturb=True)
        self.model.gone(peer.conn)
        self.broker.disconnected(peer.conn)
        self.collect()

    def rest(self) -> None:
        """Run the engine until it is idle, including due timers, then check the invariants."""
        self.settle()
        for _ in range(100):
            wanted = self.broker.next_deadline()
            if wanted is None or wanted > self.mono:
                break
            self.wake()
            self.settle()
        else:
            raise AssertionError("the engine wants to be woken again and again")
        check_idle(self.model, self.broker.queues.snapshots(self.moment), self.moment.wall)
        self.model.disturbed = False

    def advance(self, seconds: float) -> None:
        """Let time pass. As with a driver, the engine is woken at its deadlines."""
        self.about_to(disturb=True)
        end = self.wall + int(seconds * MICROS)
        while self.wall < end:
            self.settle()
            wanted = self.broker.next_deadline()
            ahead = end if wanted is None else self.wall + max(0, int((wanted - self.mono) * MICROS)) + 1
            self.wall = max(self.wall, min(end, ahead))
            self.wake()
        self.settle()

    def browse(self, peer: QueuePeer, queue: str) -> list[Key]:
        """Return the messages that a queue has available now."""
        peer.consume("browse", queue, browse=True)
        self.settle()
        assert "browse" in peer.ended, "a browse ends by itself"
        assert not peer.ended["browse"].code, peer.ended["browse"]
        return peer.browsed["browse"]

    # -- between runs ---------------------------------------------------------------------------------

    def crash(self, *, power: bool = True) -> None:
        """Stop the machine, or only the process, and restart the engine."""
        self.about_to(disturb=True)
        self.disk = self.disk.crash_clone(self.rng) if power else self.disk.kill_clone(self.rng)
        self.fatal = None
        self.open()
        self._inform_oracle()

    def stop(self) -> None:
        """Stop cleanly and start."""
        self.about_to(disturb=True)
        self.broker.close(self.now())
        self.collect()
        self.settle()
        assert self.broker.journal.commits.closed
        write_queues(self.disk, self.broker.journal.journal_id, self.broker.queues.checkpoint_body())
        self.disk.close_all()
        self.open()
        self._inform_oracle()

    def _inform_oracle(self) -> None:
        """Give the oracle the contents of the log, which must have every acknowledged message."""
        log = [m for first, batch in read_log(self.broker.journal, self.disk) for m in arrived(first, batch)]
        keys = {message.key for message in log}
        assert self.promised <= keys, f"acknowledged and lost: {self.promised - keys}"
        self.durable = {message.key for message in log if message.topic == QUEUE_TOPIC}
        messages = [message for message in log if message.topic != QUEUE_TOPIC]
        self.model.restarted(self.durable, messages, now=self.wall)


def arrived(first: int, batch: MessageBatch) -> list[Arrived]:
    """Return the messages of a batch of the log, with settlements and without control records of names."""
    found = []
    for i in range(batch.count):
        topic = batch.topic(i)
        if topic.startswith("$") and topic != QUEUE_TOPIC:
            continue
        key = batch.publisher(i), batch.sequence(i)
        life = batch.expiration(i) or 0
        stamp = batch.timestamp(i)
        found.append(Arrived(first + i, key, topic, batch.body(i), stamp, life, batch.correlation_id(i)))
    return found
