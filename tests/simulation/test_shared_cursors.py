"""Many subscriptions with filters that fall behind and catch up, in any order of events: they go on together,
and each gets exactly its own, in the order of the log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Final

import pytest

from tests.helpers.tiers import parts, seeds_of
from tests.simulation.engine_peer import Heard, Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.engine.delivery import fanout, log_delivery, shared_cursor
from tickertape.engine.limits import shared_cursors_max
from tickertape.engine.subscriptions.log_feed import Phase

WORLDS_A_PART: Final = 2
PARTS: Final = 200
MUST_HAPPEN: Final = {
    "cohorts": 21,
    "ahead of its place": 21,
    "stalled": 21,
    "messages": 21,
    "frames for several": 21,
    "reads": 21,
    Phase.REPLAY.name: 101,
    Phase.SHARED_REPLAY.name: 101,
    Phase.TAIL.name: 101,
}

KINDS: Final = 4


class _Asked:
    """A subscription to one topic or all, of one kind, from a start to an end, and its expected messages."""

    def __init__(self, rng: Random, world: EngineWorld) -> None:
        self.topic = rng.choice(["a", "a", "a", "b", "^."])
        self.kind = rng.randrange(KINDS)
        positions = sorted(world.positions())
        self.first = rng.choice([*positions, 0]) if positions else 0
        self.stop: int | None = None
        self.bookmark = "0"
        if self.first:
            message = world.positions()[self.first]
            self.bookmark = f"{message.publisher}|{message.sequence}|"
            later = [position for position in positions if position >= self.first]
            if rng.random() < 0.3:
                self.stop = rng.choice(later)
                last = world.positions()[self.stop]
                self.bookmark = f"[{self.bookmark}:{last.publisher}|{last.sequence}|]"
            else:
                self.first += 1  # it begins behind its bookmark

    def expected(self, positions: dict[int, Heard]) -> list[Heard]:
        return [
            message
            for position, message in sorted(positions.items())
            if position >= self.first
            and (self.stop is None or position <= self.stop)
            and (self.topic == "^." or message.topic == self.topic)
            and json.loads(message.body)["k"] == self.kind
        ]


def _bodies(rng: Random, number: int) -> list[bytes]:
    return [
        b'{"k":%d,"n":%d,"x":"%s"}' % (rng.randrange(KINDS), number + i, b"x" * rng.randrange(60))
        for i in range(rng.choice((1, 1, 5, 40)))
    ]


def _run(seed: int, counts: Counter[str]) -> None:
    rng = Random(seed)
    world = EngineWorld(seed, counts=counts)
    if rng.random() < 0.8:
        world.small_tail()
        world.small_bounds()
    publishers = [world.connect(f"publisher {n}") for n in range(2)]
    peers = [world.connect(f"reader {n}") for n in range(3)]
    asked: dict[tuple[Peer, str], _Asked] = {}
    for number in range(0, 6_000, 100):
        rng.choice(publishers).publish(rng.choice("ab"), _bodies(rng, number))
        for _ in range(rng.randrange(4)):
            world.step()
        for _ in range(rng.choice((0, 0, 0, 1, 8)) if len(asked) < 40 else 0):
            peer, one = rng.choice(peers), _Asked(rng, world)
            sub_id = f"s{len(asked)}"
            asked[peer, sub_id] = one
            credit = rng.choice((300, 1 << 13, 1 << 16, 1 << 20))
            peer.subscribe(sub_id, one.topic, bookmark=one.bookmark, filter=f"/k = {one.kind}", credit=credit)
        _happen(rng, world, asked)
        _count(world, counts)
    for peer in peers:
        world.broker.writable(peer.conn)
        peer.resume(*[sub_id for who, sub_id in asked if who is peer and not _is_over(who, sub_id)])
    world.settle()
    positions = world.positions()
    for (peer, sub_id), one in asked.items():
        expected = one.expected(positions)
        assert peer.heard[sub_id] == expected, (sub_id, one.topic, one.bookmark)
        assert sum("completed" in mark for mark in peer.marks[sub_id]) == 1
        assert _is_over(peer, sub_id) == (one.stop is not None)
        counts["messages"] += len(expected)


def _is_over(peer: Peer, sub_id: str) -> bool:
    return "ended" in peer.marks[sub_id]


def _happen(rng: Random, world: EngineWorld, asked: dict[tuple[Peer, str], _Asked]) -> None:
    if not asked:
        return
    peer, sub_id = rng.choice(list(asked))
    chance = rng.random()
    if chance < 0.2:
        world.broker.blocked(peer.conn)
        counts = world.counts
        counts["stalled"] += 1
    elif chance < 0.6:
        world.broker.writable(peer.conn)
    elif chance < 0.8:
        peer.give_credit(sub_id)
    elif not _is_over(peer, sub_id):
        (peer.pause if chance < 0.85 else peer.resume)(sub_id)


def _count(world: EngineWorld, counts: Counter[str]) -> None:
    broker = world.broker._delivery
    counts["cohorts"] += len(broker.shared_cursors)
    for peer in world.peers.values():
        for sub in world.log_feeds(peer.conn).values():
            counts[sub.phase.name] += 1
            if sub.group is not None and sub.position > sub.group.position:
                counts["ahead of its place"] += 1


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lower the bounds so that each is reached."""
    with monkeypatch.context() as patch:
        patch.setattr(shared_cursor, "shared_cursors_max", 3)
        patch.setattr(shared_cursor, "shared_cursor_reach_messages", 200)
        for module in (shared_cursor, log_delivery):
            patch.setattr(module, "shared_cursor_moves_max", 2)
        patch.setattr(fanout, "outbox_bytes_max", 4000)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("part", parts(PARTS))
@pytest.mark.usefixtures("_small")
def test_subscriptions_on_a_shared_cursor_get_exactly_the_covered_messages(part: int) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds_of(range(part * WORLDS_A_PART, (part + 1) * WORLDS_A_PART), counts, MUST_HAPPEN):
        try:
            _run(seed, counts)
        except BaseException:
            print(f"seed {seed}")
            raise
    assert shared_cursors_max > 3, "the bounds of the product are others"
