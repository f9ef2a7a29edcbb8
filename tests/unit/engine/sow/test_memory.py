"""Memory of the records: accepted growth, refusals, and everything that passes above the limit."""

from __future__ import annotations

import msgspec
import pytest

from tests.helpers.sow_engine import SowEngine, deleted, expiry_in_flight, publish, rejected, send
from tests.helpers.sow_peer import QueryWorld
from tests.simulation.engine_peer import Peer
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.wire.sow_command import SowDelete

ORDERS = SowDefinition("orders", key=("/id",))


def body(key: object, size: int = 100) -> bytes:
    return msgspec.json.encode({"id": key, "x": "x" * size})


def filled(count: int = 100) -> tuple[SowEngine, Peer]:
    """Return an engine whose memory is used up by records."""
    world = SowEngine(ORDERS, segment_bytes=1 << 22)
    peer = world.connect("p")
    publish(peer, [("orders", body(key)) for key in range(count)])
    world.settle()
    world.broker.states.memory.bytes_max = world.broker.states.memory.used
    return world, peer


def test_growth_of_accepted_messages_counts_before_the_fold() -> None:
    world = SowEngine(ORDERS)
    memory = world.broker.states.memory
    peer = world.connect("p")
    publish(peer, [("orders", body(key)) for key in range(50)])
    empty = memory.used
    assert memory.expected > empty + 50 * 100
    world.settle()
    assert world.broker.states.accepted_rows.growth == 0
    assert empty + 50 * 100 < memory.used == memory.expected == world.state("orders").fold.record_bytes


def test_message_that_needs_more_memory_ends_a_connection_with_sequences() -> None:
    world, peer = filled()
    publish(peer, [("orders", body("new"))])
    assert peer.goodbye is not None
    assert peer.goodbye.code == "sow_full"
    assert "Delete records, or raise `sow_bytes_max`" in peer.goodbye.text
    world.settle()
    assert len(world.records("orders")) == 100
    assert world.broker.states.memory.refusals == 1


def test_frame_without_sequences_that_needs_more_memory_is_rejected_whole() -> None:
    world, peer = filled()
    send(peer, [("orders", body(1)), ("orders", body("new")), ("plain", b"x")], sequenced=False)
    world.settle()
    assert [refusal.code for refusal in rejected(peer)] == ["sow_full"]
    assert peer.goodbye is None
    assert not world.log("plain")


def events(world: SowEngine) -> list[str]:
    return [event.name for event in world.told if event.name in ("sow_full", "sow_resumed")]


def test_refusals_are_logged_once_until_the_refused_messages_fit() -> None:
    world, peer = filled(20_000)
    for size in (200, 100):
        send(peer, [("orders", body("new", size))], sequenced=False)
    world.settle()
    assert events(world) == ["sow_full"]
    (event,) = [event for event in world.told if event.name == "sow_full"]
    assert event.fields["topic"] == "orders"
    assert "`sow_bytes_max` is" in str(event.fields["text"])
    publish(peer, [("orders", body(0, 90))])  # not enough space yet
    world.settle()
    assert events(world) == ["sow_full"]
    send(peer, [SowDelete(topic="orders", filter="/id >= 10")])
    world.settle()
    assert events(world) == ["sow_full", "sow_resumed"]
    send(peer, [("orders", body("new"))], sequenced=False)
    world.settle()
    assert events(world) == ["sow_full", "sow_resumed"]
    assert world.broker.states.memory.refusals == 2
    world.broker.states.memory.bytes_max = world.broker.states.memory.used
    send(peer, [("orders", body("newer"))], sequenced=False)
    world.settle()
    assert events(world) == ["sow_full", "sow_resumed", "sow_full"]


@pytest.mark.parametrize("size", [10, 100])
def test_updates_that_need_no_more_memory_pass(size: int) -> None:
    world, peer = filled()
    publish(peer, [("orders", body(key, size)) for key in range(100)])
    publish(peer, [("plain", b"x" * 1_000)])
    world.settle()
    assert peer.goodbye is None
    assert world.records("orders")[msgspec.msgpack.encode(7)] == body(7, size)


@pytest.mark.parametrize("more", [[body(1, 150)], [*[body(1, 10)] * 99, body("new", 1_000)]])
def test_repeated_smaller_updates_of_a_key_free_memory_once(more: list[bytes]) -> None:
    _, peer = filled()
    publish(peer, [("orders", update) for update in [body(1, 10), *more]])
    assert peer.goodbye is not None
    assert peer.goodbye.code == "sow_full"


