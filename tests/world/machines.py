"""The smallest simulations: the state machines of the product, without an event loop.

Publishers and readers with stores, an engine and its log take random steps, one after the other. Must never
trust the product about correctness: plain lists keep the sent and received messages.
"""

from __future__ import annotations

import errno
import gc
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

from msgspec.structs import replace

from tests.simulation.engine_world import EngineWorld
from tests.simulation.line import Line
from tests.unit.client.peer import Named, UnusedSink, UnusedWaiter
from tickertape.base.bookmarks import EPOCH
from tickertape.base.errors import Disconnected
from tickertape.client.bookmark_store import MemoryBookmarkStore
from tickertape.client.common.effects import (
    DeliverBatch,
    DeliverShared,
    Effect,
    EndConnection,
    ResolveCall,
    Send,
    WillRedeliver,
)
from tickertape.client.common.subscribe_arguments import make_request
from tickertape.client.protocol.core import ClientProtocol, ConnectionEnded, ConnectionOpened
from tickertape.client.publish_store import MemoryPublishStore
from tickertape.wire.commands import Ack

MACHINE_FAULTS: Final = (
    "power lost", "power lost in a disk operation", "server killed", "sync failed", "write failed",
    "disk full", "connection cut", "half open",
)  # fmt: skip
CHEAP: Final = MACHINE_FAULTS[-3:]
"""Those that end no server."""
CRASHES: Final = MACHINE_FAULTS[:5]
"""Faults that end the server. One of them occurs in every simulation."""
TOPIC: Final = "t"
FILTER: Final = "/n % 2 = 0"
SLICES: Final = (9, 400, 1 << 20, 1 << 20)
"""How many bytes arrive at once."""
REST_SECONDS_MAX: Final = 30.0
"""Virtual seconds in which all work must finish after the faults."""
ROUNDS_MAX: Final = 400
"""Steps in which all work must finish after the faults."""


class Client:
    """A client state machine, its link, and the code that performs its effects."""

    def __init__(self, engine: EngineWorld, name: str) -> None:
        self.engine = engine
        self.core = ClientProtocol(name)
        self.name = name
        self.line: Line | None = None
        self.deaf = False
        """Whether data no longer arrives on its line, without a notification."""

    def connect(self) -> None:
        self.line, self.deaf = Line(self.engine), False
        self.core.receive(ConnectionOpened(Named("logon")), self.engine.now())
        self.settle()

    def lose(self) -> None:
        line, self.line = self.line, None
        if line is None:
            return
        line.cut()
        self.core.receive(ConnectionEnded(Disconnected("cut")), self.engine.now())
        self.settle()

    def move(self, *, everything: bool = False) -> None:
        """Deliver some bytes to either end."""
        line = self.line
        if line is None or self.deaf:
            return
        size = 1 << 20 if everything else self.engine.rng.choice(SLICES)
        if line.to_server:
            line.arrive(size)
        if line.to_client:
            self.core.receive(line.leave(size), self.engine.now())
            self.settle()
        if line.closed and not line.to_client:
            self.lose()

    @property
    def busy(self) -> bool:
        """Return whether bytes are in flight."""
        line = self.line
        if line is None or self.deaf:
            return False
        return line.closed or bool(line.to_server or line.to_client)

    def settle(self) -> None:
        """Perform the effects of the state machine."""
        while self.core.waiting:
            for effect in self.core.effects():
                if isinstance(effect, Send):
                    if self.line is not None:
                        self.line.to_server += b"".join(effect.buffers)
                elif isinstance(effect, EndConnection):
                    self.lose()
                else:
                    self.asked(effect)

    def asked(self, effect: Effect) -> None:
        raise NotImplementedError


class Sent(NamedTuple):
    """A message, as its application knows it."""

    publisher: str
    sequence: int
    body: bytes


