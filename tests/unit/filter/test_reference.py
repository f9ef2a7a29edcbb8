"""Page about filters: results of its examples, and its list of functions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tickertape.base.errors import BadFilter
from tickertape.filter import compile_filter
from tickertape.filter.functions.registry import _NOT_HERE as REFUSED
from tickertape.filter.functions.registry import FUNCTIONS
from tickertape.payload import message_type

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "filters.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^\| `(.*)` \| (true|false|unknown) \|$", PAGE, re.MULTILINE)
JSON = message_type("json")


def message() -> bytes:
    found = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1].encode()


@pytest.mark.parametrize(("text", "answer"), EXAMPLES)
def test_filter_page_examples_have_the_documented_results(text: str, answer: str) -> None:
    yes, no = (compile_filter(one, JSON).matches(message()) for one in (text, f"NOT ({text})"))
    assert (yes, no) == {"true": (True, False), "false": (False, True), "unknown": (False, False)}[answer]


def test_filter_page_has_enough_examples() -> None:
    assert len(EXAMPLES) > 45


def test_filter_page_lists_every_function_with_the_description() -> None:
    rows = dict(re.findall(r"^\| `([A-Z_0-9]+)\(.*\)` \| (.*) \|$", PAGE, re.MULTILINE))
    functions = {
        name: meaning for name, meaning in rows.items() if meaning not in {"true", "false", "unknown"}
    }
    assert functions == {name: function.doc for name, function in FUNCTIONS.items()}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_unsupported_functions_are_refused_as_documented(name: str) -> None:
    (listed,) = re.findall(r"^These functions are refused, .*\n((?:\n\* .+)+)$", PAGE, re.MULTILINE)
    (row,) = [row for row in listed.splitlines() if row.endswith(f": {REFUSED[name]}.")]
    assert f"`{name}`" in row or row.startswith("* Aggregates")
    with pytest.raises(BadFilter, match=f"{name} cannot be used: {re.escape(REFUSED[name])}"):
        compile_filter(f"{name}(/a) = 1", JSON)


def test_filter_page_shows_the_actual_error_text() -> None:
    found = re.search(r'explain "(.*)"\ntickertape: ((?:.+\n)+?)```', PAGE)
    assert found is not None
    with pytest.raises(BadFilter) as refused:
        compile_filter(found[1], JSON)
    assert f"{refused.value}\n" == found[2]
