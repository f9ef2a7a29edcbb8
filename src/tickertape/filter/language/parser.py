"""Parse filter text into a syntax tree and report syntax errors.

The work is bounded by the length of the text: bytes and brackets are counted before parsing, nodes and depth
before anything walks the tree.
"""

from __future__ import annotations

import re
from typing import Final

from tickertape.base.client_limits import filter_too_long
from tickertape.base.errors import BadFilter
from tickertape.base.limits import filter_bytes_max
from tickertape.base.text_format import shown
from tickertape.filter.language.ast import Literal, Node
from tickertape.filter.language.diagnostics import (
    TEXT_FORM,
    Diagnostic,
    Unexpected,
    bad_filter,
    instead_at,
    malformed_number_at,
)
from tickertape.filter.limits import filter_depth_max, filter_members_max, filter_operations_max

_brackets: Final = re.compile(rf"{TEXT_FORM}|[(),]")


def parse(text: str, bytes_max: int = filter_bytes_max) -> Node:
    """Return the tree of the filter `text`.

    Raises `BadFilter`, with the position in `text`, when it is not of the language or above a limit:
    `bytes_max`, `filter_depth_max`, `filter_operations_max`, `filter_members_max`.
    """
    _check_size(text, bytes_max)
    from tickertape.filter.language.grammar import read

    try:
        tree = read(text)
    except Diagnostic as mistake:
        raise bad_filter(text, mistake.at, mistake.reason) from None
    except Unexpected as error:
        raise _unexpected(text, error) from None
    _check_tree(text, tree)
    return tree


def _check_size(text: str, bytes_max: int) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise BadFilter(f"the filter is not Unicode text: {shown(text)}", error.start) from None
    if size > bytes_max:
        raise filter_too_long(size, bytes_max)
    if not text.strip():
        raise BadFilter("an empty filter: leave it out to get every message")
    depth = commas = 0
    for found in _brackets.finditer(text):
        depth += (found[0] == "(") - (found[0] == ")")
        commas += found[0] == ","
        if depth > filter_depth_max:
            raise bad_filter(text, found.start(), f"brackets are nested more than {filter_depth_max} deep")
        if commas >= filter_members_max:
            raise bad_filter(text, found.start(), f"lists have more than {filter_members_max:,} members")


def _check_tree(text: str, tree: Node) -> None:
    """Iteratively: of a tree too deep nothing can be asked by recursion."""
    waiting = [(tree, 1)]
    parts = 0
    while waiting:
        node, depth = waiting.pop()
        if depth > filter_depth_max:
            raise bad_filter(
                text,
                node.at,
                f"parts are nested more than {filter_depth_max} deep; brackets can level a chain",
            )
        member = isinstance(node, Literal)
        parts += not member
        if parts > filter_operations_max:
            raise bad_filter(
                text, node.at, f"more than {filter_operations_max} operators, functions and fields"
            )
        waiting.extend((child, depth + 1) for child in reversed(node.children))


# -- what is said of a text that does not fit ---------------------------------------------------------


def _unexpected(text: str, error: Unexpected) -> BadFilter:
    at, expected = error.at, error.expected
    if error.ended:
        return bad_filter(text, len(text.rstrip()), f"it ends too early: {_wanted(expected)} is expected")
    found = text[at : at + 1]
    word = re.compile(r"[^\W\d]\w*").match(text, at)
    if found in {"'", '"'} and _brackets.match(text, at) is None:
        return bad_filter(text, at, f"the text has no closing quote {found}")
    if word is not None and text[at - 1 : at] == "/":
        field = shown("/" + word[0])
        reason = f"AND, OR or the end is expected, not the field {field}; to divide, put a blank behind the /"
        return bad_filter(text, at - 1, reason)
    if found == "[":
        reason = "a subscript is [0], [1], ... right behind a field's name; without one all elements count"
        return bad_filter(text, at, reason)
    if "FIELD" in expected:
        if word is not None:
            reason = f"{shown(word[0])} is no value: a text stands in quotes, a field begins with /"
            return bad_filter(text, at, reason)
        if (number := malformed_number_at(text, at)) is not None:
            return bad_filter(text, at, f"{shown(number)} is no number: digits, a point, an exponent (1.5e3)")
    what = shown(word[0] if word else found)
    return bad_filter(text, at, f"{_wanted(expected)} is expected, not {what}{instead_at(text, at)}")


def _wanted(expected: frozenset[str]) -> str:
    if "FIELD" in expected:
        return "a value (a field, a literal, a function)"
    if "COMPARE" in expected:
        return "an operator, AND, OR or the end"
    if not expected.isdisjoint({"_OR", "$END"}):
        return "AND, OR or the end"
    names = {
        "_WITH": "WITH", "_AND": "AND", "LPAR": "(", "RPAR": "a closing bracket", "TEXT": "a text in quotes",
        "_NULL": "NULL", "_NAN": "NAN", "NOT": "NOT", "COMMA": "a comma", "IN": "IN", "LIKE": "LIKE",
        "BETWEEN": "BETWEEN", "BEGINS": "BEGINS WITH", "ENDS": "ENDS WITH",
    }  # fmt: skip
    known = sorted({names[name] for name in expected if name in names})
    return " or ".join(known) or "something else"
