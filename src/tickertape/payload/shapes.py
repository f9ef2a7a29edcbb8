"""Typed shapes for sets of paths: msgspec structures that decode only the needed fields.

The result is the same as walking the whole document (`walk`). A body that does not fit the shape (for example
an array in place of an object, or a number where a path continues) is decoded and walked instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec

from tickertape.payload.getter import values_getter
from tickertape.payload.paths import Path
from tickertape.payload.walk import Walker

Values = Callable[[Sequence[Any]], Any]
_Wanted = list[tuple[Sequence[str | int], int]]
"""Paths as steps, each with its number."""


class FoundShape:
    """Result of a walk below one field, by the slot of each path through it.

    The walk is lazy: a field that is repeated in a body is walked only once, for its last occurrence."""

    __slots__ = ("_found", "_value")

    read: ClassVar[staticmethod[[Any], list[Any]]]
    """The walk function."""

    def __init__(self, value: Any, found: list[Any] | None = None) -> None:
        self._value = value
        self._found = found

    def __getitem__(self, slot: int) -> Any:
        found = self._found
        if found is None:
            found = self._found = self.read(self._value)
        return found[slot]


def walk_field(kind: type[FoundShape], value: Any) -> FoundShape:
    """Decode a field that needs a walk. Used as `dec_hook` of shape decoders."""
    return kind(value)


class PathShape(NamedTuple):
    """Decoding plan for a set of paths."""

    kind: type[Any]
    """The structure to decode into."""
    access: tuple[str, ...]
    """Source that accesses each path in the structure (see `FieldReader`)."""
    make: Values
    """Builds the same structure from the values of the paths, in their order."""

    def values(self) -> Callable[[Any], tuple[Any, ...]]:
        """Return a function that returns the values of all paths from the structure."""
        return values_getter(self.access)


def shape_of(
    paths: Sequence[Path], plain: Callable[[Any], Any] | None = None, *, nested: bool = True
) -> PathShape:
    """Return the shape of `paths`. Every path starts with a name.

    `plain` converts a value to a plain one (see `types`). Without it all values are plain. With
    `nested=False`, everything below a top-level field is walked, so that every object fits.
    """
    access: dict[int, str] = {}
    kind, make = _structure([(path.steps, n) for n, path in enumerate(paths)], "", access, plain, nested)
    return PathShape(kind, tuple(access[n] for n in range(len(paths))), make)


def _structure(
    wanted: _Wanted, prefix: str, access: dict[int, str], plain: Callable[[Any], Any] | None, nested: bool
) -> tuple[type[Any], Values]:
    """Return a structure for the needed fields of one object, and its builder from values. Fills `access`."""
    by_name: dict[str, _Wanted] = {}
    for steps, n in wanted:
        by_name.setdefault(str(steps[0]), []).append((steps[1:], n))
    fields: list[tuple[str, Any, Any]] = []
    makes: list[Values] = []
    for at, below in enumerate(by_name.values()):
        place = f"{prefix}.f{at}"
        kind: Any
        if not any(steps for steps, _ in below):
            access.update((n, place) for _, n in below)
            kind, make = Any, _getter(below[0][1])
            default = None
        elif nested and all(steps and isinstance(steps[0], str) for steps, _ in below):
            kind, make = _structure(below, place, access, plain, nested)
            default = kind()
        else:
            kind, make = _walked(below, place, access, plain)
            default = kind(None)
        fields.append((f"f{at}", kind, default))
        makes.append(make)
    names = {f"f{at}": name for at, name in enumerate(by_name)}
    structure = msgspec.defstruct("Fields", fields, rename=names, frozen=True, gc=False)
    return structure, lambda values: structure(*[make(values) for make in makes])


def _walked(
    below: _Wanted, place: str, access: dict[int, str], plain: Callable[[Any], Any] | None
) -> tuple[type[FoundShape], Values]:
    walker = Walker([steps for steps, _ in below])
    read = walker.read if plain is None else lambda document: [*map(plain, walker.read(document))]
    kind = type("Walked", (FoundShape,), {"read": staticmethod(read), "__slots__": ()})
    numbers = [n for _, n in below]
    access.update((n, f"{place}[{slot}]") for n, slot in zip(numbers, walker.slots, strict=True))
    return kind, lambda values: kind(None, [values[n] for n in numbers])


def _getter(n: int) -> Values:
    return lambda values: values[n]
