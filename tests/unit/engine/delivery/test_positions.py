"""Positions in deliveries of a position range equal the positions in the log."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from tests.helpers.tiers import parts
from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.engine.limits import positions_per_frame_max
from tickertape.wire.commands import Ack, Deliver

TOPICS = ("t", "u", "w")


def _world(seed: int) -> tuple[EngineWorld, Peer]:
    world, rng = EngineWorld(seed), Random(seed)
    peers = [world.connect(name) for name in ("one", "two")]
    for _ in range(40):
        rng.choice(peers).publish(rng.choice(TOPICS), [rng.randbytes(rng.choice((1, 40, 900)))])
        if rng.random() < 0.5:
            world.settle()
    world.settle()
    return world, world.connect("reader")


def _read(world: EngineWorld, peer: Peer, topic: str, start: int, end: int, **more: Any) -> dict[int, bytes]:
    """Return bodies by the positions in the deliveries."""
    journal = world.broker.journal.identity
    before = len(peer.received)
    sub_id = f"s{peer.ids}"
    peer.subscribe(sub_id, topic, positions=(start, end), journal=journal, numbered=True, **more)
    world.settle()
    found: dict[int, bytes] = {}
    for command, batch in peer.received[before:]:
        if isinstance(command, Deliver) and batch is not None:
            assert command.sub_id == sub_id
            places = np.frombuffer(command.positions, "<u8").tolist()
            if len(places) < batch.count:
                places = range(places[0], places[0] + batch.count)
            assert len(places) == batch.count
            found |= {place: batch.body(i) for i, place in enumerate(places)}
    assert peer.marks[sub_id][-1] == "ended"
    return found


@pytest.mark.parametrize("seed", parts(12, 4))
@pytest.mark.parametrize("from_disk", [False, True])
def test_numbered_delivery_has_the_log_position_of_every_message(seed: int, from_disk: bool) -> None:
    world, peer = _world(seed)
    if from_disk:
        world.broker.journal.view.tail.clear()
    log = world.positions()
    end = world.broker.journal.commits.persisted_end
    rng = Random(seed)
    for topic in ("t", "^[tu]$"):
        first = rng.randrange(end)
        last = rng.randrange(first, end + 1)
        expected = {
            place: heard.body
            for place, heard in log.items()
            if first <= place < last and heard.topic in ("t" if topic == "t" else "tu")
        }
        assert _read(world, peer, topic, first, last, credit=rng.choice((100, 4096))) == expected


def test_filtered_delivery_keeps_the_log_positions() -> None:
    world = EngineWorld(3)
    publisher, peer = world.connect("one"), world.connect("reader")
    publisher.publish("t", [b'{"n": %d}' % n for n in range(50)])
    world.settle()
    log = world.positions()
    end = world.broker.journal.commits.persisted_end
    found = _read(world, peer, "t", 0, end, filter="/n % 7 = 3")
    passing = {b'{"n": %d}' % n for n in range(3, 50, 7)}
    assert found == {place: heard.body for place, heard in log.items() if heard.body in passing}
    assert len(found) == 7


def test_numbered_frame_has_a_bounded_number_of_positions() -> None:
    world = EngineWorld(4)
    publisher, peer = world.connect("one"), world.connect("reader")
    publisher.publish("t", [b""] * (positions_per_frame_max + 5))
    world.settle()
    end = world.broker.journal.commits.persisted_end
    _read(world, peer, "t", 0, end, credit=1 << 21)
    counts = [batch.count for command, batch in peer.received if isinstance(command, Deliver) and batch]
    assert counts == [positions_per_frame_max, 5]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"bookmark": "0"}, "bad_option"),
        ({}, "bad_option"),
        ({"positions": (0, 1), "options": "conflation=1s"}, "bad_option"),
        ({"positions": (0, 1), "options": "live"}, "bad_option"),
    ],
)
def test_numbered_is_refused_for_other_than_plain_position_ranges(fields: dict[str, Any], code: str) -> None:
    world = EngineWorld(5)
    peer = world.connect("reader")
    if "positions" in fields:
        fields = fields | {"journal": world.broker.journal.identity}
    number = peer.subscribe("s", "t", numbered=True, **fields)
    world.settle()
    answer = peer.answers[number]
    assert isinstance(answer, Ack)
    assert answer.code == code
    assert "numbered" in answer.text
