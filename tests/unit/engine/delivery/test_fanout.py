"""Fan-out at the end of the log: bounded steps, and ejected subscriptions continue without a gap."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tests.unit.engine.commands.test_subscribe_orders import finish_jobs
from tickertape.base.interfaces import Now
from tickertape.engine.delivery import fanout
from tickertape.engine.delivery.fanout import Fanout, FeedIndex
from tickertape.engine.limits import shared_cursor_moves_max, step_delivery_bytes
from tickertape.engine.runtime.effects import DiskJob, PauseReading, ResumeReading
from tickertape.engine.sessions import ack_tracker
from tickertape.engine.subscriptions.log_feed import Phase
from tickertape.filter.compiler.compile import Filter
from tickertape.filter.index.filter_index import FilterIndex
from tickertape.filter.index.structures import FilterSlot
from tickertape.wire.commands import Deliver, Flush, Subscribe, Unsubscribe


def _readers(world: EngineWorld, count: int, topics: int = 1) -> list[Peer]:
    peers = [world.connect(f"reader{number}") for number in range(count)]
    for number, peer in enumerate(peers):
        peer.subscribe("s", f"t{number % topics}", credit=100_000)
    world.settle()
    return peers


def _deliveries(peers: list[Peer]) -> int:
    return sum(isinstance(command, Deliver) for peer in peers for command, _ in peer.received)


def test_fanout_step_serves_a_bounded_number_of_subscriptions() -> None:
    world = EngineWorld(1)
    peers = _readers(world, 50)
    world.broker._delivery.step_bytes_max = 10 * step_delivery_bytes
    world.connect("publisher").publish("t0", [b"x"])
    while world.jobs:
        world.run_job()
    world.work()
    assert _deliveries(peers) == 10
    assert world.broker.has_work
    world.work()
    assert _deliveries(peers) == 20
    world.settle()
    assert _deliveries(peers) == 50
    assert not world.broker.has_work


def test_commits_with_many_topics_are_delivered_to_the_subscription_of_each_topic() -> None:
    world = EngineWorld(2)
    peers = _readers(world, 60, topics=60)
    publisher = world.connect("publisher")
    for number in range(60):
        publisher.publish(f"t{number}", [b"%d" % number, b"more"])
    world.settle()
    for number, peer in enumerate(peers):
        assert [heard.body for heard in peer.heard["s"]] == [b"%d" % number, b"more"]


def test_fanout_overrun_moves_every_subscription_to_a_separate_replay() -> None:
    world = EngineWorld(3)
    peers = _readers(world, 5)
    delivery = world.broker._delivery
    delivery.step_bytes_max = 1
    delivery.fanout.backlog_bytes_max = 2_000
    publisher = world.connect("publisher")
    for number in range(20):
        publisher.publish("t0", [b"%d" % number + bytes(500)])
        while world.jobs:
            world.run_job()
    assert delivery.fanout.overruns
    assert not list(delivery.fanout.feeds())
    world.settle()
    for peer in peers:
        assert [heard.body for heard in peer.heard["s"]] == [b"%d" % n + bytes(500) for n in range(20)]
    assert {sub.phase for sub in delivery.fanout.feeds()} == {Phase.TAIL}


@pytest.fixture
def insertions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Filters added to an index, in order."""
    seen: list[str] = []
    before = FilterIndex._insert

    def insert(self: FilterIndex[object], filter: Filter) -> FilterSlot[object]:
        seen.append(filter.text)
        return before(self, filter)

    monkeypatch.setattr(FilterIndex, "_insert", insert)
    return seen


def _publish_kinds(world: EngineWorld, count: int) -> None:
    """Publish one message of each kind, and take all steps except grants of credit."""
    publisher = next((p for p in world.peers.values() if p.name == "publisher"), None)
    (publisher or world.connect("publisher")).publish("t", [b'{"k":%d}' % n for n in range(count)])
    finish_jobs(world)


def _without_credit(world: EngineWorld, count: int) -> Peer:
    """Return a client whose subscriptions, one for each kind, have no credit for their second message."""
    peer = world.connect("reader")
    for number in range(count):
        peer.subscribe(f"s{number}", "t", filter=f"/k = {number}", credit=50)
    world.settle()
    for _ in range(2):
        _publish_kinds(world, count)
    assert {feed.phase for feed in world.log_feeds(peer.conn).values()} == {Phase.REPLAY}
    return peer


def test_subscription_without_credit_returns_without_a_new_index_entry(insertions: list[str]) -> None:
    world = EngineWorld(5)
    peer = _without_credit(world, 1)
    for _ in range(5):
        _publish_kinds(world, 1)
    assert not len(world.broker._delivery.fanout)
    world.settle()
    assert [feed.sub_id for feed in world.broker._delivery.fanout.feeds()] == ["s0"]
    assert len(peer.heard["s0"]) == 7
    assert insertions == ["/k = 0"]


