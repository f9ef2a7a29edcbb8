"""Option `live`: messages are delivered before they are persisted, once each, in log order."""

from __future__ import annotations

from random import Random

import pytest

from tests.helpers.tiers import parts
from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.engine.limits import outbox_bytes_max
from tickertape.engine.transient.slow_consumers import SlowConsumerLimits
from tickertape.wire.commands import Ack


def _bodies(peer: Peer, sub_id: str = "s") -> list[int]:
    return [int(heard.body) for heard in peer.heard[sub_id]]


def test_live_subscription_receives_accepted_messages_before_persistence() -> None:
    world = EngineWorld(1)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    publisher.publish("a", [b"0"])
    world.settle()
    peer.subscribe("s", "a", bookmark="0", options="live")
    peer.subscribe("waits", "a", bookmark="0")
    world.settle()
    publisher.publish("a", [b"1", b"2"])
    while world.broker.has_work:
        world.work()
    assert world.jobs, "it is not persisted"
    assert _bodies(peer) == [0, 1, 2]
    assert _bodies(peer, "waits") == [0]
    world.settle()
    assert _bodies(peer) == _bodies(peer, "waits") == [0, 1, 2]
    log = world.log("a")
    assert [(h.publisher, h.sequence) for h in peer.heard["s"]] == [(h.publisher, h.sequence) for h in log]
    assert peer.marks["s"] == ["completed after 1"]


@pytest.mark.behaviour(19)
def test_live_subscription_without_credit_falls_back_to_persisted_messages() -> None:
    world = EngineWorld(2)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    peer.subscribe("s", "a", bookmark="0|1|", options="live", credit=200)
    world.settle()
    for number in range(50):
        publisher.publish("a", [b"%d" % number])
        while world.jobs:
            world.run_job()
        while world.broker.has_work:
            world.work()
    assert len(peer.heard["s"]) < 10
    assert not world.broker.services.log.live._parts
    world.settle()
    assert _bodies(peer) == list(range(50))
    publisher.publish("a", [b"50"])
    while world.broker.has_work:
        world.work()
    assert _bodies(peer)[-1] == 50, "the subscription is live"


@pytest.mark.behaviour(19)
def test_live_subscription_behind_the_age_limit_is_ended_as_slow() -> None:
    world = EngineWorld(2, slow_clients=SlowConsumerLimits(age_seconds=5.0))
    publisher = world.connect("publisher")
    publisher.publish("a", [b"x" * 100] * 20)
    world.settle()
    replays, stalls, reads = (world.connect(name) for name in ("replays", "stalls", "reads"))
    replays.subscribe("s", "a", bookmark="0", options="live", credit=200)
    for peer in (stalls, reads):
        peer.subscribe("s", "a", bookmark="0|1|", options="live", credit=200)
    for number in range(12):
        publisher.publish("a", [b"%d" % number] * 3)
        while world.jobs or world.broker.has_work:
            world.run_job() if world.jobs else world.work()
        reads.give_credit("s")
        world.wake(1.0)
        while world.jobs or world.broker.has_work:
            world.run_job() if world.jobs else world.work()
        reads.give_credit("s")
    assert stalls.goodbye is not None
    assert stalls.goodbye.code == "slow_client"
    assert "behind for 5 seconds" in stalls.goodbye.text
    assert replays.goodbye is None, "its replay continues"
    assert reads.goodbye is None
    assert world.broker.services.log.live.fallbacks


@pytest.mark.behaviour(19)
def test_live_subscription_behind_before_the_sync_is_ended_by_age() -> None:
    world = EngineWorld(2, slow_clients=SlowConsumerLimits(age_seconds=5.0))
    publisher, peer = world.connect("publisher"), world.connect("reader")
    peer.subscribe("s", "a", bookmark="0|1|", options="live", credit=420)
    world.settle()

    def settle() -> None:
        while world.jobs or world.reads or world.broker.has_work:
            world.run_job() if world.jobs else world.run_read() if world.reads else world.work()

    for count in (9, 2):
        publisher.publish("a", [b"x" * 10] * count)
        while world.broker.has_work:
            world.work()  # before it is persisted
    for _ in range(10):
        publisher.publish("a", [b"x" * 10] * 3)
        settle()
        world.wake(1.0)
        settle()
    assert peer.goodbye is not None
    assert peer.goodbye.code == "slow_client"


