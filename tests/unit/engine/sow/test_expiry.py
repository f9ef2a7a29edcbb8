"""Tests of the expiry of records: due times, records in the log, bounds, restart, a full or closing log."""

from __future__ import annotations

import errno

import msgspec

from tests.helpers.sow_engine import SowEngine, expiry_in_flight, publish
from tests.simulation.journal_world import read_log
from tickertape.engine.limits import sow_expiry_step_max
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow.state.delete import DeleteKind, DeleteRecord, decode
from tickertape.engine.sow.state.expiry import NEVER
from tickertape.wire.sow_command import SOW_TOPIC

ORDERS = SowDefinition("orders", key=("/id",), expiration=30_000)
ENABLED = SowDefinition("orders", key=("/id",), expiration="enabled")
_ENCODE = msgspec.msgpack.encode


def body(key: object, value: object = 0) -> bytes:
    return msgspec.json.encode({"id": key, "v": value})


def expiries(world: SowEngine) -> list[DeleteRecord]:
    """Return the expiry records of the log."""
    found = []
    for _, batch in read_log(world.broker.journal, world.disk):
        for index in range(batch.count):
            if batch.topic(index) == SOW_TOPIC:
                assert batch.kinds is not None
                assert batch.kinds[index] == 1
                assert batch.publisher(index) == CONTROL_PUBLISHER
                record = decode(batch.body(index))
                assert record.kind is DeleteKind.EXPIRED
                found.append(record)
    return found


def keys_of(world: SowEngine) -> set[object]:
    """Return the key values of all records."""
    return {msgspec.msgpack.decode(key) for key in world.records("orders")}


def pass_time(world: SowEngine, seconds: float) -> None:
    """Let time pass, and run until idle."""
    world.wake(seconds)
    world.settle()


def test_record_expires_after_the_default_life_and_not_before() -> None:
    world = SowEngine(ORDERS)
    publish(world.connect("p"), [("orders", body(1))])
    world.settle()
    pass_time(world, 29.5)
    assert keys_of(world) == {1}
    assert not expiries(world)
    pass_time(world, 1.6)
    assert keys_of(world) == set()
    (record,) = expiries(world)
    assert (record.topic, record.keys(), record.topics) == ("orders", [_ENCODE(1)], ())
    assert world.state("orders").fold.expired == 1


def test_engine_wakes_for_the_end_of_a_life() -> None:
    world = SowEngine(ORDERS)
    publish(world.connect("p"), [("orders", body(1))])
    world.settle()
    for _ in range(40):
        at = world.broker.next_deadline()
        if at is None or not keys_of(world):
            break
        pass_time(world, max(at - world.mono, 0.001))
    assert keys_of(world) == set()


def test_own_life_precedes_the_default_and_a_record_may_stay() -> None:
    world = SowEngine(ORDERS)
    messages = [("orders", body(key)) for key in range(4)]
    publish(world.connect("p"), messages, expirations=[0, 5_000, 60_000, NEVER])
    world.settle()
    left = []
    for seconds in (7, 25, 30, 100_000):
        pass_time(world, seconds)
        left.append(keys_of(world))
    assert left == [{0, 2, 3}, {2, 3}, {3}, {3}]


def test_topic_without_a_default_expires_only_messages_with_a_life() -> None:
    world = SowEngine(ENABLED)
    publish(world.connect("p"), [("orders", body(1)), ("orders", body(2))], expirations=[0, 1_000])
    world.settle()
    pass_time(world, 10_000)
    assert keys_of(world) == {1}


def test_topic_without_expiration_ignores_lives() -> None:
    world = SowEngine(SowDefinition("orders", key=("/id",)))
    publish(world.connect("p"), [("orders", body(1))], expirations=[1_000])
    world.settle()
    pass_time(world, 10_000)
    assert keys_of(world) == {1}


def test_each_publish_starts_a_new_life() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    for number in range(5):
        publish(peer, [("orders", body(1, number))])
        world.settle()
        pass_time(world, 20)
    assert keys_of(world) == {1}
    pass_time(world, 12)
    assert keys_of(world) == set()


def test_record_is_visible_until_the_expiry_is_persisted() -> None:
    world = SowEngine(ORDERS)
    publish(world.connect("p"), [("orders", body(1))])
    world.settle()
    expiry_in_flight(world)
    assert keys_of(world) == {1}
    crashed = world.disk.kill_clone()
    world.settle()
    assert keys_of(world) == set()
    world.disk = crashed
    world.open()
    assert keys_of(world) == {1}, "the expiry was never persisted"


def test_message_behind_an_expiry_in_flight_stays() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    publish(peer, [("orders", body(1, "old")), ("orders", body(2))])
    world.settle()
    expiry_in_flight(world)
    publish(peer, [("orders", body(1, "new"))])
    world.settle()
    assert world.records("orders") == {_ENCODE(1): body(1, "new")}