class Publisher(Client):
    """Publishes with a store in memory, and flushes."""

    def __init__(self, engine: EngineWorld, name: str) -> None:
        super().__init__(engine, name)
        self.core.set_store(MemoryPublishStore(), engine.now())
        self.sent: list[Sent] = []
        self.flushed = 0
        """Number of messages reported as persisted."""
        self._asked: dict[object, int] = {}

    def publish(self, count: int, sizes: Sequence[int] = (0, 0, 9, 700)) -> None:
        rng = self.engine.rng
        for _ in range(count):
            number = len(self.sent) + 1
            pad = b"x" * rng.choice(sizes)
            body = b'{"by": "%s", "n": %d, "pad": "%s"}' % (self.name.encode(), number, pad)
            sequence = self.core.publishing.publish(TOPIC, body)
            assert sequence is not None
            self.sent.append(Sent(self.name, sequence, body))
        self.settle()

    def flush(self) -> None:
        if self.core.logon.logged_on is not None:
            token = UnusedWaiter()
            self._asked[token] = len(self.sent)
            self.core.flush(token, "persisted")
            self.settle()

    def asked(self, effect: Effect) -> None:
        if isinstance(effect, ResolveCall) and effect.token in self._asked:
            upto = self._asked.pop(effect.token)
            if effect.outcome is None:
                self.engine.counts["flushed"] += 1
                self.flushed = max(self.flushed, upto)
            else:
                assert isinstance(effect.outcome, Disconnected), effect.outcome

    def done(self) -> bool:
        return self.core.publishing.unpersisted_count() == 0


class Reader(Client, UnusedSink):
    """Reads from the beginning with a bookmark store, and discards messages, some of them later."""

    def __init__(self, engine: EngineWorld, name: str) -> None:
        super().__init__(engine, name)
        rng = engine.rng
        self.live, self.filtered = rng.random() < 0.3, rng.random() < 0.3
        self.core.subscriptions.keep = True
        self.stored = self.live or rng.random() < 0.5
        self.core.subscriptions.use_store(MemoryBookmarkStore() if self.stored else None)
        self.bodies: list[bytes] = []
        made = make_request(
            TOPIC,
            "s",
            bookmark=EPOCH,
            filter=FILTER if self.filtered else None,
            depth=rng.choice((1_000, 60_000)),
            given={"live": self.live},
        )
        self._request = replace(made, handled=True)
        self._placed = False

    def asked(self, effect: Effect) -> None:
        if isinstance(effect, DeliverBatch):
            self._seen(effect)
        elif isinstance(effect, ResolveCall) and str(effect.token) == "logon":
            if self.core.logon.logged_on is not None:  # else the server hung up in the same breath
                self._place()
        elif isinstance(effect, ResolveCall) and str(effect.token) == "placed":
            self._placed = isinstance(effect.outcome, Ack)
            assert self._placed or isinstance(effect.outcome, Disconnected), effect.outcome
        elif isinstance(effect, ResolveCall):
            assert effect.outcome == [] or isinstance(effect.outcome, Disconnected), effect.outcome
        else:
            assert not isinstance(effect, DeliverShared), "it has one subscription"
            self.engine.counts["redelivered"] += isinstance(effect, WillRedeliver)

    def _place(self) -> None:
        if self._placed:
            self.core.resubscribe(Named("again"))
        else:
            self.core.subscribe(Named("placed"), self._request, self)

    def _seen(self, effect: DeliverBatch) -> None:
        for message in effect.batch:
            self.bodies.append(bytes(message.data))
            if self.stored:
                message.discard()
        self.core.consumed("s", effect.batch.cost, self._request)


class MachineShape(NamedTuple):
    """The size of such a simulation."""

    messages: int = 20
    faults: int = 1
    """Maximum number of faults beside the crash."""
    publishers: int = 2
    """At most."""
    readers: int = 1
    kinds: tuple[str, ...] = MACHINE_FAULTS
    """The kinds of faults. One of the crashes among them occurs each time."""

    def begin(self, seed: int, counts: Counter[str]) -> MachineRun:
        """Return a simulation of this shape."""
        return MachineRun(seed, self, counts)


