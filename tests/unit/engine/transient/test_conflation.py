"""Conflation of non-persistent topics: clock intervals, and bounded waiting messages."""

from __future__ import annotations

import json
from random import Random

import pytest

from tests.helpers.tiers import parts
from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.engine.conflation.conflater import Conflater
from tickertape.engine.limits import conflation_piece_messages_max
from tickertape.engine.transient.backlog import TransientFeed
from tickertape.engine.transient.delivery import TransientDelivery
from tickertape.engine.transient.slow_consumers import SlowConsumerLimits
from tickertape.wire.commands import Ack, Unsubscribe

RECORDED = frozenset({"log/a"})
KEYED = "conflation=1s,conflation_key=[/k]"


def _world(seed: int = 1, limits: SlowConsumerLimits | None = None) -> EngineWorld:
    return EngineWorld(seed, recorded=RECORDED, slow_clients=limits)


def _unrecorded(world: EngineWorld) -> TransientDelivery:
    return world.broker.services.transient


def _held_bytes(world: EngineWorld) -> int:
    return world.broker.subscriptions.conflation.budget.bytes


def _publish(peer: Peer, topic: str, *messages: tuple[object, int]) -> None:
    bodies = [json.dumps({"k": key, "n": number}).encode() for key, number in messages]
    peer.publish(topic, bodies, sequenced=False)


def _numbers(peer: Peer, sub_id: str = "s") -> list[int]:
    return [json.loads(heard.body)["n"] for heard in peer.heard[sub_id]]


def _pass(world: EngineWorld, seconds: float) -> None:
    """Let time pass as a driver does: wake at deadlines, and work off all steps."""
    end = world.mono + seconds
    while world.mono < end:
        world.settle()
        world.wake(min(0.05, max(end - world.mono, 0.001)))
    world.settle()


@pytest.mark.behaviour(18)
def test_clock_ends_a_conflation_interval_of_a_non_persistent_topic() -> None:
    world = _world()
    publisher, peer = world.connect("p"), world.connect("s")
    answer = peer.subscribe("s", "u", options=KEYED)
    _publish(publisher, "u", ("a", 1), ("b", 2), ("a", 3))
    _pass(world, 0.5)
    _publish(publisher, "u", ("b", 4), ("c", 5))
    _pass(world, 0.4)
    assert peer.answers[answer] == Ack(id=answer)
    assert _numbers(peer) == []
    _pass(world, 0.2)
    assert _numbers(peer) == [3, 4], "the last of each, in the order of the firsts"
    _pass(world, 0.5)
    assert _numbers(peer) == [3, 4, 5]
    assert _held_bytes(world) == 0


@pytest.mark.parametrize("seed", parts(40, 13))
def test_each_interval_delivers_the_last_message_in_the_order_of_the_firsts(seed: int) -> None:
    rng = Random(seed)
    world = _world(seed)
    unrecorded = _unrecorded(world)
    unrecorded.step_bytes_max = rng.choice((1, 5_000, 1 << 20))
    unrecorded.written()
    publisher, peer = world.connect("p"), world.connect("s")
    peer.subscribe("s", "^u", options=KEYED, credit=rng.choice((60, 200, 4096)))
    opened: dict[tuple[str, int], int] = {}
    wanted: list[int] = []
    place: dict[tuple[str, int], int] = {}
    for number in range(150):
        topic, key = rng.choice(("u1", "u2")), rng.randrange(4)
        _publish(publisher, topic, (key, number))
        at = int(world.mono * 1e6)
        if at >= opened.get((topic, key), 0) + 1_000_000:
            opened[topic, key], place[topic, key] = at, len(wanted)
            wanted.append(number)
        wanted[place[topic, key]] = number
        for _ in range(rng.randrange(3)):
            world.step()
        if rng.random() < 0.3:
            world.wake(rng.choice((0.01, 0.2, 1.5)))
        if rng.random() < 0.3:
            peer.give_credit("s")
        heard = _numbers(peer)
        assert heard == wanted[: len(heard)]
    _pass(world, 1.5)
    assert _numbers(peer) == wanted
    assert _held_bytes(world) == unrecorded.slow_consumers.held_bytes == 0
    assert not any(unrecorded.pending)
    assert unrecorded.next_deadline() is None


