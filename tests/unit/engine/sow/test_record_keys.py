"""Queries and deletes by generated keys: computed keys, memory of their index, and turns of other queries."""

from __future__ import annotations

import msgspec
import pytest

from tests.helpers.sow_engine import deleted, publish, rejected, send
from tests.helpers.sow_peer import QueryWorld, SowPeer
from tests.simulation.engine_peer import Peer
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow.query import record_topics
from tickertape.engine.sow.state import record_key_index
from tickertape.payload.canonical import generated_key
from tickertape.wire.sow_command import SowDelete

_ENCODE = msgspec.msgpack.encode
ORDERS = SowDefinition("orders", key=("/id",))
LABELLED = SowDefinition("labelled")
SHARED = SowDefinition("shared", pattern="^shared/")
RECORDS = 1_000


def body(key: object) -> bytes:
    return msgspec.json.encode({"id": key})


def name_of(key: object) -> str:
    return generated_key("orders", _ENCODE(key))


def world_of(*more: SowDefinition) -> tuple[QueryWorld, Peer, SowPeer]:
    world = QueryWorld(ORDERS, *more, segment_bytes=1 << 20)
    publisher = world.connect("publisher")
    publish(publisher, [("orders", body(key)) for key in range(RECORDS)])
    world.settle()
    return world, publisher, world.reader()


