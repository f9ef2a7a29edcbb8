"""Protocols of message types and their field readers.

Whatever the type can write, values of a reader are None (missing, null, or an empty FIX value), bool, int,
float, str, bytes (binary fields), list (arrays, also of arrays and objects) and dict (objects).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from tickertape.base.text_format import said
from tickertape.payload.paths import Path, Select

unreadable_characters_max: Final = 200
"""Characters of the text for a body that is not of its type."""


class Unreadable(ValueError):
    """A body is not of its message type. The text says why; no message leaves this process for it."""


def unreadable(error: Exception) -> Unreadable:
    """Return a shortened decoder error: the path to a deep position in a body may be long."""
    return Unreadable(said(error, unreadable_characters_max))


class FieldReader(Protocol):
    """The values of some paths, compiled once and used for every message."""

    @property
    def access(self) -> tuple[str, ...]:
        """For each path in order, the Python source that reads it from the result of `decode`: `.f0`, `[3]`,
        `.f1.f0[2]`. Only attributes and constant subscripts; none raises."""

    @property
    def decode(self) -> Callable[[bytes], Any]:
        """Reads a body. Raises `Unreadable`, and nothing else, when the body is not of the type."""

    @property
    def quick(self) -> Callable[[bytes], Any]:
        """As `decode`, in less time for most bodies; for some it raises one of `doubts`, which says nothing
        about the body: `decode` must be asked then. A hot loop uses this one."""

    @property
    def doubts(self) -> tuple[type[Exception], ...]:
        """What `quick` may raise besides `Unreadable`; empty where it is `decode` itself."""


class MessageType(Protocol):
    """How bodies of one type are read."""

    @property
    def name(self) -> str:
        """As in a configuration: `json`, `messagepack`, `nvfix`, `fix`, `bson`, `binary`."""

    def reader(self, paths: Sequence[Path]) -> FieldReader:
        """Return a reader of `paths`, which may repeat. Raises `BadPath` for paths that this type cannot
        have."""

    def check(self, body: bytes) -> None:
        """Raise `Unreadable`, with the reason, unless all of `body` is one document of this type."""

    def unreadable(self, bodies: Sequence[bytes]) -> tuple[list[int], str]:
        """Indexes of the bodies that `check` refuses, and the reason of the first; quicker for many."""

    def projector(self, select: Select) -> Callable[[bytes], bytes]:
        """Return a function that keeps the fields of a body that `select` selects.

        What it leaves keeps its order and its values exactly. A body that is not of the type, or has no
        fields at all, comes back unchanged. Raises `BadPath` for paths that this type cannot have.
        """


def unreadable_by(check: Callable[[bytes], None], bodies: Sequence[bytes]) -> tuple[list[int], str]:
    """`MessageType.unreadable` for a type that has no quicker way than `check`."""
    bad: list[int] = []
    reason = ""
    for at, body in enumerate(bodies):
        try:
            check(body)
        except Unreadable as error:
            reason = reason or str(error)
            bad.append(at)
    return bad, reason
