"""Subscriptions in unusual orders of events: replaced, closed and answered while something else waits."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.helpers.queue_engine import QueueEngine
from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.base.limits import message_cost_bytes
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.engine.transient.slow_consumers import SlowConsumerLimits
from tickertape.wire.commands import Ack, Unsubscribe
from tickertape.wire.settlement import QUEUE_TOPIC, Settlement, encode_settlement

NOT_TO_DISK = SlowConsumerLimits(disk_bytes=0, connection_bytes=50_000)


def code_of(peer: Peer, command: int) -> str:
    answer = peer.answers[command]
    assert isinstance(answer, Ack)
    return answer.code


def work_off(world: EngineWorld) -> None:
    while world.broker.has_work:
        world.work()


def finish_jobs(world: EngineWorld) -> None:
    while world.jobs or world.broker.has_work:
        if world.jobs:
            world.run_job()
        else:
            world.work()


def test_replace_during_conflation_delivers_everything_held_although_the_interval_ends() -> None:
    world = EngineWorld(1, recorded=frozenset())
    publisher, peer = world.connect("p"), world.connect("peer")
    peer.subscribe("s", "u", options="conflation=1s,conflation_key=[/k]", credit=1 << 30)
    bodies = [b'{"k":%d}' % key for key in range(1500)]  # more than one stretch
    for at in range(0, len(bodies), 100):
        publisher.publish("u", bodies[at : at + 100], sequenced=False)
    work_off(world)
    heard = list(peer.heard["s"])
    world.mono += 0.999
    peer.subscribe("s", "u", options="replace", credit=1 << 30)
    world.wake(1.0)  # the interval ends before the next step
    work_off(world)
    assert sorted(one.body for one in heard + peer.heard["s"]) == sorted(bodies)


def test_replace_that_closes_the_slow_connection_leaves_no_subscription() -> None:
    world = EngineWorld(1, recorded=frozenset({"r"}), slow_clients=NOT_TO_DISK)
    transient = world.broker.services.transient
    first, peer, publisher = world.connect("first"), world.connect("peer"), world.connect("p")
    first.subscribe("x", "^[ru]$", credit=1 << 30)
    peer.subscribe("s", "^[ru]$", credit=100)
    world.settle()
    publisher.publish("u", [bytes(60)], sequenced=False)
    publisher.publish("u", [bytes(60)], sequenced=False)  # one message waits for credit
    work_off(world)
    transient.step_bytes_max = 1
    transient.written()
    publisher.publish("u", [bytes(60_000)], sequenced=False)  # `first` has it, `peer` is next
    peer.subscribe("s", "^[ru].*$", credit=100, options="replace")  # too much waits now
    assert peer.goodbye is not None
    assert peer.goodbye.code == "slow_client"
    assert dict(world.broker.subscriptions.of(peer.conn)) == {}
    world.broker.disconnected(peer.conn)
    transient.step_bytes_max = 1 << 20
    transient.written()
    for _ in range(5):
        publisher.publish("r", [bytes(60)])
        finish_jobs(world)
    assert world.broker._delivery.oldest_needed().position == world.broker.journal.commits.persisted_end


def late_replace(world: QueueEngine) -> tuple[Peer, int]:
    """A subscription `s` that has ended, and a replace of it whose start is still looked up."""
    publisher, peer = world.connect("p"), world.connect("peer")
    for number in range(60):
        publisher.publish("t", [b"%d" % number])
    publisher.publish("q", [b"of q"])
    world.settle()
    world.broker.journal.view.tail_bytes_max = 1
    for _ in range(200):
        publisher.publish("other", [bytes(500)])  # bookmarks are looked up on disk
    world.settle()
    end = datetime.fromtimestamp(world.wall / 1e6 + 2, UTC).strftime("%Y%m%dT%H%M%S")
    peer.subscribe("s", "t", bookmark=f"[0|1|:{end})")  # ends in about two seconds
    world.settle()
    assert publisher.logged_on is not None
    bookmark = f"{publisher.logged_on.publisher}|30|"
    replace = peer.subscribe("s", "t", bookmark=bookmark, options="replace")
    assert world.reads
    assert replace not in peer.answers
    world.wake(3.0)
    work_off(world)
    assert peer.marks["s"] == ["completed after 0", "ended"]
    return peer, replace


def test_browse_wins_over_an_older_replace_with_a_late_start_position() -> None:
    world = QueueEngine(QueueDefinition("q"))
    peer, replace = late_replace(world)
    browse = peer.subscribe("s", "q", options="browse")
    world.settle()
    assert (code_of(peer, browse), code_of(peer, replace)) == ("", "subscription_unknown")
    assert {one.topic for one in peer.heard["s"]} == {"q"}


def test_bookmark_subscription_wins_over_an_older_replace_with_a_late_start_position() -> None:
    world = QueueEngine(QueueDefinition("q"))
    peer, replace = late_replace(world)
    newer = peer.subscribe("s", "other", bookmark="0")
    world.settle()
    assert (code_of(peer, newer), code_of(peer, replace)) == ("", "subscription_unknown")
    assert {one.topic for one in peer.heard["s"]} == {"other"}


def test_waiting_commands_of_a_closed_connection_are_not_executed() -> None:
    limits = SlowConsumerLimits(disk_bytes=0, connection_bytes=5_000)
    world = QueueEngine(QueueDefinition("q"), recorded=frozenset({"r", "q"}), slow_clients=limits)
    publisher, peer = world.connect("p"), world.connect("peer")
    for key in range(50):
        publisher.publish("q", [b'{"k":%d}' % key + b" " * 200])
    world.settle()
    world.broker.journal.view.tail_bytes_max = 1
    for _ in range(50):
        publisher.publish("r", [bytes(500)])
    world.settle()
    peer.subscribe("s", "u", credit=100)
    world.settle()
    settlement = Settlement(queue="q", action="ack", filter="/k = 3")
    peer.publish(QUEUE_TOPIC, [encode_settlement(settlement)])
    finish_jobs(world)
    assert world.reads, "the look-up waits for its read"
    for size in (50, 50, 6_000):
        peer.publish("u", [bytes(size)], sequenced=False)  # closes itself as slow when they are handled
    peer.subscribe("t", "r", credit=100)
    world.settle()
    assert peer.goodbye is not None
    assert dict(world.broker.subscriptions.of(peer.conn)) == {}


def test_acknowledgement_due_after_the_connection_ended_leaves_no_state() -> None:
    world = EngineWorld(1)
    for number in range(3):
        peer = world.connect(f"c{number}", options="ack_conflation=1s")
        peer.publish("t", [b"1"])
        world.broker.disconnected(peer.conn)
        world.collect()
        del world.peers[peer.conn]
        world.settle()
    world.wake(10)
    world.settle()
    conflation = world.broker._outbox._conflation
    assert (conflation._free, conflation._said, conflation.held) == ({}, {}, {})


def test_pattern_refused_for_too_many_searches_delivers_nothing() -> None:
    world = EngineWorld(1, recorded=frozenset({"r"}))
    publisher, peer = world.connect("p"), world.connect("peer")
    for _ in range(200):
        publisher.publish("r", [bytes(500)])
    world.settle()
    world.broker.journal.view.tail_bytes_max = 1
    publisher.publish("r", [b"x"])
    world.settle()
    assert publisher.logged_on is not None
    bookmark = f"{publisher.logged_on.publisher}|5|"
    number, command = 0, -1
    while command not in peer.answers:
        number += 1
        command = peer.subscribe(f"b{number}", "r", bookmark=bookmark)
    assert code_of(peer, command) == "not_ready"
    command = peer.subscribe("s", "^[ru]$")
    publisher.publish("u", [b"to u"], sequenced=False)
    assert code_of(peer, command) == "not_ready"
    assert peer.heard["s"] == []
    assert "s" not in world.broker.subscriptions.of(peer.conn)


@pytest.mark.parametrize("topic", ["u", "u2", "r", "^[ru]$"])
def test_replace_delivers_waiting_messages_only_after_the_answer(topic: str) -> None:
    world = EngineWorld(1, recorded=frozenset({"r"}))
    publisher, peer = world.connect("p"), world.connect("peer")
    cost = 60 + message_cost_bytes
    peer.subscribe("s", "u", credit=cost)
    for number in range(3):
        publisher.publish("u", [b"%060d" % number], sequenced=False)
    work_off(world)
    assert [one.body for one in peer.heard["s"]] == [b"%060d" % 0]
    count_before = len(peer.received)
    replace = peer.subscribe("s", topic, options="replace", credit=2 * cost)
    work_off(world)
    kinds = [type(one) for one, _ in peer.received[count_before:]]
    assert kinds[: kinds.index(Ack)] == []
    assert code_of(peer, replace) == ""
    assert [one.body for one in peer.heard["s"]] == [b"%060d" % number for number in (1, 2)]


def at_most_once(world: QueueEngine) -> tuple[Peer, Peer]:
    """A consumer to which a message is on its way: its outcome is not persisted yet."""
    publisher, peer = world.connect("p"), world.connect("peer")
    publisher.publish("q", [bytes(60)])
    world.settle()
    peer.subscribe("s", "q", credit=1_000, options="max_backlog=10")
    while not world.jobs:
        world.work()
    assert peer.heard["s"] == []
    return publisher, peer


def test_replace_of_an_at_most_once_consumer_counts_deliveries_that_wait_for_the_disk() -> None:
    world = QueueEngine(QueueDefinition("q", semantics="at-most-once"))
    publisher, peer = at_most_once(world)
    cost = 60 + message_cost_bytes
    peer.subscribe(
        "s", "q", options="replace,max_backlog=10", credit=cost
    )  # the waiting delivery uses all of it
    publisher.publish("q", [bytes(60)])
    finish_jobs(world)  # without credit from the peer
    assert len(peer.heard["s"]) == 1
    peer.give_credit("s")
    world.settle()
    assert len(peer.heard["s"]) == 2


def test_replace_of_an_at_most_once_consumer_by_a_topic_delivers_the_pending_message() -> None:
    world = QueueEngine(QueueDefinition("q", semantics="at-most-once"))
    _, peer = at_most_once(world)
    peer.subscribe("s", "other", options="replace")
    world.settle()
    assert [one.topic for one in peer.heard["s"]] == ["q"]


def test_end_of_an_at_most_once_consumer_drops_the_pending_message() -> None:
    world = QueueEngine(QueueDefinition("q", semantics="at-most-once"))
    _, peer = at_most_once(world)
    peer.send(Unsubscribe(id=99, sub_ids=("s",)))
    peer.subscribe("s", "other")
    world.settle()
    assert peer.heard["s"] == []
