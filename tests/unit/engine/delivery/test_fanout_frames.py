"""Subscriptions with filters at the end of the log: one frame for all subscriptions of a connection."""

from __future__ import annotations

import json

import pytest

from tests.helpers.engine_parts import make_compiler
from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.base.limits import message_cost_bytes
from tickertape.batch import BatchBuilder
from tickertape.engine.delivery import fanout_frames as sharing
from tickertape.engine.limits import outbox_bytes_max
from tickertape.engine.matching.interest import Interest
from tickertape.engine.matching.subscription_index import InterestGroup, SubscriptionIndex
from tickertape.engine.sessions.session import Subscriber
from tickertape.engine.subscriptions.log_feed import Phase
from tickertape.wire.commands import Deliver


def _publish(world: EngineWorld, peer: Peer, *numbers: int) -> None:
    peer.publish("t", [json.dumps({"n": n}).encode() for n in numbers])
    world.settle()


def _delivered(peer: Peer) -> list[Deliver]:
    return [command for command, _ in peer.received if isinstance(command, Deliver)]


def _heard(peer: Peer, sub_id: str) -> list[int]:
    return [json.loads(message.body)["n"] for message in peer.heard.get(sub_id, [])]


def test_connection_receives_one_frame_for_all_matching_subscriptions() -> None:
    world = EngineWorld(1)
    several, alone, other = (world.connect(name) for name in ("several", "alone", "other"))
    for n in range(4):
        several.subscribe(f"s{n}", "t", filter=f"/n = {n}")
    several.subscribe("low", "t", filter="/n < 2")
    several.subscribe("cut", "t", filter="/n < 2", options="select=[-/,+/n]")
    alone.subscribe("a", "t", filter="/n < 2")
    other.subscribe("o", "t", filter="/n < 2")
    world.settle()
    publisher = world.connect("publisher")
    _publish(world, publisher, 0, 3, 1, 7)
    frames = _delivered(several)
    assert [sorted(frame.sub_ids) for frame in frames if frame.sub_ids] == [["low", "s0", "s1", "s3"]]
    assert [frame.sub_id for frame in frames if frame.sub_id] == ["cut"]
    assert [frame.sub_id for frame in _delivered(alone)] == ["a"]
    for peer, sub_id, expected in (
        (several, "s0", [0]), (several, "s1", [1]), (several, "s2", []), (several, "s3", [3]),
        (several, "low", [0, 1]), (several, "cut", [0, 1]), (alone, "a", [0, 1]), (other, "o", [0, 1]),
    ):  # fmt: skip
        assert _heard(peer, sub_id) == expected, sub_id
    _publish(world, publisher, 2)
    assert [frame.sub_id for frame in _delivered(several)][-1] == "s2"


def test_subscription_without_enough_credit_leaves_the_frame_without_affecting_others() -> None:
    world = EngineWorld(2)
    peer = world.connect("peer")
    one = len(json.dumps({"n": 1})) + message_cost_bytes
    peer.subscribe("poor", "t", filter="/n < 5", credit=2 * one)
    for n in range(5):
        peer.subscribe(f"s{n}", "t", filter=f"/n = {n}")
    world.settle()
    world.connect("publisher").publish("t", [json.dumps({"n": n}).encode() for n in range(5)])
    while world.jobs:
        world.run_job()
    world.work()
    world.work()
    assert [sorted(frame.sub_ids) for frame in _delivered(peer) if frame.sub_ids] == [
        [f"s{n}" for n in range(5)]
    ]
    assert _heard(peer, "poor") == [0, 1]
    world.settle()  # which grants credit
    assert _heard(peer, "poor") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("name", "bound"), [("combined_subscriptions_max", 3), ("routes_per_frame_max", 6)])
def test_shared_frame_is_bounded_in_subscriptions_and_routes(
    monkeypatch: pytest.MonkeyPatch, name: str, bound: int
) -> None:
    monkeypatch.setattr(sharing, name, bound)
    world = EngineWorld(3)
    peer = world.connect("peer")
    for n in range(8):
        peer.subscribe(f"s{n}", "t", filter=f"/n >= {n} AND /n < {n + 2}")
    world.settle()
    _publish(world, world.connect("publisher"), *range(10))
    frames = _delivered(peer)
    assert len(frames) == 3
    assert all(len(frame.sub_ids) <= 3 for frame in frames)
    for n in range(8):
        assert _heard(peer, f"s{n}") == [n, n + 1]


def test_patterns_and_topics_of_several_types_share_an_index_for_each_type() -> None:
    world = EngineWorld(4)
    peer = world.connect("peer")
    peer.subscribe("any", ".*", filter="/n = 1")
    peer.subscribe("same", ".*", filter=" /n=1")
    peer.subscribe("one", "t", filter="/n = 1")
    peer.subscribe("me", "t", filter="CLIENT_NAME() = 'peer' AND /n = 1")
    world.settle()
    publisher = world.connect("publisher")
    publisher.publish("u", [b'{"n":1}'])
    publisher.publish("t", [b"no json", b'{"n":1}', b'{"n":2}'])
    world.settle()
    assert _heard(peer, "any") == _heard(peer, "same") == [1, 1]
    assert _heard(peer, "one") == _heard(peer, "me") == [1]


class _Sub:
    def __init__(self, cover: Interest) -> None:
        self.interest = cover


def test_abandoned_index_search_leaves_the_index_correct() -> None:
    contents = make_compiler()
    live_index: SubscriptionIndex[_Sub, InterestGroup[_Sub]] = SubscriptionIndex(InterestGroup)
    first, second = (_Sub(contents.compile("t", f"/n = {n}", None, Subscriber(None, "me"))) for n in (1, 2))
    live_index.add(first)
    builder = BatchBuilder()
    for sequence in range(1, 4):
        builder.add("t", b'{"n":%d}' % (sequence % 3), sequence=sequence)
    batch = builder.build(7, 0, 70)
    offers = live_index.matches(batch)
    next(offers)
    live_index.add(second)
    live_index.discard(first)
    del offers  # as after a fan-out overrun
    found = [(offer.batch, offer.group) for offer in live_index.matches(batch) if offer.batch is not None]
    assert [(one.bodies_list(), list(group.subs)) for one, group in found if group is not None] == [
        ([b'{"n":2}'], [second])
    ]


def test_fanout_sends_a_connection_at_most_the_outbox_limit_of_a_commit() -> None:
    world = EngineWorld(21)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    ids = [f"s{number}" for number in range(8)]
    for number, sub_id in enumerate(ids):
        peer.subscribe(sub_id, "t", filter=f"/k = 1 AND /n >= {-number}", credit=1 << 22)
    world.settle()
    body = b'{"k": 1, "n": 5, "x": "' + b"x" * (outbox_bytes_max // 3) + b'"}'
    publisher.publish("t", [body])
    while world.jobs:
        world.run_job()
    at_once = sum(batch.nbytes for _, batch in peer.received if batch is not None)
    assert 0 < at_once <= 2 * outbox_bytes_max, "the limit of a step plus one frame"
    assert sum(len(heard) for heard in peer.heard.values()) < 8
    world.broker.blocked(peer.conn)  # the connection writes slowly
    world.work()
    assert {sub.phase for sub in world.log_feeds(peer.conn).values()} == {
        Phase.TAIL,
        Phase.REPLAY,
    }, "subscriptions that received nothing continue with a replay"
    world.broker.writable(peer.conn)
    world.settle()
    assert all(len(peer.heard[sub_id]) == 1 for sub_id in ids)
