"""Interfaces of message types and their field readers.

In every type, values of a reader are None (missing, null, or an empty FIX value), bool, int, float, str,
bytes (binary fields), list (arrays, also of arrays and objects) and dict (objects).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from tickertape.base.text_format import said
from tickertape.payload.paths import Path, Select

unreadable_characters_max: Final = 200
"""Longest error text for an invalid body."""


class Unreadable(ValueError):
    """A body that is invalid for its message type. The text gives the reason. It is not sent to peers."""


def unreadable(error: Exception) -> Unreadable:
    """Return a shortened decoder error, because the path to a deep position may be long."""
    return Unreadable(said(error, unreadable_characters_max))


class FieldReader(Protocol):
    """Reads the values of some paths, compiled once and used for every message."""

    @property
    def access(self) -> tuple[str, ...]:
        """For each path, Python source to append to the name of a result of `decode`: `.f0`, `[3]`,
        `.f1.f0[2]`. It has only attributes and constant subscripts, which never raise."""

    @property
    def decode(self) -> Callable[[bytes], Any]:
        """Function that decodes a body. It raises `Unreadable`, and no other exception, if the body is
        invalid for the type."""

    @property
    def quick(self) -> Callable[[bytes], Any]:
        """Function that decodes most bodies faster than `decode`.

        If it raises one of `doubts`, the body may still be valid: call `decode` then."""

    @property
    def doubts(self) -> tuple[type[Exception], ...]:
        """Exceptions of `quick` that require a call of `decode`. Empty if `quick` is `decode`."""


class MessageType(Protocol):
    """Reads bodies of one type."""

    @property
    def name(self) -> str:
        """Name in a configuration: `json`, `messagepack`, `nvfix`, `fix`, `bson`, `binary`."""

    def reader(self, paths: Sequence[Path]) -> FieldReader:
        """Return a reader of `paths`, which may repeat. Raises `BadPath` for paths that this type cannot
        have, and for more than 256 (`paths_per_reader_max`)."""

    def check(self, body: bytes) -> None:
        """Raise `Unreadable` with the reason unless all of `body` is one document of this type."""

    def unreadable(self, bodies: Sequence[bytes]) -> tuple[list[int], str]:
        """Return the indices of invalid bodies, and the reason of the first. Faster than `check` for many
        bodies."""

    def projector(self, select: Select) -> Callable[[bytes], bytes]:
        """Return a function that keeps only the selected fields of a body.

        Kept fields keep their order and exact values. A body that is invalid, or neither an object nor an
        array, is returned unchanged. A select list with the initial state "nothing" removes elements of
        arrays that are not objects. Raises `BadPath` for paths that this type cannot have.
        """

    def merger(self) -> Callable[[bytes, bytes], bytes] | None:
        """Return a function that merges a delta into a body, or None if bodies of this type have no fields.

        Fields of the delta replace those of the body, and objects are merged by name at every depth. Other
        fields keep their exact values, and all keep their order. New fields follow. If one of the two has
        no fields, the function returns the delta itself. It raises `Unreadable` for an invalid delta, and
        `MessageTooLarge` for nested objects that are too large to merge. An invalid body has no fields.
        """


def unreadable_by(check: Callable[[bytes], None], bodies: Sequence[bytes]) -> tuple[list[int], str]:
    """Implement `MessageType.unreadable` with `check`."""
    bad: list[int] = []
    reason = ""
    for at, body in enumerate(bodies):
        try:
            check(body)
        except Unreadable as error:
            reason = reason or str(error)
            bad.append(at)
    return bad, reason
