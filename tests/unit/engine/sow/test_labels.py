"""Correlation ids of records: from the last message of each key to results, filters, deletes and restarts."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.helpers.sow_engine import deleted, labels_in, publish, rejected, send
from tests.helpers.sow_peer import QueryWorld, SowPeer
from tests.simulation.engine_peer import Peer
from tickertape.base.limits import label_bytes_max
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.limits import fold_scalar_rows_max, sow_label_memory_bytes
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow.state.labels import LABEL_PLACE_BYTES, LabelColumn, label_memory_of
from tickertape.engine.sow.state.labels import labels_of as labels_of_messages
from tickertape.journal.format.sow_blocks import RecordBlock
from tickertape.journal.format.sow_checkpoint import state_directory
from tickertape.journal.recovery.state_files import find_states, read_states
from tickertape.wire.sow_command import SowDelete

ORDERS = SowDefinition("orders", key=("/id",), checkpoint_interval=10.0)
PLAIN = SowDefinition("plain", key=("/id",), checkpoint_interval=10.0)
LIVES = SowDefinition("lives", key=("/id",), expiration=20_000)
MANY = fold_scalar_rows_max + 10
_ENCODE = msgspec.msgpack.encode


def body(key: object, **fields: object) -> bytes:
    return msgspec.json.encode({"id": key, **fields})


def put(peer: Peer, labels: dict[int, str], topic: str = "orders") -> None:
    """Publish one message for each key in one frame."""
    publish(peer, [(topic, body(key)) for key in labels], labels=[*labels.values()])


def labels_of(world: QueryWorld, topic: str = "orders") -> dict[int, str]:
    return {msgspec.msgpack.decode(key): label for key, label in labels_in(world, topic).items()}


def found(world: QueryWorld, name: str, topic: str = "orders", **fields: Any) -> dict[int, str | None]:
    """Return the correlation ids of the records of a query by key value."""
    reader = world.reader(name)
    assert isinstance(reader, SowPeer)
    reader.query("q", topic, **fields)
    world.settle()
    result = reader.results["q"]
    assert result.completed is not None
    return {msgspec.json.decode(record.body)["id"]: record.label for record in result.records}


def started(*definitions: SowDefinition) -> tuple[QueryWorld, Peer]:
    world = QueryWorld(*(definitions or (ORDERS,)), segment_bytes=1 << 22)
    return world, world.connect("p")


@pytest.mark.parametrize("count", [3, MANY])
def test_record_has_the_label_of_the_last_message_of_the_key(count: int) -> None:
    world, peer = started()
    put(peer, {key: f"c{key}" if key % 2 else "" for key in range(count)})
    world.settle()
    expected: dict[int, str | None] = {key: f"c{key}" if key % 2 else None for key in range(count)}
    assert found(world, "first") == expected
    put(peer, {0: "new", 1: ""})
    world.settle()
    assert found(world, "second") == {**expected, 0: "new", 1: None}
    publish(peer, [("orders", body(0))])
    world.settle()
    assert found(world, "third") == {**expected, 0: None, 1: None}


@pytest.mark.parametrize("count", [3, MANY])
def test_last_message_of_a_frame_decides_the_label(count: int) -> None:
    world, peer = started()
    rows = [("orders", body(key % 2, n=key)) for key in range(count)]
    publish(peer, rows, labels=[f"c{key}" for key in range(count)])
    world.settle()
    last = {key % 2: f"c{key}" for key in range(count)}
    assert labels_of(world) == last


def test_filter_by_correlation_id_selects_records() -> None:
    world, peer = started()
    put(peer, {1: "a", 2: "b", 3: "", 4: "a"})
    world.settle()
    assert found(world, "equal", filter="CORRELATION_ID() = 'a'") == {1: "a", 4: "a"}
    assert found(world, "null", filter="CORRELATION_ID() IS NULL") == {3: None}
    assert found(world, "both", filter="CORRELATION_ID() LIKE '^[ab]$' AND /id < 3") == {1: "a", 2: "b"}
    assert found(world, "keys", filter="CORRELATION_ID() = 'a'", canonical=(_ENCODE(4), _ENCODE(2))) == {
        4: "a"
    }


def test_records_of_several_topics_have_labels() -> None:
    world, peer = started(ORDERS, PLAIN)
    put(peer, {1: "a", 2: ""})
    put(peer, {11: "", 12: ""}, "plain")
    world.settle()
    expected = {1: "a", 2: None, 11: None, 12: None}
    assert found(world, "all", "^(orders|plain)$") == expected
    assert found(world, "sorted", "^(orders|plain)$", order_by="/id DESC") == expected


def test_merged_record_has_the_label_of_the_delta() -> None:
    world, peer = started()
    put(peer, {1: "whole", 2: "whole", 3: "whole"})
    world.settle()
    send(peer, [("orders", body(1, a=1)), ("orders", body(2, a=1))], deltas=[0, 1], labels=["delta", ""])
    world.settle()
    assert labels_of(world) == {1: "delta", 3: "whole"}


@pytest.mark.parametrize("persisted", [True, False])
def test_delete_by_filter_reads_the_labels_of_accepted_messages(persisted: bool) -> None:
    world, peer = started()
    put(peer, {1: "a", 2: "b", 3: "a", 4: "a"})
    if persisted:
        world.settle()
    put(peer, {3: "b", 5: "a"})
    rows: list[tuple[str, bytes] | SowDelete] = [
        ("orders", body(4)),
        ("orders", body(6)),
        SowDelete(topic="orders", filter="CORRELATION_ID() = 'a'"),
    ]
    send(peer, rows, labels=["", "a", ""])
    world.settle()
    assert [answer.deleted for answer in deleted(peer)] == [3]
    assert found(world, "rest") == {2: "b", 3: "b", 4: None}


def test_delete_and_expiry_remove_the_label_with_the_record() -> None:
    world, peer = started(LIVES)
    put(peer, {1: "a", 2: "b"}, "lives")
    world.settle()
    send(peer, [SowDelete(topic="lives", canonical=(_ENCODE(1),))])
    world.wake(30)
    world.settle()
    assert world.records("lives") == {}
    publish(peer, [("lives", body(1)), ("lives", body(2))])
    world.settle()
    assert found(world, "new", "lives") == {1: None, 2: None}


# -- restarts ---------------------------------------------------------------------------------------------


def blocks_of(world: QueryWorld, topic: str) -> list[list[RecordBlock]]:
    """Return the blocks of records of each file of the checkpoint of a topic."""
    found = find_states(world.disk, world.broker.journal.journal_id)[state_directory(topic)]
    assert found.manifest is not None
    return [
        [block for block in blocks if isinstance(block, RecordBlock)]
        for blocks in read_states(world.disk, found.manifest).files
    ]


def checkpoint(world: QueryWorld) -> None:
    world.wake(10.1)
    world.settle()


def test_labels_survive_restarts_with_log_base_and_delta() -> None:
    world, peer = started(ORDERS, PLAIN)
    labels = {key: f"c{key}" if key % 3 else "" for key in range(100)}
    put(peer, labels)
    put(peer, dict.fromkeys(range(3), ""), "plain")
    world.settle()
    expected = {key: label for key, label in labels.items() if label}
    world.reopen()
    assert labels_of(world) == expected
    checkpoint(world)
    peer = world.connect("q")
    put(peer, {1: "new", 2: "", 3: "first"})
    world.settle()
    checkpoint(world)
    base, delta = blocks_of(world, "orders")
    assert all(block.correlation_ids is not None for block in [*base, *delta])
    put(peer, {4: "later", 5: ""})
    world.settle()
    expected |= {1: "new", 3: "first", 4: "later"}
    for gone in (2, 5):
        del expected[gone]
    world.reopen()
    assert labels_of(world) == expected
    assert found(world, "query", filter="CORRELATION_ID() = 'first'") == {3: "first"}


def test_checkpoint_has_no_column_of_labels_without_labels() -> None:
    world, peer = started(ORDERS, PLAIN)
    put(peer, {1: "", 2: ""}, "plain")
    put(peer, {1: "a"})
    world.settle()
    put(peer, {1: ""})
    world.settle()
    checkpoint(world)
    for topic in ("orders", "plain"):
        ((block,),) = blocks_of(world, topic)
        assert block.correlation_ids is None


# -- memory -----------------------------------------------------------------------------------------------


def test_records_without_labels_need_no_more_memory() -> None:
    world, peer = started(ORDERS, PLAIN)
    put(peer, dict.fromkeys(range(1_000), ""), "plain")
    put(peer, dict.fromkeys(range(1_000), ""))
    world.settle()
    plain, orders = world.state("plain").fold, world.state("orders").fold
    assert plain.record_bytes == orders.record_bytes
    put(peer, {0: "abc"})
    world.settle()
    assert plain.record_bytes + 1_000 * LABEL_PLACE_BYTES + sow_label_memory_bytes + 3 == orders.record_bytes
    put(peer, {0: ""})
    world.settle()
    assert plain.record_bytes + 1_000 * LABEL_PLACE_BYTES == orders.record_bytes


def test_removed_labels_leave_little_memory() -> None:
    count = 50_000
    column = LabelColumn(count)
    labels = np.array([b"order-%d" % number for number in range(count)], object)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        column.set(np.arange(count), labels)
        column.set(np.arange(count), None)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert column.text_bytes == 0
    assert after - before < 24 * count


def test_labels_of_some_messages_are_read_without_those_between() -> None:
    count = 50_000
    builder = BatchBuilder()
    for number in range(count):
        builder.add("orders", b"", correlation_id=f"c{number}" if number % 2 else "")
    batch = MessageBatch.parse(builder.build().encode())
    rows = np.array([1, 2, count - 1])
    tracemalloc.start()
    try:
        labels, memory = labels_of_messages(batch, rows), label_memory_of(batch, rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert labels is not None
    assert labels.tolist() == [b"c1", None, b"c%d" % (count - 1)]
    assert memory.tolist() == [sow_label_memory_bytes + 2, 0, sow_label_memory_bytes + 6]
    assert peak < count


def test_new_record_of_a_topic_with_labels_needs_memory_for_the_place() -> None:
    world, peer = started(ORDERS, PLAIN)
    memory = world.broker.states.memory
    put(peer, {-1: "a"})
    put(peer, {-1: ""}, "plain")
    world.settle()
    growths = []
    for topic in ("orders", "plain"):
        before = memory.expected
        put(peer, dict.fromkeys(range(100), ""), topic)
        growths.append(memory.expected - before)
        world.settle()
    assert growths[0] == growths[1] + 100 * LABEL_PLACE_BYTES


@pytest.mark.parametrize("count", [3, MANY])
def test_growth_of_accepted_labels_counts_before_the_fold(count: int) -> None:
    world, peer = started()
    memory = world.broker.states.memory
    put(peer, {-1: ""})  # the tables
    world.settle()
    put(peer, dict.fromkeys(range(count), "x" * label_bytes_max))
    before = memory.expected
    assert before > count * label_bytes_max
    world.settle()
    assert count * label_bytes_max < memory.used == memory.expected <= before


def full(labels: dict[int, str]) -> tuple[QueryWorld, Peer]:
    """Return an engine whose memory is used up by records."""
    world, peer = started()
    put(peer, labels)
    send(peer, [("orders", body(0))], sequenced=False)  # its publisher id
    world.settle()
    world.broker.states.memory.bytes_max = world.broker.states.memory.used
    return world, peer


@pytest.mark.parametrize(
    ("before", "after", "passes"),
    [("abc", "xyz", True), ("abc", "", True), ("abc", "abcd", False), ("", "a", False)],
)
def test_longer_label_is_refused_above_the_memory(before: str, after: str, passes: bool) -> None:
    world, peer = full({1: "first", 2: before})
    send(peer, [("orders", body(2))], labels=[after], sequenced=False)
    world.settle()
    assert [refusal.code for refusal in rejected(peer)] == ([] if passes else ["sow_full"])
    assert labels_of(world).get(2, "") == (after if passes else before)


@pytest.mark.parametrize(("free", "passes"), [(0, True), (-1, False)])
def test_first_label_of_a_topic_is_refused_without_memory_for_all_places(free: int, passes: bool) -> None:
    world, peer = full(dict.fromkeys(range(5_000), ""))
    memory = world.broker.states.memory
    memory.bytes_max += 5_000 * LABEL_PLACE_BYTES + sow_label_memory_bytes + 1 + free
    send(peer, [("orders", body(1))], labels=["a"], sequenced=False)
    assert [refusal.code for refusal in rejected(peer)] == ([] if passes else ["sow_full"])
    assert world.state("orders").fold.records.has_labels == passes
    world.settle()
    assert memory.used <= memory.bytes_max
    assert memory.free == (0 if passes else 5_000 * LABEL_PLACE_BYTES + sow_label_memory_bytes)


def test_large_labels_fit_the_frames_of_a_result() -> None:
    world, peer = started()
    count = 300
    put(peer, {key: f"{key:04}" * (label_bytes_max // 4) for key in range(count)})
    world.settle()
    reader = world.reader()
    reader.query("q", "orders", credit=1 << 26)
    world.settle()
    result = reader.results["q"]
    assert result.completed is not None
    assert [record.label for record in result.records] == [
        f"{key:04}" * (label_bytes_max // 4) for key in range(count)
    ]
    assert max(result.frames) * label_bytes_max <= 256 * 1024
