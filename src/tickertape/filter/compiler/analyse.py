"""Semantic analysis of a filter tree: resolves functions, folds constants and checks cost limits.

Analysis never changes the result of a filter. Filters that cannot be evaluated are rejected with the position
of the error.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tickertape.base.errors import BadFilter
from tickertape.filter.compiler.codegen import CodeGenerator, is_condition
from tickertape.filter.compiler.regex import BadPattern, compile_pattern
from tickertape.filter.contained_errors import DEFECTS
from tickertape.filter.functions.arrays import Arrays, TooCostly
from tickertape.filter.functions.regexp_replace import refers_to_group
from tickertape.filter.functions.registry import (
    FUNCTIONS,
    MESSAGE_FUNCTIONS,
    SUBSCRIBER_FUNCTIONS,
    Function,
    unsupported_reason,
)
from tickertape.filter.functions.strings import bad_time_format
from tickertape.filter.language.ast import (
    Affix,
    And,
    Call,
    Comparison,
    Field,
    Like,
    Literal,
    Node,
    Not,
    Or,
    walk,
)
from tickertape.filter.language.diagnostics import bad_filter
from tickertape.filter.limits import filter_text_scans_max, pattern_states_max, pattern_steps_max

_PATTERN_STEPS: Final = 150
"""Cost of a pattern in addition to its steps."""
_PER_MESSAGE: Final = MESSAGE_FUNCTIONS.keys() | SUBSCRIBER_FUNCTIONS.keys()


def analyse(tree: Node, text: str) -> Node:
    """Return `tree`, of the filter `text`, with folded constants. Raises `BadFilter` if it is invalid."""
    found = _Resolver(text).node(tree)
    _check_costs(found, text)
    return found


def is_scan(node: Node) -> bool:
    """Return whether a node scans a whole string."""
    return isinstance(node, Like) or (isinstance(node, Call) and FUNCTIONS[node.name].scan)


def scans(tree: Node) -> list[Node]:
    """Return the nodes that scan a whole string."""
    return [*filter(is_scan, walk(tree))]


def _check_costs(tree: Node, text: str) -> None:
    for number, node in enumerate(scans(tree)):
        if number == filter_text_scans_max:
            raise bad_filter(
                text,
                node.at,
                f"more than {filter_text_scans_max} operators and functions scan whole strings. Use fewer",
            )
    states = 0
    for pattern, at in patterns_of(tree):
        states += compile_pattern(pattern).states
        if states > pattern_states_max:
            raise bad_filter(text, at, "the regular expressions are too expensive in total. Use fewer")


def patterns_of(tree: Node) -> list[tuple[str, int]]:
    """Return the regular expressions in `tree`, each with its position in the filter."""
    found = []
    for node in walk(tree):
        if isinstance(node, Like):
            found.append((node.pattern, node.pattern_at))
        elif isinstance(node, Call) and node.name == "REGEXP_REPLACE":
            pattern = node.arguments[1]
            assert isinstance(pattern, Literal)
            found.append((str(pattern.value), pattern.at))
    return found


class _Resolver:
    """Resolves a tree from its leaves."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._steps = 0
        """Steps of its patterns."""

    def _refuse(self, at: int, reason: str) -> BadFilter:
        return bad_filter(self._text, at, reason)

    def node(self, node: Node) -> Node:
        """Return `node` with resolved children, as a constant if possible."""
        if isinstance(node, Literal | Field):
            return node
        if isinstance(node, Call):
            self._check_name(node)
        node = node.with_parts(self.node)
        if isinstance(node, Call):
            node = self._checked_call(node)
        if isinstance(node, Like):
            self._check_pattern(node.pattern, node.pattern_at)
        elif isinstance(node, Affix):
            for member in node.members:
                if not isinstance(member, Literal):
                    raise self._refuse(
                        member.at, "BEGINS WITH and ENDS WITH require constants. Use a string in quotes"
                    )
        if isinstance(node, And | Or):
            return self._joined(node)
        return self._simplified(node)

    # -- functions and patterns --

    def _check_name(self, node: Call) -> None:
        reason = unsupported_reason(node.name)
        if reason is not None:
            raise self._refuse(node.at, reason)
        low, high = FUNCTIONS[node.name].arguments
        count = len(node.arguments)
        if not low <= count <= high:
            wanted = (
                f"{low or 'no'}" if low == high else f"{low} or more" if high == 1000 else f"{low} to {high}"
            )
            noun = "argument" if low == high == 1 else "arguments"
            raise self._refuse(node.at, f"{node.name} takes {wanted} {noun}, not {count}")

    def _checked_call(self, node: Call) -> Node:
        function: Function = FUNCTIONS[node.name]
        for at, argument in enumerate(node.arguments):
            if function.letter(at) != "p":
                continue
            if not isinstance(argument, Literal) or argument.value.__class__ is not str:
                raise self._refuse(
                    argument.at, f"{node.name} requires a string in quotes here, not an expression"
                )
            pattern = str(argument.value)
            if node.name == "REGEXP_MATCH":
                return Like(node.arguments[0], pattern, pattern_at=argument.at, at=node.at)
            if node.name == "REGEXP_REPLACE":
                self._check_pattern(pattern, argument.at)
                self._check_replacement(node.arguments[2])
                continue
            wrong = bad_time_format(pattern, once=node.name == "STRPTIME")
            if wrong is not None:
                raise self._refuse(self._inside(argument.at, wrong[0]), wrong[1])
        return node

    def _check_replacement(self, node: Node) -> None:
        at = (
            refers_to_group(node.value) if isinstance(node, Literal) and isinstance(node.value, str) else None
        )
        if at is not None:
            raise self._refuse(
                self._inside(node.at, at),
                "REGEXP_REPLACE does not support references to groups in the replacement. Remove this one",
            )

    def _check_pattern(self, text: str, at: int) -> None:
        """Compile a pattern. The total cost of all patterns of a filter is limited here."""
        try:
            pattern = compile_pattern(text)
        except BadPattern as error:
            raise self._refuse(self._inside(at, error.at), str(error)) from None
        self._steps += _PATTERN_STEPS + pattern.steps
        if self._steps > pattern_steps_max:
            raise self._refuse(at, "the regular expressions are too expensive in total. Use fewer")

    def _inside(self, literal_at: int, offset: int) -> int:
        """Return the position in the filter of character `offset` of a literal, whose quotes may be
        doubled."""
        quote, at = self._text[literal_at], literal_at + 1
        if quote not in {"'", '"'}:
            return literal_at
        for _ in range(offset):
            at += 2 if self._text.startswith(quote * 2, at) else 1
        return at

    # -- constants --

    def _evaluated(self, node: Node, as_condition: bool = False) -> Any:
        """Return the value of a node that does not depend on a message."""
        generator = CodeGenerator({})
        source = generator.truth(node) if as_condition else generator.value(node)
        try:
            return eval(source, {**generator.names, "arrays": Arrays()})
        except TooCostly:
            raise self._refuse(node.at, "this expression is too expensive. Use a shorter one") from None
        except Exception as error:
            text = DEFECTS.note(error)
            raise self._refuse(
                node.at, f"this expression cannot be evaluated ({text}). Report the defect"
            ) from error

    def _simplified(self, node: Node) -> Node:
        if isinstance(node, Comparison) and any(_is_null(side) for side in (node.left, node.right)):
            return Literal(None, at=node.at)
        if isinstance(node, Not) and isinstance(node.operand, Not) and is_condition(node.operand.operand):
            return node.operand.operand
        if isinstance(node, Call):
            if node.name in _PER_MESSAGE:
                return node
            if node.name == "IF" and isinstance(node.arguments[0], Literal):
                chosen = node.arguments[1 if self._evaluated(node.arguments[0], True) is True else 2]
                # A field stays in its IF, which returns a scalar even if the field is an array.
                return node if isinstance(chosen, Field) else chosen
        if all(isinstance(child, Literal) for child in node.children):
            return Literal(self._evaluated(node), at=node.at)
        return node

    def _joined(self, node: And | Or) -> Node:
        """Return the node without terms that do not matter, or a constant if one term decides the result."""
        decides = isinstance(node, Or)
        terms: list[Node] = []
        for term in node.terms:
            if isinstance(term, Literal):
                value = self._evaluated(term, True)
                if value is decides:
                    return Literal(decides, at=node.at)
                if value is (not decides):
                    continue
                term = Literal(None, at=term.at)
            terms.extend(term.terms if isinstance(term, type(node)) else (term,))
        if isinstance(node, Or):
            terms = _merged(terms)
        terms = list(dict.fromkeys(terms))
        if not terms:
            return Literal(not decides, at=node.at)
        if len(terms) == 1:
            if is_condition(terms[0]) or isinstance(terms[0], Literal):
                return terms[0]
            terms.append(Literal(not decides, at=node.at))
        return replace(node, terms=tuple(terms))


def _is_null(node: Node) -> bool:
    return isinstance(node, Literal) and (node.value is None or node.value == "")


def _merged(terms: list[Node]) -> list[Node]:
    """Combine patterns that are searched in the same value, so that the value is scanned once."""
    found: dict[Node, list[Like]] = {}
    for term in terms:
        if isinstance(term, Like):
            found.setdefault(term.operand, []).append(term)
    # Once per value: finding out that patterns cannot be combined may take the maximum number of steps.
    as_one = {operand: _as_one(own) for operand, own in found.items() if len(own) > 1}
    merged: list[Node] = []
    for term in terms:
        one = as_one.get(term.operand) if isinstance(term, Like) else None
        if one is None:
            merged.append(term)
        elif term is found[one.operand][0]:
            merged.append(one)
    return merged


def _as_one(terms: list[Like]) -> Like | None:
    pattern = "|".join(f"(?:{term.pattern})" for term in terms)
    try:
        compile_pattern(pattern)
    except BadPattern:
        return None
    return replace(terms[0], pattern=pattern)
