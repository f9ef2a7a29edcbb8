"""Queries of a state: position, keys, order, parts of the result, steps and memory."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.helpers.record_rows import open_scans
from tests.helpers.sow_queries import QueryWorld, count_sorted_rows, encode_key, sorted_by, stepped
from tickertape.base.errors import QueryTooSlow
from tickertape.engine.limits import (
    query_piece_rows_max,
    query_run_rows_max,
    query_step_keys_max,
    query_step_slots_max,
)
from tickertape.engine.sow.query import record_copy
from tickertape.engine.sow.query.few_records import few_records
from tickertape.engine.sow.query.query import QuerySource, StateQuery
from tickertape.engine.sow.state.change import ChangeLog
from tickertape.engine.sow.state.records import RecordRows


def body(number: int, **fields: object) -> bytes:
    return json.dumps({"id": number, **fields}).encode()


def filled(count: int, seed: int = 1) -> tuple[QueryWorld, dict[int, bytes]]:
    """Return a state with records in another order of positions than of slots."""
    world, random = QueryWorld(), Random(seed)
    bodies: dict[int, bytes] = {}
    numbers = [*range(count)]
    for _ in range(2):
        random.shuffle(numbers)
        for low in range(0, count, 500):
            some = numbers[low : low + 500]
            bodies |= {one: body(one, v=random.randrange(50), t=random.choice("xyz")) for one in some}
            world.publish([(one, bodies[one]) for one in some], publisher=random.choice((3, 7)))
    return world, bodies


def ids(bodies: list[bytes]) -> list[int]:
    return [json.loads(one)["id"] for one in bodies]


# -- position -----------------------------------------------------------------------------------------


def test_query_of_an_empty_state_is_empty() -> None:
    answer = QueryWorld().query()
    assert (answer.bodies, answer.matches, answer.topic_matches) == ([], 0, 0)


def test_result_is_the_state_at_the_position_while_the_fold_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_copy, "query_step_slots_max", 500)
    world, bodies = filled(3_000)
    before = world.query().bodies
    query = world.start(world.terms("/v >= 0"))
    for number in stepped(query):
        world.publish([(number % 7, body(number, v=-1)), (10_000 + number, body(number, v=5))])
        world.publish([(2_990 + number, body(number, v=-1))])
        world.delete([encode_key(100 + number), encode_key(2_900 + number)])
        while world.fold.has_care:
            world.fold.care()
    assert number > 3
    assert world.answer(query).bodies == before
    assert sorted(ids(before)) == [*range(3_000)]
    assert set(before) == {*bodies.values()}


def test_result_without_order_has_the_order_of_positions() -> None:
    world, _ = filled(2_000)
    query = world.start(world.terms())
    for _ in stepped(query):
        pass
    positions: list[int] = []
    while len(some := query.take(17).rows.positions):
        positions += some.tolist()
    assert positions == sorted(positions)
    assert len(positions) == 2_000


def test_query_ends_when_necessary_changes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    world, _ = filled(100)
    monkeypatch.setattr(record_copy, "query_step_slots_max", 10)
    world.fold.changes = ChangeLog(world.fold.records, bytes_max=1)
    query = world.start(world.terms())
    query.step()
    world.publish([(1, body(1))])
    with pytest.raises(QueryTooSlow, match="Cannot finish the query"):
        query.step()
    query.close()


# -- keys ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [0, 3 * query_step_keys_max])
def test_keys_select_records(more: int) -> None:
    world, _ = filled(300)
    wanted = [encode_key(one) for one in (*range(5, 400, 7), 5, *range(1_000, 1_000 + more))]
    answer = world.query(keys=wanted)
    assert sorted(ids(answer.bodies)) == [*range(5, 300, 7)]
    assert (answer.matches, answer.topic_matches) == (len(answer.bodies), 300)
    both = world.query("/v > 20", keys=wanted)
    assert {*both.bodies} == {one for one in answer.bodies if json.loads(one)["v"] > 20}
    assert both.matches == len(both.bodies) < answer.matches


# -- order --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order_by", "fields"),
    [
        ("/v", [("v", False, False)]),
        ("/v DESC", [("v", True, False)]),
        ("/t, /v TEXT", [("t", False, False), ("v", False, True)]),
        ("/none", []),
    ],
)
def test_order_is_that_of_decoded_values_and_ties_have_the_order_of_ranks(
    order_by: str, fields: list[tuple[str, bool, bool]]
) -> None:
    world, _ = filled(2_500)
    answer = world.query(order_by=order_by)
    ranks = [(stamp, publisher, sequence) for publisher, sequence, stamp in answer.marks]
    documents = [json.loads(one) for one in answer.bodies]
    assert sorted_by(documents, fields, ranks) == [*range(2_500)]
    assert world.query(order_by=order_by).bodies == answer.bodies


def test_ties_of_equal_stamps_have_the_order_of_publisher_then_sequence() -> None:
    world = QueryWorld()
    for publisher in (9, 2**63 + 1, 3):
        world.stamp = 50  # so that the stamp of each commit is 51
        world.publish([(publisher % 1000 * 100 + at, body(at, v=1)) for at in range(40)], publisher=publisher)
    marks = world.query(order_by="/v").marks
    assert marks == [
        (p - 2**64 if p >= 2**63 else p, at + 1, 51) for p in (3, 9, 2**63 + 1) for at in range(40)
    ]


@pytest.mark.parametrize("order_by", ["", "/v DESC, /t"])
@pytest.mark.parametrize(
    ("top_n", "skip_n"),
    [(0, 0), (0, 5), (1, 0), (20, 0), (20, 7), (5_000, 0), (10, 5_000), (10, 9_995), (3, 2**53)],
)
def test_top_and_skip_are_a_part_of_the_whole_result(order_by: str, top_n: int, skip_n: int) -> None:
    world, _ = filled(10_000)
    for content, count in ((None, 10_000), ("/t = 'x'", None)):
        whole = world.query(content, order_by)
        part = world.query(content, order_by, top_n=top_n, skip_n=skip_n)
        assert part.bodies == whole.bodies[skip_n : skip_n + top_n]
        assert part.matches == whole.matches == (count or whole.matches)


# -- bounds -------------------------------------------------------------------------------------------


def table_of(count: int) -> QueryWorld:
    """Return a state with many records of equal bodies, without the time of a fold."""
    world = QueryWorld()
    records = world.fold.records
    positions = np.random.default_rng(3).permutation(count)
    for low in range(0, count, 100_000):
        slots = np.arange(low, min(count, low + 100_000), dtype=np.int64)
        view = records.blocks.append(b'{"v":1}', np.array([0, 7]))
        columns = np.repeat(view, len(slots), axis=0)
        rows = RecordRows(
            columns, positions[slots], slots + 1, np.zeros(len(slots), np.uint32), slots.view(np.uint64)
        )
        records.put(slots, rows)
    records.publishers.number(7)
    world.position = count
    return world


class Counting:
    """Counts the rows of each call of a filter or an order."""

    def __init__(self) -> None:
        self.most = 0

    def passing(self, rows: RecordRows, bodies: Any, keys: Any) -> Any:
        self.most = max(self.most, len(bodies))
        return np.arange(len(bodies))

    def keys(self, rows: RecordRows, bodies: Any, keys: Any) -> list[str]:
        self.most = max(self.most, len(bodies))
        return [position.to_bytes(8, "big").decode("latin-1") for position in rows.positions.tolist()]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("top_n", [None, 100])
def test_no_step_grows_with_the_number_of_records(
    monkeypatch: pytest.MonkeyPatch, ordered: bool, top_n: int | None, full: bool
) -> None:
    count = 1_000_000 if full else 200_000
    world = table_of(count)
    copied: list[int] = []
    copy_range = world.fold.records.copy_range

    def counted(low: int, high: int) -> Any:
        copied.append(high - low)
        return copy_range(low, high)

    monkeypatch.setattr(world.fold.records, "copy_range", counted)
    sorted_rows = count_sorted_rows(monkeypatch)
    counting = Counting()
    query = StateQuery([QuerySource(world.fold, order=counting if ordered else None)], count, top_n)
    steps = sum(1 for _ in stepped(query))
    assert max(copied) <= query_step_slots_max
    assert counting.most <= query_piece_rows_max
    returned = 0
    last = -1
    while len(rows := query.take(1_000).rows.positions):
        assert len(rows) <= 1_000
        assert rows[0] > last
        assert (np.diff(rows) > 0).all()
        last, returned = int(rows[-1]), returned + len(rows)
    assert (returned, query.matches) == (count if top_n is None else top_n, count)
    assert 0 < max(sorted_rows) <= query_run_rows_max
    assert steps >= count // (query_piece_rows_max if ordered else query_step_slots_max)


def test_memory_of_a_small_part_does_not_grow_with_the_state() -> None:
    world, _ = filled(30_000)
    query = world.start(world.terms(order_by="/v", top_n=10))
    blocks = world.fold.records.blocks.block_count
    for _ in stepped(query):
        pass
    assert blocks > 1
    assert query.nbytes < 10 * 200 + blocks * (1 << 20)
    query.close()
    whole = world.start(world.terms())
    for _ in stepped(whole):
        pass
    assert whole.nbytes > 30_000 * 44
    whole.close()


def test_blocks_without_a_body_of_the_result_are_not_pinned() -> None:
    world = QueryWorld()
    for number in range(40):
        world.publish([(number, body(number, pad="x" * 100_000))])
    query = world.start(world.terms("/id = 39"))
    for _ in stepped(query):
        pass
    for number in range(40):
        world.publish([(number, body(number))])
    assert world.fold.records.blocks.held_bytes == 1 << 20
    assert ids(world.answer(query).bodies) == [39]
    assert world.fold.records.blocks.held_bytes == 0


@pytest.mark.parametrize(("filter", "top_n"), [("/id = 39", None), (None, 1)])
def test_query_of_few_records_pins_only_blocks_of_the_result(filter: str | None, top_n: int | None) -> None:
    world = QueryWorld()
    pad = "x" * 900
    for number in range(40):
        world.publish([(number, body(number, pad=pad))])
        world.publish([(f"other{number}", body(number, pad="x" * 500_000))])  # fills the block
    keys = [encode_key(number) for number in range(40)]
    query = few_records(world.terms(filter, keys=keys).source, world.position, top_n)
    assert query is not None
    query.step()
    for number in range(40):
        world.publish([(number, body(number)), (f"other{number}", body(number))])
    while world.fold.has_care:
        world.fold.care()
    assert world.fold.records.blocks.held_bytes == 1 << 20
    assert ids(world.answer(query).bodies) == [39 if filter else 0]
    assert world.fold.records.blocks.held_bytes == 0


def test_query_can_be_closed_at_any_time() -> None:
    for steps in range(12):
        world, _ = filled(3_000)
        query = world.start(world.terms("/v > 5", "/t"))
        for _ in range(steps):
            query.step()
        query.close()
        query.close()
        query.step()
        assert query.over
        assert len(query.take(10).rows.positions) == 0
        assert not open_scans(world.fold.changes)
        world.publish([(one, body(one)) for one in range(3_000)])
        while world.fold.has_care:
            world.fold.care()
        assert world.fold.records.blocks.held_bytes == 0
