"""Message type `json`.

Fields that no path needs are skipped, and a projection copies values in their encoded form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from tickertape.payload.formats.decoded import DECODE_ERRORS, DecodedReader, taken_apart
from tickertape.payload.limits import readers_remembered_max
from tickertape.payload.merge import merger
from tickertape.payload.paths import Path, Select, check_paths
from tickertape.payload.prune import projector
from tickertape.payload.types import unreadable

# A document is validated without creating objects, which takes a third of the time. This does not check that
# strings are UTF-8.
_walk: Final = msgspec.json.Decoder(msgspec.Raw).decode
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_elements: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode


class Json:
    """One JSON document of any kind in UTF-8. Fields are members of objects."""

    name: Final = "json"

    def reader(self, paths: Sequence[Path]) -> DecodedReader:
        """See `MessageType`."""
        return _reader(tuple(paths))

    def check(self, body: bytes) -> None:
        """See `MessageType`."""
        try:
            if not body.isascii():
                body.decode()
            _walk(body)
        except DECODE_ERRORS as error:
            raise unreadable(error) from None

    def unreadable(self, bodies: Sequence[bytes]) -> tuple[list[int], str]:
        """See `MessageType`."""
        decode = not all(map(bytes.isascii, bodies))
        bad: list[int] = []
        reason = ""
        for at, body in enumerate(bodies):
            try:
                if decode:
                    body.decode()
                _walk(body)
            except DECODE_ERRORS as error:
                reason = reason or str(error)
                bad.append(at)
        return bad, reason

    def projector(self, select: Select) -> Callable[[bytes], bytes]:
        """See `MessageType`."""
        return projector(select, _JsonDocuments())

    def merger(self) -> Callable[[bytes, bytes], bytes]:
        """See `MessageType`."""
        return merger(_JsonDocuments())


class _JsonDocuments:
    """JSON documents for `prune` and `merge`."""

    def opened(self, body: bytes) -> msgspec.Raw:
        if not body.isascii():
            taken_apart(bytes.decode, body)
        return taken_apart(_walk, body)

    def members(self, document: msgspec.Raw) -> dict[str, msgspec.Raw] | None:
        return _members(document) if _first(document) == b"{" else None

    def elements(self, document: msgspec.Raw) -> list[msgspec.Raw] | None:
        return _elements(document) if _first(document) == b"[" else None

    def assemble(self, parts: Mapping[str, Any] | Sequence[Any]) -> msgspec.Raw:
        return msgspec.Raw(_encode(parts))

    def body(self, document: msgspec.Raw) -> bytes:
        return bytes(document)

    def size(self, document: msgspec.Raw) -> int:
        return memoryview(document).nbytes

    def fields(self, body: bytes) -> dict[str, msgspec.Raw] | None:
        try:
            if not body.isascii():
                body.decode()
            try:
                return _members(body)
            except msgspec.ValidationError:
                _walk(body)
                return None
        except DECODE_ERRORS as error:
            raise unreadable(error) from None

    def may_nest(self, body: bytes) -> bool:
        return body.find(b"{", body.find(b"{") + 1) >= 0


def _first(document: msgspec.Raw) -> bytes:
    return bytes(memoryview(document)[:1])


def _decoder(kind: Any, dec_hook: Callable[[type[Any], Any], Any] | None) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(kind, dec_hook=dec_hook).decode


@lru_cache(maxsize=readers_remembered_max)
def _reader(paths: tuple[Path, ...]) -> DecodedReader:
    check_paths(paths)
    return DecodedReader(paths, _decoder)
