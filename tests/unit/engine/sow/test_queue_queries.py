"""Queries of queues in the engine: position, reads from disk, retention, and stopped queues."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from tests.helpers.queue_queries import BIG, QueueQueryWorld, big_body, queue_world
from tests.helpers.sow_peer import Result, SowPeer
from tests.simulation.engine_peer import Peer
from tickertape.engine.limits import queue_frame_messages_max
from tickertape.engine.queues import worker
from tickertape.engine.queues.browser import QueueBrowser
from tickertape.engine.queues.state import queue
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow import queue_copy
from tickertape.wire.commands import Ack, Unsubscribe

STOCK = SowDefinition("stock", key=("/id",))


def _consume(world: QueueQueryWorld, count: int) -> Peer:
    """Acknowledge the first messages of the queue."""
    consumer = world.connect("consumer")
    consumer.subscribe("c", "work", options=f"max_backlog={count}", credit=1 << 20)
    world.settle()
    return consumer


def _until_first_record(world: QueueQueryWorld, peer: SowPeer) -> None:
    """Run until the client has a record, without further credit."""
    while not peer.results["q"].records:
        assert world.reads or world.broker.has_work
        world.run_read() if world.reads else world.work()


@pytest.mark.parametrize("from_disk", [False, True])
def test_result_has_the_messages_at_the_start(from_disk: bool) -> None:
    world, publisher, peer = queue_world(8, from_disk=from_disk)
    end = world.broker.journal.commits.persisted_end
    number = peer.query("q", "work", credit=1 << 20)
    while not peer.results["q"].groups:
        assert world.broker.has_work
        world.work()
    assert peer.answer(number) == Ack(id=number)
    assert world.broker.queues.snapshots(world.now())[0].ready == 8
    _consume(world, 3)
    publisher.publish("jobs", [big_body(99)])
    world.settle()
    result: Result = peer.results["q"]
    (group,) = result.groups
    assert (group.topic, group.queue, group.position, group.key) == ("work", True, end, ())
    assert result.bodies == [big_body(number) for number in range(8)]
    assert {record.topic for record in result.records} == {"jobs"}
    assert result.end is not None
    assert (result.end.matches, result.end.topic_matches, result.end.records) == (8, 8, 8)
    assert result.completed is not None
    assert result.completed.next == end
    assert len(world.broker.services.records) == 0
    assert world.broker.services.records.results_bytes == 0


def test_result_has_all_messages_that_were_persisted_at_the_request() -> None:
    names = [f"q{number}" for number in range(12)]
    world = QueueQueryWorld(*(QueueDefinition(name, underlying="jobs") for name in names))
    publisher, peer = world.connect("publisher"), world.reader()
    for count in range(1, 6):
        publisher.publish("jobs", [big_body(count)])
        while publisher.acked_frame < publisher.frames:
            world.run_job() if world.jobs else world.work()
        for name in names:
            peer.query(name, name, credit=1 << 20)
        behind = world.queue(names[-1]).considered < world.broker.journal.commits.persisted_end
        assert behind, "the last queue has not read the log yet"
        world.settle()
        assert [len(peer.results[name].records) for name in names] == [count] * 12


@pytest.mark.behaviour(49)
@pytest.mark.parametrize("steps", range(4))
def test_result_has_no_messages_beyond_the_position_of_the_queue(
    monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(worker, "queue_step_messages_max", 1)
    world = QueueQueryWorld(QueueDefinition("work", underlying="jobs", filter="/id >= 0"), sow=[STOCK])
    publisher, peer = world.connect("publisher"), world.reader()
    world.settle()
    for _ in range(2):
        publisher.publish("jobs", [big_body(number) for number in range(100)])
        while world.jobs:
            world.run_job()
    for _ in range(steps):
        world.work()
    queries = {"work": "work", "all": "^"}
    end = world.broker.journal.commits.persisted_end
    for name, topic in queries.items():
        peer.query(name, topic, credit=1 << 24, top_n=0)
    publisher.publish("jobs", [big_body(number) for number in range(100)])
    while world.jobs:
        world.run_job()
    world.settle()
    for name in queries:
        result = peer.results[name]
        assert result.end is not None
        assert result.groups[-1].position == end, "not in the middle of a later transaction"
        before = [at for at in world.positions() if at < end]
        assert result.end.topic_matches == len(before)


@pytest.mark.behaviour(49)
def test_result_has_no_messages_that_are_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "queue_step_outcomes_max", 2)
    world = QueueQueryWorld(QueueDefinition("work", underlying="jobs", expiration=5.0))
    publisher, peer = world.connect("publisher"), world.reader()
    publisher.publish("jobs", [b"%d" % number for number in range(10)])
    world.settle()
    world.wake(4.0)
    publisher.publish("jobs", [b"10"])
    world.settle()
    world.wake(2.0)
    assert len(world.queue("work").state.ready) > 1, "they expire in steps"
    peer.query("q", "work", credit=1 << 20)
    browsing = world.connect("browsing")
    browsing.subscribe("b", "work", options="browse", credit=1 << 20)
    (browser,) = world.broker.queues._feeds[browsing.conn]
    assert isinstance(browser, QueueBrowser)
    while not (peer.results["q"].records and browsing.heard["b"]):
        world.broker.services.records.step()
        world.broker.queues._step_browser(browser)
        world.collect()
    assert peer.results["q"].bodies == [b"10"]
    assert [heard.body for heard in browsing.heard["b"]] == [b"10"]
    world.settle()
    assert world.ready("work") == [b"10"]


def test_query_pins_the_log_until_all_messages_are_copied() -> None:
    world, _, peer = queue_world(8, from_disk=True)
    records = world.broker.services.records
    peer.query("q", "work", credit=100)
    assert records.oldest_needed() is None
    while not peer.results["q"].groups:
        world.work()
    pin = records.oldest_needed()
    assert pin is not None
    assert (pin.position, pin.brief) == (world.queue("work").state.oldest(), True)
    _until_first_record(world, peer)
    assert len(peer.results["q"].records) < 8, "its credit is used"
    assert records.oldest_needed() is None
    assert records.results_bytes > 8 * BIG


def test_filter_keeps_only_matching_messages_in_memory() -> None:
    world, _, peer = queue_world(8)
    peer.query("q", "work", filter="/id = 3", credit=100)
    _until_first_record(world, peer)
    assert peer.results["q"].bodies == [big_body(3)]
    assert world.broker.services.records.results_bytes < 2 * BIG


def test_query_of_a_damaged_log_ends_with_the_error() -> None:
    world, _, peer = queue_world(8, from_disk=True)
    peer.query("q", "work", credit=1 << 20)
    world.until_read()
    world.fail_read()
    world.settle()
    ended = peer.results["q"].ended
    assert ended is not None
    assert ended.code == "journal_corrupt"
    assert len(world.broker.services.records) == 0
    assert world.broker.services.records.results_bytes == 0


def test_unsubscribe_of_a_query_that_waits_for_the_disk_frees_the_memory() -> None:
    world, _, peer = queue_world(8, from_disk=True)
    peer.query("q", "work", credit=1 << 20)
    world.until_read()
    peer.unsubscribe("q")
    world.settle()
    assert len(world.broker.services.records) == 0
    assert world.broker.services.records.results_bytes == 0
    number = peer.query("again", "work", credit=1 << 20)
    world.settle()
    assert peer.answer(number) == Ack(id=number)
    assert len(peer.results["again"].records) == 8


@pytest.mark.parametrize("from_disk", [False, True])
@pytest.mark.parametrize(
    ("fields", "numbers", "matches"),
    [
        ({"top_n": 2, "skip_n": 1}, [1, 2], 8),
        ({"top_n": 2, "skip_n": 1, "filter": "/id > 2"}, [4, 5], 5),
        ({"top_n": 9, "skip_n": 6}, [6, 7], 8),
        ({"top_n": 2, "skip_n": 1 << 53}, [], 8),
        ({"top_n": 0}, [], 8),
        ({"top_n": 0, "filter": "/id > 2"}, [], 5),
        ({"top_n": 2, "order_by": "/id DESC"}, [7, 6], 8),
        ({"top_n": 0, "order_by": "/id DESC"}, [], 8),
    ],
)
def test_top_n_and_skip_n_select_messages_and_count_all_matches(
    from_disk: bool, fields: dict[str, Any], numbers: list[int], matches: int
) -> None:
    world, _, peer = queue_world(8, from_disk=from_disk)
    peer.query("q", "work", credit=1 << 20, **fields)
    world.settle()
    result = peer.results["q"]
    assert result.bodies == [big_body(number) for number in numbers]
    assert result.end is not None
    assert (result.end.matches, result.end.topic_matches, result.end.records) == (matches, 8, len(numbers))


def test_query_with_top_n_reads_no_further_messages() -> None:
    world, _, peer = queue_world(8, from_disk=True)
    peer.query("none", "work", credit=1 << 20, top_n=0)
    while world.broker.has_work:
        world.work()
    assert peer.results["none"].ended is not None, "it needs no read"
    peer.query("q", "work", credit=100, top_n=2)
    _until_first_record(world, peer)
    assert world.broker.services.records.results_bytes < 4 * BIG


def test_query_above_the_memory_of_copied_messages_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_copy, "queue_query_bytes_max", 6 * BIG)
    names = ("work", "more")
    world = QueueQueryWorld(*(QueueDefinition(name, underlying="jobs") for name in names))
    publisher, peer = world.connect("publisher"), world.reader()
    for number in range(4):
        publisher.publish("jobs", [big_body(number)])
    world.settle()
    peer.query("q", "^", credit=1 << 20)
    peer.query("one", "work", credit=1 << 20)
    world.settle()
    ended = peer.results["q"].ended
    assert ended is not None
    assert ended.code == "limit_reached"
    assert ended.text == (
        "Cannot finish the query: its queue messages need more than 24,000 bytes of memory "
        "(queue_query_bytes_max). Use a filter, or top_n without order_by."
    )
    assert len(peer.results["one"].records) == 4
    assert world.broker.services.records.results_bytes == 0


def test_filter_sees_the_time_of_the_start() -> None:
    world, _, peer = queue_world(8, from_disk=True)
    peer.query("q", "work", credit=1 << 20, filter=f"UNIX_TIMESTAMP() <= {world.wall // 1_000_000 + 50}")
    world.until_read()
    world.mono, world.wall = world.mono + 100, world.wall + 100_000_000
    world.settle()
    assert len(peer.results["q"].records) == 8


def test_copy_takes_bounded_steps_and_keeps_the_state_at_the_start() -> None:
    world = QueueQueryWorld(QueueDefinition("work", underlying="jobs"), segment_bytes=1 << 20)
    publisher = world.connect("publisher")
    publisher.publish("jobs", [b"%d" % number for number in range(3_000)])
    world.settle()
    reader, memory = world.broker.queues.reader(None), queue_copy.CopyMemory()
    available = world.queue("work").available(1 << 40, world.wall)
    copy = queue_copy.QueueCopy(available, reader, None, memory).start(with_keys=False)
    sizes: list[int] = []
    while not copy.over:
        if len(sizes) == 1:
            world.consumed("work", 2_000)
            assert len(world.queue("work").state.ready) == 1_000
        before = len(copy.pieces)
        copy.step()
        sizes += [len(piece.rows.positions) for piece in copy.pieces[before:]]
    assert sum(sizes) == copy.record_count == 3_000
    assert max(sizes) <= queue_frame_messages_max
    assert copy.pin is not None
    bodies = [body for piece in copy.pieces for body in copy.pin.take(piece.rows.views)]
    assert bodies == [b"%d" % number for number in range(3_000)]
    assert copy.close()
    assert (copy.over, copy.pieces, copy.nbytes) == (True, [], 0)


@pytest.mark.parametrize("seed", range(6))
def test_results_have_the_ready_messages_after_leases_acknowledgements_and_returns(seed: int) -> None:
    rng = Random(seed)
    depth = rng.choice([None, 7])
    world = QueueQueryWorld(QueueDefinition("work", underlying="^jobs/", target_queue_depth=depth))
    world.broker.journal.view.tail_bytes_max = rng.choice([1, 1 << 20])
    publishers, peer = [world.connect(f"publisher {number}") for number in range(3)], world.reader()
    holder = world.connect("holder")
    number = leased = 0
    for turn in range(40):
        action = rng.choice(["publish", "publish", "consume", "hold", "release"])
        if action == "publish":
            bodies = [b'{"id": %d}' % (number + at) for at in range(rng.randrange(1, 6))]
            number += len(bodies)
            rng.choice(publishers).publish(f"jobs/{rng.randrange(3)}", bodies)
        elif action == "consume":
            world.consumed("work", 2, rng.choice(["ack", "cancel"]))
        elif action == "hold" and not leased:
            holder.subscribe("held", "work", options="max_backlog=3", credit=1 << 20)
            leased = 1
        elif leased:
            holder.send(Unsubscribe(id=900 + turn, sub_ids=("held",)))
            leased = 0
        world.settle()
        low = rng.randrange(number + 1)
        peer.query("q", "work", credit=1 << 20)
        peer.query("part", "work", credit=1 << 20, filter=f"/id >= {low}", order_by="/id DESC", top_n=4)
        world.settle()
        ready = world.ready("work")
        assert peer.results["q"].bodies == ready
        ids = sorted((json.loads(body)["id"] for body in ready), reverse=True)
        wanted = [one for one in ids if one >= low]
        part = peer.results["part"]
        assert [json.loads(body)["id"] for body in part.bodies] == wanted[:4]
        assert part.end is not None
        assert (part.end.matches, part.end.topic_matches) == (len(wanted), len(ready))
    assert number > 20
