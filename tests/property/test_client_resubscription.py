"""Client state machine on the engine in virtual time: subscriptions that outlive their connections.

Connections are lost at any byte, the server crashes, and the application discards in any order, pauses,
resumes and replaces. With a bookmark store, discarded messages are never redelivered, and all others are.
Without one, each message is delivered once. The messages are in log order, and no message is missed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random

import msgspec
import pytest

from tests.helpers.tiers import parts
from tests.simulation.engine_world import EngineWorld
from tests.simulation.line import Line
from tests.unit.client.peer import Named, UnusedSink, UnusedWaiter
from tickertape.base.bookmarks import EPOCH, MOST_RECENT, NOW, Bookmark
from tickertape.base.errors import Disconnected, TickertapeError
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.client.bookmark_store import MemoryBookmarkStore
from tickertape.client.common.effects import (
    CaughtUp,
    DeliverBatch,
    DeliverShared,
    End,
    EndConnection,
    Notice,
    ReportError,
    ResolveCall,
    Send,
    WillRedeliver,
)
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.subscribe_arguments import make_request
from tickertape.client.protocol.core import ClientProtocol, ConnectionEnded, ConnectionOpened
from tickertape.wire.commands import Ack

RUNS = 20
STEPS = 400
SLICES = (1, 40, 500, 1 << 20)
"""How many bytes arrive at once."""
FILTERS = (None, "/n % 2 = 0", "/n % 3 = 0")
Key = tuple[int, int]


class Application:
    """The application's view of one subscription id, for any handler."""

    def __init__(self, sub_id: str, start: str, filter_text: str | None) -> None:
        self.sub_id = sub_id
        self.start = start
        self.filter = filter_text
        self.begun: Ack | None = None
        """Where it began."""
        self.handed: list[list[Key]] = [[]]
        """Delivered messages by connection."""
        self.open: dict[Key, Message] = {}
        """Handed on and not discarded."""
        self.discarded: set[Key] = set()
        self.paused = False
        self.sink: Sink | None = None


class Sink(UnusedSink):
    """A handler that takes its time."""

    def __init__(self, application: Application, request: SubscribeRequest) -> None:
        self.application = application
        self.request = request
        self.waiting: list[MessageBatch] = []
        self.over = False