def ask(world: QueryWorld, peer: SowPeer, *names: str, topic: str = "orders") -> list[bytes]:
    peer.query("q", topic, keys=names)
    world.settle()
    assert peer.results["q"].completed is not None
    return peer.results.pop("q").bodies


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the canonical keys whose generated keys the server computes."""
    found: list[bytes] = []

    def counted(domain: str, canonical: bytes) -> str:
        found.append(canonical)
        return generated_key(domain, canonical)

    monkeypatch.setattr(record_topics, "generated_key", counted)
    return found


def test_queries_by_generated_keys_compute_each_key_once(computed: list[bytes]) -> None:
    world, publisher, peer = world_of()
    assert ask(world, peer, name_of(7), "absent") == [body(7)]
    assert len(computed) == RECORDS + 1
    del computed[:]
    assert ask(world, peer, name_of(8), name_of(RECORDS)) == [body(8)]
    assert computed == [_ENCODE(8)]
    del computed[:]
    publish(publisher, [("orders", body(key)) for key in (8, RECORDS)])
    world.settle()
    assert ask(world, peer, name_of(8), name_of(RECORDS)) == [body(8), body(RECORDS)]
    assert sorted(computed) == sorted(map(_ENCODE, (8, RECORDS, RECORDS)))


def test_index_of_record_keys_grows_with_the_records_and_keeps_computed_keys(computed: list[bytes]) -> None:
    world, publisher, peer = world_of()
    assert ask(world, peer, name_of(7)) == [body(7)]
    record_keys = world.state("orders").fold.record_keys
    assert record_keys is not None
    before = record_keys.nbytes
    publish(publisher, [("orders", body(key)) for key in range(RECORDS, 3 * RECORDS)])
    world.settle()
    del computed[:]
    assert ask(world, peer, *map(name_of, (7, 2 * RECORDS))) == [body(7), body(2 * RECORDS)]
    assert len(computed) == 2 * RECORDS + 2
    assert record_keys.nbytes > before
    assert ask(world, peer, *map(name_of, range(3 * RECORDS))) == [*map(body, range(3 * RECORDS))]


def test_deletes_by_generated_keys_use_and_change_the_index(computed: list[bytes]) -> None:
    world, publisher, peer = world_of()
    assert ask(world, peer, name_of(7)) == [body(7)]
    del computed[:]
    send(publisher, [SowDelete(topic="orders", keys=(name_of(7), name_of(8), "absent"))])
    world.settle()
    assert [answer.deleted for answer in deleted(publisher)] == [2]
    assert set(computed) == {_ENCODE(7), _ENCODE(8)}
    assert len(computed) < 10
    publish(publisher, [("orders", body(key)) for key in ("new", 8)])  # in the slots of the deleted ones
    world.settle()
    assert ask(world, peer, *map(name_of, (7, 8, "new"))) == [body("new"), body(8)]


def test_explicit_keys_on_all_topics_of_a_pattern_use_the_index() -> None:
    world, publisher, peer = world_of(SHARED)
    rows = [(f"shared/{key % 2}", b"%d" % key) for key in range(10)]
    publish(publisher, rows, keys=[f"k{key // 2}" for key in range(10)])
    world.settle()
    assert ask(world, peer, "k3", topic="shared") == [b"6", b"7"]
    record_keys = world.state("shared").fold.record_keys
    assert record_keys is not None
    assert record_keys.ready
    assert ask(world, peer, "k3", topic="shared/1") == [b"7"]
    send(publisher, [SowDelete(topic="shared/1", keys=("k3", "k4"))])
    world.settle()
    assert ask(world, peer, "k3", "k4", topic="shared") == [b"6", b"8"]


def test_records_with_equal_hashes_of_keys_are_distinct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_key_index, "hash", lambda _: 7, raising=False)
    world, publisher, peer = world_of()
    assert ask(world, peer, name_of(7), name_of(9)) == [body(7), body(9)]
    send(publisher, [SowDelete(topic="orders", keys=(name_of(7),))])
    world.settle()
    assert len(world.records("orders")) == RECORDS - 1
    assert ask(world, peer, name_of(7), name_of(9)) == [body(9)]


def test_other_queries_take_turns_with_the_build_of_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_key_index, "record_key_step_max", 10)
    world, publisher, peer = world_of(LABELLED)
    publish(publisher, [("labelled", b"1")], keys=["a"])
    world.settle()
    other = world.reader("other")
    peer.query("q", "orders", keys=(name_of(5),))
    other.query("q", "labelled", keys=("a",))
    steps = 0
    while "q" not in other.results or other.results["q"].completed is None:
        world.step()
        steps += 1
        assert steps < RECORDS // 10
    assert peer.results["q"].completed is None
    world.settle()
    assert peer.results["q"].bodies == [body(5)]


def test_queries_that_arrive_together_build_one_step_of_the_index(
    monkeypatch: pytest.MonkeyPatch, computed: list[bytes]
) -> None:
    monkeypatch.setattr(record_key_index, "record_key_step_max", 10)
    world, _, peer = world_of()
    frozen = world.now()
    monkeypatch.setattr(world, "now", lambda: frozen)
    names = [f"q{number}" for number in range(50)]
    for key, name in enumerate(names):
        peer.query(name, "orders", keys=(name_of(key),))
    assert len(computed) == 10
    world.settle()
    assert [peer.results[name].bodies for name in names] == [[body(key)] for key in range(50)]


def test_query_that_ends_during_the_build_of_an_index_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_key_index, "record_key_step_max", 10)
    world, _, peer = world_of()
    peer.query("q", "orders", keys=(name_of(5),))
    for _ in range(10):
        world.step()
    assert len(world.broker.services.records) == 1
    peer.unsubscribe("q")
    world.settle()
    assert len(world.broker.services.records) == 0
    assert ask(world, world.reader("next"), name_of(5)) == [body(5)]


def test_index_of_record_keys_counts_and_yields_memory_to_messages(computed: list[bytes]) -> None:
    world, publisher, peer = world_of()
    memory, before = world.broker.states.memory, world.broker.states.memory.used
    ask(world, peer, name_of(7))
    assert memory.used - before == record_key_index.RecordKeyIndex.nbytes_for(RECORDS) > 26 * RECORDS
    memory.bytes_max = memory.used
    send(publisher, [("orders", body("new"))], sequenced=False)
    world.settle()
    assert not rejected(publisher)
    assert len(world.records("orders")) == RECORDS + 1
    assert memory.used < memory.bytes_max
    memory.bytes_max = memory.used
    del computed[:]
    assert ask(world, peer, name_of(7), name_of("new")) == [body(7), body("new")]
    assert memory.used == memory.bytes_max
    assert len(computed) == RECORDS + 1  # without an index, the query examines all records
    send(publisher, [("orders", body("newer"))], sequenced=False)
    world.settle()
    assert [refusal.code for refusal in rejected(publisher)] == ["sow_full"]


def test_index_given_up_during_the_build_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_key_index, "record_key_step_max", 10)
    world, publisher, peer = world_of()
    memory = world.broker.states.memory
    peer.query("q", "orders", keys=(name_of(5), name_of("new")))
    send(peer, [SowDelete(topic="orders", keys=(name_of(6),))])
    for _ in range(20):
        world.step()
    memory.bytes_max = memory.used
    publish(publisher, [("orders", body("new"))])
    world.settle()
    assert peer.results["q"].bodies == [body(5), body("new")]
    assert len(world.records("orders")) == RECORDS