@pytest.mark.behaviour(20)
@pytest.mark.parametrize("seed", parts(60, 20))
def test_repeated_replaces_with_and_without_conflation_lose_nothing(seed: int) -> None:
    """Each subscription delivers the messages of its time before those of the next one."""
    rng = Random(seed)
    world = _world(seed, SlowConsumerLimits(connection_bytes=rng.choice((2_000, 16 << 20))))
    unrecorded = _unrecorded(world)
    unrecorded.step_bytes_max = rng.choice((1, 5_000, 1 << 20))
    unrecorded.written()
    publisher, peer = world.connect("p"), world.connect("s")
    wanted: list[int] = []
    opened: dict[int, tuple[int, int]] = {}
    conflates = True
    peer.subscribe("s", "u", options=KEYED, credit=200)
    heard: list[int] = []
    for number in range(150):
        key = rng.randrange(3)
        _publish(publisher, "u", (key, number))
        at = int(world.mono * 1e6)
        if not conflates:
            wanted.append(number)
        elif key not in opened or at >= opened[key][0] + 1_000_000:
            opened[key] = at, len(wanted)
            wanted.append(number)
        else:
            wanted[opened[key][1]] = number
        if rng.random() < 0.1:
            heard += _numbers(peer)
            conflates = rng.random() < 0.7
            opened.clear()
            options = f"replace,{KEYED}" if conflates else "replace"
            peer.subscribe("s", "u", options=options, credit=rng.choice((60, 200, 4096)))
        for _ in range(rng.randrange(3)):
            world.step()
        _shake(world, peer, rng)
    world.broker.writable(peer.conn)
    _pass(world, 1.5)
    assert heard + _numbers(peer) == wanted
    assert _held_bytes(world) == unrecorded.slow_consumers.held_bytes == 0
    assert not any(unrecorded.pending)


def _shake(world: EngineWorld, peer: Peer, rng: Random) -> None:
    if rng.random() < 0.3:
        world.wake(rng.choice((0.01, 0.2, 1.5)))
    if rng.random() < 0.3:
        peer.give_credit("s")
    if rng.random() < 0.1:
        world.broker.blocked(peer.conn)
    elif rng.random() < 0.1:
        world.broker.writable(peer.conn)
        world.collect()


def test_filter_applies_before_conflation_and_select_list_after() -> None:
    world = _world()
    publisher, peer = world.connect("p"), world.connect("s")
    peer.subscribe("s", "u", filter="/n < 3", options=KEYED + ",select=[-/,+/n]")
    peer.subscribe("plain", "u", filter="/n < 3")
    _publish(publisher, "u", ("a", 1), ("a", 2), ("a", 3), ("b", 0))
    _pass(world, 1.2)
    assert [heard.body for heard in peer.heard["s"]] == [b'{"n":2}', b'{"n":0}']
    assert _numbers(peer, "plain") == [1, 2, 0]


def test_pattern_subscription_conflates_recorded_and_unrecorded_topics() -> None:
    world = _world()
    publisher, peer = world.connect("p"), world.connect("s")
    peer.subscribe("s", "/a$", options=KEYED)
    _pass(world, 0.1)
    for number in range(6):
        _publish(publisher, "rest/a", ("x", number))
        publisher.publish("log/a", [b'{"k":"x","n":%d}' % (number + 10)])
    _pass(world, 1.5)
    assert sorted(_numbers(peer)) == [5, 15]


def test_held_messages_are_delivered_before_those_of_the_replacement() -> None:
    world = _world()
    publisher, peer = world.connect("p"), world.connect("s")
    peer.subscribe("s", "u", options=KEYED, credit=60)
    _publish(publisher, "u", *[(key, key) for key in range(8)])
    heard = peer.heard["s"]
    peer.subscribe("s", "v", options="replace", credit=60)
    _publish(publisher, "v", ("a", 100), ("b", 101))
    world.settle()
    assert [json.loads(h.body)["n"] for h in [*heard, *peer.heard["s"]]] == [*range(8), 100, 101]
    assert _held_bytes(world) == 0


def test_ended_conflated_subscription_leaves_no_state_and_sends_nothing() -> None:
    world = _world()
    publisher, peer = world.connect("p"), world.connect("s")
    peer.subscribe("s", "u", options=KEYED)
    _publish(publisher, "u", ("a", 1))
    assert _held_bytes(world) > 0
    peer.send(Unsubscribe(id=9, sub_ids=("s",)))
    assert _held_bytes(world) == 0
    assert _unrecorded(world).next_deadline() is None
    _pass(world, 1.5)
    assert _numbers(peer) == []


