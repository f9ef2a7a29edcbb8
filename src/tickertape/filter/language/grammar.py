"""Filter grammar: runs the lark parser and builds the syntax tree.

The module is imported when the first filter is parsed, because importing lark takes longer than starting a
server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any, Final

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from tickertape.base.errors import BadPath
from tickertape.filter.language.ast import (
    Affix,
    And,
    Arithmetic,
    Between,
    Call,
    Comparison,
    Field,
    In,
    IsNan,
    IsNull,
    Like,
    Literal,
    Negative,
    Node,
    Not,
    Or,
    integer_max,
    integer_min,
)
from tickertape.filter.language.diagnostics import TEXT_FORM, Diagnostic, Unexpected
from tickertape.filter.language.parse_counter import PARSES
from tickertape.filter.limits import number_characters_max
from tickertape.payload.paths import NAME, parse_path, path_reason

_FIELD: Final = rf"/{NAME}(?:/{NAME}|\[[0-9]+\])*"
_CONSTANT: Final = rf"""(?>{TEXT_FORM}|[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?(?![0-9a-z_.])
    |(?:true|false|null)\b)"""
_CONSTANTS: Final = rf"\((?>\s*{_CONSTANT}\s*,)*+\s*{_CONSTANT}\s*\)".replace("\n    ", "")
"""A list of constants. It is one token, because a list may have a thousand of them."""

_constant: Final = re.compile(_CONSTANT.replace("\n    ", ""), re.IGNORECASE)
_SAME: Final = {"==": "=", "<>": "!="}


def read(text: str) -> Node:
    """Return the syntax tree of `text`. Raises `Diagnostic` or `Unexpected`."""
    PARSES.count += 1
    try:
        found: object = _parser().parse(text)
    except UnexpectedInput as error:
        at: int | None = error.pos_in_stream
        wanted: Any = ()
        ended = False
        if isinstance(error, UnexpectedToken):
            wanted = error.accepts or error.expected
            ended = error.token.type == "$END"
        elif isinstance(error, UnexpectedCharacters):
            wanted = error.allowed or ()
        raise Unexpected(len(text) if at is None else at, frozenset(wanted), ended) from None
    assert isinstance(found, Node)
    return found


@cache
def _parser() -> Lark:
    grammar = files("tickertape.filter").joinpath("grammar.lark").read_text(encoding="utf-8")
    terminals = {"FIELD": _FIELD, "TEXT": TEXT_FORM, "CONSTANTS.3": _CONSTANTS}
    for name, pattern in terminals.items():
        escaped = pattern.replace("/", r"\/")
        grammar += f"\n{name}: /{escaped}/i"
    return Lark(grammar, parser="lalr", transformer=_Builder(), maybe_placeholders=True)


def _at(token: Token) -> int:
    assert token.start_pos is not None
    return token.start_pos


def unquoted(text: str) -> str:
    """Return the value of a quoted string."""
    return text[1:-1].replace(text[0] * 2, text[0])


def number_of(text: str, at: int) -> int | float:
    """Return the value of a number at position `at`. Raises `Diagnostic`."""
    if len(text) > number_characters_max:
        raise Diagnostic(at, f"the number is too long. Use at most {number_characters_max} characters")
    try:
        return _whole(int(text))
    except ValueError:
        value = float(text)
    if value - value != 0:
        raise Diagnostic(at, "the number is too large. Use one below 1.8e308")
    return value


def _whole(value: int) -> int | float:
    """Return an integer, or a float if it exceeds 64 bits."""
    return value if integer_min <= value <= integer_max else float(value)


def _members(token: Token) -> Iterator[Literal]:
    """Yield the constants of a list that was read as one token."""
    for found in _constant.finditer(token):
        text, at = found[0], _at(token) + found.start()
        if text[0] in {"'", '"'}:
            yield Literal(unquoted(text), at=at)
        elif text[0].isalpha():
            yield Literal(_WORDS[text.lower()], at=at)
        else:
            yield Literal(number_of(text, at), at=at)


_WORDS: Final = {"true": True, "false": False, "null": None}


def _negatable(node: Node, negation: Token | None) -> Node:
    return node if negation is None else Not(node, at=_at(negation))


class _Builder(Transformer[Token, Node]):
    """Builds syntax tree nodes. Each method implements a grammar rule."""

    def start(self, parts: list[Node]) -> Node:
        return parts[0]

    def or_(self, parts: list[Node]) -> Node:
        return Or(_flat(Or, parts), at=parts[0].at)

    def and_(self, parts: list[Node]) -> Node:
        return And(_flat(And, parts), at=parts[0].at)

    def not_(self, parts: list[Any]) -> Node:
        return Not(parts[1], at=_at(parts[0]))

    def comparison(self, parts: list[Any]) -> Node:
        left, token, right = parts
        operator = _SAME.get(token, str(token))
        return Comparison(operator, left, right, at=_at(token))

    def is_null(self, parts: list[Any]) -> Node:
        return _negatable(IsNull(parts[0], at=_at(parts[1])), parts[2])

    def is_nan(self, parts: list[Any]) -> Node:
        return _negatable(IsNan(parts[0], at=_at(parts[1])), parts[2])

    def between(self, parts: list[Any]) -> Node:
        operand, negation, token, low, high = parts
        return _negatable(Between(operand, low, high, at=_at(token)), negation)

    def in_(self, parts: list[Any]) -> Node:
        operand, negation, token, *members = parts
        return _negatable(In(operand, _listed(members), at=_at(token)), negation)

    def like(self, parts: list[Any]) -> Node:
        operand, negation, token, pattern = parts
        node = Like(operand, unquoted(pattern), pattern_at=_at(pattern), at=_at(token))
        return _negatable(node, negation)

    def begins(self, parts: list[Any]) -> Node:
        return self._affix(parts, ends=False)

    def ends(self, parts: list[Any]) -> Node:
        return self._affix(parts, ends=True)

    def _affix(self, parts: list[Any], *, ends: bool) -> Node:
        operand, negation, token, *members = parts
        return _negatable(Affix(operand, _listed(members), ends, at=_at(token)), negation)

    def sum(self, parts: list[Any]) -> Node:
        left, token, right = parts
        return Arithmetic(str(token), left, right, at=_at(token))

    product = sum

    def negative(self, parts: list[Any]) -> Node:
        token, operand = parts
        if isinstance(operand, Literal) and type(operand.value) is int:
            return Literal(_whole(-operand.value), at=_at(token))
        if isinstance(operand, Literal) and type(operand.value) is float:
            return Literal(-operand.value, at=_at(token))
        return Negative(operand, at=_at(token))

    def positive(self, parts: list[Any]) -> Node:
        token, operand = parts
        if isinstance(operand, Literal) and type(operand.value) in (int, float):
            return Literal(operand.value, at=_at(token))
        return Negative(Negative(operand, at=_at(token)), at=_at(token))

    def field(self, parts: list[Any]) -> Node:
        (token,) = parts
        try:
            return Field(parse_path(str(token)), at=_at(token))
        except BadPath as error:
            raise Diagnostic(_at(token) + error.position, path_reason(error)) from None

    def text(self, parts: list[Any]) -> Node:
        return Literal(unquoted(parts[0]), at=_at(parts[0]))

    def number(self, parts: list[Any]) -> Node:
        return Literal(number_of(parts[0], _at(parts[0])), at=_at(parts[0]))

    def word(self, parts: list[Any]) -> Node:
        return Literal(_WORDS[parts[0].lower()], at=_at(parts[0]))

    def call(self, parts: list[Any]) -> Node:
        name, *arguments = parts
        return Call(name.upper(), tuple(a for a in arguments if a is not None), at=_at(name))


def _flat(kind: type[And | Or], parts: list[Node]) -> tuple[Node, ...]:
    """Return the terms, replacing terms of the same kind by their own terms."""
    return tuple(term for part in parts for term in (part.terms if isinstance(part, kind) else (part,)))


def _listed(members: list[Any]) -> tuple[Node, ...]:
    if len(members) == 1 and isinstance(members[0], Token):
        token = members[0]
        if token.type == "TEXT":
            return (Literal(unquoted(token), at=_at(token)),)
        return tuple(_members(token))
    return tuple(members)