@pytest.mark.parametrize("delta", [False, True])
def test_larger_update_is_refused_also_after_a_merge(delta: bool) -> None:
    world, peer = filled()
    update = msgspec.json.encode({"id": 1, "y": "y" * 90}) if delta else body(1, 101)
    send(peer, [("orders", update)], deltas=[0] if delta else [])
    assert peer.goodbye is not None
    assert peer.goodbye.code == "sow_full"
    world.settle()
    assert world.records("orders")[msgspec.msgpack.encode(1)] == body(1)


def test_deletes_pass_and_make_space() -> None:
    world, peer = filled(20_000)
    memory = world.broker.states.memory
    memory.bytes_max -= 1_000_000
    send(peer, [SowDelete(topic="orders", filter="/id >= 10")])
    world.settle()
    assert [answer.deleted for answer in deleted(peer)] == [19_990]
    publish(peer, [("orders", body(key)) for key in range(10, 1_000)])
    world.settle()
    assert peer.goodbye is None
    assert memory.used <= memory.bytes_max


def test_slots_of_deleted_records_are_used_for_new_ones_at_the_limit() -> None:
    world = SowEngine(ORDERS, segment_bytes=1 << 22)
    peer = world.connect("p")
    publish(peer, [("orders", b'{"id":%d}' % key) for key in range(20_000)])
    world.settle()
    memory = world.broker.states.memory
    memory.bytes_max = memory.used
    send(peer, [SowDelete(topic="orders", filter="/id >= 10000")])
    world.settle()
    publish(peer, [("orders", b'{"id":%d}' % key) for key in range(20_000, 23_000)])
    world.settle()
    assert peer.goodbye is None
    assert len(world.records("orders")) == 13_000
    assert memory.used <= memory.bytes_max


def test_expiry_passes() -> None:
    world = SowEngine(SowDefinition("orders", key=("/id",), expiration=30_000))
    peer = world.connect("p")
    publish(peer, [("orders", body(key)) for key in range(10)])
    world.settle()
    world.broker.states.memory.bytes_max = 1
    expiry_in_flight(world)
    world.settle()
    assert not world.records("orders")
    assert world.log("$sow")


def test_start_above_the_limit_is_reported() -> None:
    world, _ = filled()
    used = world.broker.states.memory.used
    assert world.report == []
    world.sow_bytes_max = used - 1
    world.reopen()
    (line,) = world.report
    assert line.endswith("Messages that need more memory are refused with `sow_full`.")
    assert f"need {world.broker.states.memory.used:,} bytes, and `sow_bytes_max` is {used - 1:,}" in line
    assert len(world.records("orders")) == 100


def test_columns_use_only_memory_that_records_leave() -> None:
    world = QueryWorld(ORDERS, segment_bytes=1 << 22)
    peer, reader = world.connect("p"), world.reader()
    publish(peer, [("orders", body(key)) for key in range(5_000)])
    world.settle()
    memory, columns = world.broker.states.memory, world.broker.states.columns

    def query(name: str) -> int:
        reader.query(name, "orders", credit=1 << 20, filter="/id > 4990")
        world.settle()
        return len(reader.results[name].records)

    assert [query("first"), query("second"), query("third")] == [9, 9, 9]
    assert columns.nbytes > 0
    memory.bytes_max = memory.used + columns.nbytes
    publish(peer, [("orders", body(key)) for key in range(100)])
    world.settle()
    publish(peer, [("orders", body(key)) for key in range(5_000, 5_010)])
    world.settle()
    assert columns.nbytes == 0
    assert (peer.goodbye, memory.refusals) == (None, 0)
    assert [query("fourth"), query("fifth")] == [19, 19]
    assert columns.nbytes == 0


def updated_during_a_scan() -> tuple[SowEngine, int]:
    """Return an engine whose records were all replaced while a scan was open, and the scan."""
    world, peer = filled()
    fold = world.state("orders").fold
    scan = fold.changes.open_scan(world.broker.states.fold.folded)
    for _ in range(3):
        publish(peer, [("orders", body(key)) for key in range(100)])
        world.settle()
    assert fold.changes.body_bytes > 3 * 100 * 100
    return world, scan


def test_end_of_a_scan_frees_changes_without_another_message() -> None:
    world, scan = updated_during_a_scan()
    fold = world.state("orders").fold
    fold.close_scan(scan)
    assert any(world.broker.states.pending)
    world.settle()
    assert (fold.changes.nbytes, fold.changes.body_bytes) == (0, 0)
    assert not any(world.broker.states.pending)


def test_bodies_that_only_a_scan_needs_do_not_count_as_records() -> None:
    world, _ = updated_during_a_scan()
    memory = world.broker.states.memory
    claims = 3 * 100 * 4
    assert memory.used <= memory.bytes_max + claims
