"""Foreign texts in messages: one line, bounded, escaped."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tickertape
from tickertape.base.bookmarks import bookmark_text
from tickertape.base.errors import TickertapeError
from tickertape.base.names import check_client_name, check_topic, check_transaction
from tickertape.base.text_format import (
    described,
    did_you_mean,
    near_name,
    near_names_max,
    not_one_of,
    said,
    said_characters_max,
    shown,
    shown_characters_max,
    wrong_type,
)
from tickertape.base.units import parse_interval, parse_size


def test_library_error_text_is_one_line_without_colours() -> None:
    error = OSError("Generic S3 error \x1b[31m↳\x1b[0m refused\n\n  (os error 111)\x07")
    assert said(error) == "Generic S3 error ↳ refused (os error 111)"


def test_described_error_has_a_text_only_if_the_error_has_one() -> None:
    assert described(KeyError("price")) == "KeyError: 'price'"
    assert described(ValueError("The disk is full.")) == "ValueError: The disk is full"
    assert described(NotImplementedError()) == "NotImplementedError"
    assert described(ValueError("x" * 300), 10) == "ValueError: xxxxxxx..."


def test_shown_text_is_bounded_and_escaped() -> None:
    assert len(said(OSError("x" * 10_000))) == said_characters_max
    assert len(shown("x" * 10_000)) == shown_characters_max + len("''")
    assert shown("a\x1b[31m") == r"'a\x1b[31m'"


def test_near_name_ignores_case_and_is_bounded() -> None:
    assert near_name("RAET", ["bookmark", "rate"]) == "rate"
    assert near_name("colour", ["bookmark", "rate"]) == near_name("", ["rate"]) == ""
    assert near_name("rat", ["rate"], likeness=0.9) == ""
    assert near_name("x" * 65, ["x" * 65]) == ""
    assert near_name("rat", [*map(str, range(near_names_max)), "rate"]) == ""
    assert did_you_mean("rate", ["rate"]) == ""


def test_word_outside_of_a_set_is_reported_with_all_names() -> None:
    assert not_one_of("Unknown option", "rat", ["live", "rate"]) == (
        "Unknown option 'rat'. Did you mean 'rate'? Use live or rate."
    )
    assert not_one_of("Invalid level", 5, ("a",)) == "Invalid level '5'. Use a."


def test_only_one_form_reports_wrong_types() -> None:
    source = Path(tickertape.__file__).parent
    forms = re.compile(r"expected [\w ,]+, got|of type \{(?!field|kind)|\{type\([^)]*\)\.__name__\}\. Use")
    found = [p.name for p in sorted(source.rglob("*.py")) if forms.search(p.read_text("utf-8"))]
    assert found == ["text_format.py", "arrow.py"]
    assert wrong_type("topic", 5, "str") == "Invalid topic of type int. Use str."


def of_a_transaction(name: Any) -> None:
    check_transaction("s", name)


@pytest.mark.parametrize(
    ("call", "value", "text"),
    [
        (check_topic, 5, "topic of type int. Use str."),
        (check_client_name, None, "client name of type NoneType. Use str."),
        (of_a_transaction, 1, "transaction name of type int. Use str."),
        (parse_size, True, "size of type bool. Use a number of bytes or text such as '64MB'."),
        (parse_interval, [1], "interval of type list. Use a number of seconds or text such as '500ms'."),
        (bookmark_text, 5, "start point of type int. Use str, datetime, Bookmark or list."),
    ],
)
def test_wrong_type_is_reported_in_one_form(call: Callable[[Any], object], value: object, text: str) -> None:
    with pytest.raises(TickertapeError, match=re.escape(f"Invalid {text}")):
        call(value)
