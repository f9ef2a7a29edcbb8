"""Random filters of terms that indexes know, and bodies with odd values in their fields.

Must never judge.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

TEXTS = [
    "",
    "x",
    "abc",
    "abd",
    "b",
    "24",
    "24.0",
    "007",
    "7",
    "-1",
    "1e2",
    "5.",
    "NaN",
    "é",
    "1 ",
    "z\n",
    "x" * 300,
]
NUMBERS = [0, 1, 2, 5, 7, 24, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**64, 0.5, 24.0, 7.5, -0.0, 1e300]
FIELDS = ["/a", "/b", "/c", "/a[0]", "/c/k"]
CONSTANTS = ["'b'", "24", "'24'", "7", "'abc'", "1", "TRUE", "0.5", "''", "NULL", "9007199254740993", "'x'"]
BOUNDS = ["0", "1", "5", "24", "-1", "0.5", "9007199254740993", "'7'"]
PATTERNS = ["b", "^a", "c$", "[0-9]+", "(?i)X", "^.$", "z|7", "^x"]


def _term(rng: Random, flat: bool) -> str:
    pick: Callable[[list[str]], str] = rng.choice
    fields = FIELDS[:3] if flat else FIELDS
    one, constant, low = pick(fields), pick(CONSTANTS), pick(BOUNDS)
    return pick(
        [
            f"{one} = {constant}",
            f"{constant} = {one}",
            f"{one} IN ({constant}, {pick(CONSTANTS)})",
            f"({one} = {constant} OR {pick(fields)} = {pick(CONSTANTS)})",
            f"{one} {pick(['<', '<=', '>', '>='])} {low}",
            f"{low} {pick(['<', '<=', '>', '>='])} {one}",
            f"{one} BETWEEN {low} AND {pick(BOUNDS)}",
            f"{one} LIKE '{pick(PATTERNS)}'",
            f"{one} NOT LIKE '{pick(PATTERNS)}'",
            f"{one} BEGINS WITH ('a', {constant})",
            f"{one} != {constant}",
            f"{one} IS NULL",
            f"NOT ({one} > {low})",
            f"LENGTH({one}) + 1 > {low}",
            f"{one} < {pick(fields)}",
            "TOPIC_NAME() = 't'",
        ]
    )


def index_filter(rng: Random, *, flat: bool) -> str:
    """Return a filter of the fields a, b and c, of terms with AND and OR. `flat`: without nested fields."""
    conjunctions = [
        " AND ".join(_term(rng, flat) for _ in range(rng.choice((1, 1, 2, 3, 10))))
        for _ in range(rng.choice((1, 1, 1, 2)))
    ]
    return " OR ".join(f"({one})" for one in conjunctions)


def _value(rng: Random, depth: int = 1) -> Any:
    chance = rng.random()
    if chance < 0.8 or not depth:
        return rng.choice([*TEXTS, *NUMBERS, None, True, False])
    if chance < 0.92:
        return [_value(rng, 0) for _ in range(rng.randrange(5))]
    return rng.choice([{"k": _value(rng, 0)}, [[1], {"k": 1}, 2], [{"k": "b"}, {"k": 7}]])


def odd_body(rng: Random, kind: str) -> bytes:
    """Return a body of a message type (json, messagepack or nvfix), which may be unreadable."""
    if rng.random() < 0.05:
        return b"\xc1 nothing"
    if kind == "nvfix":
        names = rng.choices("abc", k=rng.randrange(5))
        return "".join(f"{name}={rng.choice(TEXTS)}\x01" for name in names).encode()
    document = {name: _value(rng) for name in "abc" if rng.random() < 0.8}
    if kind == "json":
        if rng.random() < 0.05:
            return b'{"a":"\xff","b":24}'
        return json.dumps(document).encode()
    small = json.dumps(document).replace(str(2**64), "3")  # MessagePack has no larger integers
    return msgspec.msgpack.encode(json.loads(small))
