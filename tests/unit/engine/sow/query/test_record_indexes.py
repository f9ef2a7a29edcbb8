"""Record indexes: the filters that use them, the records that they examine, and equal results."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tests.helpers.sow_queries import QueryWorld, encode_key
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow.query import record_filter, record_indexes

ROWS = 600
BY_SYMBOL = (("/symbol",), ("/desk", "/side"))


def body(key: int, **fields: Any) -> bytes:
    return msgspec.json.encode({"id": key} | fields)


def orders() -> list[tuple[int, bytes]]:
    return [
        (key, body(key, symbol=f"S{key % 100}", desk=key % 20, side="buy" if key % 2 else "sell", price=key))
        for key in range(ROWS)
    ]


def world_of(*index: tuple[str, ...], **types: str) -> QueryWorld:
    world = QueryWorld(SowDefinition("orders", key=("/id",), index=index), **types)
    world.publish(orders())
    return world


def candidates(world: QueryWorld, filter: str, most: int = ROWS) -> int | None:
    """Return the number of records that a query with the filter examines, None for all."""
    assert world.indexes is not None
    found = world.indexes.candidates(world.content(filter), most)
    return None if found is None else len(found)


@pytest.mark.parametrize(
    ("filter", "examined"),
    [
        ("/symbol = 'S7'", 6),
        ("'S7' = /symbol", 6),
        ("/symbol IN ('S7', 'S8', 'none')", 12),
        ("/symbol = 'S7' OR /symbol = 'S9'", 12),
        ("/symbol = 'S7' AND /price > 100", 6),
        ("/desk = 3 AND /side = 'buy'", 30),
        ("/side = 'buy' AND /desk IN ('3', 4.0)", 30),
        ("/desk = 3 AND /side = 'buy' AND /symbol = 'S3'", 6),
        ("/symbol = 'none'", 0),
        ("/desk = 3", None),
        ("/symbol = 'S7' OR /price = 1", None),
        ("/symbol != 'S7'", None),
        ("/symbol LIKE 'S7'", None),
        ("/symbol = /side", None),
        ("/symbol IS NULL", None),
        ("/symbol = ''", None),
        ("/price = 1", None),
        ("TRUE", None),
    ],
)
def test_filter_with_equalities_on_all_fields_examines_only_equal_records(
    filter: str, examined: int | None
) -> None:
    world, plain = world_of(*BY_SYMBOL), world_of()
    assert candidates(world, filter) == examined
    assert world.query(filter).bodies == plain.query(filter).bodies


def test_query_filters_only_the_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    examined: list[int] = []
    passing = record_filter.RecordFilter.passing

    def counted(self: Any, rows: Any, bodies: Any, keys: Any) -> Any:
        examined.append(len(bodies))
        return passing(self, rows, bodies, keys)

    monkeypatch.setattr(record_filter.RecordFilter, "passing", counted)
    answer = world_of(*BY_SYMBOL).query("/symbol = 'S7' AND /price > 100")
    assert (len(answer.bodies), answer.matches, answer.topic_matches) == (5, 5, ROWS)
    assert sum(examined) == 6


def test_too_many_candidates_or_values_are_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(*BY_SYMBOL)
    assert candidates(world, "/symbol = 'S7'", 6) == 6
    assert candidates(world, "/symbol = 'S7'", 5) is None
    monkeypatch.setattr(record_indexes, "query_index_buckets_max", 2)
    assert candidates(world, "/symbol IN ('S1', 'S2')") == 12
    assert candidates(world, "/symbol IN ('S1', 'S2', 'S3')") is None
    assert candidates(world, "/desk = 1 AND /side IN ('buy', 'sell')") == 30
    assert candidates(world, "/desk IN (1, 2) AND /side IN ('buy', 'sell')") is None


def test_arrays_and_unreadable_bodies_are_always_examined() -> None:
    world = world_of(("/symbol",))
    world.publish(
        [(700, body(700, symbol=["x", "S7"])), (701, b'{"id": 701, "symbol": '), (702, body(702, symbol=[]))]
    )
    assert candidates(world, "/symbol = 'S7'") == 9
    assert candidates(world, "/symbol = 'none'") == 3
    assert body(700, symbol=["x", "S7"]) in world.query("/symbol = 'S7'").bodies


def test_updated_deleted_and_republished_records_change_buckets() -> None:
    world = world_of(("/symbol",))
    world.publish([(7, body(7, symbol="new"))])
    world.publish([(107, body(107, symbol="new")), *((1_000 + n, body(n, symbol="S7")) for n in range(200))])
    world.delete([encode_key(207), encode_key(1_000)])
    world.publish([(207, body(207, symbol="new"))])
    assert candidates(world, "/symbol = 'S7'") == 6 - 3 + 199
    assert candidates(world, "/symbol = 'new'") == 3
    assert world.query("/symbol = 'new'").bodies == [
        body(7, symbol="new"), body(107, symbol="new"), body(207, symbol="new")
    ]  # fmt: skip


def test_records_of_a_pattern_with_several_types_are_found() -> None:
    definition = SowDefinition("orders", key=("/1",), pattern="^orders/", index=(("/55",),))
    world, plain = (
        QueryWorld(one, **{"orders/fix": "fix", "orders/bin": "binary"})
        for one in (definition, SowDefinition("orders", key=("/1",), pattern="^orders/"))
    )
    json_body = msgspec.json.encode({"1": "a", "55": "IBM"})
    for one in (world, plain):
        one.publish([("a", json_body), ("b", b"1=b\x0155=IBM\x01")], topics=["orders/json", "orders/fix"])
        one.publish([("c", b"1=c\x0155=MSFT\x01"), ("d", b"any")], topics=["orders/fix", "orders/bin"])
    found = [candidates(world, f"/55 = '{symbol}'") for symbol in ("IBM", "MSFT", "none")]
    assert found == [2, 1, 0]
    for text in ("/55 = 'IBM'", "/55 = 'MSFT'", "/55 IS NULL"):
        assert world.query(text).bodies == plain.query(text).bodies


def test_memory_of_indexes_counts_as_memory_of_records() -> None:
    world, plain = world_of(*BY_SYMBOL), world_of()
    assert world.indexes is not None
    assert world.indexes.nbytes > 600 * 16
    assert world.fold.record_bytes - plain.fold.record_bytes == world.indexes.nbytes
    assert world.fold.nbytes - plain.fold.nbytes == world.indexes.nbytes
    assert np.array_equal(world.fold.records.live_slots(0, 900), plain.fold.records.live_slots(0, 900))
