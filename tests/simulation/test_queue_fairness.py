"""Fair dispatch of a message that arrives alone, for each fairness. The oracle has the one-by-one rule."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.helpers.tiers import parts
from tests.simulation.queue_entries import make_body
from tests.simulation.queue_world import QueuePeer, QueueWorld
from tickertape.engine.runtime.queue_definition import Fairness, QueueDefinition, Semantics

SEEDS_A_PART = 6
MESSAGES = 60


def one_by_one(seed: int, fairness: Fairness, semantics: Semantics, counts: Counter[str]) -> QueueWorld:
    """Publish single messages to some consumers, which acknowledge some of their messages."""
    rng = Random(seed)
    queue = QueueDefinition("q", fairness=fairness, semantics=semantics)
    world = QueueWorld(seed, [queue], counts=counts)
    publisher = world.connect("p")
    peers: list[QueuePeer] = []
    for number in range(rng.randrange(2, 5)):
        peers.append(world.connect(f"c{number}"))
        peers[-1].consume("s", "q", max_backlog=rng.choice((1, 2, 4, 10)))
    world.rest()
    for number in range(MESSAGES):
        holding = [p for p in peers if world.model.consumers[p.conn, "s"].held]
        full = sum(c.backlog - len(c.held) for c in world.model.consumers.values()) == 0
        if holding and (full or rng.random() < 0.5):
            peer = rng.choice(holding)
            held = sorted(key for _, key in world.model.consumers[peer.conn, "s"].held)
            peer.settle("q", "ack", [rng.choice(held)])
        else:
            publisher.put("q", [make_body(number)])
        world.rest()
    return world


@pytest.mark.parametrize(
    ("fairness", "semantics"),
    [
        ("fast", "at-least-once"),
        ("round-robin", "at-least-once"),
        ("proportional", "at-least-once"),
        ("round-robin", "at-most-once"),
    ],
)
@pytest.mark.parametrize("part", parts(20))
def test_queue_message_arriving_alone_is_delivered_to_the_next_consumer_by_turn(
    fairness: Fairness, semantics: Semantics, part: int
) -> None:
    counts: Counter[str] = Counter()
    for seed in range(part * SEEDS_A_PART, (part + 1) * SEEDS_A_PART):
        one_by_one(seed, fairness, semantics, counts)
    assert counts[f"judged: {fairness}"] > 10 * SEEDS_A_PART, counts


@pytest.mark.behaviour(39)
def test_proportional_queue_serves_the_consumer_with_most_unused_capacity() -> None:
    world = QueueWorld(1, [QueueDefinition("q")])
    publisher = world.connect("p")
    busy = {"inky": (2, 1), "blinky": (4, 3), "clyde": (10, 4)}
    peers: dict[str, QueuePeer] = {}
    for number, (name, (backlog, outstanding)) in enumerate(busy.items()):
        peers[name] = world.connect(name)
        peers[name].consume("s", "q", max_backlog=backlog, filter="/g = 'b'" if number else None)
        world.rest()
        publisher.put("q", [make_body(i, "a" if number == 0 else "b") for i in range(outstanding)])
        world.rest()
        peers[name].consume("s", "q", max_backlog=1, replace=True)
        world.rest()
    for name, (backlog, _) in busy.items():
        peers[name].consume("s", "q", max_backlog=backlog, replace=True)
        world.rest()
    assert _held(world, peers) == {"inky": 1, "blinky": 3, "clyde": 4}
    publisher.put("q", [make_body(99)])
    world.rest()
    assert _held(world, peers) == {"inky": 1, "blinky": 3, "clyde": 5}


def test_round_robin_consumer_moved_to_a_queue_takes_turns_behind_earlier_ones() -> None:
    """A replace that moves a subscription to another queue makes it that queue's newest consumer."""
    world = QueueWorld(1, [QueueDefinition("q", fairness="round-robin"), QueueDefinition("other")])
    publisher = world.connect("p")
    peers = {name: world.connect(name) for name in ("moved", "first", "last")}
    for name, queue in (("moved", "other"), ("first", "q"), ("moved", "q"), ("last", "q")):
        replace = (peers[name].conn, "s") in world.model.consumers
        peers[name].consume("s", queue, max_backlog=10, replace=replace)
        world.rest()
    turns: list[str] = []
    for number in range(6):
        publisher.put("q", [make_body(number)])
        world.rest()  # the oracle judges whose turn it was
        turns += [name for name, peer in peers.items() if len(peer.got) > turns.count(name)]
    assert turns == ["first", "moved", "last"] * 2
    assert world.counts["judged: round-robin"] == 5


def _held(world: QueueWorld, peers: dict[str, QueuePeer]) -> dict[str, int]:
    return {name: len(world.model.consumers[peer.conn, "s"].held) for name, peer in peers.items()}
