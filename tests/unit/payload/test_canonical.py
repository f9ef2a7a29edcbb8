"""Normal form of values: equal values of any depth have one encoding."""

from __future__ import annotations

from typing import Any

import pytest

from tickertape.payload.canonical import encode_canonical, normal_form


def encoded(value: Any) -> bytes:
    return encode_canonical(normal_form(value))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": [2.0, {"c": -0.0, "d": True}]}, {"b": [2, {"d": True, "c": 0}], "a": 1.0}),
        ([float("nan")], [-float("nan")]),
        (2**80, float(2**80)),
        (-(2**63), -(2.0**63)),
    ],
)
def test_equal_values_have_one_encoding(one: Any, other: Any) -> None:
    assert encoded(one) == encoded(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1], [True]),
        ("1", 1),
        (b"1", "1"),
        (2**64, 2**64 + 1),
        (2**64, -(2**64)),
        (float("inf"), -float("inf")),
        ({"a": None}, {}),
        ([[]], [{}]),
        ([1, [2]], [[1], 2]),
    ],
)
def test_different_values_have_different_encodings(one: Any, other: Any) -> None:
    assert encoded(one) != encoded(other)


def test_object_with_names_of_several_types_has_no_normal_form() -> None:
    with pytest.raises(TypeError):
        normal_form({1: 0, "a": 0})
