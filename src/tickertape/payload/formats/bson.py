"""Message type `bson`, read with the `bson` package of pymongo (extra `bson`).

Only `registry` imports this module, because the package may be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.errors import BSONError
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from bson.regex import Regex
from bson.timestamp import Timestamp

from tickertape.payload.formats.plain import plain_by, timestamp_text
from tickertape.payload.limits import readers_remembered_max
from tickertape.payload.merge import merger
from tickertape.payload.paths import Path, Select, check_paths
from tickertape.payload.prune import projector
from tickertape.payload.types import unreadable, unreadable_by
from tickertape.payload.walk import Walker

_ERRORS: Final[tuple[type[Exception], ...]] = (
    BSONError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    RecursionError,
)
# Times as numbers: a document may hold times outside the range of Python's datetime.
_VALUES: Final[CodecOptions[Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
_RAW: Final[CodecOptions[Any]] = CodecOptions(
    document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_MS
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Bson:
    """A BSON document. Fields are those of the document and of nested documents."""

    name: Final = "bson"

    def reader(self, paths: Sequence[Path]) -> BsonReader:
        """See `MessageType`."""
        return _reader(tuple(paths))

    def check(self, body: bytes) -> None:
        """See `MessageType`."""
        _decode(body)

    def unreadable(self, bodies: Sequence[bytes]) -> tuple[list[int], str]:
        """See `MessageType`."""
        return unreadable_by(self.check, bodies)

    def projector(self, select: Select) -> Callable[[bytes], bytes]:
        """See `MessageType`.

        The deprecated types symbol, undefined and DBPointer are written as their replacements: string, null
        and DBRef."""
        return projector(select, _BsonDocuments())

    def merger(self) -> Callable[[bytes, bytes], bytes]:
        """See `MessageType`. For the deprecated types see `projector`."""
        return merger(_BsonDocuments())


class BsonReader:
    """Reads paths from BSON (a `FieldReader`)."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._walker = Walker([path.steps for path in paths])
        self.access: tuple[str, ...] = tuple(f"[{slot}]" for slot in self._walker.slots)
        self.quick: Callable[[bytes], Any] = self.decode
        self.doubts: tuple[type[Exception], ...] = ()

    def decode(self, body: bytes) -> list[Any]:
        """See `FieldReader`."""
        return [*map(_plain, self._walker.read(_decode(body)))]


class _BsonDocuments:
    """BSON documents for `prune` and `merge`. Nested documents keep their encoding."""

    def opened(self, body: bytes) -> Any:
        _decode(body)
        return RawBSONDocument(body, _RAW)

    def members(self, document: Any) -> Mapping[Any, Any] | None:
        return document if isinstance(document, RawBSONDocument) else None

    def elements(self, document: Any) -> Sequence[Any] | None:
        return document if type(document) is list else None

    def assemble(self, parts: Mapping[Any, Any] | Sequence[Any]) -> Any:
        if isinstance(parts, Mapping):
            return RawBSONDocument(bson.encode(parts, codec_options=_RAW), _RAW)
        return parts

    def body(self, document: Any) -> bytes:
        return bytes(document.raw)

    def size(self, document: Any) -> int:
        return len(document.raw)

    def fields(self, body: bytes) -> dict[str, Any] | None:
        return dict(self.opened(body))

    def may_nest(self, body: bytes) -> bool:
        return b"\x03" in body  # the type of a document


def _decode(body: bytes) -> dict[str, Any]:
    try:
        return bson.decode(body, _VALUES)
    except _ERRORS as error:
        raise unreadable(error) from None


def _convert(value: Any) -> Any:
    """Return the plain value of a BSON-specific value."""
    if isinstance(value, int):  # Int64
        return int(value)
    if isinstance(value, DatetimeMS):
        return _moment(int(value))
    if isinstance(value, (ObjectId, Decimal128)):
        return str(value)
    if isinstance(value, bytes):  # Binary, of any subtype
        return bytes(value)
    if isinstance(value, str):  # Code
        return str(value)
    if isinstance(value, Timestamp):
        return _moment(value.time * 1000)
    if isinstance(value, Regex):
        return value.pattern
    return {}  # MinKey, MaxKey and references: present, but not scalars


def _moment(milliseconds: int) -> str | int:
    """Return a time as text, or as milliseconds since 1970 outside the years that Python supports."""
    try:
        return timestamp_text(_EPOCH + timedelta(milliseconds=milliseconds))
    except OverflowError:
        return milliseconds


_plain: Final = plain_by(_convert)


@lru_cache(maxsize=readers_remembered_max)
def _reader(paths: tuple[Path, ...]) -> BsonReader:
    check_paths(paths)
    return BsonReader(paths)
