"""Owns the reading of paths from a document that is made of Python's own dicts and lists.

Must never visit a value more often than `path_forms_max` says, however many paths there are: all of them go
down the document together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Node:
    """What is wanted of one value: the value itself, what is at names below it, and what at subscripts."""

    __slots__ = ("names", "slot", "subscripts")

    def __init__(self) -> None:
        self.slot: int = -1
        """Where the value goes, or -1."""
        self.names: dict[str, Node] = {}
        self.subscripts: dict[int, Node] = {}

    def add(self, steps: Sequence[str | int], slot: int) -> int:
        """Ask for the value at `steps`; gives its slot, an earlier one when it was asked for before."""
        node = self
        for step in steps:
            children: dict[Any, Node] = node.subscripts if isinstance(step, int) else node.names
            node = children.setdefault(step, Node())
        if node.slot < 0:
            node.slot = slot
        return node.slot


class Walker:
    """Reads a set of paths, given by their steps, from documents. `plain` makes a value one of the plain ones
    (see `types`); without it all of them are."""

    __slots__ = ("_paths", "_plain", "_root", "slots")

    def __init__(
        self, paths: Sequence[Sequence[str | int]], plain: Callable[[Any], Any] | None = None
    ) -> None:
        self._root = Node()
        self._plain = plain
        self.slots: tuple[int, ...] = tuple(self._root.add(steps, n) for n, steps in enumerate(paths))
        """For each path, where in the list that `read` gives its value is."""
        self._paths = [tuple(steps) for steps in paths]

    def read(self, document: Any) -> list[Any]:
        """The values found in `document`, None where there is none."""
        found = []
        for steps in self._paths:
            value = document
            for step in steps:
                kind = type(value)
                if kind is dict:
                    value = value.get(step) if isinstance(step, str) else None
                elif kind is not list:
                    value = None
                    break
                elif isinstance(step, int):
                    value = value[step] if step < len(value) else None
                else:
                    # A name at an array asks each of its members; all paths do that in one pass.
                    return self._through(document)
            found.append(value)
        return found if self._plain is None else [*map(self._plain, found)]

    def _through(self, document: Any) -> list[Any]:
        found: list[Any] = [None] * len(self._paths)
        _take(self._root, document, found)
        return found if self._plain is None else [*map(self._plain, found)]


def _take(node: Node, value: Any, found: list[Any]) -> None:
    """Put what `node` wants of `value` into `found`."""
    if node.slot >= 0:
        found[node.slot] = value
    if type(value) is dict:
        for child, below in _below(node.names, value):
            _take(child, below, found)
    elif type(value) is list:
        for child, below in _elements(node, value):
            _take(child, below, found)
        if node.names:
            for member in value:
                if member and type(member) is dict:
                    for child, below in _below(node.names, member):
                        _gather(child, below, found)


def _gather(node: Node, value: Any, found: list[Any]) -> None:
    """As `_take`, for a value that is one of several at its path: they become one list."""
    if node.slot >= 0:
        several = found[node.slot]
        if several is None:
            several = found[node.slot] = []
        if type(value) is list:
            several.extend(value)
        else:
            several.append(value)
    if type(value) is dict:
        for child, below in _below(node.names, value):
            _gather(child, below, found)
    elif type(value) is list:
        for child, below in _elements(node, value):
            _gather(child, below, found)
        if node.names:
            for member in value:
                if member and type(member) is dict:
                    for child, below in _below(node.names, member):
                        _gather(child, below, found)


def _below(names: dict[str, Node], value: dict[Any, Any]) -> list[tuple[Node, Any]]:
    """Who wants which members of an object; the work is that of the smaller of the two."""
    if len(names) <= len(value):
        return [(child, value[name]) for name, child in names.items() if value.get(name) is not None]
    return [(names[name], below) for name, below in value.items() if name in names and below is not None]


def _elements(node: Node, value: list[Any]) -> list[tuple[Node, Any]]:
    """Who wants which elements of an array."""
    wanted = node.subscripts
    if not wanted or not value:
        return []
    if len(wanted) <= len(value):
        return [(wanted[n], value[n]) for n in wanted if n < len(value) and value[n] is not None]
    return [(wanted[n], element) for n, element in enumerate(value) if n in wanted and element is not None]
