"""Message type `messagepack`.

Fields that no path needs are skipped, and a projection copies values in their encoded form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

import msgspec

from tickertape.payload.formats.decoded import DecodedReader, taken_apart
from tickertape.payload.formats.plain import SCALARS, plain_by, timestamp_text
from tickertape.payload.limits import readers_remembered_max
from tickertape.payload.merge import merger
from tickertape.payload.paths import Path, Select, check_paths
from tickertape.payload.prune import projector
from tickertape.payload.types import unreadable_by

_document: Final = msgspec.msgpack.Decoder().decode
_members: Final = msgspec.msgpack.Decoder(dict[Any, msgspec.Raw]).decode
_elements: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_encode: Final = msgspec.msgpack.Encoder().encode

# The type byte of a timestamp extension. Without it a body has no time values.
_TIMESTAMP: Final = b"\xff"


class MessagePack:
    """One MessagePack document of any kind. Fields are map members whose keys are strings."""

    name: Final = "messagepack"

    def reader(self, paths: Sequence[Path]) -> MessagePackReader:
        """See `MessageType`."""
        return _reader(tuple(paths))

    def check(self, body: bytes) -> None:
        """See `MessageType`."""
        taken_apart(_document, body)

    def unreadable(self, bodies: Sequence[bytes]) -> tuple[list[int], str]:
        """See `MessageType`."""
        return unreadable_by(self.check, bodies)

    def projector(self, select: Select) -> Callable[[bytes], bytes]:
        """See `MessageType`."""
        return projector(select, _MessagePackDocuments())

    def merger(self) -> Callable[[bytes, bytes], bytes]:
        """See `MessageType`."""
        return merger(_MessagePackDocuments())


class MessagePackReader:
    """Reads paths from MessagePack (a `FieldReader`)."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._reader = DecodedReader(paths, _decoder, _plain)
        self.access: tuple[str, ...] = self._reader.access
        self._typed = self._reader.decode
        # Walked values are plain already. attrgetter returns no tuple for one name, and names may repeat.
        places = [access[1:] for access in self.access if "[" not in access]
        self._values: Callable[[Any], tuple[Any, ...]] | None = (
            attrgetter(places[0], *places) if places else None
        )
        self.quick: Callable[[bytes], Any] = self.decode
        self.doubts: tuple[type[Exception], ...] = ()

    def decode(self, body: bytes) -> Any:
        """See `FieldReader`."""
        fields = self._typed(body)
        if (
            _TIMESTAMP in body
            and self._values is not None
            and not SCALARS.issuperset(map(type, self._values(fields)))
        ):
            return self._reader.walk(body)
        return fields


class _MessagePackDocuments:
    """MessagePack documents for `prune` and `merge`. The first byte of a value encodes its type."""

    def opened(self, body: bytes) -> msgspec.Raw:
        taken_apart(_document, body)
        return msgspec.Raw(body)

    def members(self, document: msgspec.Raw) -> dict[Any, msgspec.Raw] | None:
        first = memoryview(document)[0]
        return _members(document) if 0x80 <= first <= 0x8F or first in {0xDE, 0xDF} else None

    def elements(self, document: msgspec.Raw) -> list[msgspec.Raw] | None:
        first = memoryview(document)[0]
        return _elements(document) if 0x90 <= first <= 0x9F or first in {0xDC, 0xDD} else None

    def assemble(self, parts: Mapping[Any, Any] | Sequence[Any]) -> msgspec.Raw:
        return msgspec.Raw(_encode(parts))

    def body(self, document: msgspec.Raw) -> bytes:
        return bytes(document)

    def size(self, document: msgspec.Raw) -> int:
        return memoryview(document).nbytes

    def fields(self, body: bytes) -> dict[Any, msgspec.Raw] | None:
        return self.members(self.opened(body))

    def may_nest(self, body: bytes) -> bool:  # noqa: ARG002
        return True


def _convert(value: Any) -> Any:
    if isinstance(value, datetime):
        return timestamp_text(value)
    return bytes(value.data) if isinstance(value, msgspec.msgpack.Ext) else None


_plain: Final = plain_by(_convert)


def _extension(_code: int, data: memoryview) -> bytes:
    return bytes(data)


def _decoder(kind: Any, dec_hook: Callable[[type[Any], Any], Any] | None) -> Callable[[bytes], Any]:
    return msgspec.msgpack.Decoder(kind, dec_hook=dec_hook, ext_hook=_extension).decode


@lru_cache(maxsize=readers_remembered_max)
def _reader(paths: tuple[Path, ...]) -> MessagePackReader:
    check_paths(paths)
    return MessagePackReader(paths)
