"""Copies of a state: the position, keys that were deleted meanwhile, and counted work of each step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.helpers.sow_queries import QueryWorld, encode_key, stepped
from tickertape.engine.limits import (
    query_chunk_rows_max,
    query_run_rows_max,
    query_step_keys_max,
    result_frame_bytes_max,
    sow_block_bytes,
)
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow.query import record_copy, result, result_rows
from tickertape.engine.sow.query.query import StateQuery
from tickertape.engine.sow.query.record_copy import RecordCopy, WantedKeys
from tickertape.engine.sow.result_memory import ResultMemory
from tickertape.engine.sow.state.keys import ExplicitKeys


def body(number: int, value: object = 0) -> bytes:
    return json.dumps({"id": number, "v": value}).encode()


def world_of(count: int, value: object = 0) -> QueryWorld:
    world = QueryWorld()
    for low in range(0, count, 2_000):
        world.publish([(one, body(one, value)) for one in range(low, min(count, low + 2_000))])
    return world


def bodies_of(copy: RecordCopy) -> list[bytes]:
    while not copy.over:
        copy.step()
    assert copy.nbytes == sum(piece.nbytes for piece in copy.pieces)
    assert copy.pin is not None
    return sorted(one for piece in copy.pieces for one in copy.pin.take(piece.rows.views))


class Counted:
    """Counts the items of each call of a method."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.counts: list[int] = []
        method = getattr(owner, name)

        def counted(items: Sequence[Any], *rest: Any) -> Any:
            self.counts.append(len(items) if hasattr(items, "__len__") else 1)
            return method(items, *rest)

        monkeypatch.setattr(owner, name, counted)


# -- position -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_keys", [False, True])
def test_earliest_change_of_a_record_decides(monkeypatch: pytest.MonkeyPatch, with_keys: bool) -> None:
    monkeypatch.setattr("tickertape.engine.sow.state.change.sow_changes_piece_rows", 7)
    monkeypatch.setattr(record_copy, "query_step_slots_max", 5)
    world = world_of(30)
    copy = RecordCopy(world.fold, world.position, None, with_keys=with_keys)
    for value in range(1, 6):
        world.publish([(one, body(one, value)) for one in range(0, 60, 2)])
        world.delete([encode_key(one) for one in range(value, 30, 3)])
        copy.step()
    assert bodies_of(copy) == sorted(body(one) for one in range(30))
    named = [key for piece in copy.pieces for key in piece.keys]
    assert sorted(named) == sorted(encode_key(one) for one in range(30) if with_keys)
    copy.close()


def test_keys_that_are_deleted_before_the_lookup_select_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickertape.engine.sow.state.change.sow_changes_piece_rows", 3)
    monkeypatch.setattr(record_copy, "query_step_keys_max", 4)
    world = world_of(40)
    wanted = WantedKeys([encode_key(one) for one in (*range(0, 60, 2), 0, 2)])
    copy = RecordCopy(world.fold, world.position, wanted, with_keys=False)
    for at in range(12):
        world.delete([encode_key(one) for one in (4 * at, 38 - 2 * at, 44)])
        world.publish([(38 - 2 * at, body(1, "again")), (42, body(42)), (44, body(44)), (4 * at, b"{}")])
        world.delete([encode_key(4 * at)])
        copy.step()
        while world.fold.has_care:
            world.fold.care()
    assert bodies_of(copy) == sorted(body(one) for one in range(0, 40, 2))
    copy.close()
    while world.fold.has_care:
        world.fold.care()
    assert (world.fold.changes.nbytes, world.fold.records.blocks.held_bytes) == (0, 0)


# -- bounds -------------------------------------------------------------------------------------------


def test_keys_are_looked_up_in_many_steps_and_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [str(name).encode() for name in range(65_536)]
    world = QueryWorld(SowDefinition("orders"))
    world.publish([(name.decode(), b"{}") for name in names[:5_000]])
    wanted = WantedKeys(names, explicit=True)
    read: list[int] = []
    explicit_keys = ExplicitKeys.read

    def counted(source: Any, keys: Sequence[bytes]) -> Any:
        read.append(len(keys))
        return explicit_keys(source, keys)

    monkeypatch.setattr(ExplicitKeys, "read", counted)
    found = Counted(monkeypatch, world.fold.keys, "find")
    named = Counted(monkeypatch, world.fold.keys, "keys_of")
    copies = [RecordCopy(world.fold, world.position, wanted, with_keys=True) for _ in range(3)]
    assert found.counts == read == []
    for copy in copies:
        before = len(found.counts)
        copy.step()
        assert len(found.counts) == before + 1
        assert len(bodies_of(copy)) == 5_000
        copy.close()
    assert sum(read) == 65_536
    assert sum(found.counts) == 3 * 65_536
    assert sum(named.counts) == 3 * 5_000
    assert max(read + found.counts + named.counts) == query_step_keys_max


