"""Result rows: records by number over chunks, and additions that copy no earlier record."""

from __future__ import annotations

import numpy as np
import pytest

from tickertape.engine.limits import query_run_rows_max
from tickertape.engine.sow.query import result_rows
from tickertape.engine.sow.query.record_copy import FoundRecords
from tickertape.engine.sow.query.result_rows import ResultRows
from tickertape.engine.sow.state.records import RecordRows


def piece_of(low: int, high: int, *, sources: bool = False) -> FoundRecords:
    """Return records whose columns follow from their numbers."""
    numbers = np.arange(low, high, dtype=np.int64)
    rows = RecordRows(
        np.column_stack((numbers, numbers + 1)).astype(np.uint64),
        numbers + 2,
        numbers + 3,
        (numbers + 4).astype(np.uint32),
        (numbers + 5).astype(np.uint64),
    )
    return FoundRecords(rows, [], (numbers % 7).astype(np.uint16) if sources else None)


@pytest.mark.parametrize("sources", [False, True])
@pytest.mark.parametrize("step", [1, 255, 1_000, query_run_rows_max])
def test_records_are_found_by_number_in_all_chunks(sources: bool, step: int) -> None:
    count = 700 if step == 1 else 90_000
    found = ResultRows()
    for low in range(0, count, step):
        assert found.add(piece_of(low, min(count, low + step), sources=sources)) == low
    assert found.count == count
    every = np.arange(count)
    for numbers in (every, every[::-1], np.random.default_rng(1).permutation(count), every[5:6], every[:0]):
        got, expected = found.get(numbers), piece_of(0, count, sources=sources).some(numbers)
        for mine, theirs in zip(got.rows, expected.rows, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        if sources and len(numbers):
            np.testing.assert_array_equal(got.sources, expected.sources)
    few = found.only(every[100:200])
    np.testing.assert_array_equal(few.get(np.arange(100)).rows.positions, every[102:202])


def test_addition_moves_no_earlier_record_and_makes_few_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_rows, "query_chunk_rows_max", 4 * query_run_rows_max)
    found = ResultRows()
    before: list[int] = []
    for low in range(0, 20 * query_run_rows_max, query_run_rows_max):
        found.add(piece_of(low, low + query_run_rows_max))
        columns = [*map(id, found.columns)]
        assert columns[: len(before)] == before
        before = columns
        assert max(map(len, found.columns)) <= 4 * query_run_rows_max
    assert len(before) // 5 <= 3 + 20 // 4
