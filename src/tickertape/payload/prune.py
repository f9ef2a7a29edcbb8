"""Projection of documents whose values can be left undecoded.

Values that are kept are not changed, and neither is their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from tickertape.payload.paths import Choice, Select
from tickertape.payload.types import Unreadable


class Documents(Protocol):
    """How one format takes a document apart and puts it together; its parts stay as they are written."""

    def opened(self, body: bytes) -> Any:
        """Return a body as the document that it is; raises `Unreadable` when it is none."""

    def members(self, document: Any) -> Mapping[Any, Any] | None:
        """Return the documents in an object by their names; None for anything else."""

    def elements(self, document: Any) -> Sequence[Any] | None:
        """Return the documents in an array; None for anything else."""

    def assemble(self, parts: Mapping[Any, Any] | Sequence[Any]) -> Any:
        """Return an object or array of these documents."""

    def body(self, document: Any) -> bytes:
        """Return a document as a body."""


_NOTHING: Final = object()
"""Nothing stays; None is a value (null) in some formats."""


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
    """What stays of a value in which fields are selected, or `_NOTHING`."""
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