class World:
    """An engine, two publishers, one client, one seed."""

    def __init__(self, seed: int, counts: Counter[str]) -> None:
        self.random = Random(seed)
        self.counts = counts
        self.engine = EngineWorld(seed)
        self.begin_publishing()
        self.store = MemoryBookmarkStore() if seed % 2 else None
        self.core = ClientProtocol("client")
        self.core.subscriptions.keep = True
        self.core.subscriptions.use_store(self.store)
        self.line: Line | None = None
        self.number = 0
        self.rounds = 0
        self.placed = True
        """Whether everything was placed on this connection."""
        self.applications: dict[str, Application] = {}
        self.calls: dict[object, Callable[[object], None]] = {}

    def begin_publishing(self) -> None:
        self.engine.small_tail()
        self.publishers = [self.engine.connect("even"), self.engine.connect("odd")]

    # -- events ---------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Crash the server: unsynced messages are lost, and it restarts."""
        self.lose()
        self.counts["crashed"] += 1
        self.engine.disk = self.engine.disk.crash_clone(self.engine.rng)
        self.engine.open()
        self.begin_publishing()

    def publish(self) -> None:
        bodies = []
        for _ in range(self.random.choice((1, 1, 3, 20))):
            bodies.append(b'{"n": %d}' % self.number)
            self.number += 1
        self.random.choice(self.publishers).publish("t", bodies)

    def ready(self) -> bool:
        return self.core.logon.logged_on is not None and self.placed and not self.calls

    def subscribe(self) -> None:
        if not self.ready() or len(self.applications) >= 4:
            return
        start = self.random.choice((EPOCH, MOST_RECENT, NOW))
        application = Application(f"s{len(self.applications)}", start, self.random.choice(FILTERS))
        application.paused = self.random.random() < 0.3
        options = {"pause": application.paused}
        self.place(application, options, bookmark=start)

    def replace(self) -> None:
        running = [one for one in self.applications.values() if one.sink is not None]
        if self.ready() and running:
            self.place(self.random.choice(running), {"replace": True})

    def place(
        self, application: Application, options: Mapping[str, object], bookmark: str | None = None
    ) -> None:
        request = make_request(
            "t", application.sub_id, filter=application.filter, depth=2000, given=options, bookmark=bookmark
        )
        request = msgspec.structs.replace(request, handled=True)
        sink = Sink(application, request)
        token = UnusedWaiter()

        def answered(outcome: object) -> None:
            if isinstance(outcome, TickertapeError):
                assert isinstance(outcome, Disconnected), outcome
                return
            application.sink = sink
            if application.begun is None:
                assert isinstance(outcome, Ack)
                application.begun = outcome
            self.applications[application.sub_id] = application
            self.counts["replaced" if "replace" in options else "began"] += 1

        self.calls[token] = answered
        self.core.subscribe(token, request, sink)

    def turn(self) -> None:
        """Pause a running subscription, or resume a paused one."""
        running = [one for one in self.applications.values() if one.sink is not None]
        if not self.ready() or not running:
            return
        application = self.random.choice(running)
        token = UnusedWaiter()
        wanted = not application.paused

        def answered(outcome: object) -> None:
            application.paused = wanted  # also without an answer: it is resubscribed as requested
            if isinstance(outcome, TickertapeError):
                assert isinstance(outcome, Disconnected), outcome
            else:
                self.counts["paused" if wanted else "resumed"] += 1

        self.calls[token] = answered
        verb = self.core.pause if wanted else self.core.resume
        verb(token, (application.sub_id,))

    def client_to_server(self) -> None:
        if self.line is not None:
            self.line.arrive(self.random.choice(SLICES))

    def server_to_client(self) -> None:
        if self.line is not None and self.line.to_client:
            self.core.receive(self.line.leave(self.random.choice(SLICES)), self.engine.now())

    def work(self) -> None:
        for _ in range(self.random.choice((1, 5, 20))):
            self.engine.step()

    def time(self) -> None:
        self.engine.wake(self.random.choice((0.03, 1.1)))
        deadline = self.core.next_deadline()
        now = self.engine.now()
        if deadline is not None and deadline <= now.mono:
            self.core.wake(now)

    def hand_on(self) -> None:
        for application in self.applications.values():
            sink = application.sink
            if sink is not None and sink.waiting and self.random.random() < 0.6:
                self.take(sink)

    def take(self, sink: Sink) -> None:
        batch = sink.waiting.pop(0)
        application = sink.application
        for message in batch:
            key = (batch.publisher(message.index), message.sequence)
            assert key not in application.handed[-1], "twice on one connection"
            application.handed[-1].append(key)
            if key not in application.discarded:
                application.open[key] = message
        self.core.consumed(application.sub_id, batch.cost, sink.request)

    def discard(self) -> None:
        for application in self.applications.values():
            keys = list(application.open)
            self.random.shuffle(keys)
            for key in keys[: self.random.choice((0, 1, 3, 30))]:
                assert application.open.pop(key).discard() is (self.store is not None)
                if self.store is not None:
                    application.discarded.add(key)

    def lose(self) -> None:
        line, self.line = self.line, None
        if line is None:
            return
        self.counts["lost"] += 1
        line.cut()
        self.core.receive(ConnectionEnded(Disconnected("cut")), self.engine.now())

    def connect(self) -> None:
        if self.line is not None:
            return
        self.line = Line(self.engine)
        self.placed = False
        for application in self.applications.values():
            application.handed.append([])
        self.core.receive(ConnectionOpened(Named("logon")), self.engine.now())

    # -- carrying out ---------------------------------------------------------------------------------

    def settle(self) -> None:
        for effect in self.core.effects():
            if isinstance(effect, Send):
                assert self.line is not None
                self.line.to_server += b"".join(effect.buffers)
            elif isinstance(effect, DeliverBatch):
                self.delivered(self.of(effect.sink), effect.batch)
            elif isinstance(effect, DeliverShared):
                self.counts["shared"] += 1
                for sink, share, _ in effect.parts:
                    self.delivered(self.of(sink), share)
            elif isinstance(effect, WillRedeliver):
                again = self.of(effect.sink)
                cost = sum(batch.cost for batch in again.waiting)
                again.waiting.clear()
                self.core.consumed(again.application.sub_id, cost, again.request)
            elif isinstance(effect, End):
                self.ended(self.of(effect.sink), effect)
            elif isinstance(effect, ResolveCall):
                self.resolved(effect)
            else:
                assert isinstance(effect, CaughtUp | Notice) or not isinstance(
                    effect, EndConnection | ReportError
                ), effect

    @staticmethod
    def delivered(sink: Sink, batch: MessageBatch) -> None:
        """Deliver a batch: it has no discarded message. A redelivered one may be discarded while it waits."""
        keys = {(batch.publisher(i), batch.sequence(i)) for i in range(batch.count)}
        assert not keys & sink.application.discarded
        sink.waiting.append(batch)

    @staticmethod
    def of(sink: object) -> Sink:
        assert isinstance(sink, Sink)
        return sink

    def ended(self, sink: Sink, effect: End) -> None:
        if sink.application.sink is not sink:
            assert isinstance(effect.error, Disconnected), effect
            return
        assert effect.reason == "replaced", effect
        while sink.waiting:  # earlier messages are delivered before later ones
            self.take(sink)

    def resolved(self, effect: ResolveCall) -> None:
        if str(effect.token) == "logon":
            if not isinstance(effect.outcome, TickertapeError):
                self.rounds += 1
                self.core.resubscribe(Named(f"round {self.rounds}"))
                self.settle()
        elif str(effect.token) == f"round {self.rounds}":
            self.placed = True
            assert effect.outcome == [] or isinstance(effect.outcome, Disconnected), effect.outcome
        else:
            self.calls.pop(effect.token)(effect.outcome)

    # -- running and checking -------------------------------------------------------------------------

    def run(self) -> None:
        self.connect()
        actions = [
            *[self.publish] * 2,
            *[self.client_to_server] * 6,
            *[self.server_to_client] * 6,
            *[self.work] * 4,
            *[self.hand_on] * 4,
            *[self.discard] * 2,
            self.time,
            *[self.subscribe] * 2,
            self.turn,
            self.replace,
            *[self.connect] * 2,
        ]
        for _ in range(STEPS):
            if self.random.random() < 0.012:
                (self.crash if self.random.random() < 0.2 else self.lose)()
            else:
                self.random.choice(actions)()
            self.settle()
        self.finish()

    def settle_all(self) -> None:
        """Take all possible steps."""
        quiet = 0
        while quiet < 3:
            before = sum(len(keys) for one in self.applications.values() for keys in one.handed)
            self.connect()
            self.settle()
            while self.line is not None and (self.line.to_server or self.line.to_client):
                self.client_to_server()
                self.server_to_client()
                self.engine.settle()
                self.settle()
            for application in self.applications.values():
                while application.sink is not None and application.sink.waiting:
                    self.take(application.sink)
            self.engine.settle()
            self.settle()
            self.time()
            self.settle()
            after = sum(len(keys) for one in self.applications.values() for keys in one.handed)
            busy = self.line is not None and (self.line.to_server or self.line.to_client)
            quiet = 0 if busy or before != after else quiet + 1

    def finish(self) -> None:
        self.settle_all()
        while any(one.paused for one in self.applications.values()):
            self.turn()
            self.settle_all()
        if self.store is not None:
            self.discard()
            self.lose()
            self.settle()
            self.settle_all()
        log = self.engine.log("t")
        places = {(heard.publisher, heard.sequence): place for place, heard in enumerate(log)}
        positions = list(self.engine.positions())
        numbers = {key: msgspec.json.decode(log[place].body)["n"] for key, place in places.items()}
        for one in self.applications.values():
            assert one.begun is not None
            divisor = {None: 1, FILTERS[1]: 2, FILTERS[2]: 3}[one.filter]
            wanted, free = [], set()
            for key, place in places.items():
                if positions[place] < (one.begun.start or 0):
                    # Accepted and not persisted at the start: no other start point exists.
                    free.add(key)
                elif numbers[key] % divisor == 0:
                    wanted.append(key)
            handed = [[key for key in keys if key not in free] for keys in one.handed]
            for keys in one.handed:
                assert [places[key] for key in keys] == sorted(places[key] for key in keys)
            if self.store is None:
                assert [key for keys in handed for key in keys] == wanted
            else:
                assert {key for keys in handed for key in keys} == set(wanted)
                assert handed[-1] == [key for key in wanted if key not in one.discarded]
                self.counts["discarded"] += len(one.discarded)
            after = next((p for k, p in places.items() if str(Bookmark(*k)) == one.begun.after), -1)
            assert all(places[key] > after for keys in one.handed for key in keys)
            self.counts["handed"] += len(wanted)


@pytest.mark.behaviour(28)
@pytest.mark.parametrize("block", parts(16))
def test_subscription_with_network_faults_loses_and_duplicates_nothing(block: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(block * RUNS, (block + 1) * RUNS):
        world = World(seed, counts)
        try:
            world.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    wanted = {"lost", "crashed", "replaced", "paused", "resumed", "discarded", "handed", "shared"}
    assert {name for name in wanted if counts[name]} == wanted, counts
