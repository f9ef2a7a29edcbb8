"""Sort orders: their text, errors, and the order of values of each kind."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.sow_queries import place_of
from tickertape.base.errors import BadOrderBy
from tickertape.engine.limits import order_by_fields_max
from tickertape.engine.sow.query.order import SortOrder
from tickertape.payload import parse_path

TEXTS = st.one_of(
    st.sampled_from(["", "a", "a\0", "a\x01", "ab", "\uffff", "\U00010000", "10", "9"]), st.text()
)
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.sampled_from(
        [2**53, 2**53 + 1, float(2**53), 2**63, -(2**53) - 1, -(2.0**53), 0, -0.0, 1.5, math.inf]
    ),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS, st.binary(max_size=8))
VALUES: st.SearchStrategy[Any] = st.one_of(
    SCALARS, st.lists(SCALARS, max_size=2), st.just({}), st.just([[1]])
)


def keys_of(order_by: str, values: list[Any], type_name: str = "messagepack") -> list[str]:
    bodies = [msgspec.msgpack.encode({"a": value}) for value in values]
    return SortOrder.parse(order_by).values(type_name)(bodies)


# -- text ---------------------------------------------------------------------------------------------


def test_fields_have_directions_and_kinds_in_any_case() -> None:
    order = SortOrder.parse("/a, /b/c[0] desc ,\t/d TEXT, /e ASC text,/f DESC TEXT")
    assert [(str(f.path), f.descending, f.as_text) for f in order.fields] == [
        ("/a", False, False),
        ("/b/c[0]", True, False),
        ("/d", False, True),
        ("/e", False, True),
        ("/f", True, True),
    ]
    assert SortOrder.parse(str(order)).fields == order.fields
    assert order.fields[0].path == parse_path("/a")


@pytest.mark.parametrize(
    ("order_by", "text"),
    [
        (
            "",
            "Cannot sort by '': a field is missing at character 0. Write /field, ",
        ),
        (
            "/a, ",
            "Cannot sort by '/a, ': a field is missing at character 3. Write /field, ",
        ),
        ("a DESC", "Cannot sort by 'a DESC': at character 0, invalid path 'a': a path starts with /"),
        ("/a,/b[x]", "Cannot sort by '/a,/b[x]': at character 5, invalid path '/b[x]': "),
        ("/a DOWN", "Cannot sort by '/a DOWN': 'DOWN' at character 3 is not an option. Write /field"),
        ("/a TEXT DESC", "Cannot sort by '/a TEXT DESC': 'DESC' at character 8 is not an option."),
        ("/a ASC DESC", "Cannot sort by '/a ASC DESC': 'DESC' at character 7 is not an option."),
        ("/a ASC TEXT TEXT", "'TEXT' at character 12 is not an option."),
    ],
)
def test_invalid_text_is_refused_with_the_position(order_by: str, text: str) -> None:
    with pytest.raises(BadOrderBy) as refused:
        SortOrder.parse(order_by)
    assert text in str(refused.value)
    assert refused.value.code == "bad_order_by"


def test_number_of_fields_is_bounded() -> None:
    fields = ["/a"] * order_by_fields_max
    assert len(SortOrder.parse(",".join(fields)).fields) == order_by_fields_max
    with pytest.raises(BadOrderBy, match=r"Cannot sort by 17 fields: they are too many. Use at most 16"):
        SortOrder.parse(",".join([*fields, "/b"]))


def test_fields_that_no_type_can_have_are_refused() -> None:
    order = SortOrder.parse("/a/b, /c")
    order.check(["fix", "json"])
    order.check([])
    with pytest.raises(BadOrderBy, match=r"^Cannot sort by '/a/b, /c': .* Use /tag or /tag\[0\].$"):
        order.check(["fix", "binary"])
    assert order.values("binary")([b"1", b"2"]) == ["\0\0"] * 2


# -- values -------------------------------------------------------------------------------------------


def test_values_ascend_by_kind_then_by_value() -> None:
    values = [
        None, -math.inf, -(2**63), -1.5, -1, False, 1e-300, True, 1.5, 9, 10, 2**53, 2**53 + 1, 2**53 + 2,
        2**64 - 1, 1e300, math.inf, math.nan, "10", "9", "a", "a\0", "a\0b", "a\1", "ab", "\uffff",
        "\U00010000",
    ]  # fmt: skip
    keys = keys_of("/a", values)
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert keys_of("/a DESC", values) == sorted(keys_of("/a DESC", values), reverse=True)


def test_equal_values_have_equal_keys() -> None:
    nulls = [None, "", [], {}, [[1]], [None], {"b": 1}, b""]
    assert len(set(keys_of("/a", nulls))) == 1
    assert len(set(keys_of("/a", [1, 1.0, True, [1, 2]]))) == 1
    assert len(set(keys_of("/a", [0, -0.0, 0.0, False]))) == 1
    assert len(set(keys_of("/a", ["é", "é".encode()]))) == 1
    assert len(set(keys_of("/a TEXT", [1, 1.0, "1", True]))) == 1


def test_integers_beyond_floats_and_unreadable_bodies_have_places() -> None:
    bodies = [b'{"a":%d}' % number for number in (10**400, 10**400 + 1, 2**1024 - 2**970 - 1, -(10**400))]
    keys = SortOrder.parse("/a").values("json")([*bodies, b"no json", b'{"a":1}', b"{}"])
    order = sorted(range(len(keys)), key=keys.__getitem__)
    assert order == [4, 6, 3, 5, 2, 0, 1]
    assert keys[4] == keys[6]


def test_texts_of_fix_that_are_numbers_compare_as_numbers() -> None:
    bodies = [b"44=%s\x01" % value for value in (b"10", b"9", b"x", b"-1", b"9.5", b"")]
    keys = SortOrder.parse("/44").values("nvfix")(bodies)
    assert sorted(range(6), key=keys.__getitem__) == [5, 3, 1, 4, 0, 2]
    as_text = SortOrder.parse("/44 TEXT").values("nvfix")(bodies)
    assert sorted(range(6), key=as_text.__getitem__) == [5, 3, 0, 1, 4, 2]


@given(st.lists(VALUES, min_size=2, max_size=12), st.booleans(), st.booleans())
def test_keys_compare_like_decoded_values(values: list[Any], as_text: bool, descending: bool) -> None:
    keys = keys_of(f"/a{' DESC' * descending}{' TEXT' * as_text}", values)
    places = [place_of(value, as_text=as_text) for value in values]
    for one, here in zip(keys, places, strict=True):
        for other, there in zip(keys, places, strict=True):
            assert (one < other) == (there < here if descending else here < there)
            assert (one == other) == (here == there)
    assert all(max(map(ord, key)) < 256 for key in keys)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=2, max_size=8), st.booleans())
def test_first_field_decides_before_the_second(rows: list[tuple[Any, Any]], descending: bool) -> None:
    bodies = [msgspec.msgpack.encode({"a": a, "b": b}) for a, b in rows]
    keys = SortOrder.parse(f"/a{' DESC' * descending}, /b").values("messagepack")(bodies)
    for one, (a, b) in zip(keys, rows, strict=True):
        for other, (c, d) in zip(keys, rows, strict=True):
            first, second = (c, a) if descending else (a, c)
            here, there = place_of(first), place_of(second)
            assert (one < other) == (here < there or (here == there and place_of(b) < place_of(d)))