def test_each_kept_change_is_undone_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickertape.engine.sow.state.change.sow_changes_piece_rows", 100)
    monkeypatch.setattr(record_copy, "query_step_slots_max", 50)
    world = world_of(4_000)
    copy = RecordCopy(world.fold, world.position, None, with_keys=False)
    world.publish([(one, body(one, "new")) for one in range(2_000)])
    undone = Counted(monkeypatch, world.fold.changes, "earlier")
    assert bodies_of(copy) == sorted(body(one) for one in range(4_000))
    assert len(undone.counts) == 2_000 // 100
    copy.close()


def test_memory_of_keys_is_counted_once_for_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 20_000
    world = world_of(count)
    sums = [0]
    keys_bytes = record_copy.keys_bytes

    def counted(keys: list[bytes]) -> int:
        sums[0] += len(keys)
        return keys_bytes(keys)

    monkeypatch.setattr(record_copy, "keys_bytes", counted)
    monkeypatch.setattr(result_rows, "keys_bytes", counted)
    source = world.terms("/v = 0").source._replace(with_keys=True)
    query = StateQuery([source], world.position)
    most = 0
    for _ in stepped(query):
        most = max(most, query.nbytes)
    assert most > count * (record_copy.row_bytes + 41)
    assert sums[0] <= 3 * count
    query.close()
    assert query.nbytes < 20_000


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("steps", [3, 8, 25, 10_000])
def test_memory_of_an_ended_query_is_freed_in_bounded_steps(steps: int, ordered: bool) -> None:
    count = 3 * query_run_rows_max
    world = world_of(count)
    source = world.terms(order_by="/id" if ordered else "").source._replace(with_keys=True)
    query = StateQuery([source], world.position)
    for _ in range(steps):
        query.step()
    memory = ResultMemory()
    memory.discard(query.close())
    assert memory.garbage
    assert query.close() == []
    while memory.garbage:
        last, pieces = memory.garbage[-1], len(memory.garbage)
        before = len(last)
        memory.free()
        assert pieces - len(memory.garbage) <= 1
        if isinstance(last, list):
            assert 0 < before - len(last) <= query_run_rows_max
        elif hasattr(last, "rows"):
            assert len(last.rows.positions) <= query_run_rows_max
        else:
            assert before <= max(query_chunk_rows_max, sow_block_bytes)


def test_blocks_that_only_a_result_kept_are_freed_one_in_a_step() -> None:
    world = QueryWorld()
    for number in range(4):
        world.publish([(number, body(number, "x" * (sow_block_bytes - 100)))])
    query = StateQuery([world.terms().source], world.position)
    for _ in stepped(query):
        pass
    for number in range(3):
        world.publish([(number, body(number))])
    assert world.fold.records.blocks.held_bytes == 3 * sow_block_bytes
    memory = ResultMemory()
    memory.discard(query.close())
    assert world.fold.records.blocks.held_bytes == 0
    for left in (2, 1, 0):
        while not isinstance(memory.garbage[-1], memoryview):
            memory.free()
        memory.free()
        assert sum(isinstance(one, memoryview) for one in memory.garbage) == left


def test_size_of_each_record_of_a_frame_is_read_at_most_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(12_000)
    sizes = Counted(monkeypatch, result, "lengths_in")
    answer = world.query()
    assert max(batch.count for batch in answer.batches) > 8_000
    assert answer.batches[0].body_bytes <= result_frame_bytes_max
    assert sum(sizes.counts) <= 2 * 12_000


def test_records_of_several_states_are_sorted_together() -> None:
    worlds = [world_of(3_000), world_of(1_000, "b"), QueryWorld()]
    position = max(world.position for world in worlds)
    ordered = StateQuery([world.terms(order_by="/id DESC").source for world in worlds], position, 900, 100)
    plain = StateQuery([world.terms("/id < 500").source for world in worlds], position, 600)
    for query in (ordered, plain):
        for _ in stepped(query):
            pass
    assert (ordered.matches, ordered.topic_matches, plain.matches) == (4_000, 4_000, 1_000)
    found = ordered.take(1_000)
    assert found.sources is not None
    assert found.sources.tolist() == [0] * 900
    found = plain.take(600)
    assert found.sources is not None
    assert (np.diff(found.rows.positions) >= 0).all()
    for source, some in plain.by_source(found):
        assert some is not None
        values = [json.loads(one) for one in plain.bodies(source, found.rows.views[some])]
        assert [value["id"] for value in values] == [*range(300)]
        assert {value["v"] for value in values} == {[0, "b"][source]}
