"""Field reader of JSON and MessagePack: decodes into a shape, else walks the document.

Decoder errors do not reach the caller: a body that cannot be decoded is `Unreadable`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final, Protocol, TypeVar

import msgspec

from tickertape.payload.paths import Path
from tickertape.payload.shapes import PathShape, shape_of, walk_field
from tickertape.payload.types import unreadable
from tickertape.payload.walk import Walker

DECODE_ERRORS: Final[tuple[type[Exception], ...]] = (msgspec.DecodeError, ValueError, RecursionError)
"""Exceptions of msgspec for invalid bodies. `ValueError` is raised for invalid UTF-8."""

_T = TypeVar("_T")


class MakeDecoder(Protocol):
    """Returns the decoding function of a format for a type."""

    def __call__(
        self, kind: Any, dec_hook: Callable[[type[Any], Any], Any] | None
    ) -> Callable[[bytes], Any]: ...


class DecodedReader:
    """Reads paths with a msgspec decoder. For `plain` see `shape_of`."""

    def __init__(
        self, paths: Sequence[Path], decoder: MakeDecoder, plain: Callable[[Any], Any] | None = None
    ) -> None:
        self._paths = tuple(paths)
        self._decoder = decoder
        self._plain = plain
        self.shape: Final[PathShape] = shape_of(paths, plain)
        self.access: tuple[str, ...] = self.shape.access
        self.quick: Callable[[bytes], Any] = decoder(self.shape.kind, walk_field)
        self.doubts: tuple[type[Exception], ...] = DECODE_ERRORS

    def decode(self, body: bytes) -> Any:
        """See `FieldReader`."""
        try:
            return self.quick(body)
        except msgspec.ValidationError:
            return self.walk(body)
        except DECODE_ERRORS as error:
            raise unreadable(error) from None

    def walk(self, body: bytes) -> Any:
        """Decode a body that does not fit the usual shape. Slower than `decode`."""
        try:
            try:
                values: Sequence[Any] = self._from_object(body)
            except msgspec.ValidationError:  # not an object, or a number out of range
                values = self._from_document(body)
        except DECODE_ERRORS as error:
            raise unreadable(error) from None
        return self.shape.make(values if self._plain is None else [*map(self._plain, values)])

    # Few sets of paths need these, so they are created at first use.

    @cached_property
    def _from_object(self) -> Callable[[bytes], Sequence[Any]]:
        """Values of the paths from any object. Unneeded fields are skipped, as in the usual shape."""
        shape = shape_of(self._paths, self._plain, nested=False)
        decode = self._decoder(shape.kind, walk_field)
        values = shape.values()
        return lambda body: values(decode(body))

    @cached_property
    def _from_document(self) -> Callable[[bytes], Sequence[Any]]:
        """Values of the paths from any document."""
        walker = Walker([path.steps for path in self._paths])
        decode = self._decoder(Any, None)

        def read(body: bytes) -> Sequence[Any]:
            found = walker.read(decode(body))
            return [found[slot] for slot in walker.slots]

        return read


def taken_apart(decode: Callable[[Any], _T], document: Any) -> _T:
    """Return the result of `decode`, or raise `Unreadable`."""
    try:
        return decode(document)
    except DECODE_ERRORS as error:
        raise unreadable(error) from None
