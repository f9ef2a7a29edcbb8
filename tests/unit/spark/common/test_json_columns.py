"""Fields of JSON bodies as columns: each row depends only on its body."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.spark.common.test_schema import struct
from tickertape.base.errors import BadMessage
from tickertape.batch import batch_from_bodies
from tickertape.spark.common.column_block import block_of_batch
from tickertape.spark.common.schema import columns_of, record_batch

DDL = (
    "flight long, carrier string, delay double, late boolean, small byte, at timestamp, day date, "
    "o.d string, o.n.x integer"
)


def read(bodies: list[bytes], ddl: str = DDL, *, strict: bool = False) -> list[dict[str, Any]]:
    pieces = [
        block_of_batch(batch_from_bodies("flights", [body], publisher=7, first_sequence=n + 1))
        for n, body in enumerate(bodies)
    ]
    columns = pickle.loads(pickle.dumps(columns_of(struct(ddl), strict=strict)))
    made = record_batch(pieces, columns)
    made.validate(full=True)
    rows: list[dict[str, Any]] = made.to_pylist()
    return rows


def test_json_field_of_each_type_is_read() -> None:
    body = b"""{"flight": 1545, "carrier": "UA", "delay": -2, "late": false, "small": 7,
        "more": [1, {"a": 2}], "at": "2013-01-01T05:15:00.5+01:00", "day": "2013-01-01",
        "o": {"d": "JFK", "n": {"x": 3}}}"""
    assert read([body]) == [
        {
            "flight": 1545,
            "carrier": "UA",
            "delay": -2.0,
            "late": False,
            "small": 7,
            "at": datetime(2013, 1, 1, 4, 15, 0, 500_000, tzinfo=UTC),
            "day": date(2013, 1, 1),
            "o.d": "JFK",
            "o.n.x": 3,
        }
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{}", (None, None, None)),
        (b'{"flight": null, "carrier": "a"}', (None, "a", None)),
        (b'{"flight": "7", "carrier": "a", "o": {"d": "b"}}', (None, "a", "b")),
        (b'{"flight": 1.0, "carrier": 5}', (None, None, None)),
        (b'{"flight": 9223372036854775808, "carrier": "a"}', (None, "a", None)),
        (b'{"flight": 7, "carrier": "a", "o": 3}', (7, "a", None)),
        (b'{"flight": 7, "o": null}', (7, None, None)),
        (b'{"flight": 1, "flight": 2}', (2, None, None)),
        (b'{"flight": 7, "carrier": "a"} x', (None, None, None)),
        (b'{"flight": 7, "carrier": "\xff"}', (7, None, None)),
        (b"[1]", (None, None, None)),
        (b"null", (None, None, None)),
        (b"", (None, None, None)),
        (b"[" * 100_000, (None, None, None)),
        (b"1},{", (None, None, None)),
    ],
)
def test_missing_field_or_other_type_is_null_in_that_row_only(body: bytes, expected: tuple[Any, ...]) -> None:
    good = b'{"flight": 1, "carrier": "x", "o": {"d": "y"}}'
    ddl = "flight long, carrier string, o.d string"
    rows = [tuple(row.values()) for row in read([good, body, good, body, body, good], ddl)]
    assert rows == [(1, "x", "y"), expected, (1, "x", "y"), expected, expected, (1, "x", "y")]


def test_number_out_of_range_is_null() -> None:
    bodies = [b'{"x": %s}' % number for number in (b"1e300", b"-3.5e38", b"3.4e38", b"-1e400", b"2")]
    assert [row["x"] is None for row in read(bodies, "x float")] == [True, True, False, True, False]
    assert [row["x"] for row in read(bodies, "x double")] == [1e300, -3.5e38, 3.4e38, None, 2.0]


@pytest.mark.parametrize("sign", [b"", b"-"])
def test_float_accepts_numbers_that_round_to_a_finite_float(sign: bytes) -> None:
    """Java, JavaScript and Go print the shortest text, which may be above the number itself."""
    largest = float(np.finfo(np.float32).max)
    half_a_step_above = 2.0**128 - 2.0**103
    texts = [b"3.4028235e38", b"3.4028234663852886e+38", b"3.4028235677973362e38"]
    assert float(texts[-1]) < half_a_step_above
    found = [row["x"] for row in read([b'{"x": %s%s}' % (sign, text) for text in texts], "x float")]
    assert [abs(number) for number in found] == [largest] * 3
    above = [b"3.4028235677973366e38", b"3.4028236e38", b"1e39"]
    assert float(above[0]) == half_a_step_above
    assert [row["x"] for row in read([b'{"x": %s%s}' % (sign, text) for text in above], "x float")] == [
        None
    ] * 3


members = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.none()
    | st.booleans()
    | st.integers(-300, 300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
)


@given(st.lists(members.map(lambda row: json.dumps(row).encode()) | st.binary(max_size=4), max_size=150))
def test_columns_match_a_separate_parse_of_each_body(bodies: list[bytes]) -> None:
    def field(body: bytes, name: str, *kinds: type) -> Any:
        try:
            value = json.loads(body).get(name)
        except (ValueError, AttributeError):
            return None
        if type(value) not in kinds or (name == "b" and not -128 <= value < 128):
            return None
        return value

    expected = [
        {"a": field(body, "a", str), "b": field(body, "b", int), "c": field(body, "c", float, int)}
        for body in bodies
    ]
    if bodies:
        assert read(bodies, "a string, b byte, c double") == expected


def test_many_unreadable_bodies_between_valid_ones_are_null() -> None:
    bodies = [b'{"n": %d}' % n if n % 3 else b'{"n": "%d"}' % n for n in range(1000)]
    assert [row["n"] for row in read(bodies, "n integer")] == [n if n % 3 else None for n in range(1000)]


def test_failfast_names_the_message() -> None:
    bodies = [b'{"n": 1}', b"{}", b'{"n": "x"}']
    assert [row["n"] for row in read(bodies[:2], "n integer", strict=True)] == [1, None]
    with pytest.raises(
        BadMessage, match=r"message '7\|3\|' of topic 'flights' .* at `\$\.n`\. Use mode=PERMISSIVE"
    ):
        read(bodies, "n integer", strict=True)


def test_json_fields_and_message_columns_follow_the_schema_order() -> None:
    assert read([b'{"n": 1}'], "n integer, sequence long, topic string, m integer") == [
        {"n": 1, "sequence": 1, "topic": "flights", "m": None}
    ]
