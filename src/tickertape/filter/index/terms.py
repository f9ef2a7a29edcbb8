"""Index terms: required values, intervals and predicates on one field, extracted from a filter tree.

Invariants:
* Each term is true for every message that the filter matches.
* If `whole` is false, the terms together are equivalent to the filter.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nextafter
from typing import Final, NamedTuple

from tickertape.filter.compiler.codegen import constant_keys
from tickertape.filter.functions.registry import MESSAGE_FUNCTIONS, SUBSCRIBER_FUNCTIONS
from tickertape.filter.functions.values import NUMERIC, Scalar, key
from tickertape.filter.language.ast import (
    And,
    Between,
    Call,
    Comparison,
    Field,
    In,
    Literal,
    Node,
    Or,
    fields,
    walk,
)
from tickertape.filter.limits import index_terms_max
from tickertape.payload.paths import Path

_EXACT: Final = 1 << 53
"""Numbers below this compare exactly as 64-bit floats."""
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OF_CONTEXT: Final = MESSAGE_FUNCTIONS.keys() | SUBSCRIBER_FUNCTIONS.keys()


class EqualityTerm(NamedTuple):
    """A field has one of these values, given by their keys (see `values.key`)."""

    path: Path
    keys: frozenset[Scalar]
    node: Node


class Interval(NamedTuple):
    """A number is between `low` and `high`, inclusive. Other values are tested with `node`."""

    path: Path
    low: float
    high: float
    node: Node


class Single(NamedTuple):
    """A condition on one field."""

    path: Path
    node: Node


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of a filter. All of them are true for a matching message."""

    choices: tuple[tuple[EqualityTerm, ...], ...] = ()
    """In each choice, at least one equality is true."""
    intervals: tuple[Interval, ...] = ()
    singles: tuple[Single, ...] = ()
    whole: bool = True
    """Whether the filter itself must be evaluated for the remaining messages."""


def terms_of(tree: Node) -> Terms:
    """Return the terms of the filter `tree`."""
    parts = tree.terms if isinstance(tree, And) else (tree,)
    if len(parts) > index_terms_max:
        return Terms(tuple(filter(None, map(_choice, parts)))[:1])
    choices: list[tuple[EqualityTerm, ...]] = []
    intervals: list[Interval] = []
    singles: list[Single] = []
    whole = False
    for part in parts:
        equality, interval = _equality(part), _interval(part)
        if equality is not None:
            choices.append((equality,))
        elif interval is not None:
            intervals.append(interval)
        elif is_single(part):
            singles.append(Single(fields(part)[0], part))
        else:
            choice = _choice(part)
            if choice:
                choices.append(choice)
            whole = True
    return Terms(tuple(choices), tuple(intervals), tuple(singles), whole)


def is_single(node: Node) -> bool:
    """Return whether the value of one field decides the node."""
    return len(fields(node)) == 1 and not any(
        isinstance(part, Call) and part.name in _OF_CONTEXT for part in walk(node)
    )


def _choice(node: Node) -> tuple[EqualityTerm, ...]:
    """Return equalities such that one is true if `node` is. Empty if none can be derived."""
    equality = _equality(node)
    if equality is not None:
        return (equality,)
    if isinstance(node, And):
        found = [choice for choice in map(_choice, node.terms) if choice]
        return min(found, key=len, default=())
    if not isinstance(node, Or):
        return ()
    choices = [_choice(term) for term in node.terms]
    return tuple(one for choice in choices for one in choice) if all(choices) else ()


def _equality(node: Node) -> EqualityTerm | None:
    """Return the equality of `field = constant`, `field IN (constants)`, or an OR of these on one field."""
    if isinstance(node, Or):
        found = [_equality(term) for term in node.terms]
        paths = {one.path for one in found if one is not None}
        if None in found or len(paths) > 1:
            return None
        return EqualityTerm(
            paths.pop(), frozenset(k for one in found if one is not None for k in one.keys), node
        )
    if isinstance(node, In) and isinstance(node.operand, Field):
        if not all(isinstance(member, Literal) for member in node.members):
            return None
        keys = constant_keys(node)[0]
        return EqualityTerm(node.operand.path, keys, node) if keys else None
    if not isinstance(node, Comparison) or node.operator != "=":
        return None
    for field, literal in ((node.left, node.right), (node.right, node.left)):
        if isinstance(field, Field) and isinstance(literal, Literal):
            one = None if literal.value == "" else key(literal.value)
            if one is not None and one == one:
                return EqualityTerm(field.path, frozenset((one,)), node)
    return None


def _interval(node: Node) -> Interval | None:
    """Return the interval of `field < number` and the like, or `field BETWEEN number AND number`."""
    if isinstance(node, Between):
        low, high = _bound(node.low), _bound(node.high)
        if not isinstance(node.operand, Field) or low is None or high is None:
            return None
        return Interval(node.operand.path, low, high, node)
    if not isinstance(node, Comparison) or node.operator not in _MIRRORED:
        return None
    field, literal, sign = node.left, node.right, node.operator
    if isinstance(field, Literal):
        field, literal, sign = literal, field, _MIRRORED[sign]
    bound = _bound(literal)
    if not isinstance(field, Field) or bound is None:
        return None
    if sign in {">", ">="}:
        return Interval(field.path, bound if sign == ">=" else nextafter(bound, inf), inf, node)
    return Interval(field.path, -inf, bound if sign == "<=" else nextafter(bound, -inf), node)


def _bound(node: Node) -> float | None:
    if not isinstance(node, Literal) or node.value.__class__ not in NUMERIC:
        return None
    value = node.value
    return float(value) if -_EXACT < value < _EXACT else None  # type: ignore[operator, arg-type]
