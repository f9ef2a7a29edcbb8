"""Hash index: buckets of slots, their memory, and the values that share a bucket."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Hashable
from math import inf, nan
from typing import Any

import pytest

from tickertape.engine.sow.state.hash_index import ANY_VALUE, HashIndex, short, value_of
from tickertape.filter.functions.values import key, scalar


def test_slots_of_a_bucket_follow_puts_and_drops() -> None:
    index = HashIndex(1)
    index.put([0, 1, 5], ["a", "b", "a"])
    assert (index.count(["a", "b", "c"]), [*index.slots(["a", "c"])]) == (3, [0, 5])
    index.put([5, 1], ["b", "b"])
    assert ([*index.slots(["a"])], [*index.slots(["b"])]) == ([0], [1, 5])
    index.put([0, 1], [None, ANY_VALUE])
    assert (index.count(["a"]), [*index.slots(["b", ANY_VALUE])]) == (0, [1, 5])
    index.drop([1, 5, 0])
    assert index.count(["a", "b", ANY_VALUE]) == 0


def test_random_changes_equal_a_dict_of_sets() -> None:
    rng = random.Random(7)
    index, expected = HashIndex(1), {}  # type: HashIndex, dict[int, Hashable]
    for _ in range(3_000):
        slots = rng.sample(range(40), rng.randrange(1, 6))
        if rng.random() < 0.3:
            index.drop(slots)
            for slot in slots:
                expected.pop(slot, None)
        else:
            buckets: list[Hashable] = [rng.choice(["a", "b", 1, 2.5, ANY_VALUE]) for _ in slots]
            index.put(slots, buckets)
            expected.update(zip(slots, buckets, strict=True))
        for bucket in ("a", "b", 1.0, 2.5, ANY_VALUE):
            members = sorted(slot for slot, one in expected.items() if one == bucket)
            assert [*index.slots([bucket])] == members
            assert index.count([bucket]) == len(members)
    index.drop([*range(40)])
    empty = HashIndex(1)
    empty.put([39], [None])
    assert index.nbytes == empty.nbytes


@pytest.mark.parametrize("distinct", [1, 50, 20_000])
def test_memory_is_that_of_the_allocated_objects(distinct: int) -> None:
    tracemalloc.start()
    try:
        index = HashIndex(1)
        index.put(range(20_000), (f"value {at % distinct:08}" for at in range(20_000)))
        allocated = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.6 * allocated < index.nbytes + 64 < 1.6 * allocated + 40_000, (index.nbytes, allocated)
    assert index.row_bytes * 20_000 >= index.nbytes


VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 1.0, -0.0, 0.5, 2**53 + 1, float(2**53), 2**64, 10**400, nan, inf,
    "", "a", "b", "1", "1.0", "01", " 1", "é", "x" * 33, "x" * 34, b"a", b"1", b"", b"\xff", {"a": 1},
]  # fmt: skip


def test_values_that_filters_take_as_equal_share_a_bucket() -> None:
    for left in VALUES:
        for right in VALUES:
            one, other = key(scalar(left)), key(scalar(right))
            equal = one is not None and one == one and one == other
            if equal:
                assert value_of(left) == value_of(right) == short(one), (left, right)
            elif value_of(left) is not None:
                assert value_of(left) != value_of(right) or "x" * 33 in (left, right), (left, right)


@pytest.mark.parametrize("value", [[], ["a"], ["a", "b"], [["a"]], [None]])
def test_arrays_are_in_each_lookup(value: Any) -> None:
    assert value_of(value) is ANY_VALUE


@pytest.mark.parametrize("value", [None, "", nan, {"a": 1}, b"\xff", b""])
def test_values_equal_to_nothing_have_no_bucket(value: Any) -> None:
    assert value_of(value) is None


def test_long_text_has_a_bucket_of_bounded_size() -> None:
    found = value_of("x" * 1_000_000)
    assert found == short("x" * 1_000_000)
    assert isinstance(found, int)
