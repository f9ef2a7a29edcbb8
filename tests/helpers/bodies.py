"""Independent evaluation of paths and select lists, straight from their definitions.

Must never share code with the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tickertape.payload import FieldReader

Steps = tuple[str | int, ...]


def values_of(reader: FieldReader, fields: Any) -> list[Any]:
    """Return the values of a reader's paths, as a filter uses them."""
    return [eval(f"it{access}", {"it": fields}) for access in reader.access]


_MISSING = object()


def look(value: Any, steps: Steps) -> Any:
    """Return the value at `steps` in a document."""
    found = _look(value, steps)
    return None if found is _MISSING else found


def _look(value: Any, steps: Steps) -> Any:
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if isinstance(step, int):
        return _look(value[step], rest) if isinstance(value, list) and step < len(value) else _MISSING
    if isinstance(value, dict):
        return _look(value[step], rest) if step in value else _MISSING
    if not isinstance(value, list):
        return _MISSING
    found = [_look(member, steps) for member in value if isinstance(member, dict)]
    there = [one for one in found if one is not _MISSING]
    several: list[Any] = []
    for one in there:
        several += one if isinstance(one, list) else [one]
    return several if there else _MISSING


def value_in_fix(body: bytes, steps: Steps) -> Any:
    """Return the value of a FIX or NVFIX tag."""
    fields = [field.split(b"=", 1) for field in body.split(b"\x01") if field]
    texts = [value.decode() or None for tag, value in fields if tag.decode() == steps[0]]
    if len(steps) > 1:
        at = steps[1]
        assert isinstance(at, int)
        return texts[at] if at < len(texts) else None
    return None if not texts else texts[0] if len(texts) == 1 else texts


def selected(value: Any, entries: Sequence[tuple[bool, Steps]]) -> Any:
    """Return the selected part of a document."""
    first_keep, first = entries[0]
    return _left(value, (), [(first_keep if not first else not first_keep, ()), *entries])


_GONE = object()


def _left(value: Any, at: Steps, entries: Sequence[tuple[bool, Steps]]) -> Any:
    last = max(n for n, (_, path) in enumerate(entries) if at[: len(path)] == path)
    keep = entries[last][0]
    deeper = [path for _, path in entries[last:] if len(path) > len(at) and path[: len(at)] == at]
    if not deeper and at:
        return value if keep else _GONE
    if isinstance(value, dict):
        inside = {name: _left(one, (*at, name), entries) for name, one in value.items()}
        return {name: one for name, one in inside.items() if one is not _GONE}
    if isinstance(value, list):
        return [
            _left(one, at, entries) if isinstance(one, dict) else one
            for one in value
            if keep or isinstance(one, dict)
        ]
    return value if keep or not at else _GONE
