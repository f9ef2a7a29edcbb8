"""Paths through arrays: null members are elements, missing members are not."""

from __future__ import annotations

import json
from typing import Any

import bson
import msgspec
import pytest

from tests.helpers.bodies import look, values_of
from tickertape.filter import compile_filter
from tickertape.payload import Path, message_type

ENCODERS = {
    "json": lambda document: json.dumps(document).encode(),
    "messagepack": msgspec.msgpack.encode,
    "bson": bson.encode,
}
MANY: list[tuple[str | int, ...]] = [("z", f"n{number}") for number in range(9)]
"""Enough additional paths for the walk in one pass through all members."""
SUBSCRIPTS: list[tuple[str | int, ...]] = [("y", "m", number) for number in range(9)]


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("further", [[], MANY, SUBSCRIPTS], ids=["few", "many names", "many subscripts"])
@pytest.mark.parametrize(
    ("steps", "document", "value"),
    [
        (("legs", "px"), {"legs": [{"px": None}, {"px": 2}]}, [None, 2]),
        (("legs", "px"), {"legs": [{"px": ""}, {"px": 2}]}, ["", 2]),
        (("legs", "px"), {"legs": [{}, {"px": 2}, 7, None]}, [2]),
        (("legs", "px"), {"legs": [{"px": None}]}, [None]),
        (("legs", "px"), {"legs": [{}, {"qx": 1}]}, None),
        (("legs", "px"), {"legs": [{"px": [None, 1]}, {"px": None}]}, [None, 1, None]),
        (("legs", "a", "px"), {"legs": [{"a": None}, {"a": {"px": None}}]}, [None]),
        (("legs", "px", 0), {"legs": [{"px": [None, 1]}, {"px": [5]}, {"px": []}]}, [None, 5]),
        (("legs", "px", 1), {"legs": [{"px": [None, None]}, {"px": [5]}]}, [None]),
        (("legs", 0, "px"), {"legs": [{"px": None}]}, None),
        (("tags",), {"tags": [None, 2]}, [None, 2]),
    ],
)
def test_null_members_below_an_array_are_elements(
    steps: tuple[str | int, ...],
    document: dict[str, Any],
    value: Any,
    further: list[tuple[str | int, ...]],
    kind: str,
) -> None:
    below = [("legs", name) for name in ("z0", "z1", "z2", "z3", "z4")] if further else []
    paths = [steps, *below, *further]
    given = {**document, "y": [{"m": [None]}]}
    assert look(given, steps) == value
    reader = message_type(kind).reader([Path(one) for one in paths])
    found = values_of(reader, reader.decode(ENCODERS[kind](given)))
    assert found == [look(given, one) for one in paths]
    assert found[0] == value


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("NOT /legs/px = 1", None),
        ("/legs/px = 2", True),
        ("/legs/px IS NULL", True),
        ("ARRAY_LENGTH(/legs/px) = 2", True),
        ("ARRAY_SUM(/legs/px) = 2", True),
        ("/legs/qx IS NULL", True),
        ("NOT /legs/ok = 1", True),
    ],
)
def test_filters_treat_null_and_empty_members_alike(text: str, answer: bool | None) -> None:
    for odd in (None, ""):
        body = json.dumps({"legs": [{"px": odd, "ok": 5}, {"px": 2}]}).encode()
        found = compile_filter(text, message_type("json"))
        negated = compile_filter(f"NOT ({text})", message_type("json"))
        assert (found.matches(body), negated.matches(body)) == (answer is True, answer is False)
