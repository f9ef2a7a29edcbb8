"""Queues whose consumers have many different filters, while messages keep arriving."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.queue_engine import QueueEngine
from tests.simulation.engine_peer import Peer
from tickertape.engine.limits import queue_filter_scans_max
from tickertape.engine.matching.filter_groups import TopicFilters
from tickertape.engine.queues.consumer_filter import FilterScan
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.filter.limits import filter_piece_bytes_max
from tickertape.wire.commands import Unsubscribe

FILTERS = 60
STEPS_BETWEEN = 6
"""Engine steps between two commits, fewer than the number of filters."""


def body(number: int) -> bytes:
    return b'{"k":%d,"p":%d}' % (number % FILTERS, number % 3)


def under_load(world: QueueEngine, messages: int) -> Peer:
    """Add consumers with one filter each, and publish faster than steps evaluate all filters."""
    peer, publisher = world.connect("consumer"), world.connect("publisher")
    for number in range(FILTERS):
        peer.subscribe(f"s{number}", "q", filter=f"/k = {number}", options="max_backlog=100")
    world.settle()
    for number in range(messages):
        publisher.publish("q", [body(number)])
        end = world.broker.journal.commits.accepted_end
        while world.broker.journal.commits.persisted_end < end:
            world.run_job() if world.jobs else world.work()
        for _ in range(STEPS_BETWEEN):
            world.work()
    return peer


@pytest.mark.parametrize("priority", [None, "/p"])
def test_steady_messages_are_delivered_while_many_filters_are_evaluated(priority: str | None) -> None:
    world = QueueEngine(QueueDefinition("q", priority=priority))
    peer = under_load(world, 100)
    assert sum(map(len, peer.heard.values())) >= 90
    world.settle()
    assert sum(map(len, peer.heard.values())) == 100


def scans(world: QueueEngine) -> dict[FilterScan, int]:
    (work,) = world.broker.queues.workers
    return work.dispatch.filters._scans


@pytest.mark.parametrize("filters", [1, 10, 200])
def test_commit_is_searched_once_for_many_queue_filters(
    filters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = QueueEngine(QueueDefinition("q"))
    peer, publisher = world.connect("consumer"), world.connect("publisher")
    for number in range(filters):
        peer.subscribe(f"s{number}", "q", filter=f"/k = {number}", options="max_backlog=100")
    world.settle()
    searched = []
    search = TopicFilters.search

    def counted(*args: Any) -> Any:
        searched.append(args)
        return search(*args)

    monkeypatch.setattr(TopicFilters, "search", counted)
    for number in range(5):
        publisher.publish("q", [body(number)])
        world.settle()
    assert len(searched) == 5


def test_filter_scan_step_evaluates_a_bounded_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    world = QueueEngine(QueueDefinition("q"))
    peer, publisher = world.connect("consumer"), world.connect("publisher")
    large = b'{"k":1,"x":"' + b"y" * 40_000 + b'"}'
    for _ in range(20):
        publisher.publish("q", [large])
    world.settle()
    looked: list[int] = []
    step = FilterScan.step

    def counted(scan: FilterScan, budget: int, limit: int) -> int:
        looked.append(step(scan, budget, limit))
        return looked[-1]

    monkeypatch.setattr(FilterScan, "step", counted)
    for number in range(5):
        peer.subscribe(f"s{number}", "q", filter=f"/k = {number} AND USER() IS NULL")
    while world.broker.has_work or world.reads:
        world.run_read() if world.reads else world.work()
        assert sum(looked) <= 2 * filter_piece_bytes_max, "the piece under way is finished"
        looked.clear()
    assert len(peer.heard["s1"]) == 1


def test_filters_that_arrive_later_find_existing_messages_and_join_the_scan() -> None:
    world = QueueEngine(QueueDefinition("q"))
    world.broker.journal.view.tail_bytes_max = 1  # older messages are read from the disk
    publisher = world.connect("publisher")
    for number in range(0, 300, 50):
        publisher.publish("q", [body(n) for n in range(number, number + 50)])
        world.settle()
    peer = world.connect("consumer")
    arrived = 3 * queue_filter_scans_max
    most = 0
    for number in range(arrived):
        peer.subscribe(f"s{number}", "q", filter=f"/k = {number}", options="max_backlog=100")
        for _ in range(3):  # a scan has begun when the next filter arrives
            world.run_read() if world.reads else world.work()
        most = max(most, len(scans(world)))
    assert 1 < most <= queue_filter_scans_max
    publisher.publish("q", [body(n) for n in range(FILTERS)])
    world.settle()
    assert [len(peer.heard[f"s{number}"]) for number in range(arrived)] == [6] * arrived
    assert len(scans(world)) == 1


def test_priority_queue_filters_that_keep_arriving_do_not_stop_deliveries() -> None:
    """Each scan takes some steps, and another one begins in each step: only the first ones are waited for."""
    world = QueueEngine(QueueDefinition("q", priority="/p"))
    peer, publisher = world.connect("consumer"), world.connect("publisher")
    large = b'{"k":1,"x":"' + b"y" * 60_000 + b'"}'
    publisher.publish("q", [large] * 40)
    world.settle()
    churning = world.connect("churning")
    for number in range(200):
        churning.subscribe(f"s{number}", "q", filter=f"/k = {1000 + number}")
        if number == queue_filter_scans_max:
            peer.subscribe("all", "q", options="max_backlog=1000", credit=1 << 20)
        if number >= queue_filter_scans_max:
            old = f"s{number - queue_filter_scans_max}"
            churning.send(Unsubscribe(id=1000 + number, sub_ids=(old,)))
        world.work()
    assert peer.heard["all"]


def test_filter_scan_ends_with_the_last_consumer_of_the_filter() -> None:
    world = QueueEngine(QueueDefinition("q"))
    peer, publisher = world.connect("consumer"), world.connect("publisher")
    publisher.publish("q", [body(n) for n in range(100)])
    for number in range(5):
        peer.subscribe(f"s{number}", "q", filter=f"/k = {number}")
    peer.send(Unsubscribe(id=99, sub_ids=tuple(f"s{number}" for number in range(4))))
    world.settle()
    (scan,) = scans(world)
    assert len(scan.members) == 1
    peer.send(Unsubscribe(id=100, sub_ids=("s4",)))
    world.settle()
    assert not scans(world)


def test_messages_blocked_by_a_filter_are_delivered_when_the_consumer_is_replaced() -> None:
    """The filter scan ends with the consumer, and no other event wakes the queue."""
    world = QueueEngine(QueueDefinition("q", priority="/p"), QueueDefinition("other"))
    large = b'{"k":1,"x":"' + b"y" * 60_000 + b'"}'
    world.connect("publisher").publish("q", [large] * 40)
    world.settle()
    picky, plain = world.connect("picky"), world.connect("plain")
    picky.subscribe("s", "q", filter="/k = 2")
    plain.subscribe("s", "q", options="max_backlog=100", credit=8 << 20)
    world.work()
    assert not plain.heard["s"], "the first message may match the filter"
    picky.subscribe("s", "other", options="replace")
    world.settle()
    assert len(plain.heard["s"]) == 40
