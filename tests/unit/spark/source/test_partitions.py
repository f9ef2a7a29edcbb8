"""Division of a range of positions into partitions."""

from __future__ import annotations

import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickertape.base.errors import BadOption
from tickertape.spark.source.partitions import PARTITIONS_MAX, LogPartition, split


@given(
    start=st.integers(0, 2**62),
    size=st.integers(1, 10_000),
    partitions_min=st.integers(1, 50),
    rows_max=st.integers(1, 5_000),
)
def test_partitions_cover_the_range_evenly_within_limits(
    start: int, size: int, partitions_min: int, rows_max: int
) -> None:
    parts = split(start, start + size, partitions_min=partitions_min, rows_max=rows_max)
    assert parts[0][0] == start
    assert parts[-1][1] == start + size
    assert all(left[1] == right[0] for left, right in pairwise(parts))
    sizes = [after - first for first, after in parts]
    assert min(sizes) >= 1
    assert max(sizes) <= rows_max
    assert max(sizes) - min(sizes) <= 1
    assert len(parts) >= min(partitions_min, size)


def test_split_makes_the_fewest_partitions_within_limits() -> None:
    assert len(split(0, 100, partitions_min=2, rows_max=1000)) == 2
    assert len(split(0, 1001, partitions_min=2, rows_max=500)) == 3
    assert split(5, 8, partitions_min=9, rows_max=10) == [(5, 6), (6, 7), (7, 8)]


@pytest.mark.parametrize("end", [7, 3])
def test_empty_range_is_one_empty_partition(end: int) -> None:
    assert split(7, end, partitions_min=4, rows_max=10) == [(7, 7)]


def test_too_many_partitions_are_refused_with_the_option_to_change() -> None:
    with pytest.raises(BadOption, match="Raise maxRowsPerPartition"):
        split(0, PARTITIONS_MAX + 1, partitions_min=1, rows_max=1)


def test_partition_is_unchanged_by_pickling() -> None:
    part = LogPartition(("tcp://a:1",), "journal-1", "flights", 3, 9, 30.0)
    assert pickle.loads(pickle.dumps(part)) == part