def test_conflated_messages_of_a_slow_reader_spill_and_arrive_in_order() -> None:
    world = _world(limits=SlowConsumerLimits(connection_bytes=20_000, age_seconds=30.0))
    publisher, peer = world.connect("p"), world.connect("s")
    peer.subscribe("s", "u", options="conflation=10ms", credit=100)
    world.broker.blocked(peer.conn)
    unrecorded = _unrecorded(world)
    wanted = []
    for number in range(500):
        _publish(publisher, "u", ("a", number), ("b", number + 1000))
        wanted.append(number + 1000)
        world.wake(0.02)
        while world.broker.has_work or world.spilled.jobs:
            world.run_spill() if world.spilled.jobs else world.work()
    assert unrecorded.slow_consumers.offline_connections == 1
    world.broker.writable(peer.conn)
    _pass(world, 0.1)
    assert _numbers(peer) == wanted
    assert unrecorded.slow_consumers.held_bytes == 0


def test_conflated_subscriber_that_never_reads_is_ended_by_age() -> None:
    world = _world(limits=SlowConsumerLimits(age_seconds=5.0))
    publisher, peer = world.connect("p"), world.connect("s")
    peer.subscribe("s", "u", options="conflation=10ms")
    world.broker.blocked(peer.conn)
    _publish(publisher, "u", ("a", 1))
    for _ in range(8):
        world.wake(1.0)
        while world.broker.has_work:
            world.work()
    assert peer.goodbye is not None
    assert peer.goodbye.code == "slow_client"
    assert _held_bytes(world) == 0


def test_conflated_subscriptions_share_one_memory_limit() -> None:
    world = _world()
    world.broker.subscriptions.conflation.budget.bytes_max = 20_000
    publisher, peer = world.connect("p"), world.connect("s")
    for number in range(4):
        peer.subscribe(f"s{number}", "u", options=KEYED, credit=1 << 20)
    for number in range(60):
        _publish(publisher, "u", (number, number))
        assert _held_bytes(world) <= 20_000
    world.settle()
    early = [len(_numbers(peer, f"s{number}")) for number in range(4)]
    assert all(early), "the oldest left early"
    _pass(world, 1.5)
    assert [_numbers(peer, f"s{number}") for number in range(4)] == [list(range(60))] * 4


@pytest.mark.parametrize("trigger", ["publish", "clock", "flush"])
def test_conflation_step_processes_a_bounded_piece(trigger: str) -> None:
    world = _world()
    publisher, peer = world.connect("p"), world.connect("s")
    peer.subscribe("s", "u", options=KEYED, credit=1 << 26)
    count = 5 * conflation_piece_messages_max
    _publish(publisher, "u", *[(number, number) for number in range(count)])
    if trigger == "publish":
        assert _unrecorded(world).passing, "the publish is processed in pieces"
        assert 0 < len(_conflater(world, peer)._queue) <= 2 * conflation_piece_messages_max
    world.settle()
    held = _conflater(world, peer)
    assert len(held) == count
    if trigger == "clock":
        world.wake(1.1)
        assert count - 2 * conflation_piece_messages_max <= len(held) < count
    elif trigger == "flush":
        peer.subscribe("s", "u", options="replace", credit=1 << 26)
        assert len(held) == count - conflation_piece_messages_max
    world.settle()


def _conflater(world: EngineWorld, peer: Peer) -> Conflater:
    feed = world.broker.subscriptions.of(peer.conn)["s"].feed(TransientFeed)
    assert feed is not None
    conflating = feed.conflating
    assert conflating is not None
    return conflating._conflater


def test_conflation_key_of_a_binary_topic_is_refused_without_a_subscription() -> None:
    world = EngineWorld(1, recorded=RECORDED, topic_types={"b": "binary"})
    peer = world.connect("s")
    command = peer.subscribe("s", "b", options=KEYED)
    answer = peer.answers[command]
    assert isinstance(answer, Ack)
    assert answer.code == "bad_option"
    assert not world.broker.subscriptions.of(peer.conn)


def test_stop_delivers_all_conflated_messages() -> None:
    world = _world()
    publisher, peer = world.connect("p"), world.connect("s")
    peer.subscribe("s", "u", options=KEYED)
    _publish(publisher, "u", ("a", 1), ("b", 2), ("a", 3))
    world.broker.close(world.now())
    world.collect()
    assert world.broker.subscriptions.owed(peer.conn) or _numbers(peer)
    world.settle()
    assert _numbers(peer) == [3, 2]
    assert not world.broker.subscriptions.owed(peer.conn)
