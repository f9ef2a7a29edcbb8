"""Conflation keys: values of some fields of a message, read with the message type of its topic.

Values compare as in JSON: 1 and 1.0 are equal, but true, 1 and "1" differ. A message without a field, or that
cannot be read, has no key and is never replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from hashlib import blake2b
from typing import Any, Final

from tickertape.base.errors import BadOption, BadPath
from tickertape.batch import MessageBatch, bodies_between
from tickertape.engine.limits import conflation_key_bytes_max
from tickertape.engine.matching.filter_context import FilterContext
from tickertape.payload import FieldReader, Unreadable, message_type, parse_path
from tickertape.payload.canonical import encode_canonical, normal_form
from tickertape.payload.getter import values_getter

_OBJECT_BYTES: Final = 64
"""Approximate memory of a value without its text."""

Values = Callable[[Any], tuple[Any, ...]]


class ConflationKeys:
    """Keys of `fields` for topics of the `expected` message types.

    Raises `BadOption` for fields that none of the types can have."""

    def __init__(
        self, fields: tuple[str, ...], filter_context: FilterContext, expected: Iterable[str]
    ) -> None:
        self._fields = fields
        self._filter_context = filter_context
        self._readers: dict[str, tuple[FieldReader, Values] | None] = {}
        """Readers by message type. None if the type cannot have the fields."""
        misfits = [self._prepare(name) for name in expected]
        if misfits and all(misfits):
            raise next(error for error in misfits if error is not None)

    def _prepare(self, name: str) -> BadOption | None:
        try:
            reader = message_type(name).reader([parse_path(field) for field in self._fields])
        except BadPath as error:
            self._readers[name] = None
            return BadOption(f"Invalid option conflation_key: {error}")
        self._readers[name] = reader, values_getter(reader.access)
        return None

    def of(self, batch: MessageBatch, low: int, high: int) -> list[Hashable | None]:
        """Return the key of each of the messages `[low, high)`."""
        keys: list[Hashable | None] = []
        prepared = {topic: self._of_type(topic) for topic in batch.topics}
        one = prepared[batch.topics[0]]
        several = len(prepared) > 1
        for index, body in enumerate(bodies_between(batch, low, high), low):
            of_type = prepared[batch.topic(index)] if several else one
            if of_type is None:
                keys.append(None)
                continue
            reader, values = of_type
            try:
                key = values(reader.decode(body))
            except Unreadable:
                keys.append(None)
                continue
            keys.append(None if None in key else _hashable(key))
        return keys

    def _of_type(self, topic: str) -> tuple[FieldReader, Values] | None:
        name = self._filter_context.type_of(topic)
        if name not in self._readers:
            self._prepare(name)
        return self._readers[name]


def _hashable(key: tuple[Any, ...]) -> Hashable | None:
    """Return a value that is equal for equal keys: the key, its encoding or a digest. None if it has no
    key."""
    for value in key:
        kind = type(value)
        if kind is str or kind is bytes:
            if len(value) > _OBJECT_BYTES:
                break
        elif kind is not int and (kind is not float or value != value):
            break
    else:
        return key
    try:
        encoded = encode_canonical([normal_form(value) for value in key])
    except (OverflowError, TypeError, ValueError, RecursionError):
        return None  # an object whose names cannot be ordered
    if len(encoded) + _OBJECT_BYTES <= conflation_key_bytes_max:
        return encoded
    return blake2b(encoded, digest_size=32).digest()
