"""Filter functions: the registry is complete, and results stay bounded without exceptions."""

from __future__ import annotations

import math
from itertools import product
from random import Random
from typing import Any

import pytest

from tickertape.filter.functions.arrays import Arrays, TooCostly
from tickertape.filter.functions.numbers import ARITHMETIC, rounded
from tickertape.filter.functions.registry import (
    FUNCTIONS,
    MESSAGE_FUNCTIONS,
    SUBSCRIBER_FUNCTIONS,
    call_of,
    unsupported_reason,
)
from tickertape.filter.functions.strings import find, instr_i, replace
from tickertape.filter.limits import text_result_characters_max

ODD: list[Any] = [None, "x", "12", "a" * 70_000, "é" * 9, 0, -1, 2**63,
                  -(2**63), 1e308, -1e-308, 0.5, math.nan, math.inf, -math.inf, True]  # fmt: skip
PLAIN = [
    name
    for name in FUNCTIONS
    if name not in {"IF", *MESSAGE_FUNCTIONS, *SUBSCRIBER_FUNCTIONS, "REGEXP_MATCH", "REGEXP_REPLACE"}
]


@pytest.mark.parametrize("name", PLAIN)
def test_function_results_are_bounded_for_all_arguments(name: str) -> None:
    function = FUNCTIONS[name]
    low, high = function.arguments
    count = min(high, max(low, 2))
    if count == 4:
        choices: list[Any] = [values + values[:1] * 2 for values in product(ODD, repeat=2)]
    else:
        choices = list(product(ODD, repeat=count))
    for values in choices:
        call = call_of(name)
        if "a" in function.signature:
            array = [values[0], values[-1], "z"]
            found = [call(array, Arrays(), *values[1:]), call(values[0], Arrays(), *values[1:])]
        else:
            found = [call(*values)]
        for one in found:
            assert one is None or isinstance(one, str | int | float)
            assert not isinstance(one, str) or 0 < len(one) <= 70_000
            if name in {"COALESCE", "NULLIF", "GREATEST", "LEAST", "ARRAY_MIN", "ARRAY_MAX"}:
                continue  # these return an argument
            assert not isinstance(one, str) or len(one) <= text_result_characters_max
            assert not isinstance(one, int) or -(2**63) <= one < 2**64
            assert not isinstance(one, float) or not math.isinf(one)


def test_strict_functions_return_null_for_null() -> None:
    for name in PLAIN:
        function = FUNCTIONS[name]
        if function.strict and "a" not in function.signature and function.arguments[0]:
            letters = [function.letter(at) for at in range(function.arguments[0])]
            nulls = [None if letter != "e" else "" for letter in letters]
            assert call_of(name)(*nulls) is None, name


@pytest.mark.parametrize("sign", list(ARITHMETIC))
def test_arithmetic_never_raises_and_stays_in_bounds(sign: str) -> None:
    for a, b in product(ODD, repeat=2):
        found = ARITHMETIC[sign](a, b)
        assert not isinstance(found, int) or -(2**63) <= found < 2**64
        assert not isinstance(found, float) or not math.isinf(found)


def test_functions_are_documented_and_unknown_names_are_explained() -> None:
    assert all(f.doc and f.name == name for name, f in FUNCTIONS.items())
    assert unsupported_reason("UPPER") is None
    assert unsupported_reason("AVG") == (
        "AVG cannot be used: aggregates need several messages, and a filter sees one. Remove it"
    )
    assert unsupported_reason("UPPR") == "unknown function 'UPPR'. Did you mean UPPER?"
    assert unsupported_reason("QQQQQ") == ("unknown function 'QQQQQ'. Use a function of the filter language")


def test_round_rounds_half_away_from_zero() -> None:
    assert [rounded(v) for v in (0.5, 1.5, -0.5, 2.4)] == [1, 2, -1, 2]
    assert [rounded(2.675, 2), rounded(1234.5, -2), rounded(5, 3), rounded(1e300, 2)] == [
        2.68,
        1200,
        5,
        1e300,
    ]
    assert rounded(1.5, 21) is None


@pytest.mark.parametrize(
    ("text", "part"),
    [("a" * 3000, "a" * 99 + "b"), ("ab" * 20_000, "ab" * 100 + "c"), ("x" * 60_000 + "yz", "yz"),
     ("\0" * 60_000, "\0\0\1"), ("a" * 40_000, "a" * 30_000), ("a" * 60_000, "\0")],
)  # fmt: skip
def test_find_and_replace_in_long_texts_match_python(text: str, part: str) -> None:
    assert find(text, part) == text.find(part)
    found = replace(text, part, "")
    assert found == text.replace(part, "")


def test_results_above_the_length_limit_are_null() -> None:
    assert call_of("CONCAT")("a" * 40_000, "b" * 40_000) is None
    assert call_of("REPLACE")("a" * 40_000, "a", "bb") is None
    assert call_of("ARRAY_TO_STRING")(["a" * 40_000] * 2, Arrays()) is None
    with pytest.raises(TooCostly):
        call_of("ARRAY_SUM")(["1"] * 9_000, Arrays())


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [
        (123456789012345678, -1, 123456789012345680),
        (-123456789012345675, -1, -123456789012345680),
        (2**64 - 1, -2, 18446744073709551600),
        (2**64 - 1, -19, 20000000000000000000),
        (9007199254740993, 0, 9007199254740993),
        (9007199254740995, -1, 9007199254741000),
        (49, -2, 0),
        (50, -2, 100),
        (-50, -2, -100),
        (5, -20, 0),
        (1234567890123456780.0, -2, 1234567890123456800.0),
        (1e300, -20, 1e300),
        (math.inf, -1, math.inf),
    ],
)
def test_round_of_large_numbers_is_exact(value: float, digits: int, expected: float) -> None:
    found = rounded(value, digits)
    assert (found, type(found)) == (expected, type(expected))


def test_round_beyond_64_bits_is_null() -> None:
    assert call_of("ROUND")(2**64 - 1, -19) is None


@pytest.mark.parametrize(
    ("text", "part", "place"),
    [
        ("\u00dfx", "x", 2),
        ("\u00df\u00dfx", "X", 3),
        ("x\u00df", "S", 2),
        ("\u00dfx", "sX", 1),
        ("a\u0390b\ufb03c", "B", 3),
        ("a\u0390b\ufb03c", "C", 5),
        ("a\u0390b\ufb03c", "d", 0),
        ("\u00df", "STRASSE", 0),
        ("Stra\u00dfe", "E", 6),
    ],
)
def test_instr_i_counts_characters_of_the_text(text: str, part: str, place: int) -> None:
    assert instr_i(text, part) == place


def test_instr_i_agrees_with_folding_character_by_character() -> None:
    rng = Random(5)
    for _ in range(2_000):
        text = "".join(rng.choices("aAsS\u00df\u0390\ufb03x", k=rng.randrange(1, 12)))
        part = "".join(rng.choices("aAsSx\u00df", k=rng.randrange(1, 4)))
        of = [at for at, character in enumerate(text) for _ in character.casefold()]
        found = text.casefold().find(part.casefold())
        assert instr_i(text, part) == (of[found] + 1 if found >= 0 else 0)
