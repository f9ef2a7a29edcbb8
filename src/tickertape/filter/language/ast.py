"""Syntax tree of a filter; each node has its position in the text.

Nodes are immutable. Nodes that mean the same are equal wherever they are in a text, so parts that several
filters share can be found with a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tickertape.payload.paths import Path

Constant: TypeAlias = bool | int | float | str | None
"""Value of a literal; an empty text is NULL wherever it is used."""

integer_min: Final = -(1 << 63)
integer_max: Final = (1 << 64) - 1
"""Bounds of integers: signed, and unsigned above the largest signed one; a number beyond them is a float."""


@dataclass(frozen=True, slots=True)
class Node:
    """Any part of a filter."""

    at: int = field(compare=False, kw_only=True, default=0)
    """Start in the text of the filter, in characters from 0; of an operator its own position."""

    @property
    def children(self) -> tuple[Node, ...]:
        """The parts of it, in the order of the text."""
        return ()


@dataclass(frozen=True, slots=True)
class Unary(Node):
    """Any part with one operand."""

    operand: Node

    @property
    def children(self) -> tuple[Node, ...]:
        """The operand."""
        return (self.operand,)


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

    @property
    def children(self) -> tuple[Node, ...]:
        """Both operands."""
        return (self.left, self.right)


@dataclass(frozen=True, slots=True)
class Negative(Unary):
    """`- operand`."""


@dataclass(frozen=True, slots=True)
class Call(Node):
    """A function and its arguments; the name is in capitals."""

    name: str
    arguments: tuple[Node, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        """The arguments."""
        return self.arguments


# -- conditions: true, false or unknown ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Comparison(Node):
    """`left operator right`; the operator is one of `= != < <= > >=`."""

    operator: str
    left: Node
    right: Node

    @property
    def children(self) -> tuple[Node, ...]:
        """Both operands."""
        return (self.left, self.right)


@dataclass(frozen=True, slots=True)
class Between(Node):
    """`operand BETWEEN low AND high`, both inclusive."""

    operand: Node
    low: Node
    high: Node

    @property
    def children(self) -> tuple[Node, ...]:
        """The operand and its bounds."""
        return (self.operand, self.low, self.high)


@dataclass(frozen=True, slots=True)
class In(Node):
    """`operand IN (member, ...)`."""

    operand: Node
    members: tuple[Node, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        """The operand, then the members."""
        return (self.operand, *self.members)


@dataclass(frozen=True, slots=True)
class Like(Unary):
    """`operand LIKE 'pattern'`; the pattern is searched for anywhere."""

    pattern: str
    pattern_at: int = field(compare=False)
    """Where the pattern's literal begins in the text of the filter."""


@dataclass(frozen=True, slots=True)
class Affix(Node):
    """`operand BEGINS WITH (...)`, or `ENDS WITH` when `ends`; any of the members."""

    operand: Node
    members: tuple[Node, ...]
    ends: bool

    @property
    def children(self) -> tuple[Node, ...]:
        """The operand, then the members."""
        return (self.operand, *self.members)


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

    @property
    def children(self) -> tuple[Node, ...]:
        """The terms."""
        return self.terms


@dataclass(frozen=True, slots=True)
class Or(Node):
    """Two or more terms joined by OR, none of them an `Or`."""

    terms: tuple[Node, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        """The terms."""
        return self.terms


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
