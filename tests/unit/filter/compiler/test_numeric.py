"""Expressions with a number for each message."""

from __future__ import annotations

import pytest

from tickertape.base.errors import BadFilter
from tickertape.filter import compile_value
from tickertape.filter.compiler.compile import VALUE_MAX
from tickertape.payload import message_type

JSON = message_type("json")


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"p": 7}', 7),
        (b'{"p": 7.9}', 7),
        (b'{"p": "12"}', 12),
        (b'{"p": "12 "}', None),
        (b'{"p": true}', 1),
        (b'{"p": 0}', 0),
        (b'{"p": -0.0}', 0),
        (b'{"p": -0.1}', None),
        (b'{"p": -1}', None),
        (b'{"p": 18446744073709551615}', VALUE_MAX),
        (b'{"p": 18446744073709551616}', VALUE_MAX),
        (b'{"p": 9007199254740993}', 9007199254740993),
        (b'{"p": 1e300}', VALUE_MAX),
        (b'{"p": null}', None),
        (b'{"p": {}}', None),
        (b'{"p": [5, 6]}', 5),
        (b"{}", None),
        (b"{", None),
    ],
)
def test_field_value_is_an_unsigned_integer(body: bytes, value: int | None) -> None:
    assert compile_value("/p", JSON)([body]) == [value]


def test_values_keep_the_body_order_and_unreadable_bodies_are_counted() -> None:
    values = compile_value("/p * 2 + IF(/urgent, 100, 0)", JSON)
    bodies = [b'{"p":1}', b"no json", b'{"p":2,"urgent":true}', b"{}", b'{"p":3}']
    assert values(bodies) == [2, None, 104, None, 6]
    assert values([]) == []
    assert values(bodies[:2]) == [2, None]
    assert values.unreadable == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("2 * 3 + 0.9", 6), ("-1", None), ("'x'", None), ("1 / 0", None), ("1 < 2", 1)],
)
def test_expression_without_fields_is_constant_for_all_bodies(text: str, value: int | None) -> None:
    assert compile_value(text, JSON)([b"{}", b"not even json"]) == [value, value]


def test_value_of_not_a_number_is_none() -> None:
    # Binary formats have values without a JSON form.
    packed = message_type("messagepack")
    bodies = [
        b"\x81\xa1p\xcb\x7f\xf8" + bytes(6),
        b"\x81\xa1p\xcb\x7f\xf0" + bytes(6),
        b"\x81\xa1p\xcb\xff\xf0" + bytes(6),
    ]
    assert compile_value("/p", packed)(bodies) == [None, VALUE_MAX, None]


@pytest.mark.parametrize(
    ("text", "position"),
    [("", 0), ("/p +", 4), ("CORRELATION_ID()", 0), ("/p + BOOKMARK()", 5), ("/p + UNIX_TIMESTAMP()", 5)],
)
def test_invalid_value_expression_is_refused_at_the_position(text: str, position: int) -> None:
    with pytest.raises(BadFilter) as error:
        compile_value(text, JSON)
    assert error.value.position == position


def test_value_field_of_a_binary_topic_is_refused() -> None:
    with pytest.raises(BadFilter):
        compile_value("1 + /p", message_type("binary"))
