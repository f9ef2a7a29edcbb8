"""Cached shapes of filters: trees equal those of a parser without a cache, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from tests.helpers.filter_texts import FilterTexts, OddFilterTexts
from tests.property.test_filter_defects import SIGNATURES
from tickertape.base.errors import BadFilter
from tickertape.filter.language import shapes
from tickertape.filter.language.ast import Node
from tickertape.filter.language.diagnostics import Diagnostic, Unexpected
from tickertape.filter.language.grammar import read
from tickertape.filter.language.parser import parse
from tickertape.filter.language.shapes import tree_of
from tickertape.filter.limits import filter_shape_characters_max, filter_shapes_max


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Texts that were parsed for a shape, in order."""
    found: list[str] = []

    def noting(text: str) -> Node:
        found.append(text)
        return read(text)

    monkeypatch.setattr(shapes, "read", noting)
    shapes._shape_of.cache_clear()
    yield found
    shapes._shape_of.cache_clear()


def _check(text: str) -> bool:
    """Compare a text with its tree. Return whether the cache has its shape."""
    found = tree_of(text)
    if found is not None:
        assert repr(found) == repr(read(text)), text
    return found is not None


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("/symbol = 'A' AND /price > 1", "/symbol = '' AND /price > 0"),
        ("/symbol='it''s' OR /b=\"x\"", "/symbol='' OR /b=\"\""),
        ("/a IN ('x', 10, -3, 2.5)", "/a IN ('', 0, -3, 0)"),
        ("NOT /a LIKE '^x' AND UPPER(/b) = 'X'", "NOT /a LIKE '' AND UPPER(/b) = ''"),
        ("/a BEGINS WITH 'x' OR /a ENDS WITH ('y')", "/a BEGINS WITH '' OR /a ENDS WITH ('')"),
        ("/a[10] BETWEEN 10 AND 1e3", "/a[10] BETWEEN 0 AND 1e3"),
        ("/a/20 > 30", "/a/20 > 0"),
        ("-5 < /a", "-5 < /a"),
    ],
)
def test_constants_of_a_shape_are_replaced_by_placeholders(parsed: list[str], text: str, shape: str) -> None:
    assert _check(text)
    assert parsed == [shape]


def test_filters_with_other_constants_are_parsed_once(parsed: list[str]) -> None:
    for number in range(300):
        assert _check(
            f"/symbol = '{'S' * (number % 7)}{number}' AND /price > {number}.5 OR /n IN ({number}, 'x')"
        )
    assert len(parsed) == 1


@pytest.mark.parametrize(
    "text", ["/a = - 5", "/a = ( + 3)", "/a = " + "7" * 400, "'a''b' = /c'", "/a = 'x", "1 2"]
)
def test_constants_that_are_no_node_are_parsed_without_the_cache(text: str) -> None:
    assert tree_of(text) is None


@pytest.mark.parametrize("sign", ["-", "+"])
def test_filter_nested_too_deeply_is_rejected_without_recursion(sign: str) -> None:
    with pytest.raises(BadFilter, match="nested more than 40 levels"):
        parse("/a = " + sign * (filter_shape_characters_max - 10) + "/b")


def test_random_filters_have_the_trees_and_positions_of_the_parser() -> None:
    random = Random(3)
    usual, odd = FilterTexts(random.choice), OddFilterTexts(random.choice, SIGNATURES)
    cached = 0
    for number in range(1_000):
        text = (usual if number % 2 else odd).filter()
        try:
            read(text)
        except (Diagnostic, Unexpected):
            assert tree_of(text) is None, text
        else:
            cached += _check(text)
    assert cached > 600


def test_changed_filters_have_the_errors_of_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(4)
    make = FilterTexts(random.choice)
    for _ in range(150):
        text = make.filter()
        at = random.randrange(len(text))
        text = text[:at] + random.choice(["", "'", '"', "(", ",", "0", " ", "/", "-"]) + text[at + 1 :]
        found = _outcome(text)
        with monkeypatch.context() as without:
            without.setattr(shapes, "tree_of", lambda _: None)
            assert _outcome(text) == found, text


def _outcome(text: str) -> str:
    try:
        return repr(parse(text))
    except BadFilter as error:
        return f"{error.args} {error.position}"


def test_cache_of_shapes_has_a_maximum_number_and_size(parsed: list[str]) -> None:
    for number in range(filter_shapes_max + 10):
        assert _check(f"/a{number} = 'x'")
    assert shapes._shape_of.cache_info().currsize == filter_shapes_max
    del parsed[:]
    assert _check("/a = '" + "x" * filter_shape_characters_max + "'")
    assert not _check("/a = 'x' OR " + " OR ".join(["/b = 1"] * 150))
    assert parsed == ["/a = ''"]
