"""Field columns: filters that use them, the records that they select, their life and their memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.helpers.sow_queries import QueryWorld, encode_key
from tickertape.batch.format import Int64s
from tickertape.engine.limits import (
    query_piece_bytes_max,
    query_piece_rows_max,
    sow_column_records_min,
    sow_column_repeat_seconds,
    sow_column_segment_slots,
    sow_column_unused_seconds,
)
from tickertape.engine.sow.query import column_memory, field_columns
from tickertape.engine.sow.state.blocks import Views

ROWS = 5_000
SEGMENT_BYTES = 8 * sow_column_segment_slots


def body(key: int, **fields: Any) -> bytes:
    return msgspec.json.encode({"id": key} | fields)


def world_of(rows: int = ROWS) -> QueryWorld:
    world = QueryWorld()
    world.publish(
        [
            (key, body(key, price=key / 2, qty=key % 10, side="buy" if key % 2 else "sell"))
            for key in range(rows)
        ]
    )
    return world


def search(world: QueryWorld, filter: str) -> Iterator[Int64s] | None:
    return world.columns.search(world.content(filter))


def selected(world: QueryWorld, filter: str) -> int | None:
    """Return the number of records that the columns select at the second query, None for all."""
    search(world, filter)
    found = search(world, filter)
    return None if found is None else sum(map(len, found))


@pytest.mark.parametrize(
    ("filter", "count"),
    [
        ("/price > 2000", 999),
        ("/price >= 2000", 1_000),
        ("2000 < /price", 999),
        ("/price BETWEEN 10 AND 11", 3),
        ("/price > 2000 AND /qty < 1", 99),
        ("/price > 2000 AND /side LIKE 'b'", 999),
        ("/price > 2000 AND (/qty = 1 OR /side LIKE 'b')", 999),
        ("/price > 2000 AND (/qty = 1 OR /side = 'sell')", 599),
        ("/side = 'buy'", 2_500),
        ("/side IN ('buy', 'none')", 2_500),
        ("/qty = 3", 500),
        ("/qty IN ('3', 4.0, 'x')", 1_000),
        ("/qty = 3 OR /qty = 4", 1_000),
        ("/qty = 30", 0),
        ("/qty != 3", None),
        ("/side LIKE '^b'", None),
        ("/side > 'm'", None),
        ("/price > /qty", None),
        ("/price > 1 OR /side LIKE 'b'", None),
        ("NOT /price > 1", None),
        ("/price IS NULL", None),
        ("TRUE", None),
    ],
)
def test_comparisons_joined_by_and_select_records(filter: str, count: int | None) -> None:
    world = world_of()
    assert selected(world, filter) == count
    assert world.query(filter).bodies == QueryWorld.query(world_of(), filter).bodies


def test_column_is_made_at_the_second_query_of_a_field_within_a_minute() -> None:
    world = world_of()
    assert search(world, "/qty > 3") is None
    world.clock.mono += sow_column_repeat_seconds + 1
    assert search(world, "/qty < 5") is None
    world.clock.mono += sow_column_repeat_seconds
    assert search(world, "/price > 3") is None
    assert world.columns.nbytes == 0
    assert search(world, "/qty > 4 AND /price > 7 AND /side = 'buy'") is not None
    assert sum(map(len, search(world, "/qty > 8") or [])) == 500
    assert world.columns.nbytes == world.column_memory.nbytes == SEGMENT_BYTES


def test_small_topic_has_no_columns() -> None:
    assert selected(world_of(sow_column_records_min - 1), "/qty > 3") is None
    assert selected(world_of(sow_column_records_min), "/qty > 8") is not None


def test_values_that_columns_cannot_have_are_always_selected() -> None:
    world = world_of()
    odd = [body(6_000, qty=[1, 99]), body(6_001, qty="zzz"), b'{"id": 6002, "qty": ', body(6_003, qty=2**70)]
    world.publish([(6_000 + at, one) for at, one in enumerate(odd)])
    world.publish([(6_010, body(6_010, qty=None)), (6_011, body(6_011)), (6_012, body(6_012, qty=True))])
    assert selected(world, "/qty > 98") == 4
    assert selected(world, "/qty = 'zzz'") == 3
    assert world.query("/qty > 98").bodies == [odd[0], odd[1], odd[3]]
    assert world.query("/qty = 'zzz'").bodies == [odd[1]]
    world.publish([(6_000, body(6_000, qty=5))])
    assert selected(world, "/qty > 98") == 3
    grown = SEGMENT_BYTES + sow_column_segment_slots
    assert world.columns.nbytes == world.column_memory.nbytes == 2 * grown


def test_integers_beyond_floats_lose_no_match() -> None:
    world = world_of()
    world.publish([(6_000 + at, body(6_000 + at, n=2**53 + at)) for at in range(3)])
    for _ in range(2):
        assert world.query("/n = 9007199254740993").bodies == [body(6_001, n=2**53 + 1)]
        assert world.query("/n > 9007199254740992").matches == 2
        assert world.query("/n > 9007199254740991").matches == 3


def test_updated_and_new_records_are_selected_by_current_values() -> None:
    world = world_of()
    assert selected(world, "/qty = 3") == 500
    world.publish([(3, body(3, qty=4)), (4, body(4, qty=3)), (7_000, body(7_000, qty=3))])
    world.delete([encode_key(13), encode_key(14)])
    assert world.query("/qty = 3").matches == 500
    world.publish([(14, body(14, qty=3))])
    assert world.query("/qty = 3").bodies[-3:] == [
        body(4, qty=3), body(7_000, qty=3), body(14, qty=3)
    ]  # fmt: skip


def test_search_reads_pieces_and_compares_segments_in_bounded_steps() -> None:
    world = world_of(40_000)
    search(world, "/price > 19000 AND /qty = 1")
    found = search(world, "/price > 19000 AND /qty = 1")
    assert found is not None
    steps = [len(slots) for slots in found]
    assert steps[:-1] == [0] * sum(-(-n // query_piece_rows_max) for n in (16_384, 16_384, 7_232))
    assert steps[-1] == 200
    assert [len(slots) for slots in search(world, "/price > 19000 AND /qty = 1") or ()] == [200]


# -- memory and time ----------------------------------------------------------------------------------


def test_unused_column_is_dropped_by_the_clock() -> None:
    world = world_of()
    selected(world, "/qty > 3")
    assert world.clock.next_deadline() == sow_column_unused_seconds
    world.clock.mono = 10.0
    selected(world, "/qty > 3")
    world.clock.mono = sow_column_unused_seconds
    world.column_memory.wake()
    assert world.columns.nbytes == SEGMENT_BYTES
    world.clock.announce_all()
    assert world.clock.next_deadline() == sow_column_unused_seconds + 10
    world.clock.mono += 10
    world.column_memory.wake()
    world.clock.announce_all()
    assert (world.columns.nbytes, world.column_memory.nbytes) == (0, 0)
    assert world.clock.next_deadline() is None
    assert search(world, "/qty > 3") is None
    assert search(world, "/qty > 3") is not None


def test_column_replaces_only_columns_without_recent_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_memory, "sow_columns_bytes_max", 2 * SEGMENT_BYTES)
    world = world_of()
    world.column_memory.fit(1 << 40)
    assert selected(world, "/qty > 8") == 500
    world.clock.mono += 1
    assert selected(world, "/price > 2000") == 999
    assert selected(world, "/side = 'buy'") is None
    world.clock.mono += sow_column_repeat_seconds
    assert selected(world, "/price > 2000") == 999
    assert selected(world, "/side = 'buy'") == 2_500
    assert world.column_memory.nbytes == 2 * SEGMENT_BYTES
    assert search(world, "/qty > 8") is None
    assert selected(world, "/price > 2000") == 999


def test_column_dropped_by_the_need_of_a_segment_keeps_no_memory() -> None:
    world = world_of()
    memory, column = world.column_memory, column_memory.Column("<i8", 0)
    memory.fit(SEGMENT_BYTES)
    assert memory.add(column, 1)
    assert memory.segment(column, 0) is not None
    world.clock.mono += sow_column_repeat_seconds + 1
    assert memory.segment(column, 1) is None
    assert (column.dropped, column.segments, memory.nbytes) == (True, {}, 0)


def test_memory_that_records_need_is_freed_also_during_a_search() -> None:
    world = world_of()
    selected(world, "/qty > 8 AND /price > 100")
    running = world.start(world.terms("/qty > 8 AND /price > 100"))
    world.column_memory.fit(SEGMENT_BYTES)
    assert world.columns.nbytes == world.column_memory.nbytes == SEGMENT_BYTES
    world.column_memory.fit(-1)
    assert world.columns.nbytes == world.column_memory.nbytes == 0
    assert world.answer(running).matches == 480
    assert selected(world, "/qty > 8") is None
    world.column_memory.fit(1 << 40)
    assert selected(world, "/qty > 8") == 500


def test_columns_are_made_anew_after_a_record_of_an_earlier_position() -> None:
    world = world_of()
    assert selected(world, "/qty = 30") == 0
    records = world.fold.records
    rows = records.rows(np.array([7]))
    views = records.blocks.append(body(7, qty=30), np.array([0, len(body(7, qty=30))]))
    records.put(np.array([7]), rows._replace(views=views))
    assert search(world, "/qty = 30") is None
    assert world.query("/qty = 30").matches == 1


def test_number_of_remembered_fields_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field_columns, "sow_column_paths_max", 2)
    world = world_of()
    for name in "abc":
        search(world, f"/{name} > 1")
    assert search(world, "/a > 1") is None
    assert search(world, "/c > 1") is not None


def test_searches_that_wait_keep_no_bodies() -> None:
    world = QueryWorld()
    world.publish([(key, body(key, price=key, text="x" * 400)) for key in range(ROWS)])
    assert search(world, "/price > 10") is None
    searches = [search(world, "/price > 10") for _ in range(20)]
    tracemalloc.start()
    try:
        for one in searches:
            assert one is not None
            next(one)
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert grown < len(searches) * query_piece_bytes_max / 2


def test_searches_that_wait_together_read_each_body_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = QueryWorld()
    world.publish([(key, body(key, price=key)) for key in range(ROWS)])
    assert search(world, "/price > 10") is None
    read: list[int] = []
    take = world.fold.records.blocks.take

    def counted(views: Views) -> list[bytes]:
        read.append(len(views))
        return take(views)

    monkeypatch.setattr(world.fold.records.blocks, "take", counted)
    searches = [search(world, "/price > 10") for _ in range(5)]
    found: list[list[int]] = [[] for _ in searches]
    waiting = [*zip(searches, found, strict=True)]
    while waiting:
        for one, slots in [*waiting]:
            assert one is not None
            some = next(one, None)
            if some is None:
                waiting.remove((one, slots))
            else:
                slots += some.tolist()
    assert sum(read) == ROWS
    assert all(slots == found[0] and len(slots) == ROWS - 11 for slots in found)
