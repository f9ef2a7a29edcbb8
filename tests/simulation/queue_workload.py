"""Random queues, and random clients that publish, consume, settle and leave.

Must never decide by itself: `choose` does, with a seeded generator or with Hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tests.simulation.queue_entries import CONDITIONS, Key, make_body
from tests.simulation.queue_world import QueuePeer, QueueWorld, Settling
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.wire.settlement import Action

Choose: TypeAlias = Callable[[Sequence[Any]], Any]

TOPICS = ("t.1", "t.2", "work")
"""Topics of published messages. `work` is a queue of its own too."""
FILTERS = (None, None, None, *(text for text in CONDITIONS if text != "/b = 1"))


def random_queues(choose: Choose) -> list[QueueDefinition]:
    """Return one to three queues with random settings."""
    queues = [random_queue(choose, "work", "")]
    if choose((True, False)):
        queues.append(random_queue(choose, "some", "t.1"))
    if choose((True, False)):
        queues.append(random_queue(choose, "wide", r"^t\.", default_publish_target="t.2"))
    return queues


def random_queue(choose: Choose, name: str, underlying: str, **more: Any) -> QueueDefinition:
    """Return a queue with random settings over a topic."""
    options: dict[str, Any] = {"name": name, "underlying": underlying, **more}
    options["filter"] = choose((None, None, None, "/g != 'c'"))
    options["expiration"] = choose((None, None, 3.0, 60.0))
    options["expiration_model"] = choose(("minimum", "message", "queue"))
    options["priority"] = choose((None, None, "/p"))
    options["barrier_expression"] = choose((None, None, "/b = 1"))
    options["max_backlog"] = choose((None, None, 2, 5))
    options["max_per_subscription_backlog"] = choose((None, 1, 4))
    options["target_queue_depth"] = choose((None, None, None, 3, 20))
    options["dead_letter"] = choose((None, "dead"))
    options["leasing"] = choose(("lenient", "strict"))
    if choose((False, False, False, True)):
        return QueueDefinition(**options, semantics="at-most-once")
    return QueueDefinition(
        **options,
        lease_period=choose((None, 0.5, 2.0, 30.0)),
        fairness=choose((None, "fast", "round-robin", "proportional")),
        max_deliveries=choose((None, None, 1, 2, 3)),
        max_cancels=choose((None, None, 0, 1, 2)),
    )


class QueueClients:
    """The clients of one simulation. Their names reconnect after each crash."""

    def __init__(self, world: QueueWorld, choose: Choose) -> None:
        self.world = world
        self.choose = choose
        self.numbers = 0
        self.peers: dict[str, QueuePeer] = {}
        self.kept: dict[str, list[Settling]] = {}
        """The settlements that each client resends when it reconnects."""
        self.received: list[tuple[str, str, Key]] = []
        """Everything that was delivered: client, queue, bookmark."""

    def begin(self) -> None:
        """After a start of the engine: all connect."""
        for name in ("p", "c1", "c2", "c3"):
            self.connect(name)

    def forget(self) -> None:
        """Record before a crash the settlements that clients keep over it."""
        for peer in self.peers.values():
            self.keep(peer)

    def keep(self, peer: QueuePeer) -> None:
        self.kept[peer.name] = peer.keep_unacknowledged()
        self.received += [(peer.name, queue, key) for queue, key in peer.got]

    def connect(self, name: str) -> QueuePeer:
        """Log a client on and resend its unacknowledged settlements."""
        peer = self.peers[name] = self.world.connect(name)
        while peer.logged_on is None:
            self.world.settle()
        for settling in self.kept.pop(name, []):
            if settling.sequence >= peer.next_sequence:
                peer.unacknowledged.append(settling)
                peer.send_settlement(settling)
                self.world.counts["settled again after a loss"] += 1
        return peer

    # -- actions --------------------------------------------------------------------------------------

    def act(self) -> None:
        """Run a random action of a random client."""
        self.choose(
            (self.publish,) * 4 + (self.consume,) * 3 + (self.settle,) * 5
            + (self.replace, self.leave, self.lose, self.pass_time, self.settle_by_filter)
        )()  # fmt: skip

    def peer(self) -> QueuePeer:
        return self.peers[self.choose(("c1", "c1", "c2", "c2", "c3"))]

    def queue(self) -> str:
        return str(self.choose([d.name for d in self.world.definitions]))

    def publish(self) -> None:
        """To the topics, or to a queue by its name."""
        bodies = []
        for _ in range(self.choose((1, 1, 2, 5))):
            self.numbers += 1
            group, priority = self.choose("aabbc"), self.choose((0, 1, 2, 7))
            bodies.append(make_body(self.numbers, group, priority, int(self.choose((0,) * 9 + (1,)))))
        peer = self.choose((self.peers["p"], self.peers["p"], self.peer()))
        topic = self.choose((*TOPICS, *(d.name for d in self.world.definitions)))
        peer.put(
            topic, bodies, sequenced=self.choose((True, True, False)), life_ms=self.choose((0, 0, 0, 2_000))
        )

    def consume(self) -> None:
        """Subscribe to one queue, or to all that match."""
        peer, sub_id = self.peer(), self.choose(("x", "y"))
        if (peer.conn, sub_id) in self.world.model.consumers:
            return
        self._subscribe(peer, sub_id, replace=False)

    def replace(self) -> None:
        """Replace the filter and the backlog. The consumer keeps its messages."""
        peer, sub_id = self.peer(), self.choose(("x", "y"))
        if (peer.conn, sub_id) in self.world.model.consumers:
            self._subscribe(peer, sub_id, replace=True)

    def _subscribe(self, peer: QueuePeer, sub_id: str, *, replace: bool) -> None:
        topic = self.choose([d.name for d in self.world.definitions] * 2 + ["^(work|some)$"])
        peer.consume(
            sub_id,
            topic,
            max_backlog=self.choose((None, 1, 2, 5, 100)),
            filter=self.choose(FILTERS),
            replace=replace,
        )

    def settle(
        self, actions: Sequence[Action] = ("ack", "ack", "ack", "cancel", "cancel", "expire", "extend")
    ) -> None:
        """Settle some messages of a client: its own, those of another one, or messages never delivered."""
        peer = self.peer()
        known = [
            h for c in self.world.model.consumers.values() if c.conn == peer.conn for h in sorted(c.held)
        ]
        if self.choose((False,) * 5 + (True,)):
            known = [(name, key) for name, s in self.world.model.queues.items() for key in s.entries]
        if not known:
            return
        queue = self.choose(sorted({name for name, _ in known}))
        keys = [key for name, key in known if name == queue]
        if self.world.model.queues[queue].definition.at_most_once:
            # Unspecified: the backlog that an acknowledgement of a message in flight frees.
            keys = [key for key in keys if self.world.model.queues[queue].entries[key].state == "done"]
        if not keys:
            return
        if self.choose((True, False)):
            keys = [self.choose(keys)]
        action = self.choose(actions)
        extend_ms = self.choose((100, 5_000)) if action == "extend" else 0
        peer.settle(queue, action, keys, extend_ms=extend_ms, alone=self.choose((True, False)))

    def settle_by_filter(self) -> None:
        """Settle all messages that pass a filter."""
        queue = self.queue()
        if not self.world.model.queues[queue].definition.at_most_once:
            action = self.choose(("ack", "ack", "cancel", "expire"))
            condition = self.choose(("TRUE", "/g = 'a'", "/p > 1"))
            self.peer().settle(queue, action, filter=condition, alone=self.choose((True, True, False)))

    def leave(self) -> None:
        """End one subscription."""
        peer, sub_id = self.peer(), self.choose(("x", "y"))
        if (peer.conn, sub_id) in self.world.model.consumers:
            peer.leave(sub_id)

    def lose(self) -> None:
        """Cut a connection and reconnect."""
        peer = self.peer()
        self.keep(peer)
        self.world.hang_up(peer)
        self.world.counts["connections lost"] += 1
        self.connect(peer.name)

    def pass_time(self) -> None:
        """Time passes, less or more than a lease."""
        self.world.advance(self.choose((0.1, 0.6, 1.5, 4.0, 40.0)))

    # -- the end --------------------------------------------------------------------------------------

    def compare_browsed(self) -> None:
        """Compare a browse of each queue with the oracle."""
        self.world.rest()
        reader = self.world.connect("reader")
        for name, state in self.world.model.queues.items():
            must = state.open_now()
            gone = {e.key for e in state.entries.values() if e.state == "done"}
            lent = {e.key for e in state.of("leased") if e.here and self.world.wall < e.ends[0]}
            found = self.world.browse(reader, name)
            assert len(found) == len(set(found)), "each once"
            due = {e.key for e in state.entries.values() if self.world.wall >= e.expires}
            assert must - due <= set(found), f"{name}: {must - due - set(found)} cannot be seen"
            assert not set(found) & (gone | lent), f"{name}: {set(found) & (gone | lent)} can be seen"
            self.world.counts["messages browsed"] += len(found)

    def drain(self) -> None:
        """Take the remaining messages with one consumer, and check that none is left."""
        for peer in list(self.peers.values()):
            self.keep(peer)
            self.world.hang_up(peer)
        last = self.world.connect("last")
        for name, state in self.world.model.queues.items():
            last.consume(name, name, max_backlog=1000)
            for _ in range(1000):
                self.world.rest()
                held = [key for queue, key in last.got if queue == name and self._owes(last, name, key)]
                if not held:
                    break
                last.settle(name, "ack", held)
            assert not [entry for entry in state.entries.values() if entry.here], f"{name} is not empty"

    def _owes(self, peer: QueuePeer, queue: str, key: Key) -> bool:
        return any((queue, key) in c.held for c in self.world.model.consumers.values() if c.conn == peer.conn)
