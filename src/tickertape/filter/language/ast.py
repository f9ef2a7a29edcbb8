"""Syntax tree of a filter, each node with its position in the text, and its text with all brackets.

Nodes are immutable. Nodes that mean the same are equal wherever they are in a text, so parts that several
filters share can be found with a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, TypeAlias, cast

from tickertape.payload.paths import Path

Constant: TypeAlias = bool | int | float | str | None
"""Value of a literal; an empty text is NULL wherever it is used."""

integer_min: Final = -(1 << 63)
integer_max: Final = (1 << 64) - 1
"""Bounds of integers: signed, and unsigned above the largest signed one; a number beyond them is a float."""


@cache
def _part_names(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a class of nodes that hold parts."""
    return tuple(part.name for part in kind.__dataclass_fields__.values() if "Node" in str(part.type))


@dataclass(frozen=True, slots=True)
class Node:
    """Any part of a filter."""

    at: int = field(compare=False, kw_only=True, default=0)
    """Start in the text of the filter, in characters from 0; of an operator its own position."""

    @property
    def children(self) -> tuple[Node, ...]:
        """The parts of it, in the order of the text."""
        found: list[Node] = []
        for name in _part_names(cast(Hashable, self.__class__)):
            part = getattr(self, name)
            found += part if isinstance(part, tuple) else (part,) if isinstance(part, Node) else ()
        return tuple(found)

    def with_parts(self, change: Callable[[Node], Node]) -> Node:
        """Return the same with `change` of each part, made in the order of the text."""
        changes: dict[str, Any] = {}
        for name in _part_names(cast(Hashable, self.__class__)):
            part = getattr(self, name)
            if isinstance(part, Node | tuple):
                changes[name] = change(part) if isinstance(part, Node) else tuple(map(change, part))
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Unary(Node):
    """Any part with one operand."""

    operand: Node


# -- values -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """A constant."""

    value: Constant

    def __eq__(self, other: object) -> bool:
        # 1, 1.0 and TRUE are equal in Python; as text they differ, so they are not the same constant.
        if not isinstance(other, Literal):
            return NotImplemented
        return (type(self.value), repr(self.value)) == (type(other.value), repr(other.value))

    def __hash__(self) -> int:
        return hash((type(self.value), repr(self.value)))


@dataclass(frozen=True, slots=True)
class Field(Node):
    """Value at a path of the body."""

    path: Path


@dataclass(frozen=True, slots=True)
class Arithmetic(Node):
    """`left operator right`; the operator is one of `+ - * / %`."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Negative(Unary):
    """`- operand`."""


@dataclass(frozen=True, slots=True)
class Call(Node):
    """A function and its arguments; the name is in capitals."""

    name: str
    arguments: tuple[Node, ...]


# -- conditions: true, false or unknown ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Comparison(Node):
    """`left operator right`; the operator is one of `= != < <= > >=`."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Between(Unary):
    """`operand BETWEEN low AND high`, both inclusive."""

    low: Node
    high: Node


@dataclass(frozen=True, slots=True)
class In(Unary):
    """`operand IN (member, ...)`."""

    members: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Like(Unary):
    """`operand LIKE 'pattern'`; the pattern is searched for anywhere."""

    pattern: str
    pattern_at: int = field(compare=False)
    """Where the pattern's literal begins in the text of the filter."""


@dataclass(frozen=True, slots=True)
class Affix(Unary):
    """`operand BEGINS WITH (...)`, or `ENDS WITH` when `ends`; any of the members."""

    members: tuple[Node, ...]
    ends: bool


@dataclass(frozen=True, slots=True)
class IsNull(Unary):
    """`operand IS NULL`; `IS NOT NULL` is a `Not` of it."""


@dataclass(frozen=True, slots=True)
class IsNan(Unary):
    """`operand IS NAN`."""


@dataclass(frozen=True, slots=True)
class Not(Unary):
    """`NOT operand`, and the `NOT` of `NOT IN`, `NOT LIKE`, `NOT BETWEEN` and the like."""


@dataclass(frozen=True, slots=True)
class And(Node):
    """Two or more terms joined by AND, none of them an `And`."""

    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or(Node):
    """Two or more terms joined by OR, none of them an `Or`."""

    terms: tuple[Node, ...]


CONDITIONS: tuple[type[Node], ...] = (Comparison, Between, In, Like, Affix, IsNull, IsNan, Not, And, Or)
"""Nodes that are true, false or unknown; all others have a value."""


def walk(node: Node) -> Iterator[Node]:
    """`node` and everything in it, each before its parts."""
    waiting = [node]
    while waiting:
        found = waiting.pop()
        yield found
        waiting.extend(reversed(found.children))


def fields(node: Node) -> tuple[Path, ...]:
    """Return the different paths in `node`, in the order in which they first occur."""
    return tuple(dict.fromkeys(found.path for found in walk(node) if isinstance(found, Field)))


# -- text ---------------------------------------------------------------------------------------------


_ATOMS: Final = (Field, Literal, Call)


def unparse(node: Node) -> str:
    """`node` as the text of a filter."""
    if isinstance(node, Literal):
        return constant(node.value)
    if isinstance(node, Field):
        return str(node.path)
    if isinstance(node, Call):
        return f"{node.name}({', '.join(map(unparse, node.arguments))})"
    if isinstance(node, And | Or):
        return (" AND " if isinstance(node, And) else " OR ").join(map(_term, node.terms))
    if isinstance(node, Not):
        return f"NOT {_term(node.operand)}"
    if isinstance(node, Negative):
        return f"-{_operand(node.operand)}" if not _is_number(node.operand) else f"-({unparse(node.operand)})"
    if isinstance(node, Arithmetic | Comparison):
        return f"{_operand(node.left)} {node.operator} {_operand(node.right)}"
    assert isinstance(node, Between | In | Like | Affix | IsNull | IsNan)
    return f"{_operand(node.operand)} {_predicate(node)}"


def constant(value: Constant) -> str:
    """Return a constant as a literal."""
    if value is None or isinstance(value, bool):
        return {None: "NULL", True: "TRUE", False: "FALSE"}[value]
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return "NAN_VALUE()" if value != value else repr(value)


def _predicate(node: Between | In | Like | Affix | IsNull | IsNan) -> str:
    if isinstance(node, Between):
        return f"BETWEEN {_operand(node.low)} AND {_operand(node.high)}"
    if isinstance(node, Like):
        return f"LIKE {constant(node.pattern)}"
    if isinstance(node, IsNull | IsNan):
        return "IS NULL" if isinstance(node, IsNull) else "IS NAN"
    word = "IN" if isinstance(node, In) else "ENDS WITH" if node.ends else "BEGINS WITH"
    return f"{word} ({', '.join(map(unparse, node.members))})"


def _is_number(node: Node) -> bool:
    return isinstance(node, Literal) and not isinstance(node.value, str)


def _operand(node: Node) -> str:
    return unparse(node) if isinstance(node, _ATOMS) else f"({unparse(node)})"


def _term(node: Node) -> str:
    simple = isinstance(node, _ATOMS) or (
        isinstance(node, CONDITIONS) and not isinstance(node, And | Or | Not)
    )
    return unparse(node) if simple else f"({unparse(node)})"
