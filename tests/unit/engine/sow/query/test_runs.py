"""Sorted runs: the order over runs, counted rows of each call, and the first rows of a limit."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.helpers.sow_queries import count_sorted_rows
from tickertape.engine.limits import query_best_rows_min, query_merge_rows_max
from tickertape.engine.sow.query.runs import KeyRuns, PositionRuns


def taken(runs: PositionRuns | KeyRuns, count: int = 100) -> list[int]:
    assert (runs.finish() is not None) == runs.is_limited
    return the_rest(runs, count)


def the_rest(runs: PositionRuns | KeyRuns, count: int = 100) -> list[int]:
    numbers: list[int] = []
    while len(some := runs.take(count)):
        assert len(some) <= count
        numbers += some.tolist()
    return numbers


def add(runs: PositionRuns | KeyRuns, values: list[int], first: int) -> None:
    if isinstance(runs, PositionRuns):
        runs.add_rows(np.array(values), first)
    else:
        runs.add_rows([f"{value:09d}" for value in values], first)


@pytest.mark.parametrize("kind", [PositionRuns, KeyRuns])
@pytest.mark.parametrize("shape", ["random", "ascending", "descending", "alternating"])
def test_rows_of_several_runs_are_merged_in_order(
    monkeypatch: pytest.MonkeyPatch, kind: type[PositionRuns | KeyRuns], shape: str
) -> None:
    counts = count_sorted_rows(monkeypatch)
    rows, runs_max = 9_000, 1_000
    values = [*range(rows)]
    if shape == "random":
        Random(1).shuffle(values)
    elif shape == "descending":
        values.reverse()
    elif shape == "alternating":
        values = [*values[::2], *values[1::2]]
    runs = kind(None, runs_max)
    for low in range(0, rows, 90):
        add(runs, values[low : low + 90], low)
    assert taken(runs) == sorted(range(rows), key=values.__getitem__)
    assert 0 < max(counts) <= 2 * query_merge_rows_max


@pytest.mark.parametrize("kind", [PositionRuns, KeyRuns])
@pytest.mark.parametrize("every", [7, 100])
def test_merge_sorts_each_row_once_also_after_a_few_updates(
    monkeypatch: pytest.MonkeyPatch, kind: type[PositionRuns | KeyRuns], every: int
) -> None:
    rows, runs_max = 100_000, 1_000
    values = [value + rows if value % every == 0 else value for value in range(rows)]
    runs = kind(None, runs_max)
    for low in range(0, rows, runs_max):
        add(runs, values[low : low + runs_max], low)
    assert runs.finish() is None
    counts = count_sorted_rows(monkeypatch)
    assert the_rest(runs, 1_000) == sorted(range(rows), key=values.__getitem__)
    assert sum(counts) <= rows
    assert 0 < max(counts) <= query_merge_rows_max


@pytest.mark.parametrize("kind", [PositionRuns, KeyRuns])
def test_limit_keeps_the_first_rows_only(
    monkeypatch: pytest.MonkeyPatch, kind: type[PositionRuns | KeyRuns]
) -> None:
    counts = count_sorted_rows(monkeypatch)
    values = [*range(100_000)]
    Random(2).shuffle(values)
    runs = kind(20)
    assert runs.is_limited
    kept: list[int] = []
    """Values by number."""
    for low in range(0, len(values), 1_000):
        some = values[low : low + 1_000]
        if isinstance(runs, PositionRuns):
            at = runs.candidates(np.array(some))
        else:
            at = runs.candidates([f"{value:09d}" for value in some])
        some = some if at is None else [some[one] for one in at.tolist()]
        first = len(kept)
        kept += some
        if isinstance(runs, PositionRuns):
            ended = runs.add_rows(np.array(some, np.int64), first)
        else:
            ended = runs.add_rows([f"{value:09d}" for value in some], first)
        if ended:
            kept = [kept[number] for number in runs.renumber().tolist()]
        assert len(kept) <= query_best_rows_min + 1_000
    last = runs.finish()
    assert last is not None
    kept = [kept[number] for number in last.tolist()]
    assert [kept[number] for number in the_rest(runs)] == kept == [*range(20)]
    assert 0 < max(counts) <= query_best_rows_min


@pytest.mark.parametrize("kind", [PositionRuns, KeyRuns])
def test_runs_without_rows_are_empty(kind: type[PositionRuns | KeyRuns]) -> None:
    runs = kind()
    assert taken(runs) == []
    assert runs.take(1).tolist() == []
    assert runs.nbytes == 0
