"""Projection of documents without decoding their values.

Kept values and their order do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from tickertape.payload.paths import Choice, Select
from tickertape.payload.types import Unreadable


class Documents(Protocol):
    """Splits and assembles documents of one format. Parts keep their encoding."""

    def opened(self, body: bytes) -> Any:
        """Return a body as a document. Raises `Unreadable` if it is invalid."""

    def members(self, document: Any) -> Mapping[Any, Any] | None:
        """Return the documents in an object by name, or None for other values."""

    def elements(self, document: Any) -> Sequence[Any] | None:
        """Return the documents in an array, or None for other values."""

    def assemble(self, parts: Mapping[Any, Any] | Sequence[Any]) -> Any:
        """Return an object or array with these documents."""

    def body(self, document: Any) -> bytes:
        """Return a document as a body."""

    def size(self, document: Any) -> int:
        """Return the size of a document in bytes."""

    def fields(self, body: bytes) -> dict[Any, Any] | None:
        """Return `members` of a body in a new dict. Raises `Unreadable` if the body is invalid."""

    def may_nest(self, body: bytes) -> bool:
        """Return whether a field of a valid object may be an object. False is certain, and found fast."""


_NOTHING: Final = object()
"""Marks a removed value. None is a value (null) in some formats."""


def projector(select: Select, documents: Documents) -> Callable[[bytes], bytes]:
    """Return a function that applies `select` to a body (see `MessageType.projector`)."""
    root = select.root

    def project(body: bytes) -> bytes:
        try:
            document = documents.opened(body)
        except Unreadable:
            return body
        kept = _inside(root, document, documents)
        return body if kept is _NOTHING else documents.body(kept)

    return project


def _kept(choice: Choice, members: Mapping[Any, Any], documents: Documents) -> dict[Any, Any]:
    kept: dict[Any, Any] = {}
    for name, value in members.items():
        below = choice.below.get(name) if isinstance(name, str) else None
        if below is None or not below.below:
            if choice.keep if below is None else below.keep:
                kept[name] = value
            continue
        inside = _inside(below, value, documents)
        if inside is not _NOTHING:
            kept[name] = inside
    return kept


def _inside(choice: Choice, value: Any, documents: Documents) -> Any:
    """Return the remaining part of a value in which fields are selected, or `_NOTHING`."""
    members = documents.members(value)
    if members is not None:
        return documents.assemble(_kept(choice, members, documents))
    elements = documents.elements(value)
    if elements is None:
        return value if choice.keep else _NOTHING
    parts = []
    for element in elements:
        members = documents.members(element)
        if members is not None:
            parts.append(documents.assemble(_kept(choice, members, documents)))
        elif choice.keep:
            parts.append(element)
    return documents.assemble(parts)
