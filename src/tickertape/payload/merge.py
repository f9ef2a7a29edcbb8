"""Merge of a delta into a document without decoding the values that it keeps.

Objects are merged by name at every depth. Arrays and other values are replaced as a whole. So a delta can
change and add fields, and removes none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from tickertape.base.errors import MessageTooLarge
from tickertape.payload.limits import merge_nested_bytes_max
from tickertape.payload.prune import Documents
from tickertape.payload.types import Unreadable

_ABSENT: Final = object()
"""Marks a missing field. None is a value (null) in some formats."""


def merger(documents: Documents) -> Callable[[bytes, bytes], bytes]:
    """Return a function that merges bodies (see `MessageType.merger`)."""

    def merge(old: bytes, delta: bytes) -> bytes:
        new = documents.fields(delta)
        if new is None:
            return delta
        try:
            fields = documents.fields(old)
        except Unreadable:
            return delta
        if fields is None:
            return delta
        if not new:
            return old
        if documents.may_nest(delta):
            return documents.body(_merged(fields, iter(new.items()), documents))
        fields.update(new)
        return documents.body(documents.assemble(fields))

    return merge


def _merged(fields: dict[Any, Any], changes: Iterator[tuple[Any, Any]], documents: Documents) -> Any:
    """Return the object of `fields` with `changes`, which is as deep as the parser permits."""
    nested = 0
    open_objects: list[tuple[dict[Any, Any], Iterator[tuple[Any, Any]], Any]] = [(fields, changes, _ABSENT)]
    """Objects on the path to the current one: fields, changes that are left, and name."""
    while True:
        fields, changes, at = open_objects[-1]
        for name, value in changes:
            before = fields.get(name, _ABSENT)
            new = None if before is _ABSENT else documents.members(value)
            below = None if new is None else documents.members(before)
            if new is None or below is None:
                fields[name] = value
            elif new:
                nested += documents.size(before) + documents.size(value)
                if nested > merge_nested_bytes_max:
                    raise MessageTooLarge(
                        "Cannot merge the delta: its nested objects and those of the record have more than "
                        f"{merge_nested_bytes_max:,} bytes in total. Publish the whole message."
                    )
                open_objects.append((dict(below), iter(new.items()), name))
                break
        else:
            merged = documents.assemble(fields)
            open_objects.pop()
            if not open_objects:
                return merged
            open_objects[-1][0][at] = merged
