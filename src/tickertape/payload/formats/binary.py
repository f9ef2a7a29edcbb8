"""Message type `binary`: opaque bodies. Every body is valid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tickertape.base.errors import BadPath
from tickertape.payload.paths import Path, Select


class Binary:
    """Bytes without fields: only what reads none can be asked of them."""

    name: Final = "binary"

    def reader(self, paths: Sequence[Path]) -> BinaryReader:
        """See `MessageType`."""
        if paths:
            raise BadPath(f"{paths[0]}: messages of type binary have no fields")
        return BinaryReader()

    def check(self, body: bytes) -> None:
        """See `MessageType`: every body is binary."""

    def unreadable(self, bodies: Sequence[bytes]) -> tuple[list[int], str]:  # noqa: ARG002
        """See `MessageType`: none is."""
        return [], ""

    def projector(self, select: Select) -> Callable[[bytes], bytes]:
        """See `MessageType`: refused, whatever it selects."""
        raise BadPath(f"{select}: messages of type binary have no fields to select")


class BinaryReader:
    """Reads nothing (a `FieldReader`)."""

    access: tuple[str, ...] = ()
    doubts: tuple[type[Exception], ...] = ()

    def decode(self, body: bytes) -> Any:  # noqa: ARG002
        """See `FieldReader`."""
        return None

    quick = decode