def test_ended_subscriptions_without_credit_leave_no_index_entry() -> None:
    world = EngineWorld(6)
    peer = _without_credit(world, 4)
    index = world.broker._delivery.fanout._index
    assert index.entries == 4
    peer.send(Unsubscribe(id=100, sub_ids=("s0",)))
    assert index.entries == 3
    world.broker.disconnected(peer.conn)
    while world.broker.has_work:
        world.work()
    assert index.entries == 0
    assert not list(index.groups())


def test_replaced_subscription_without_credit_matches_with_the_new_filter() -> None:
    world = EngineWorld(7)
    peer = _without_credit(world, 2)
    change = Subscribe(id=100, sub_id="s0", topic="t", filter="/k = 1", options="replace", credit=10_000)
    peer.credit["s0"] = change.credit
    peer.send(change)
    world.settle()
    _publish_kinds(world, 2)
    world.settle()
    assert [heard.body for heard in peer.heard["s0"]] == [b'{"k":0}', b'{"k":0}', b'{"k":1}']
    assert len(list(world.broker._delivery.fanout._index.groups())) == 1


def test_subscriptions_far_behind_lose_index_entries_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fanout, "suspended_messages_max", 25)
    monkeypatch.setattr(fanout, "suspended_removals_max", 3)
    world = EngineWorld(8)
    world.connect("plain").subscribe("p", "t", credit=1 << 20)  # without it, nothing is matched
    peer = _without_credit(world, 10)
    index = world.broker._delivery.fanout._index
    entries = []
    for _ in range(7):
        _publish_kinds(world, 10)
        entries.append(index.entries)
    assert entries == [11, 8, 5, 2, 1, 1, 1]
    world.settle()
    assert index.entries == len(index) == 11
    assert {len(heard) for heard in peer.heard.values()} == {9}


def test_overrun_removes_index_entries_of_suspended_subscriptions_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fanout, "suspended_removals_max", 3)
    world = EngineWorld(9)
    active = world.connect("active")
    for number in range(2):
        active.subscribe(f"a{number}", "t", filter=f"/k >= {number}", credit=1 << 20)
    peer = _without_credit(world, 20)
    fanout_at_end = world.broker._delivery.fanout
    filters = fanout_at_end._index._filtered._by_topic["t"]
    assert fanout_at_end._index.entries == len(filters.groups) == 22
    fanout_at_end.backlog_bytes_max = world.broker._delivery.step_bytes_max = 1
    publisher = next(p for p in world.peers.values() if p.name == "publisher")
    sizes = []
    for _ in range(3):  # faster than delivery
        publisher.publish("t", [b'{"k":0}'])
        while world.jobs:
            world.run_job()
        sizes.append(len(filters.groups))
    assert fanout_at_end.overruns
    while world.broker.has_work:
        sizes.append(len(filters.groups))
        world.work()
    assert {before - after for before, after in pairwise(sizes)} <= {0, 1, 2, 3}
    world.settle()
    for _ in range(10):
        _publish_kinds(world, 1)
        world.settle()
    assert fanout_at_end._index.entries == 22
    assert len(list(fanout_at_end._index.groups())) == 22
    assert not fanout_at_end._index._vacant
    assert {len(heard) for heard in peer.heard.values()} == {2, 15}


def test_group_that_catches_up_moves_few_filters_at_once_beside_suspended_subscriptions(
    insertions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = EngineWorld(10, segment_bytes=1 << 20)
    _without_credit(world, 250)
    tail, peer = world.broker._delivery.fanout, world.connect("replaying")
    assert (len(tail), tail._index.entries) == (0, 250)
    moved: list[int] = []
    before = Fanout.absorb

    def absorb(self: Fanout, others: FeedIndex) -> None:
        inserted = len(insertions)
        before(self, others)
        moved.append(len(insertions) - inserted)

    monkeypatch.setattr(Fanout, "absorb", absorb)
    for number in range(250):
        peer.subscribe(f"r{number}", "t", bookmark="0", filter=f"/k > {number}", credit=1 << 20)
    world.settle()
    assert 0 < max(moved) <= shared_cursor_moves_max
    assert len(tail) == tail._index.entries == 500


def test_client_with_too_many_pending_flushes_is_paused_until_answers_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ack_tracker, "owed_max", 10)
    world = EngineWorld(4)
    peer = world.connect("p")
    peer.publish("t", [b"x"])
    for number in range(1, 30):
        world.broker.received(peer.conn, Flush(id=number), None, Now(200.0, world.wall))
    effects = world.broker.effects()
    assert effects.count(PauseReading(peer.conn, "journal")) == 1
    assert not any(isinstance(effect, ResumeReading) for effect in effects)
    world.jobs.extend(effect.job for effect in effects if isinstance(effect, DiskJob))
    resumed = False
    while world.jobs:
        job = world.jobs.popleft()
        salt = world._executor.run(job)
        world.broker.disk_done(job, None, salt, Now(201.0, world.wall))
        for effect in world.broker.effects():
            resumed |= effect == ResumeReading(peer.conn, "journal")
            if isinstance(effect, DiskJob):
                world.jobs.append(effect.job)
    assert resumed
