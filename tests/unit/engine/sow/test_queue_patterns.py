"""Queries of patterns with queues: stopped queues, message types, waits, and positions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.queue_queries import QueueQueryWorld, big_body, queue_world
from tests.helpers.sow_engine import publish
from tests.helpers.sow_peer import SowPeer
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow import queue_copy
from tickertape.engine.sow.state.records import PublisherTable
from tickertape.wire.commands import Credit

STOCK = SowDefinition("stock", key=("/id",))


def _refused(world: QueueQueryWorld, peer: SowPeer, topic: str, **fields: Any) -> tuple[str, str]:
    number = peer.query("refused", topic, **fields)
    world.settle()
    answer = peer.answer(number)
    assert len(world.broker.services.records) == 0
    return answer.code, answer.text


def _two_queues(**more: Any) -> tuple[QueueQueryWorld, SowPeer]:
    """Return a server with the queues `q-good` and `q-bad`, whose messages are only on disk."""
    names = ("good", "bad")
    world = QueueQueryWorld(*(QueueDefinition(f"q-{name}", underlying=name) for name in names), **more)
    world.broker.journal.view.tail_bytes_max = 1
    publisher = world.connect("publisher")
    for number in range(3):
        for name in names:
            publisher.publish(name, [big_body(number)])
            world.settle()
    return world, world.reader()


@pytest.mark.behaviour(49)
@pytest.mark.parametrize("fields", [{}, {"order_by": "/id DESC"}, {"top_n": 2}])
def test_pattern_leaves_out_a_stopped_queue_and_the_name_raises_the_error(fields: dict[str, Any]) -> None:
    world, peer = _two_queues()
    world.stop_queue("q-bad")
    assert _refused(world, peer, "q-bad", **fields) == ("journal_corrupt", "segment 0 is damaged")
    peer.query("q", "^q-", credit=1 << 20, **fields)
    world.settle()
    result = peer.results["q"]
    assert result.ended is not None
    assert result.ended.code == ""
    assert [group.topic for group in result.groups] == ["q-good"]
    assert {record.topic for record in result.records} == {"good"}
    assert len(result.records) == fields.get("top_n", 3)


def test_pattern_of_stopped_queues_only_is_empty() -> None:
    world, _, peer = queue_world(3, from_disk=True)
    world.stop_queue("work")
    peer.query("q", "^work", credit=1 << 20)
    world.settle()
    result = peer.results["q"]
    assert (result.groups, result.records) == ([], [])
    assert result.completed is not None
    assert result.completed.next == 0
    assert result.ended is not None
    assert result.ended.code == ""


def test_pattern_without_a_match_is_empty_also_on_a_server_without_sow_topics() -> None:
    world = QueueQueryWorld(QueueDefinition("work", underlying="jobs"))
    world.connect("publisher").publish("jobs", [b"1"])
    peer = world.reader()
    world.settle()
    peer.query("q", "^other", credit=1 << 20)
    world.settle()
    result = peer.results["q"]
    assert (result.groups, result.records) == ([], [])
    assert result.ended is not None
    assert result.ended.code == ""
    text = (
        "Cannot query records of '^work': this server has no SOW topic. Configure one in a [[sow]] section."
    )
    assert _refused(world, peer, "^work", follow=True) == ("bad_topic", text)
    assert _refused(world, peer, "^work", keys=("AAAAAAAAAAAAAAAAAAAAAA",)) == ("bad_topic", text)


@pytest.mark.parametrize(("topic", "code"), [("q11", "journal_corrupt"), ("^q", "")])
def test_queue_that_stops_before_the_start_ends_only_a_query_by_name(topic: str, code: str) -> None:
    names = [f"q{number}" for number in range(12)]
    world = QueueQueryWorld(*(QueueDefinition(name, underlying="jobs", filter="/id >= 0") for name in names))
    world.broker.journal.view.tail_bytes_max = 1
    publisher, peer = world.connect("publisher"), world.reader()
    for number in range(5):
        publisher.publish("jobs", [big_body(number)])
        while world.jobs:  # and nothing else
            world.run_job()
    peer.query("q", topic, credit=1 << 20)
    while world.reads or world.broker.has_work:
        assert peer.results["q"].records == []
        world.fail_read() if world.reads else world.work()
    assert {event[0] for event in world.told} == {"queue_stopped"}
    ended = peer.results["q"].ended
    assert ended is not None
    assert ended.code == code
    assert (peer.results["q"].completed is None) == bool(code)
    assert len(world.broker.services.records) == 0


# -- message types ------------------------------------------------------------------------------------


def _typed_world() -> tuple[QueueQueryWorld, SowPeer]:
    """Return a server with a queue of JSON, another of binary messages, and a SOW topic."""
    world = QueueQueryWorld(
        QueueDefinition("q-json", underlying="jobs"),
        QueueDefinition("q-binary", underlying="images"),
        sow=[SowDefinition("q-records", key=("/id",))],
        topic_types={"images": "binary"},
    )
    publisher = world.connect("publisher")
    publish(publisher, [("jobs", b'{"id": 1, "v": 2}'), ("images", b"image"), ("q-records", b'{"id": 3}')])
    world.settle()
    return world, world.reader()


@pytest.mark.parametrize(
    ("fields", "bodies"),
    [
        ({"filter": "/id = 1"}, [b'{"id": 1, "v": 2}']),
        ({"order_by": "/id DESC"}, [b'{"id": 3}', b'{"id": 1, "v": 2}', b"image"]),
        ({"options": "select=[-/,+/id]"}, [b'{"id":1}', b"image", b'{"id":3}']),
    ],
)
def test_terms_of_a_pattern_need_not_fit_each_message_type(
    fields: dict[str, Any], bodies: list[bytes]
) -> None:
    world, peer = _typed_world()
    peer.query("q", "^q-", credit=1 << 20, **fields)
    world.settle()
    result = peer.results["q"]
    if "order_by" in fields:
        assert result.bodies == bodies
    assert sorted(result.bodies) == sorted(bodies)
    assert [(group.topic, group.queue) for group in result.groups] == [
        ("q-records", False),
        ("q-json", True),
        ("q-binary", True),
    ]
    assert result.groups[2].types == {"binary": ("images",)}
    assert result.groups[0].types == {}
    for name, value in fields.items():
        code = {"filter": "bad_filter", "order_by": "bad_order_by", "options": "bad_option"}[name]
        assert _refused(world, peer, "q-binary", **{name: value})[0] == code


@pytest.mark.parametrize("order_by", ["", "/id"])
def test_parts_of_a_pattern_have_each_message_of_each_queue_once(order_by: str) -> None:
    names = ("q-a", "q-b", "q-c")
    world = QueueQueryWorld(*(QueueDefinition(name, underlying="jobs") for name in names))
    publisher, peer = world.connect("publisher"), world.reader()
    for number in range(40):
        publisher.publish("jobs", [b'{"id": %d}' % number])
    world.settle()
    found = []
    for skip_n in range(0, 120, 7):
        peer.query("q", "^q-", credit=1 << 20, order_by=order_by, top_n=7, skip_n=skip_n)
        world.settle()
        found += [(record.queue, record.body) for record in peer.results["q"].records]
    assert sorted(found) == sorted((name, b'{"id": %d}' % number) for name in names for number in range(40))
    assert found[:3] == [(name, b'{"id": 0}') for name in names], "in the order of the configuration"


# -- waits --------------------------------------------------------------------------------------------


def _late_world(monkeypatch: pytest.MonkeyPatch) -> tuple[QueueQueryWorld, SowPeer]:
    """Return a server whose queue `late` does not consider new messages."""
    names = ("late", "early")
    world = QueueQueryWorld(*(QueueDefinition(name, underlying="jobs") for name in names), sow=[STOCK])
    publisher, peer = world.connect("publisher"), world.reader()
    world.settle()
    monkeypatch.setattr(world.worker("late"), "_admit", lambda: None)
    publish(publisher, [("jobs", b'{"id": 1}'), ("stock", b'{"id": 2}')])
    while world.jobs:
        world.run_job()
    _run(world)
    assert world.queue("late").considered < world.broker.journal.commits.persisted_end
    return world, peer


def _run(world: QueueQueryWorld) -> None:
    for _ in range(100):
        world.work()


def test_query_that_waits_for_a_queue_holds_back_no_other_query(monkeypatch: pytest.MonkeyPatch) -> None:
    world, peer = _late_world(monkeypatch)
    peer.query("late", "late")
    peer.query("all", "^")
    for name in ("early", "stock"):
        peer.query(name, name)
    _run(world)
    assert len(peer.results["early"].bodies) == len(peer.results["stock"].bodies) == 1
    assert peer.results["late"].groups == peer.results["all"].groups == []
    monkeypatch.undo()
    world.settle()
    assert peer.results["late"].bodies == [b'{"id": 1}']
    assert sorted(peer.results["all"].bodies) == [b'{"id": 1}', b'{"id": 1}', b'{"id": 2}']


def test_query_of_a_queue_does_not_wait_for_the_fold_of_sow_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    world = QueueQueryWorld(QueueDefinition("work", underlying="jobs"), sow=[STOCK])
    publisher, peer = world.connect("publisher"), world.reader()
    world.settle()
    monkeypatch.setattr(world.broker.states.fold, "step", lambda: False)
    publish(publisher, [("jobs", b'{"id": 1}'), ("stock", b'{"id": 2}')])
    while world.jobs:
        world.run_job()
    for name in ("stock", "all", "work"):
        peer.query(name, "^" if name == "all" else name)
    _run(world)
    assert peer.results["stock"].groups == peer.results["all"].groups == []
    assert peer.results["work"].bodies == [b'{"id": 1}']
    monkeypatch.undo()
    world.broker.states.wake()
    world.settle()
    assert peer.results["stock"].bodies == [b'{"id": 2}']
    assert len(peer.results["all"].bodies) == 2


def test_credit_does_not_start_a_query_that_waits_for_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    world, peer = _late_world(monkeypatch)
    peer.query("late", "late", credit=1_000)
    _run(world)
    peer.send(Credit(sub_id="late", bytes=1_000))
    _run(world)
    assert peer.results["late"].groups == []
    peer.unsubscribe("late")
    _run(world)
    assert len(world.broker.services.records) == 0
    assert not any(world.broker.queues._waiters.values())
    monkeypatch.undo()
    world.settle()
    assert peer.results["late"].groups == []


def test_copies_of_many_queues_share_one_table_of_publishers(monkeypatch: pytest.MonkeyPatch) -> None:
    tables: list[PublisherTable] = []

    def make() -> PublisherTable:
        tables.append(PublisherTable())
        return tables[-1]

    monkeypatch.setattr(queue_copy, "PublisherTable", make)
    world = QueueQueryWorld(*(QueueDefinition(f"q{number}", underlying="jobs") for number in range(20)))
    peer = world.reader()
    expected = []
    for number in range(3):
        publisher = world.connect(f"publisher {number}")
        publisher.publish("jobs", [b"%d" % number])
        assert publisher.logged_on is not None
        expected += [(publisher.logged_on.publisher, b"%d" % number)] * 20
    world.settle()
    peer.query("q", "^q", credit=1 << 20, order_by="/id")
    world.settle()
    found = [(record.publisher, record.body) for record in peer.results["q"].records]
    assert sorted(found) == sorted(expected)
    assert len(tables) == 1, "each is made in about 0.4 ms"


def test_completion_of_a_pattern_names_the_lowest_position() -> None:
    world = QueueQueryWorld(QueueDefinition("q-jobs", underlying="jobs"), sow=[STOCK])
    publisher, peer = world.connect("publisher"), world.reader()
    publish(publisher, [("stock", b'{"id": 2}'), ("jobs", b'{"id": 1}')])
    world.settle()
    peer.query("q", "^(q|stock)", credit=1 << 20)
    world.settle()
    result = peer.results["q"]
    assert [group.as_of for group in result.groups][1] == "0"
    assert result.groups[0].as_of != "0"
    assert result.completed is not None
    assert result.completed.next == min(group.position for group in result.groups)
