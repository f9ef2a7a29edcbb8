"""Parse filter text into a syntax tree and report syntax errors.

Work is bounded by the length of the text: bytes and brackets are counted before parsing, and nodes and depth
before any recursion over the tree.
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
_KEYWORDS: Final = frozenset(
    {"AND", "OR", "NOT", "IS", "IN", "LIKE", "BETWEEN", "BEGINS", "ENDS", "WITH", "NULL", "NAN"}
)
_WORD_CHARACTERS_MAX: Final = 40


def parse(text: str, bytes_max: int = filter_bytes_max) -> Node:
    """Return the syntax tree of the filter `text`.

    Raises `BadFilter` with the position in `text` if it is invalid or exceeds a limit: `bytes_max`,
    `filter_depth_max`, `filter_operations_max`, `filter_members_max`.
    """
    _check_size(text, bytes_max)
    from tickertape.filter.language.grammar import read
    from tickertape.filter.language.shapes import tree_of

    try:
        if (known := tree_of(text)) is not None:
            return known
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
        raise BadFilter(
            f"Invalid filter {shown(text)}: it is not valid Unicode. Use valid Unicode text.", error.start
        ) from None
    if size > bytes_max:
        raise filter_too_long(size, bytes_max)
    if not text.strip():
        raise BadFilter("Invalid filter '': it is empty. Omit it to match every message.")
    depth = commas = 0
    for found in _brackets.finditer(text):
        depth += (found[0] == "(") - (found[0] == ")")
        commas += found[0] == ","
        if depth > filter_depth_max:
            raise bad_filter(
                text,
                found.start(),
                f"parentheses are nested more than {filter_depth_max} levels deep. Use fewer",
            )
        if commas >= filter_members_max:
            raise bad_filter(
                text, found.start(), f"lists have more than {filter_members_max:,} members. Use fewer"
            )


def _check_tree(text: str, tree: Node) -> None:
    """Check depth and size without recursion, because the tree may be too deep for it."""
    waiting = [(tree, 1)]
    parts = 0
    while waiting:
        node, depth = waiting.pop()
        if depth > filter_depth_max:
            raise bad_filter(
                text,
                node.at,
                f"expressions are nested more than {filter_depth_max} levels deep. "
                "Use parentheses to balance long chains",
            )
        member = isinstance(node, Literal)
        parts += not member
        if parts > filter_operations_max:
            raise bad_filter(
                text, node.at, f"more than {filter_operations_max} operators, functions and fields. Use fewer"
            )
        waiting.extend((child, depth + 1) for child in reversed(node.children))


# -- syntax error messages ----------------------------------------------------------------------------


def _unexpected(text: str, error: Unexpected) -> BadFilter:
    at, expected = error.at, error.expected
    end = "')'" if _is_open(text[:at]) else "the end"
    wanted = _wanted(expected, end)
    if error.ended:
        before = text.rstrip()
        return bad_filter(text, len(before), f"expected {wanted} after {shown(_last_word(before))}")
    found = text[at : at + 1]
    word = re.compile(r"[^\W\d]\w*").match(text, at)
    if found in {"'", '"'} and _brackets.match(text, at) is None:
        return bad_filter(text, at, f"the string has no closing quote. Add {found} at its end")
    if word is not None and text[at - 1 : at] == "/":
        field = shown("/" + word[0])
        reason = f"expected AND, OR or {end}, not the field {field}. To divide, put a space after the /"
        return bad_filter(text, at - 1, reason)
    if found == "[":
        reason = (
            "invalid subscript. Write an index such as [0] directly after a field, or none for all elements"
        )
        return bad_filter(text, at, reason)
    if "FIELD" in expected:
        if word is not None and word[0].upper() not in _KEYWORDS:
            return bad_filter(text, at, f"unknown value {shown(word[0])}. {_meant(word[0])}")
        if (number := malformed_number_at(text, at)) is not None:
            reason = f"invalid number {shown(number)}. Use digits with an optional point and exponent (1.5e3)"
            return bad_filter(text, at, reason)
    what = shown(word[0] if word else found)
    return bad_filter(text, at, f"expected {wanted}, not {what}{instead_at(text, at)}")


def _last_word(text: str) -> str:
    """Return the last word or operator of a text, or its last character."""
    found = re.search(r"(?:\w+|[<>=!]+|.)\Z", text[-_WORD_CHARACTERS_MAX:], re.DOTALL)
    return "" if found is None else found[0]


def _meant(word: str) -> str:
    """Return a question that offers a field or a string for a bare word."""
    if len(word) > _WORD_CHARACTERS_MAX:
        return "Fields start with /, and strings need quotes"
    return f"Did you mean the field /{word} or the string '{word}'?"


def _is_open(text: str) -> bool:
    """Return whether a parenthesis is open at the end of a text."""
    return sum((found[0] == "(") - (found[0] == ")") for found in _brackets.finditer(text)) > 0


def _wanted(expected: frozenset[str], end: str) -> str:
    if "FIELD" in expected:
        return "a value"
    if "COMPARE" in expected:
        return f"an operator, AND, OR or {end}"
    if not expected.isdisjoint({"_OR", "$END"}):
        return f"AND, OR or {end}"
    names = {
        "_WITH": "WITH", "_AND": "AND", "LPAR": "'('", "RPAR": "')'", "TEXT": "a string in quotes",
        "_NULL": "NULL", "_NAN": "NAN", "NOT": "NOT", "COMMA": "','", "IN": "IN", "LIKE": "LIKE",
        "BETWEEN": "BETWEEN", "BEGINS": "BEGINS WITH", "ENDS": "ENDS WITH",
    }  # fmt: skip
    known = sorted({names[name] for name in expected if name in names})
    if len(known) > 1:
        return f"{', '.join(known[:-1])} or {known[-1]}"
    return known[0] if known else "something else"