def test_unblocked_live_subscription_receives_at_most_the_outbox_limit_at_once() -> None:
    world = EngineWorld(6)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    peer.subscribe("s", "a", bookmark="0|1|", options="live", credit=1 << 28)
    world.settle()
    world.broker.blocked(peer.conn)
    size = 100_000
    for number in range(60):  # accepted, and not persisted
        publisher.publish("a", [b"%d" % number + b" " * size])
        while world.broker.has_work:
            world.work()
    assert _bodies(peer) == []
    world.broker.writable(peer.conn)
    steps = 0
    while len(peer.heard["s"]) < 60:
        before = len(peer.heard["s"])
        if world.broker.has_work or world.reads:
            world.run_read() if world.reads else world.work()
        else:
            world.run_job()
        assert (len(peer.heard["s"]) - before) * size <= 2 * outbox_bytes_max
        steps += len(peer.heard["s"]) > before
    assert steps >= 3
    assert _bodies(peer) == list(range(60))
    world.settle()
    publisher.publish("a", [b"60"])
    while world.broker.has_work:
        world.work()
    assert _bodies(peer)[-1] == 60, "the subscription is live"


@pytest.mark.parametrize(
    "option", ["rate=10", "rate=1x,rate_max_gap=1s", "pause", "conflation=1s", "fully_durable"]
)
def test_option_excluded_by_live_is_refused_with_the_reason(option: str) -> None:
    world = EngineWorld(3)
    peer = world.connect("reader")
    answer = peer.answers[peer.subscribe("s", "a", bookmark="0", options=f"live,{option}")]
    assert isinstance(answer, Ack)
    assert answer.code == "bad_option"
    assert answer.text.startswith(f"Option live excludes {option.split('=', maxsplit=1)[0]}")


def test_live_subscription_refuses_pause_and_resume() -> None:
    world = EngineWorld(4)
    peer = world.connect("reader")
    peer.subscribe("s", "a", bookmark="0", options="live")
    for command in (peer.pause("s"), peer.resume("s")):
        answer = peer.answers[command]
        assert isinstance(answer, Ack)
        assert (answer.code, "live" in answer.text) == ("bad_option", True)


def test_live_tail_keeps_no_messages_without_live_subscriptions() -> None:
    world = EngineWorld(5)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    live = world.broker.services.log.live
    publisher.publish("a", [b"0"])
    assert not live._parts
    peer.subscribe("s", "a", bookmark="0", options="live")
    world.settle()
    publisher.publish("a", [b"1"])
    assert len(live._parts) == 1
    world.broker.disconnected(peer.conn)
    assert not live._parts
    publisher.publish("a", [b"2"])
    assert not live._parts
    world.settle()


@pytest.mark.parametrize("seed", parts(80, 10))
def test_live_subscriptions_receive_each_message_once_in_random_runs(seed: int) -> None:
    rng = Random(seed)
    world = EngineWorld(seed)
    world.small_tail()
    world.small_bounds()
    publishers = [world.connect(f"publisher {n}") for n in range(2)]
    peer = world.connect("reader")
    subs = {"s": "a", "other": "b", "both": "^[ab]$"}
    for sub_id, topic in subs.items():
        peer.subscribe(sub_id, topic, bookmark="0", options="live", credit=rng.choice((100, 300, 4096)))
    for number in range(100):
        topic = rng.choice("ab")
        rng.choice(publishers).publish(topic, [b"%d" % number] * rng.choice((1, 1, 3)))
        for _ in range(rng.randrange(5)):
            world.step()
        if rng.random() < 0.3:
            peer.give_credit(rng.choice(list(subs)))
    world.settle()
    for sub_id, topic in subs.items():
        expected = [h for h in world.log() if h.topic in topic]
        assert peer.heard[sub_id] == expected