class MachineRun:
    """One complete simulation: faults, always a crash among them, and the checks after them."""

    def __init__(self, seed: int, shape: MachineShape, counts: Counter[str]) -> None:
        self.counts = counts
        self.engine = EngineWorld(seed, counts=counts, segment_bytes=8_192)
        self.rng = self.engine.rng
        self.shape = shape
        self.publishers = [
            Publisher(self.engine, f"p{n}")
            for n in range(min(shape.publishers, self.rng.choice((1, 1, 1, 2))))
        ]
        self.readers = [Reader(self.engine, f"r{n}") for n in range(shape.readers)]
        self.clients: list[Client] = [*self.publishers, *self.readers]
        self._trace = sha256()
        self._left = shape.messages
        self._faults: dict[str, Callable[[], bool]] = {
            "power lost": lambda: self._crash(power=True),
            "power lost in a disk operation": self._power_lost_in_write,
            "server killed": lambda: self._crash(power=False),
            "sync failed": lambda: self._fails("sync"),
            "write failed": lambda: self._fails("write"),
            "disk full": self._full,
            "connection cut": self._cut,
            "half open": self._half_open,
        }

    def live(self) -> str:
        """Run the simulation and return its trace. Raises `AssertionError` for a violation."""
        gc.disable()  # saves a tenth of the time, garbage is collected between two simulations
        try:
            self._live()
        finally:
            gc.enable()
        return self._trace.hexdigest()

    def _live(self) -> None:
        for kind in self._chosen():
            self._work(self._left // 2)
            struck = self._faults[kind]()
            self.counts[kind] += struck
            self.note(kind, struck)
        self._work(self._left)
        self._run_until_idle()
        self._judge()

    def _chosen(self) -> list[str]:
        """Return the faults of this simulation in order."""
        cheap = [kind for kind in self.shape.kinds if kind in CHEAP]
        crashes = [kind for kind in self.shape.kinds if kind in CRASHES]
        count = sum(self.rng.random() < 0.5 for _ in range(self.shape.faults))
        chosen = [self.rng.choice(cheap) for _ in range(count if cheap else 0)]
        if crashes:
            chosen.insert(self.rng.randint(0, len(chosen)), self.rng.choice(crashes))
        return chosen

    def note(self, *what: object) -> None:
        self._trace.update(repr((round(self.engine.mono, 9), *what)).encode())

    def _work(self, messages: int) -> None:
        """Publish `messages` messages between other random steps."""
        until = self._left - messages
        rng = self.rng
        while self._left > until:
            chance = rng.random()
            if chance < 0.05:
                rng.choice(self.publishers).flush()
            elif chance < 0.08:
                self.engine.wake(rng.choice((0.0, 0.03, 1.0)))
            elif chance < 0.3 or not self._something():
                count = min(rng.choice((1, 1, 2, 5)), self._left - until)
                rng.choice(self.publishers).publish(count)
                self._left -= count
            if self.engine.fatal is not None:
                self.counts["a disk ended a server"] += 1
                self._crash(power=rng.random() < 0.5)

    def _something(self) -> bool:
        """Take one random step, if one is possible. Return whether it was."""
        engine = self.engine
        can: list[Callable[[], None]] = [client.move for client in self.clients if client.busy]
        if engine.jobs:
            can += [engine.run_job] * 2
        if engine.reads:
            can.append(engine.run_read)
        if engine.broker.has_work:
            can.append(engine.work)
        if not can:
            can = [client.connect for client in self.clients if client.line is None]
        if can:
            self.rng.choice(can)()
        return bool(can)

    # -- faults: each returns whether it took effect --------------------------------------------------

    def _crash(self, *, power: bool) -> bool:
        """Stop the server and start it again. The start may end the same way."""
        engine = self.engine
        promised = [body.body for one in self.publishers for body in one.sent[: one.flushed]]
        engine.disk = engine.disk.crash_clone(self.rng) if power else engine.disk.kill_clone(self.rng)
        engine.disk.space_bytes = None
        engine.fatal = None
        engine.peers = {}
        if power and self.rng.random() < 0.2:
            engine.disk.fail(self.rng.choice(("sync", "write", "sync_directory")), 1, errno.EIO)
            try:
                engine.open()
            except OSError:
                self.counts["power lost in a start"] += 1
                engine.disk = engine.disk.crash_clone(self.rng)
            engine.disk.forget_faults()
        engine.open()
        if promised:
            assert {heard.body for heard in engine.log()} >= set(promised), "a flushed message is lost"
        for client in self.clients:
            client.lose()
        return True

    def _power_lost_in_write(self) -> bool:
        """Lose power during a write: a part of it is stored, none of it synced, and none acknowledged."""
        return self._fails(self.rng.choice(("sync", "write"))) and self._crash(power=True)

    def _fails(self, operation: str) -> bool:
        """Let the next operation fail. Messages acknowledged before must be in the log."""
        self.engine.disk.fail(operation, 1, self.rng.choice((errno.EIO, errno.ENOSPC, errno.EDQUOT)))
        self.publishers[0].publish(1)
        self._left -= 1
        for number in range(ROUNDS_MAX):
            if self.publishers[0].line is None:
                self.publishers[0].connect()
            self.publishers[0].move(everything=True)
            self.engine.step()
            if number % 20 == 19:
                self.engine.wake(0.5)  # a disk that was full is tried again every second
            if not self.engine.disk.faults_left:
                return True
        raise AssertionError(f"no {operation} of the disk within {ROUNDS_MAX} steps")

    def _full(self) -> bool:
        """Publish more than the current segment has space for. Some messages may find space later."""
        disk, before = self.engine.disk, self.counts["no_space"]
        disk.space_bytes = disk.used_bytes + self.rng.choice((0, 1_000))
        count = max(0, min(4, self._left))
        self.rng.choice(self.publishers).publish(count, sizes=(2_500, 3_500))
        self._left -= count
        self._work(self._left // 2)
        for _ in range(ROUNDS_MAX):
            if self.counts["no_space"] > before or not self._something():
                break
        self.engine.disk.space_bytes = None
        return self.counts["no_space"] > before

    def _cut(self) -> bool:
        """Cut any connection, or let a publisher reconnect before the disk has its messages."""
        connected = [client for client in self.clients if client.line is not None]
        if connected and self.rng.random() < 0.3:
            self.rng.choice(connected).lose()
            return True
        publisher = self.rng.choice(self.publishers)
        if publisher.line is None:
            publisher.connect()
        for _ in range(2):
            publisher.move(everything=True)
        publisher.publish(1)
        self._left -= 1
        publisher.move(everything=True)
        stood = publisher.line is not None
        publisher.lose()
        publisher.connect()
        publisher.move(everything=True)
        return stood

    def _half_open(self) -> bool:
        """Deliver nothing for a while, then report the loss to both ends."""
        client = self.rng.choice(self.clients)
        if client.line is None:
            client.connect()
        line, client.deaf = client.line, True
        self._work(self._left // 2)
        client.lose()
        return line is not None and bool(line.to_server or line.to_client)

    # -- the end --------------------------------------------------------------------------------------

    def _run_until_idle(self) -> None:
        """After the faults, finish all work in bounded steps."""
        quiet, begun = 0, self.engine.mono
        for _ in range(ROUNDS_MAX):
            assert self.engine.mono < begun + REST_SECONDS_MAX, "does not come to its end in its time"
            for client in self.clients:
                if client.line is None:
                    client.connect()
                while client.busy:
                    client.move(everything=True)
            self.engine.settle()
            if self.engine.fatal is not None:
                self._crash(power=False)
            if any(client.busy for client in self.clients):
                quiet = 0
                continue
            if not all(one.done() for one in self.publishers):
                quiet = 0
                self._wait()
                continue
            quiet += 1
            if quiet == 2:
                return
            self.engine.wake(1.0)
            for client in self.clients:
                client.core.wake(self.engine.now())
                client.settle()
        raise AssertionError("does not come to its end")

    def _wait(self) -> None:
        """Until the engine asks to be woken: nothing else is going to happen."""
        deadline = self.engine.broker.next_deadline()
        self.engine.wake(0.0 if deadline is None else max(0.0, deadline - self.engine.mono))

    def _judge(self) -> None:
        log = [heard.body for heard in self.engine.log()]
        self.note(*log)
        for publisher in self.publishers:
            own = [sent.body for sent in publisher.sent]
            assert _only(log, own) == own, f"{publisher.name}: once, in order"
            assert [sent.sequence for sent in publisher.sent] == sorted({s.sequence for s in publisher.sent})
        assert len(log) == sum(len(one.sent) for one in self.publishers), "a message that was never published"
        for reader in self.readers:
            self.note(reader.name, *reader.bodies)
            wanted = [body for body in log if not reader.filtered or _even(body)]
            if reader.live:  # messages shown before they are durable may end up at another position
                assert sorted(reader.bodies) == sorted(wanted), f"{reader.name}: each once, and all of them"
                for publisher in self.publishers:
                    own = [sent.body for sent in publisher.sent]
                    in_order = _only(own, wanted)
                    assert _only(reader.bodies, own) == in_order, f"{reader.name}: out of order"
            else:
                assert reader.bodies == wanted, f"{reader.name}: the log, each once"
        self.counts["messages"] += len(log)
        self.counts["worlds"] += 1


def _only(bodies: Iterable[bytes], among: Iterable[bytes]) -> list[bytes]:
    there = set(among)
    return [body for body in bodies if body in there]


def _even(body: bytes) -> bool:
    number = body.split(b'"n": ')[1].split(b",")[0]
    return int(number) % 2 == 0
