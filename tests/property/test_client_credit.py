"""Credit between the client state machine and a conforming server: no message waits forever."""

from __future__ import annotations

from random import Random

from tests.unit.client.peer import Named
from tickertape.base.interfaces import Now
from tickertape.base.limits import message_cost_bytes
from tickertape.batch.encode import batch_from_bodies
from tickertape.client.common.effects import DeliverBatch, Send
from tickertape.client.common.subscribe_arguments import make_request
from tickertape.client.protocol.core import ClientProtocol, ConnectionOpened
from tickertape.wire.commands import Ack, Command, Credit, Deliver, LoggedOn, Logon, Subscribe
from tickertape.wire.connection import Connection, Received


class CreditWorld:
    """A server with messages to deliver, and an application that consumes when it likes."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.window = self.random.choice((32, 100, 5_000, 100_000))
        sizes = (0, 10, 300, self.window // 3, self.window, 3 * self.window)
        self.pending = [bytes(self.random.choice(sizes)) for _ in range(self.random.randint(1, 60))]
        self.total = len(self.pending)
        self.core = ClientProtocol("credit")
        self.wire = Connection("server")
        self.now = Now(1.0, 0)
        self.credit = 0
        self.outstanding = 0
        self.unconsumed: list[int] = []
        self.delivered = 0

    def say(self, command: Command, bodies: list[bytes] | None = None) -> None:
        batch = None if bodies is None else batch_from_bodies("orders", bodies)
        self.core.receive(b"".join(self.wire.send(command, batch)), self.now)

    def settle(self) -> None:
        for effect in self.core.effects():
            if isinstance(effect, DeliverBatch):
                self.unconsumed.append(effect.batch.cost)
                self.delivered += len(effect.batch)
            elif isinstance(effect, Send):
                for event in self.wire.feed(b"".join(effect.buffers)):
                    assert isinstance(event, Received)
                    command = event.command
                    if isinstance(command, Logon):
                        self.wire.logged_on()
                    elif isinstance(command, Subscribe):
                        self.credit = command.credit
                    elif isinstance(command, Credit):
                        assert 0 < command.bytes <= self.outstanding, "more was given back than was used"
                        self.outstanding -= command.bytes

    def deliver(self) -> bool:
        """Send messages within the credit. Return False when no message fits."""
        bodies: list[bytes] = []
        cost = 0
        for body in self.pending[: self.random.randint(1, 8)]:
            more = len(body) + message_cost_bytes
            alone = not self.outstanding and not bodies
            if self.outstanding + cost + more > self.credit and not alone:
                break
            bodies.append(body)
            cost += more
        if not bodies:
            return False
        del self.pending[: len(bodies)]
        self.outstanding += cost
        self.say(Deliver(sub_id="s"), bodies)
        return True

    def consume(self) -> bool:
        if not self.unconsumed:
            return False
        self.core.consumed("s", self.unconsumed.pop(0))
        return True

    def wait(self) -> bool:
        """Let time pass until the next deadline. Return False when the client has none."""
        deadline = self.core.next_deadline()
        if deadline is None:
            return False
        self.now = Now(deadline, 0)
        self.core.wake(self.now)
        return True

    def run(self) -> None:
        self.core.receive(ConnectionOpened(Named("logon")), self.now)
        self.settle()
        self.say(
            LoggedOn(
                version=0, software="", instance="m", journal="j", epoch=1, publisher=1, last_persisted=0
            )
        )
        self.core.subscribe(Named("call"), make_request("orders", "s", depth=self.window), Named("sink"))
        self.settle()
        self.say(Ack(id=1))
        while self.delivered < self.total or self.unconsumed:
            actions = [self.deliver, self.deliver, self.consume, self.wait]
            self.random.shuffle(actions)
            assert any(self._does(action) for action in [*actions, self.wait, self.deliver]), "a deadlock"

    def _does(self, action: object) -> bool:
        assert callable(action)
        done = bool(action())
        self.settle()
        return done


def test_client_credit_never_starves_the_subscription() -> None:
    for seed in range(400):
        world = CreditWorld(seed)
        try:
            world.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
