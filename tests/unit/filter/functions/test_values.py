"""Values of a filter: NULL, numbers, texts, and comparisons."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tickertape.filter.functions.arrays import (
    Arrays,
    ArrayView,
    TooCostly,
    affixed,
    at_most,
    between,
    equal,
    less,
    one_of,
    unequal,
)
from tickertape.filter.functions.values import is_null, key, number, scalar, text, truth


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None), ("", None), ("x", "x"), (5, 5),
        (True, True), (1.5, 1.5), ([], None), ([3, 4], 3), ([None, 4], None),
        ({"a": 1}, None), ([{"a": 1}], None), ([[1]], None), (b"ab", "ab"), (b"\xff", None), (b"", None),
        (2**64, float(2**64)), (-(10**400), -math.inf),
    ],
)  # fmt: skip
def test_scalar_of_each_kind_of_value(value: Any, expected: Any) -> None:
    assert repr(scalar(value)) == repr(expected)


def test_empty_values_are_null() -> None:
    assert all(map(is_null, [None, "", [], b"", [None], [""]]))
    assert not any(map(is_null, ["x", 0, False, {}, [0], [[1]], [{}], b"\xff", math.nan]))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("24", 24), ("+24", 24), ("-24.50", -24.5), (".5", 0.5), ("5.", 5.0), ("1e3", 1000.0), ("1E-2", 0.01),
        ("007", 7), (True, 1), (2.5, 2.5), (None, None), ("", None), ("x", None), (" 1", None), ("1 ", None),
        ("1_0", None), ("0x1", None), ("inf", None), ("nan", None), ("1e999", None), ("²", None),
        ("1" * 64, float("1" * 64)), ("1" * 65, None), ("18446744073709551615", 2**64 - 1), ("--1", None),
        ("1\n", None),
    ],
)  # fmt: skip
def test_number_of_each_kind_of_scalar(value: Any, expected: Any) -> None:
    assert repr(number(value)) == repr(expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(5, "5"), (2.0, "2"), (-0.0, "0"), (1.5, "1.5"), (1e300, "1e+300"), (True, "1"), (False, "0"),
     (None, None),
     (math.inf, "Infinity"), (-math.inf, "-Infinity"), (math.nan, "NaN"), ("x", "x")],
)  # fmt: skip
def test_text_of_each_kind_of_scalar(value: Any, expected: str | None) -> None:
    assert text(value) == expected


def test_truth_of_each_kind_of_value() -> None:
    assert [truth(v) for v in (1, -0.5, "2", True)] == [True] * 4
    assert [truth(v) for v in (0, 0.0, "0.0", False)] == [False] * 4
    assert [truth(v) for v in (None, "x", math.nan)] == [None] * 3


def test_integers_compare_exactly() -> None:
    assert key("9007199254740993") == 2**53 + 1 != float(2**53)
    assert less(float(2**53), 2**53 + 1, Arrays()) is True
    assert less(2**64 - 2, 2**64 - 1, Arrays()) is True


def many(values: list[Any]) -> list[Any]:
    """Extend an array beyond the size that is compared one by one."""
    return values + [f"filler {i}" for i in range(40)]


def test_texts_of_long_and_short_arrays_convert_to_the_same_numbers() -> None:
    for values in (
        ["24", "x", "1e2", "1e999", "-7", "1\n2", "9" * 65, "18446744073709551616", "5."],
        ["1", "2"],
    ):
        short, long = ArrayView(values, Arrays()), ArrayView(many(values), Arrays())
        assert short.numbers == long.numbers == {n for v in values if (n := number(v)) is not None}
        assert long.texts == short.texts | set(many([]))
    assert ArrayView([str(n) for n in range(50)], Arrays()).numbers == set(range(50))


def test_array_view_is_cached_for_one_message() -> None:
    arrays = Arrays()
    value = [1, 2, 3]
    equal(value, 2, arrays)
    known = arrays[id(value)]
    less(value, 2, arrays)
    assert arrays[id(value)] is known
    arrays.forget()
    assert not arrays


def test_array_work_above_the_limit_is_refused_until_the_next_message() -> None:
    arrays = Arrays()
    value = [f"t{i}" for i in range(6_000)]
    assert equal(value, "t5999", arrays) is True
    with pytest.raises(TooCostly):
        affixed(value, ("t5",), True, False, arrays)
    arrays.forget()
    assert affixed(value[:1_000], ("t99",), False, False, arrays) is True


def test_arrays_compare_with_scalars_and_arrays() -> None:
    a = Arrays()
    assert unequal([1, 1.0, True, "1"], 1, a) is False
    assert unequal([1], [math.nan], a) is True
    assert equal([math.nan], [math.nan], a) is False
    assert at_most([5], ["5"], a) is True
    assert less(["007"], "01x", a) is True
    assert one_of([None, 3], frozenset({4}), False, a) is None
    assert between(["10", "x"], 11, "w", a) is False
    assert between(["10", "x"], "1", "z", a) is True
    assert between([2**70, 5], 6, 2.0**80, a) is True
    assert between([5], math.nan, 9, a) is False
