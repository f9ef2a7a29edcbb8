"""Evaluate field paths on decoded JSON-like values (dicts and lists).

All paths walk the document together: no value is visited more than `path_forms_max` times, for any number of
paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

FEW: Final = 4
"""Up to this number, names, subscripts or paths are looked up one by one."""


class WalkedNode:
    """Requested paths at one value: the value itself, names below it, and subscripts."""

    __slots__ = ("names", "slot", "subscripts")

    def __init__(self) -> None:
        self.slot: int = -1
        """Result slot of the value, or -1."""
        self.names: dict[str, WalkedNode] = {}
        self.subscripts: dict[int, WalkedNode] = {}

    def add(self, steps: Sequence[str | int], slot: int) -> int:
        """Request the value at `steps` and return its slot. Equal requests share a slot."""
        node = self
        for step in steps:
            children: dict[Any, WalkedNode] = node.subscripts if isinstance(step, int) else node.names
            node = children.setdefault(step, WalkedNode())
        if node.slot < 0:
            node.slot = slot
        return node.slot


class Walker:
    """Reads a set of paths, given by their steps, from documents."""

    __slots__ = ("_paths", "_root", "slots")

    def __init__(self, paths: Sequence[Sequence[str | int]]) -> None:
        self._root = WalkedNode()
        self.slots: tuple[int, ...] = tuple(self._root.add(steps, n) for n, steps in enumerate(paths))
        """For each path, the index of its value in the result of `read`."""
        self._paths = [tuple(steps) for steps in paths]

    def read(self, document: Any) -> list[Any]:
        """Return the values found in `document`, None for missing ones."""
        return self._one_by_one(document) if len(self._paths) <= FEW else self._together(document)

    def _one_by_one(self, document: Any) -> list[Any]:
        """Fastest for few paths that access arrays only by subscript."""
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
                    return self._together(document)
            found.append(value)
        return found

    def _together(self, document: Any) -> list[Any]:
        found: list[Any] = [None] * len(self._paths)
        if document is not None:
            _take(self._root, document, found)
        return found


def _take(node: WalkedNode, value: Any, found: list[Any]) -> None:
    """Put the values that `node` requests from `value` into `found`."""
    if node.slot >= 0:
        found[node.slot] = value
    if type(value) is dict:
        for child, below in _wanted(node.names, value):
            _take(child, below, found)
    elif type(value) is list:
        for child, below in _wanted_elements(node.subscripts, value):
            _take(child, below, found)
        if node.names:
            _ask(node.names, [member for member in value if type(member) is dict], found)


def _gather(node: WalkedNode, values: list[Any], found: list[Any]) -> None:
    """Put the values that a path found through an array into `found`, as one list. See `_take`."""
    lists = list in set(map(type, values))
    if node.slot >= 0:
        found[node.slot] = _spread(values) if lists else values
    if node.names:
        members = _spread(values) if lists else values
        _ask(node.names, [member for member in members if type(member) is dict], found)
    if node.subscripts and lists:
        _ask_elements(node.subscripts, [value for value in values if type(value) is list], found)


def _ask(names: dict[str, WalkedNode], members: list[dict[Any, Any]], found: list[Any]) -> None:
    """Collect the values of `names` in all of these objects: a null member counts, a missing one does not.

    A few names are looked up in each object. Many are matched while iterating over the members, so the work
    does not grow with their number."""
    if len(names) <= FEW:
        for name, child in names.items():
            values = [member[name] for member in members if name in member]
            if values:
                _gather(child, values, found)
        return
    met: dict[str, list[Any]] = {name: [] for name in names}
    for member in members:
        for name, value in member.items():
            if name in met:
                met[name].append(value)
    for name, values in met.items():
        if values:
            _gather(names[name], values, found)


def _ask_elements(subscripts: dict[int, WalkedNode], arrays: list[list[Any]], found: list[Any]) -> None:
    """Collect the requested elements of arrays. See `_ask`."""
    met: dict[int, list[Any]] = {n: [] for n in subscripts}
    for array in arrays:
        if len(subscripts) <= FEW:
            for n, values in met.items():
                if n < len(array):
                    values.append(array[n])
        else:
            for n, element in enumerate(array):
                if n in met:
                    met[n].append(element)
    for n, values in met.items():
        if values:
            _gather(subscripts[n], values, found)


def _spread(values: list[Any]) -> list[Any]:
    """Return the values, with arrays replaced by their elements."""
    spread: list[Any] = []
    for value in values:
        if type(value) is list:
            spread += value
        else:
            spread.append(value)
    return spread


def _wanted(names: dict[str, WalkedNode], value: dict[Any, Any]) -> list[tuple[WalkedNode, Any]]:
    """Return the requested members of an object. Iterates over the smaller of the two."""
    if len(names) <= len(value):
        return [(child, value[name]) for name, child in names.items() if value.get(name) is not None]
    return [(names[name], below) for name, below in value.items() if name in names and below is not None]


def _wanted_elements(subscripts: dict[int, WalkedNode], value: list[Any]) -> list[tuple[WalkedNode, Any]]:
    """Return the requested elements of an array."""
    return [(child, value[n]) for n, child in subscripts.items() if n < len(value) and value[n] is not None]
