"""Message type `binary`: opaque bodies. Every body is valid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tickertape.base.errors import BadPath
from tickertape.payload.paths import Path, Select


class Binary:
    """Opaque bytes without fields. Only filters that read no field can be evaluated."""

    name: Final = "binary"

    def reader(self, paths: Sequence[Path]) -> BinaryReader:
        """See `MessageType`."""
        if paths:
            raise BadPath(f"Invalid field '{paths[0]}': messages of type binary have no fields. Remove it.")
        return BinaryReader()

    def check(self, body: bytes) -> None:
        """See `MessageType`. Every body is valid."""

    def unreadable(self, bodies: Sequence[bytes]) -> tuple[list[int], str]:  # noqa: ARG002
        """See `MessageType`. Every body is valid."""
        return [], ""

    def projector(self, select: Select) -> Callable[[bytes], bytes]:
        """See `MessageType`. Always refused."""
        raise BadPath(f"Invalid select list '{select}': messages of type binary have no fields. Remove it.")

    def merger(self) -> None:
        """See `MessageType`. Bodies have no fields."""


class BinaryReader:
    """Reads no fields (a `FieldReader`)."""

    access: tuple[str, ...] = ()
    doubts: tuple[type[Exception], ...] = ()

    def decode(self, body: bytes) -> Any:  # noqa: ARG002
        """See `FieldReader`."""
        return None

    quick = decode
