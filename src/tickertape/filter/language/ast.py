"""Syntax tree of a filter, with positions in the text, and conversion back to text.

Nodes are immutable. Nodes with the same meaning are equal wherever they are, so a dictionary finds parts that
several filters share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, TypeAlias

from tickertape.payload.paths import Path

Constant: TypeAlias = bool | int | float | str | None
"""Value of a literal. An empty string is NULL wherever it is used."""

integer_min: Final = -(1 << 63)
integer_max: Final = (1 << 64) - 1
"""Bounds of integers (signed minimum, unsigned maximum). A number outside them is a float."""


@cache
def _part_names(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a node class that hold child nodes."""
    return tuple(part.name for part in kind.__dataclass_fields__.values() if "Node" in str(part.type))


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a filter tree."""

    at: int = field(compare=False, kw_only=True, default=0)
    """Start in the filter text, in characters from 0. For an operator, the position of the operator."""

    @property
    def children(self) -> tuple[Node, ...]:
        """Child nodes in text order."""
        kind: Any = self.__class__
        names = _part_names(kind)
        if not names:
            return ()
        found: list[Node] = []
        for name in names:
            part = getattr(self, name)
            found += part if isinstance(part, tuple) else (part,) if isinstance(part, Node) else ()
        return tuple(found)

    def with_parts(self, change: Callable[[Node], Node], **changes: Any) -> Node:
        """Return a copy of the node with `change(child)` in place of each child, in text order.

        `changes` are new values of other fields of the node, by the name of the field."""
        kind: Any = self.__class__
        for name in _part_names(kind):
            part = getattr(self, name)
            if isinstance(part, Node | tuple):
                changes[name] = change(part) if isinstance(part, Node) else tuple(map(change, part))
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Unary(Node):
    """A node with one operand."""

    operand: Node


# -- values -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """A constant."""

    value: Constant

    def __eq__(self, other: object) -> bool:
        # 1, 1.0 and TRUE are equal in Python but differ as strings, so they are different constants.
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
    """`left operator right`. The operator is one of `+ - * / %`."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Negative(Unary):
    """`- operand`."""


@dataclass(frozen=True, slots=True)
class Call(Node):
    """A function call. The name is in upper case."""

    name: str
    arguments: tuple[Node, ...]


# -- conditions: true, false or unknown ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Comparison(Node):
    """`left operator right`. The operator is one of `= != < <= > >=`."""

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
    """`operand LIKE 'pattern'`, an unanchored search."""

    pattern: str
    pattern_at: int = field(compare=False)
    """Start of the pattern literal in the filter text."""


@dataclass(frozen=True, slots=True)
class Affix(Unary):
    """`operand BEGINS WITH (...)`, or `ENDS WITH` if `ends`. Any member may match."""

    members: tuple[Node, ...]
    ends: bool


@dataclass(frozen=True, slots=True)
class IsNull(Unary):
    """`operand IS NULL`. `IS NOT NULL` is a `Not` of it."""


@dataclass(frozen=True, slots=True)
class IsNan(Unary):
    """`operand IS NAN`."""


@dataclass(frozen=True, slots=True)
class Not(Unary):
    """`NOT operand`, including the `NOT` of `NOT IN`, `NOT LIKE` and `NOT BETWEEN`."""


@dataclass(frozen=True, slots=True)
class And(Node):
    """Two or more terms joined by AND. No term is an `And`."""

    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or(Node):
    """Two or more terms joined by OR. No term is an `Or`."""

    terms: tuple[Node, ...]


CONDITIONS: tuple[type[Node], ...] = (Comparison, Between, In, Like, Affix, IsNull, IsNan, Not, And, Or)
"""Nodes that are true, false or unknown. All other nodes have a value."""


def walk(node: Node) -> Iterator[Node]:
    """Yield `node` and all descendants, parents first."""
    waiting = [node]
    while waiting:
        found = waiting.pop()
        yield found
        children = found.children
        if children:
            waiting.extend(reversed(children))


def fields(node: Node) -> tuple[Path, ...]:
    """Return the distinct paths in `node`, in order of first occurrence."""
    return paths_of(walk(node))


def paths_of(nodes: Iterable[Node]) -> tuple[Path, ...]:
    """Return the distinct paths of the fields among `nodes`, in order of first occurrence."""
    return tuple(dict.fromkeys([found.path for found in nodes if isinstance(found, Field)]))


# -- text ---------------------------------------------------------------------------------------------


_ATOMS: Final = (Field, Literal, Call)


def unparse(node: Node) -> str:
    """Return `node` as filter text."""
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
