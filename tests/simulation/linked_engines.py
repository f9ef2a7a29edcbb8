"""Simulation of two or three whole engines joined by links, with publishers that fail over between them.

Must never compute an expectation with the product: sets of sent, acknowledged and stored messages decide.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Final, cast

from tests.simulation.engine_peer import Peer
from tests.simulation.linked_engine import TOPICS, Key, LinkedEngine, PipeEnd, body_of
from tests.simulation.pair_world import TOPOLOGIES
from tickertape.base.errors import NotReady
from tickertape.base.names import publisher_id
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.replication.link_facts import OutgoingLink
from tickertape.engine.replication.routes import ReplicationRule
from tickertape.journal.retention import RetentionPolicy
from tickertape.testing.disk import StrictDisk
from tickertape.wire.commands import Persisted, Publish

ONE_WAY: Final = "one way"
ROUNDS_MAX: Final = 400
QUIET_ROUNDS: Final = 6
"""Rounds without anything to do after which links are idle."""


def link_to(number: int, *excluded: str, topic: str = ".*", sync: str = "") -> OutgoingLink:
    """Return the link of all topics to a server, or of one topic. `sync`: the topics that are synchronous, as
    a pattern."""
    rules = [ReplicationRule(topic=sync, sync=True)] if sync else []
    rules.append(ReplicationRule(topic=topic, sync=False))
    return OutgoingLink(destination=f"server-{number}", rules=tuple(rules), excluded=excluded)


class FailoverStore:
    """A publisher with a publish store, at any of several engines."""

    def __init__(self, name: str, rng: Random, counts: Counter[str]) -> None:
        self.name = name
        self.peer: Peer | None = None
        self.publisher = publisher_id(name)
        self.kept: list[int] = []
        """Messages without an acknowledgement, ascending."""
        self.sent: set[Key] = set()
        self.acknowledged: set[Key] = set()
        self.claims = rng.random() < 0.8
        """Whether it reports its acknowledged messages at each logon. Older clients do not."""
        self._acked_through = self._session = 0
        self.answers: list[tuple[LinkedEngine, set[Key]]] = []
        """Engines and the messages that they acknowledged since the last check."""
        self._next = 1
        self._resent = False
        """Whether the messages without an acknowledgement were sent on this connection."""
        self._rng = rng
        self._counts = counts

    def connect(self, engine: LinkedEngine) -> None:
        """Log on at an engine. The messages without an acknowledgement are sent after its answer."""
        self.hear()
        self._session += 1
        claim = {"persisted": self._acked_through, "session": self._session} if self.claims else {}
        self._counts["claims" if claim else "logons without a claim"] += 1
        self.peer = engine.connect(self.name, **claim)
        self._resent = False
        self.hear()

    def publish(self, count: int) -> None:
        """Send new messages, before the answer to the logon with the others later."""
        sequences = [*range(self._next, self._next + count)]
        self._next += count
        self.kept += sequences
        self.sent |= {(self.publisher, sequence) for sequence in sequences}
        if self._resent:
            self._send(sequences)
        self.hear()

    def hear(self) -> None:
        """Process the answers that have arrived."""
        peer = self.peer
        if peer is None or peer.logged_on is None:
            return
        last = peer.acked_sequence
        self._acked_through = max(self._acked_through, last)
        assert peer.logged_on.replication is not None
        self._counts["answers behind a claim"] += peer.logged_on.replication.behind
        new = {(self.publisher, s) for s in self.kept if s <= last}
        if new:
            self.acknowledged |= new
            self.answers.append((cast("LinkedEngine", peer.world), new))
        self.kept = [sequence for sequence in self.kept if sequence > last]
        if not self._resent:
            self._resent = True
            kept = [*self.kept]
            while kept and not peer.closed:
                count = self._rng.choice((1, 5, 50))
                self._send(kept[:count])
                self._counts["resent frames"] += 1
                del kept[:count]

    def _send(self, sequences: list[int]) -> None:
        peer = self.peer
        assert peer is not None
        builder = BatchBuilder()
        for sequence in sequences:
            body = body_of(self.publisher, sequence)
            builder.add(TOPICS[sequence % 2], body, sequence=sequence, key=f"k{sequence % 5}")
        peer.frames += 1
        batch = MessageBatch.parse(builder.build(self.publisher, first_sequence=sequences[0]).encode())
        peer.send(Publish(frame=peer.frames, sequenced=True), batch)


class LinkedEngines:
    """Engines, links between them, publishers, and faults."""

    def __init__(self, seed: int, counts: Counter[str], topology: str = "", *, partial: bool = False) -> None:
        """`partial`: links pass one of two topics."""
        self.rng = Random(seed)
        self.counts = counts
        self.topology = topology or self.rng.choice([*TOPOLOGIES, ONE_WAY])
        counts[self.topology] += 1
        self.edges = ((0, 1),) if self.topology == ONE_WAY else TOPOLOGIES[self.topology]
        self.passed = TOPICS[:1] if partial else TOPICS
        """Topics that links pass."""
        rule = TOPICS[0] if partial else ".*"
        excluded = ("replicate",) if self.topology == ONE_WAY else ()
        numbers = range(2 if self.topology in ("pair", ONE_WAY) else 3)
        self.sync = "" if partial else self.rng.choice(("", "orders", ".*"))
        """Synchronous topics of all links."""
        acknowledge = self.rng.choice((None, 1)) if self.sync else None
        self.copied: tuple[LinkedEngine, StrictDisk, int] | None = None
        """An engine, an old copy of its data directory, and the end of the log in it."""
        self.copies = self.rng.random() < 0.3
        """Whether an engine starts on an old copy. Retention does not run then: others refuse a copy that
        lacks removed rows."""
        self.before_copy: dict[tuple[int, int], tuple[PipeEnd | None, set[Key]]] = {}
        """Of links to that engine: the source end, and the messages on the disk, before the copy."""
        self.lost: set[Key] = set()
        """Acknowledged messages that an old copy lost, and no other log has."""
        retention = RetentionPolicy(size_bytes=1) if self.rng.random() < 0.6 and not self.copies else None
        self.engines = [
            LinkedEngine(
                self.rng.getrandbits(32),
                number,
                tuple(
                    link_to(other, *excluded, topic=rule, sync=self.sync)
                    for at, other in self.edges
                    if at == number
                ),
                counts,
                retention,
                acknowledge=acknowledge,
            )
            for number in numbers
        ]
        self.readers: dict[LinkedEngine, tuple[Peer, int]] = {}
        """A subscriber with `fully_durable` at each engine, and the number of its checked messages."""
        for engine in self.engines:
            engine.on_acknowledged = self.check_acknowledged
            engine.on_collected = self.check_delivered
        self.taking = self.engines[:1] if self.topology == ONE_WAY else self.engines
        """Engines at which clients publish."""
        self.links: dict[tuple[int, int], PipeEnd] = {}
        """The source end of each link."""
        self.stores = [FailoverStore(f"p{number}", self.rng, counts) for number in range(3)]
        for store in self.stores:
            store.connect(self.rng.choice(self.taking))

    # -- steps ------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """A publisher sends new messages."""
        store = self.rng.choice(self.stores)
        if store.peer is None or store.peer.closed or not self._is_alive(store.peer):
            store.connect(self.rng.choice(self.taking))
        store.publish(self.rng.choice((1, 1, 4, 12)))

    def _is_alive(self, peer: Peer) -> bool:
        return peer.world.peers.get(peer.conn) is peer

    def fail_over(self) -> None:
        """A publisher connects to another server."""
        self.rng.choice(self.stores).connect(self.rng.choice(self.taking))
        self.counts["failovers"] += 1

    def connect(self, edge: tuple[int, int] | None = None) -> None:
        """A source connects, if its link has no connection."""
        edge = edge or self.rng.choice(self.edges)
        old = self.links.get(edge)
        if old is None or not old.open:  # the destination may still have the old connection
            self.counts["connections beside a lost one"] += old is not None and old.peer.open
            source, destination = (self.engines[number] for number in edge)
            self.links[edge] = source.link_to(destination)

    def deliver(self) -> None:
        """Bytes arrive at some ends."""
        for engine in self.engines:
            for end in [*engine.ends.values()]:
                if self.rng.random() < 0.7:
                    for _ in range(self.rng.choice((1, 5))):
                        end.deliver()

    def work(self) -> None:
        """An engine takes a step."""
        engine = self.rng.choice(self.engines)
        for _ in range(self.rng.choice((1, 8))):
            engine.step()
        for store in self.stores:
            store.hear()

    def pass_time(self) -> None:
        """Time passes at an engine."""
        self.rng.choice(self.engines).wake(self.rng.choice((0.1, 1.1)))

    def cut(self) -> None:
        """The network ends a connection, and bytes on the way are lost."""
        if self.links:
            end = self.links[self.rng.choice([*self.links])]
            if end.whole:
                self.counts["cuts"] += 1
                end.lose_bytes(self.rng)
                end.peer.lose_bytes(self.rng)

    def block(self) -> None:
        """The network takes no more bytes from an end, or takes them again."""
        engine = self.rng.choice(self.engines)
        if engine.ends:
            conn = self.rng.choice([*engine.ends])
            if self.rng.random() < 0.5:
                engine.broker.blocked(conn)
                self.counts["blocked"] += 1
            else:
                engine.broker.writable(conn)
                engine.collect()

    def crash(self) -> None:
        """An engine loses power, or its process is killed."""
        engine = self.rng.choice(self.engines)
        power = self.rng.random() < 0.6
        self.counts["power losses" if power else "kills"] += 1
        engine.restart(power=power)

    def keep_copy(self) -> None:
        """Copy the data directory of an engine."""
        engine = self.rng.choice(self.engines[1:])  # the source of a one-way link gets nothing back
        self.copied = engine, engine.copy(), engine.broker.journal.commits.persisted_end

    def restore(self) -> None:
        """An engine starts on an old copy of its data directory."""
        assert self.copied is not None
        engine, copy, end = self.copied
        for edge in self.edges:
            if self.engines[edge[1]] is engine:
                self.before_copy[edge] = self.links.get(edge), {*engine.persisted.values()}
        self.counts["lost rows of old copies"] += engine.broker.journal.commits.persisted_end - end
        engine.restore(copy)
        for store in self.stores:
            store.hear()
            store.answers.clear()  # of the newer log
        acknowledged = {key for store in self.stores for key in store.acknowledged}
        self.lost = acknowledged - {key for one in self.engines for key in one.persisted.values()}
        self.counts["lost acknowledged messages"] += len(self.lost)

    def change_level(self) -> None:
        """An operator downgrades or upgrades a link."""
        source, destination = (self.engines[number] for number in self.rng.choice(self.edges))
        assert source.broker.links is not None
        levels = {row.name: row.level for row in source.broker.links.rows() if row.direction == "out"}
        downgraded = levels[destination.instance] == "sync" and self.rng.random() < 0.3
        try:
            source.broker.change_level(destination.instance, source.now(), downgraded=downgraded)
        except NotReady:
            self.counts["upgrades refused"] += 1
        source.collect()

    def pause(self) -> None:
        """An operator pauses or resumes a link."""
        source, destination = (self.engines[number] for number in self.rng.choice(self.edges))
        stopped = self.rng.random() < 0.2
        self.counts["pauses"] += stopped
        source.broker.set_link_stopped(destination.instance, source.now(), stopped=stopped)
        source.collect()

    def read(self) -> None:
        """A subscriber with `fully_durable` connects to an engine, unless one is connected."""
        engine = self.rng.choice(self.engines)
        peer = self.readers[engine][0] if engine in self.readers else None
        if peer is None or peer.closed or not self._is_alive(peer):
            peer = engine.connect(f"reader {engine._conn}")
            self.readers[engine] = peer, 0
            peer.subscribe("s", self.rng.choice((*TOPICS, ".*")), bookmark="0", options="fully_durable")

    def small_bounds(self) -> None:
        """An engine keeps little of its log in memory."""
        self.rng.choice(self.engines).small_tail()

    def step(self) -> None:
        """Take one random step."""
        ways = [self.deliver, self.work, self.work] * 8 + [self.publish] * 8 + [self.connect] * 3
        ways += [self.fail_over, self.pass_time, self.small_bounds, self.block]
        if self.sync:
            ways += [self.change_level, self.pause, self.read]
        ways += [self.fail_over] * (5 if len(self.passed) < len(TOPICS) else 0)
        self.rng.choice(ways)()
        if self.rng.random() < 0.02:
            self.rng.choice((self.cut, self.crash))()
        if self.rng.random() < 0.01:
            self.check_stable()
        self.check_answers()

    def run(self, steps: int) -> None:
        """Take random steps. At times an engine then starts on an old copy, and more steps follow."""
        for at in range(steps):
            self.step()
            if self.copies and at == steps // 4:
                self.keep_copy()
            if self.copies and at == steps - steps // 4:
                self.restore()

    # -- the end ----------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Connect everything, send all messages again, and wait until nothing happens any more."""
        for at, other in self.edges:
            source = self.engines[at]
            source.broker.set_link_stopped(self.engines[other].instance, source.now(), stopped=False)
        quiet = 0
        for _ in range(ROUNDS_MAX):
            quiet = 0 if self._round() else quiet + 1
            if quiet == QUIET_ROUNDS:
                break
        else:
            raise AssertionError("links do not become idle")
        self.check()

    def _round(self) -> int:
        """Each part does all its work. Return the number of deliveries and rows of the round."""
        before = [len(engine.persisted) for engine in self.engines]
        done = 0
        for store in self.stores:
            if store.peer is None or store.peer.closed or not self._is_alive(store.peer):
                store.connect(self.rng.choice(self.taking))
        for edge in self.edges:
            self.connect(edge)
        for _ in range(20):
            moved = 0
            for engine in self.engines:
                for end in [*engine.ends.values()]:
                    engine.broker.writable(end.conn)
                    engine.collect()
                    while end.deliver():
                        moved += 1
                engine.settle()
            done += moved
            if not moved:
                break
        for engine in self.engines:
            engine.wake(1.5)
            engine.settle()
        for store in self.stores:
            store.hear()
        self.check_answers()
        return done + sum(len(engine.persisted) for engine in self.engines) - sum(before)

    def check(self) -> None:
        """Each log has each message once, no acknowledged message is missing, and links are idle."""
        sent = {key for store in self.stores for key in store.sent}
        acknowledged = {key for store in self.stores for key in store.acknowledged}
        everything = {key for engine in self.engines for key in engine.persisted.values()}
        assert not [store.kept for store in self.stores if store.kept], "unacknowledged messages"
        assert acknowledged == sent
        missing = sent - everything - self.lost
        assert not missing, ("lost", sorted(missing)[:5])
        assert everything <= sent
        self.check_stable()
        for engine in self.engines:
            self.counts["late messages"] += engine.late
            keys = {*engine.persisted.values()}
            once = self._once(engine)
            twice = [key for key, count in Counter(once).items() if count > 1]
            assert not twice, (engine.instance, "twice", twice[:5])
            self.counts["stored again"] += len(engine.persisted) - len(keys)
            lacking = {*filter(self._is_passed, everything)} - keys
            assert not lacking, (engine.instance, "lacks", sorted(lacking)[:5])
            self._check_rows(engine)
            self._check_holes(engine, everything)
        self.counts["messages"] += len(everything)

    def _is_passed(self, key: Key) -> bool:
        """Return whether links pass a message."""
        return TOPICS[key[1] % 2] in self.passed

    def _once(self, engine: LinkedEngine) -> list[Key]:
        """Return the messages that must be different.

        A resent message is stored again after its removal, if links may not bring its topic. A server that
        started again, or of three, may not know the rules of all sources."""
        first = engine.broker.journal.view.first_position
        knows = len(self.engines) == 2 and engine.starts == 1
        return [
            key for at, key in engine.persisted.items() if at >= first or (knows and self._is_passed(key))
        ]

    def check_answers(self) -> None:
        """Messages are on the disk of the engine that acknowledged them, or retention removed them from any
        log."""
        for store in self.stores:
            for engine, keys in store.answers:
                lacking = keys - {*engine.persisted.values()}
                if lacking and lacking - self._removed():
                    raise AssertionError(engine.instance, "acknowledged without a copy", sorted(lacking)[:5])
            store.answers.clear()

    def _removed(self) -> set[Key]:
        """Return the messages that retention removed from any log."""
        return {
            key
            for engine in self.engines
            for at, key in engine.persisted.items()
            if at < engine.broker.journal.view.first_position
        }

    def _check_holes(self, engine: LinkedEngine, everything: set[Key]) -> None:
        """Only sequences that no log has are in holes."""
        exact = engine.broker._writer.exact
        assert exact is not None
        for store in self.stores:
            for hole in exact.known.holes(store.publisher):
                inside = {(store.publisher, s) for s in range(hole.first, hole.last + 1)}
                stored = {*filter(self._is_passed, inside & everything)}
                assert not stored, (engine.instance, "a hole has stored messages", hole)
        self.counts["open holes at the end"] += exact.known.count

    def check_acknowledged(self, engine: LinkedEngine, peer: Peer) -> None:
        """Enough synchronous destinations have all messages of an acknowledgement on their disks."""
        store = next((store for store in self.stores if store.peer is peer), None)
        disks = self._counted_disks(engine)
        answer = peer.received[-1][0]
        if store is None or not disks or not self.sync:
            return
        assert isinstance(answer, Persisted)
        needed = self._needed(engine, disks)
        self.counts[f"level {answer.level}"] += 1
        self.counts["acknowledged by any destination"] += needed < len(disks)
        for sequence in store.kept:
            if sequence <= peer.acked_sequence:
                having = sum((store.publisher, sequence) in disk for disk in disks)
                if self.sync == ".*" or TOPICS[sequence % 2] == self.sync:
                    assert having >= needed, (engine.instance, "acknowledged early", sequence, having)
                if answer.level.startswith("replicated"):
                    assert answer.level <= f"replicated({having})", (answer.level, having)

    def _counted_disks(self, engine: LinkedEngine) -> list[set[Key]]:
        """Return the messages on the disk of each destination that is not downgraded."""
        assert engine.broker.links is not None
        levels = {row.name: row.level for row in engine.broker.links.rows() if row.direction == "out"}
        self.counts["downgraded links"] += "downgraded" in levels.values()
        return [
            self._stored_for(edge)
            for edge in self.edges
            if self.engines[edge[0]] is engine and levels[self.engines[edge[1]].instance] != "downgraded"
        ]

    def _needed(self, engine: LinkedEngine, disks: list[set[Key]]) -> int:
        """Return the number of disks that must have a message."""
        return len(disks) if engine.acknowledge is None else min(engine.acknowledge, len(disks))

    def check_delivered(self, engine: LinkedEngine) -> None:
        """Enough synchronous destinations have each new message of a `fully_durable` subscriber."""
        if engine not in self.readers:
            return
        peer, checked = self.readers[engine]
        heard = peer.heard.get("s", [])
        if len(heard) == checked:
            return
        self.readers[engine] = peer, len(heard)
        disks = self._counted_disks(engine)
        needed = self._needed(engine, disks)
        for message in heard[checked:]:
            if self.sync in (".*", message.topic):
                having = sum((message.publisher, message.sequence) in disk for disk in disks)
                assert having >= needed, (engine.instance, "delivered early", message, having)
                self.counts["durable deliveries"] += 1

    def _stored_for(self, edge: tuple[int, int]) -> set[Key]:
        """Return the messages on the disk of a destination, as far as the source can know: until the next
        handshake it does not know of an old copy."""
        source, destination = (self.engines[number] for number in edge)
        stored = {*destination.persisted.values()}
        end = self.links.get(edge)
        assert source.broker.links is not None
        states = {row.name: row.state for row in source.broker.links.rows() if row.direction == "out"}
        if edge in self.before_copy:
            old_end, before = self.before_copy[edge]
            if end is old_end or states[destination.instance] not in ("live", "resync"):
                return stored | before
            del self.before_copy[edge]
        return stored

    def check_stable(self) -> None:
        """All engines have the messages before the position that reports call stable, on their disks."""
        if self.copies:
            return
        stored = [{*engine.persisted.values()} for engine in self.engines]
        for engine in self.engines:
            assert engine.broker.links is not None
            stable = engine.broker.links.stable
            rows = {key for at, key in engine.persisted.items() if at < stable and self._is_passed(key)}
            for keys in stored:
                assert rows <= keys, (engine.instance, "a stable row is missing")
            self.counts["stable messages"] += len(rows)

    def _check_rows(self, engine: LinkedEngine) -> None:
        """All links are live, have nothing to send, and hold nothing."""
        assert engine.broker.links is not None
        rows = engine.broker.links.rows()
        number = self.engines.index(engine)
        assert len([row for row in rows if row.direction == "out"]) == sum(
            at == number for at, _ in self.edges
        )
        for row in rows:
            assert (row.state, row.behind, row.unsent, row.held) == ("live", 0, 0, 0), row
        self.counts["removed messages"] += sum(
            at < engine.broker.journal.view.first_position for at in engine.persisted
        )
