"""Owns what every message type offers: a check of a body, a reader of its fields, a selection of them.

Must never know any one type. Values that a reader gives are None (missing, null, or an empty value of FIX),
bool, int, float, str, bytes (binary fields), list (an array, possibly of arrays and objects) and dict (an
object); nothing else, whatever the type can write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tickertape.payload.paths import Path
from tickertape.payload.select import Select


class Unreadable(ValueError):
    """A body is not of its message type. The text says why; no message leaves this process for it."""


class FieldReader(Protocol):
    """The values of some paths, compiled once and used for every message."""

    @property
    def access(self) -> tuple[str, ...]:
        """For each path in its order: what to append, as Python source, to what `decode` gave: `.f0`, `[3]`,
        `.f1.f0[2]`. Only attributes and constant subscripts, none of which raises."""

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
        """A reader of `paths`, which may repeat. Raises `BadPath` for paths that this type cannot have."""

    def check(self, body: bytes) -> None:
        """Raise `Unreadable`, with the reason, unless all of `body` is one document of this type."""

    def projector(self, select: Select) -> Callable[[bytes], bytes]:
        """A function that leaves of a body what `select` selects.

        What it leaves keeps its order and its values exactly. A body that is not of the type, or is no object
        at its top, comes back unchanged. Raises `BadPath` for paths that this type cannot have.
        """
