"""Client state machine on the engine in virtual time: records, then messages, through lost connections.

Connections are lost at any byte, and the server crashes. Each result must be the dict of the log at its
position, for the records that match the filter. The messages after it must be all matching messages of the
log after this position, each once and in order, also across connections. A repeated query starts again from
its result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from tests.helpers.sow_engine import SowEngine, publish
from tests.helpers.tiers import parts
from tests.simulation.engine_peer import Peer
from tests.simulation.line import Line
from tests.unit.client.peer import Named, UnusedSink, UnusedWaiter
from tickertape.base.errors import Disconnected, TickertapeError
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common.effects import (
    CaughtUp,
    DeliverBatch,
    DeliverShared,
    End,
    Notice,
    ResolveCall,
    Send,
    SnapshotBegun,
    SnapshotEnded,
    Started,
)
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.protocol.core import ClientProtocol, ConnectionEnded, ConnectionOpened
from tickertape.client.sow.query_arguments import make_query
from tickertape.engine.runtime.sow_definition import SowDefinition

RUNS = 20
STEPS = 400
SLICES = (1, 40, 500, 1 << 20)
"""How many bytes arrive at once."""
KEYS = 12
FILTERS = (None, "/n % 2 = 0")
Found = tuple[int, int, bytes]
"""Publisher, sequence and body."""


class Round:
    """A result and the messages after it."""

    def __init__(self, as_of: str) -> None:
        self.as_of = as_of
        self.records: list[Found] = []
        self.keys: set[str] = set()
        self.complete = False
        self.messages: list[Found] = []


class Handler(UnusedSink):
    """A subscription whose handler takes its time."""

    def __init__(self, request: SubscribeRequest, filter_text: str | None) -> None:
        self.request = request
        self.filter = filter_text
        self.waiting: list[MessageBatch] = []
        self.rounds: list[Round] = []

    def take(self, batch: MessageBatch) -> None:
        for message in batch:
            found = int(message.publisher), message.sequence, message.data
            if message.command == "group_begin":
                self.rounds.append(Round(message.bookmark or ""))
                continue
            at = self.rounds[-1]
            if message.command == "group_end":
                assert not at.complete
                at.complete = True
            elif message.command == "sow":
                assert not at.complete
                assert message.sow_key not in at.keys, "a record twice"
                at.keys.add(str(message.sow_key))
                at.records.append(found)
            else:
                assert at.complete, "a message before the end of the result"
                at.messages.append(found)


class World:
    """An engine, two publishers, one client, one seed."""

    def __init__(self, seed: int, counts: Counter[str]) -> None:
        self.random = Random(seed)
        self.counts = counts
        self.engine = SowEngine(SowDefinition("t", key=("/id",)), seed=seed)
        self.begin_publishing()
        self.core = ClientProtocol("client")
        self.core.subscriptions.keep = True
        self.line: Line | None = None
        self.number = 0
        self.resubscriptions = 0
        self.placed = True
        """Whether everything was placed on this connection."""
        self.handlers: list[Handler] = []
        self.calls: dict[object, Callable[[object], None]] = {}

    def begin_publishing(self) -> None:
        self.engine.small_tail()
        self.publishers: list[Peer] = [self.engine.connect("even"), self.engine.connect("odd")]

    # -- events ---------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Crash the server: unsynced messages are lost, and it restarts."""
        self.lose()
        self.counts["crashed"] += 1
        self.engine.disk = self.engine.disk.crash_clone(self.engine.rng)
        self.engine.open()
        self.begin_publishing()

    def publish(self) -> None:
        rows = []
        for _ in range(self.random.choice((1, 1, 3, 20))):
            topic = "t" if self.random.random() < 0.8 else "u"
            key = self.random.randrange(KEYS)
            rows.append((topic, b'{"id": %d, "n": %d}' % (key, self.number)))
            self.number += 1
        publish(self.random.choice(self.publishers), rows)

    def query(self) -> None:
        if self.core.logon.logged_on is None or not self.placed or self.calls or len(self.handlers) >= 3:
            return
        filter_text = self.random.choice(FILTERS)
        order_by = self.random.choice((None, "/n DESC"))
        request = make_query(
            "t", f"s{len(self.handlers)}", follow=True, filter=filter_text, order_by=order_by, depth=600
        )
        request = msgspec.structs.replace(request, handled=True)
        handler, token = Handler(request, filter_text), UnusedWaiter()

        def answered(outcome: object) -> None:
            if isinstance(outcome, TickertapeError):
                assert isinstance(outcome, Disconnected), outcome
                self.handlers.remove(handler)
            else:
                self.counts["began"] += 1

        self.handlers.append(handler)
        self.calls[token] = answered
        self.core.subscribe(token, request, handler)

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
        for handler in self.handlers:
            if handler.waiting and self.random.random() < 0.6:
                self.take(handler)

    def take(self, handler: Handler) -> None:
        batch = handler.waiting.pop(0)
        handler.take(batch)
        if batch.cost:
            self.core.consumed(handler.request.context.sub_id, batch.cost, handler.request)

    def lose(self) -> None:
        line, self.line = self.line, None
        if line is None:
            return
        self.counts["lost"] += 1
        line.cut()
        self.core.receive(ConnectionEnded(Disconnected("cut")), self.engine.now())

    def connect(self) -> None:
        if self.line is None:
            self.line = Line(self.engine)
            self.placed = False
            self.core.receive(ConnectionOpened(Named("logon")), self.engine.now())

    # -- carrying out ---------------------------------------------------------------------------------

    def settle(self) -> None:
        for effect in self.core.effects():
            if isinstance(effect, Send):
                assert self.line is not None
                self.line.to_server += b"".join(effect.buffers)
            elif isinstance(effect, DeliverBatch):
                self.of(effect.sink).waiting.append(effect.batch)
            elif isinstance(effect, DeliverShared):
                for sink, share, _ in effect.parts:
                    self.of(sink).waiting.append(share)
            elif isinstance(effect, ResolveCall):
                self.resolved(effect)
            elif isinstance(effect, End):
                assert isinstance(effect.error, Disconnected), effect
                assert not self.of(effect.sink).rounds, "a kept subscription ended"
            else:
                seen = CaughtUp | Notice | Started | SnapshotBegun | SnapshotEnded
                assert isinstance(effect, seen) or type(effect).__name__ in ("State", "ConnectionDown"), (
                    effect
                )

    @staticmethod
    def of(sink: object) -> Handler:
        assert isinstance(sink, Handler)
        return sink

    def resolved(self, effect: ResolveCall) -> None:
        if str(effect.token) == "logon":
            if not isinstance(effect.outcome, TickertapeError):
                self.resubscriptions += 1
                self.core.resubscribe(Named(f"round {self.resubscriptions}"))
                self.settle()
        elif str(effect.token) == f"round {self.resubscriptions}":
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
            self.time,
            *[self.query] * 2,
            *[self.connect] * 2,
        ]
        for _ in range(STEPS):
            if self.random.random() < 0.015:
                (self.crash if self.random.random() < 0.2 else self.lose)()
            else:
                self.random.choice(actions)()
            self.settle()
        self.finish()

    def handed(self) -> int:
        return sum(len(at.records) + len(at.messages) for one in self.handlers for at in one.rounds)

    def settle_all(self) -> None:
        """Take all possible steps."""
        quiet = 0
        while quiet < 3:
            before = self.handed()
            self.connect()
            self.settle()
            while self.line is not None and (self.line.to_server or self.line.to_client):
                self.client_to_server()
                self.server_to_client()
                self.engine.settle()
                self.settle()
            for handler in self.handlers:
                while handler.waiting:
                    self.take(handler)
            self.settle()
            self.engine.settle()
            self.settle()
            self.time()
            self.settle()
            busy = self.line is not None and (self.line.to_server or self.line.to_client)
            quiet = 0 if busy or before != self.handed() else quiet + 1

    def finish(self) -> None:
        self.settle_all()
        log = [(one.topic, (one.publisher, one.sequence, one.body)) for one in self.engine.log()]
        for handler in self.handlers:
            assert handler.rounds
            assert handler.rounds[-1].complete
            for at in handler.rounds:
                self.check(handler, at, log, last=at is handler.rounds[-1])
            self.counts["restarted"] += len(handler.rounds) > 1
            self.counts["messages"] += len(handler.rounds[-1].messages)

    def check(self, handler: Handler, at: Round, log: list[tuple[str, Found]], *, last: bool) -> None:
        """Compare a result and the messages after it with the log."""

        def matches(found: Found) -> bool:
            return handler.filter is None or fields(found)["n"] % 2 == 0

        places = [f"{found[0]}|{found[1]}|" for _, found in log]
        position = places.index(at.as_of) + 1 if at.as_of else 0
        state = {fields(found)["id"]: found for topic, found in log[:position] if topic == "t"}
        wanted = {found for found in state.values() if matches(found)}
        assert set(at.records) == wanted if at.complete else set(at.records) <= wanted
        assert len(set(at.records)) == len(at.records)
        after = [found for topic, found in log[position:] if topic == "t" and matches(found)]
        assert at.messages == (after if last else after[: len(at.messages)])


def fields(found: Found) -> Any:
    """Return the fields of a body."""
    return msgspec.json.decode(found[2])


@pytest.mark.behaviour(51)
@pytest.mark.behaviour(52)
@pytest.mark.parametrize("block", parts(16))
def test_records_and_messages_equal_the_log_through_network_faults(block: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(block * RUNS, (block + 1) * RUNS):
        world = World(seed, counts)
        try:
            world.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    wanted = {"lost", "crashed", "began", "restarted", "messages"}
    assert {name for name in wanted if counts[name]} == wanted, counts