def test_message_accepted_before_an_expiry_stays() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    publish(peer, [("orders", body(1, "old"))])
    world.settle()
    world.wall += 40_000_000
    world.mono += 40
    publish(peer, [("orders", body(1, "new"))])
    pass_time(world, 0)
    assert world.records("orders") == {_ENCODE(1): body(1, "new")}


def test_step_back_of_the_wall_clock_expires_nothing_early() -> None:
    world = SowEngine(ORDERS)
    publish(world.connect("p"), [("orders", body(1))])
    world.settle()
    world.wall -= 3_600_000_000
    pass_time(world, 31)
    pass_time(world, 3_000)
    assert keys_of(world) == {1}
    pass_time(world, 700)
    assert keys_of(world) == set()


def test_overdue_records_expire_after_a_restart() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    publish(peer, [("orders", body(1))])
    world.settle()
    pass_time(world, 20)
    publish(peer, [("orders", body(2))])
    world.settle()
    world.wall += 15_000_000
    world.reopen()
    assert keys_of(world) == {1, 2}
    deadline = world.broker.next_deadline()
    assert deadline is not None
    assert deadline <= world.mono
    pass_time(world, 0)
    assert keys_of(world) == {2}


def test_many_records_expire_in_records_of_bounded_keys_one_for_each_topic_and_step() -> None:
    count = sow_expiry_step_max + 100
    other = SowDefinition("trades", key=("/id",), expiration=30_000)
    world = SowEngine(ORDERS, other, segment_bytes=64 << 20)
    peer = world.connect("p")
    publish(peer, [("orders", body(key)) for key in range(count)] + [("trades", body(1))])
    world.settle()
    world.wake(40)
    written = []
    while world.broker.has_work:
        before = world.broker.journal.commits.accepted_end
        world.work()
        written.append(world.broker.journal.commits.accepted_end - before)
    assert max(written) == 1
    world.settle()
    assert [(record.topic, record.count) for record in expiries(world)] == [
        ("orders", sow_expiry_step_max), ("trades", 1), ("orders", 100)
    ]  # fmt: skip
    assert keys_of(world) == set()


def test_records_with_long_keys_expire_within_the_bytes_of_a_record() -> None:
    count = 1_500
    world = SowEngine(ORDERS, segment_bytes=64 << 20)
    publish(world.connect("p"), [("orders", body(f"{key:04}" + "x" * 4_000)) for key in range(count)])
    world.settle()
    pass_time(world, 40)
    pass_time(world, 10)
    assert keys_of(world) == set()
    records = expiries(world)
    assert len(records) == 2
    assert sum(record.count for record in records) == count


def test_state_over_a_pattern_names_the_topic_of_each_expired_key() -> None:
    world = SowEngine(SowDefinition("all", key=("/id",), pattern="^p/", expiration=30_000))
    publish(world.connect("p"), [("p/b", body(1)), ("p/a", body(1)), ("p/a", body(2))])
    world.settle()
    pass_time(world, 40)
    assert world.records("all") == {}
    (record,) = expiries(world)
    assert sorted(record.topics_between(0, 3)) == ["p/a", "p/a", "p/b"]


def test_nothing_expires_while_the_server_stops() -> None:
    world = SowEngine(ORDERS)
    publish(world.connect("p"), [("orders", body(1))])
    world.settle()
    world.wall += 40_000_000
    world.mono += 40
    world.broker.close(world.now())
    world.collect()
    pass_time(world, 0)
    assert not expiries(world)
    assert keys_of(world) == {1}


def test_expiry_waits_a_second_for_space_of_a_full_log() -> None:
    world = SowEngine(ORDERS, segment_bytes=16_384)
    peer = world.connect("p")
    for nth in range(1, 20):
        world.disk.fail("preallocate", nth, errno.ENOSPC)
    key = 0
    while peer.goodbye is None:
        publish(peer, [("orders", body(key + at)) for at in range(20)])
        world.settle()
        key += 20
        assert key < 2_000
    before = keys_of(world)
    world.mono += 0.1
    world.wall += 40_000_000
    pass_time(world, 0)
    assert keys_of(world) == before
    assert not expiries(world)
    deadline = world.broker.states.expiry.next_deadline()
    assert deadline is not None
    assert 0.5 < deadline - world.mono <= 1
    for _ in range(60):
        pass_time(world, 1)
    assert keys_of(world) == set()


def test_expiry_waits_for_a_search_that_holds_the_topic() -> None:
    world = SowEngine(SowDefinition("orders", key=("/id",), expiration=30_000))
    publish(world.connect("p"), [("orders", b'{"id":1}')])
    world.settle()
    overlay = world.broker.states.accepted_rows.overlay(world.state("orders"))
    overlay.hold()
    world.wake(40)
    world.settle()
    assert not world.log("$sow")
    overlay.release()
    world.wake(1)
    world.settle()
    assert len(world.log("$sow")) == 1
    assert not world.records("orders")
