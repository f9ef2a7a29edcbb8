"""Ends of position ranges limited by messages or bytes, against counting one by one."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.helpers.tiers import parts
from tests.simulation.engine_peer import Heard, Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.engine.subscriptions import position_limits as reaching
from tickertape.wire.commands import Ack, Command, Resolve, Resolved

ANY = 1 << 62
TOPICS = ("t", "u", "w")


def _world(seed: int, publishes: int = 60) -> tuple[EngineWorld, Peer]:
    world, rng = EngineWorld(seed), Random(seed)
    peers = [world.connect(name) for name in ("one", "two")]
    for _ in range(publishes):
        bodies = [rng.randbytes(rng.choice((0, 1, 40, 900))) for _ in range(rng.choice((1, 1, 5, 30)))]
        rng.choice(peers).publish(rng.choice(TOPICS), bodies)
        if rng.random() < 0.5:
            world.settle()
    world.settle()
    return world, world.connect("reader")


def _ask(world: EngineWorld, peer: Peer, topic: str, positions: tuple[int, int], **more: Any) -> Command:
    fields = {"journal": world.broker.journal.identity, "bookmark": ""} | more
    peer.ids += 1
    peer.send(Resolve(id=peer.ids, topic=topic, positions=positions, **fields))
    world.settle()
    return [c for c, _ in peer.received if isinstance(c, Resolved | Ack) and c.id == peer.ids][-1]


def _reached(log: dict[int, Heard], topic: str, start: int, end: int, messages: int, size: int) -> int:
    """Return the expected end position, counted one by one."""
    took = total = 0
    for place, heard in sorted(log.items()):
        if start <= place < end and heard.topic in (TOPICS[:2] if topic.startswith("^") else (topic,)):
            took += 1
            total += len(heard.body)
            if took > 1 and (took > (messages or ANY) or total > (size or ANY)):
                return place
    return end


@pytest.mark.parametrize("seed", parts(12, 4))
@pytest.mark.parametrize("from_disk", [False, True])
def test_resolve_with_limits_returns_the_exact_end(seed: int, from_disk: bool) -> None:
    world, peer = _world(seed)
    if from_disk:
        world.broker.journal.view.tail.clear()
    log, end = world.positions(), world.broker.journal.commits.persisted_end
    rng = Random(seed)
    for _ in range(12):
        start = rng.randrange(end)
        stop = rng.choice((ANY, rng.randrange(start, end + 1)))
        topic = rng.choice(("t", "u", "^[tu]$"))
        messages, size = rng.choice((0, 1, 2, 10, 200)), rng.choice((0, 1, 100, 5000))
        answer = _ask(world, peer, topic, (start, stop), messages_max=messages, bytes_max=size)
        assert isinstance(answer, Resolved)
        assert (answer.journal, answer.start) == (world.broker.journal.identity, start)
        assert answer.end == _reached(log, topic, start, min(stop, end), messages, size)


@pytest.mark.parametrize("seed", range(4))
def test_resolve_by_the_index_stays_within_the_limits_and_reaches_the_end(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaching, "reach_read_bytes_max", 1)
    monkeypatch.setattr(reaching, "_BLOCKS_AT_A_TIME", 3)
    world, peer = _world(seed, 400)
    world.broker.journal.view.tail.clear()
    log, end = world.positions(), world.broker.journal.commits.persisted_end
    for topic in ("t", "^[tu]$"):
        for messages, size in ((40, 0), (0, 9000), (300, 20_000), (0, 0)):
            at, steps = 0, 0
            while at < end:
                answer = _ask(world, peer, topic, (at, ANY), messages_max=messages, bytes_max=size)
                assert isinstance(answer, Resolved)
                assert at < answer.end <= _reached(log, topic, at, end, messages, size)
                at, steps = answer.end, steps + 1
            assert steps > 1 or not (messages or size)


def test_resolve_reads_a_first_commit_larger_than_the_read_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reaching, "reach_read_bytes_max", 1)
    world = EngineWorld(2)
    publisher, peer = world.connect("one"), world.connect("reader")
    publisher.publish("t", [b"x" * 200] * 3000)
    world.settle()
    world.broker.journal.view.tail.clear()
    start = min(world.positions())
    answer = _ask(world, peer, "t", (start, ANY), messages_max=5)
    assert isinstance(answer, Resolved)
    assert answer.end == start + 5


def test_resolve_at_or_after_the_end_returns_an_empty_range() -> None:
    world, peer = _world(1)
    end = world.broker.journal.commits.persisted_end
    for start in (end, end + 7):
        answer = _ask(world, peer, "t", (start, ANY))
        assert isinstance(answer, Resolved)
        assert (answer.start, answer.end) == (end, end)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"bookmark": "0"}, "bad_option"),
        ({"positions": (3, 2)}, "bad_option"),
        ({"journal": "00" * 16}, "wrong_journal"),
        ({"journal": None}, "wrong_journal"),
        ({"filter": "/a ="}, "bad_filter"),
    ],
)
def test_invalid_resolve_by_positions_is_refused(fields: dict[str, Any], code: str) -> None:
    world, peer = _world(1, 3)
    answer = _ask(world, peer, "t", fields.pop("positions", (0, 1)), **fields)
    assert isinstance(answer, Ack)
    assert answer.code == code
