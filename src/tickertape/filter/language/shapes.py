"""Filter shapes: cached syntax trees for all filters that differ in their constants only.

A constant is a quoted string, or an unsigned number outside of other tokens.

Invariants:
- A tree from the cache equals the tree of the text, with the same positions.
- It is within the limits of depth and operations.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple

from tickertape.filter.language.ast import Like, Literal, Node
from tickertape.filter.language.diagnostics import TEXT_FORM, Diagnostic, Unexpected
from tickertape.filter.language.grammar import number_of, read, unquoted
from tickertape.filter.limits import (
    filter_depth_max,
    filter_operations_max,
    filter_shape_characters_max,
    filter_shapes_max,
)

_constant: Final = re.compile(rf"{TEXT_FORM}|(?<=[\s(,<>=])[0-9]+(?:\.[0-9]+)?(?=[\s),]|$)")
_NUMBER: Final = "0"


class _Shape(NamedTuple):
    """The tree of a text whose strings are empty and whose numbers are 0."""

    tree: Node
    places: list[int]
    """Starts of the constants."""


class _Filling(NamedTuple):
    """The constants of a text, for its shape."""

    places: list[int]
    values: dict[int, str | int | float]
    """Constants by their place in the shape."""
    shifts: list[int]
    """By number of preceding constants: the distance from a position in the shape to the one in the text."""

    def position(self, at: int) -> int:
        """Return the position in the text of a position in the shape."""
        return at + self.shifts[bisect_left(self.places, at)]

    def node(self, node: Node) -> Node:
        """Return a node of the shape as a node of the text."""
        at = self.position(node.at)
        if isinstance(node, Literal):
            return Literal(self.values.get(node.at, node.value), at=at)
        if not node.children:
            return node if at == node.at else node.with_parts(self.node, at=at)
        if isinstance(node, Like):
            pattern, pattern_at = self.values[node.pattern_at], self.position(node.pattern_at)
            return node.with_parts(self.node, at=at, pattern=pattern, pattern_at=pattern_at)
        return node.with_parts(self.node, at=at)


def tree_of(text: str) -> Node | None:
    """Return the syntax tree of a text by its shape. None if the text must be parsed itself."""
    found = [*_constant.finditer(text)]
    parts: list[str] = []
    end = 0
    for one in found:
        parts += [text[end : one.start()], _placeholder(one[0])]
        end = one.end()
    key = "".join([*parts, text[end:]])
    shape = _shape_of(key) if len(key) <= filter_shape_characters_max else None
    lengths = [len(one[0]) - len(_placeholder(one[0])) for one in found]
    shifts = [*accumulate(lengths, initial=0)]
    places = [one.start() - shift for one, shift in zip(found, shifts[:-1], strict=True)]
    if shape is None or shape.places != places:
        return None
    try:
        values = [_value(one[0], one.start()) for one in found]
    except Diagnostic:  # parsing reports it
        return None
    return _Filling(places, dict(zip(places, values, strict=True)), shifts).node(shape.tree)


@lru_cache(maxsize=filter_shapes_max)
def _shape_of(text: str) -> _Shape | None:
    """Parse a text of placeholders. None if it is invalid or exceeds a limit, or if a constant does not have
    its own node."""
    places = [one.start() for one in _constant.finditer(text)]
    try:
        tree = read(text)
    except (Diagnostic, Unexpected):
        return None
    own: set[int] = set()
    operations = 0
    level: tuple[Node, ...] = (tree,)
    for _ in range(filter_depth_max):
        operations += sum(not isinstance(node, Literal) for node in level)
        own.update(at for node in level for at in _constant_places(node))
        level = tuple(child for node in level for child in node.children)
    if level or operations > filter_operations_max:  # filling is recursive, and parsing reports the limits
        return None
    return _Shape(tree, places) if sorted(own.intersection(places)) == places else None


def _constant_places(node: Node) -> tuple[int, ...]:
    if isinstance(node, Like):
        return (node.pattern_at,)
    if isinstance(node, Literal) and node.value in {"", 0} and node.value is not False:
        return (node.at,)
    return ()


def _placeholder(constant: str) -> str:
    return 2 * constant[0] if constant[0] in {"'", '"'} else _NUMBER


def _value(constant: str, at: int) -> str | int | float:
    return unquoted(constant) if constant[0] in {"'", '"'} else number_of(constant, at)
