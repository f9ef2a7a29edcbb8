"""Keys of records: canonical bytes of the key fields, or of the message key, of each message.

A canonical key is the shortest MessagePack encoding of the value of one key field, or of the array of the
values of several. In a SOW over a pattern it is the array of the topic and the values.
Equal keys have equal bytes on each machine and run, because canonical keys are stored in the log.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import add
from typing import Any, Final, Literal, Protocol

from tickertape.base.errors import BadOption
from tickertape.batch.format import Labels, lengths_of
from tickertape.engine.limits import sow_explicit_key_characters_max, sow_key_bytes_max
from tickertape.payload import Unreadable, message_type, parse_path
from tickertape.payload.canonical import encode_canonical, generated_key, normal_form
from tickertape.payload.getter import value_getter

__all__ = ["ExplicitKeys", "KeyColumn", "KeyReader", "KeySource", "generated_key", "labels_between"]

_QUICK: Final = frozenset({str, int, bool, bytes})
"""Types whose values are in normal form, except for integers beyond 64 bits."""
_QUICK_OR_NULL: Final = _QUICK | {type(None)}
_CONTAINERS: Final[dict[type, str]] = {list: "an array", dict: "an object"}
_PAIR: Final = b"\x92"
"""Header of a MessagePack array with two elements."""

_BASE64: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_="
_TEXT_HEADERS: Final = [
    encode_canonical("x" * length)[:-length] if length else encode_canonical("")
    for length in range(sow_explicit_key_characters_max + 1)
]
"""Header of a MessagePack text by its length in bytes."""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """Canonical keys of messages."""

    keys: list[bytes]
    """The key of each message, empty if it has no valid key."""
    bad: dict[int, str]
    """Index of each message without a valid key, and the reason."""


class KeySource(Protocol):
    """Strategy of a SOW topic for the keys of its messages."""

    def read(self, values: Sequence[bytes], /, topics: Sequence[str] | None = None) -> KeyColumn:
        """Return the keys of messages from their bodies or message keys, and from their topics for a SOW
        over a pattern."""


class KeyReader:
    """Keys from the values of `fields` in bodies of the message type `type_name`.

    Values compare as in JSON: 1 and 1.0 are equal, but 1, "1" and true differ. NaN equals itself, and
    integers beyond 64 bits are exact. Arrays, objects, and keys above `sow_key_bytes_max` are invalid. So are
    missing and null values, which are one value with `missing="null"`.

    Raises `BadOption` or `BadPath` for fields that the type cannot have.
    """

    def __init__(
        self,
        fields: tuple[str, ...],
        type_name: str,
        *,
        missing: Literal["refuse", "null"] = "refuse",
        topic_in_key: bool = False,
    ) -> None:
        if not fields:
            raise BadOption("Cannot read keys: the list of key fields is empty. Name at least one field.")
        reader = message_type(type_name).reader([parse_path(field) for field in fields])
        self._fields = fields
        self._type_name = type_name
        self._null = missing == "null"
        self._topic_in_key = topic_in_key
        self._one = len(fields) == 1
        self._quick: Callable[[bytes], Any] = reader.quick
        self._decode: Callable[[bytes], Any] = reader.decode
        self._doubts: tuple[type[Exception], ...] = (*reader.doubts, Unreadable)
        self._pick = value_getter(reader.access)
        self._normal = _QUICK_OR_NULL if self._null else _QUICK

    def read(self, bodies: Sequence[bytes], /, topics: Sequence[str] | None = None) -> KeyColumn:
        """Return the key of each body. `topics` are the topics of the messages, for a SOW over a pattern."""
        topics = _topics_for(topics, len(bodies)) if self._topic_in_key else None
        bad: dict[int, str] = {}
        values = self._values(bodies, bad)
        single: dict[int, Any] = {}
        if bad or not self._normal.issuperset(
            map(type, values if self._one else chain.from_iterable(values))
        ):
            single = self._set_aside(values, bad)
        keys = self._encoded(values, topics)
        if keys is None:
            single = {row: value for row, value in enumerate(values) if row not in bad} | single
            keys = [b""] * len(values)
        for row, value in single.items():
            key = self._key((value,) if self._one else value, None if topics is None else topics[row])
            if isinstance(key, str):
                bad[row] = key
            else:
                keys[row] = key
        for row in bad:
            keys[row] = b""
        return KeyColumn(keys, bad)

    def _values(self, bodies: Sequence[bytes], bad: dict[int, str]) -> list[Any]:
        """Return the value of each body, or the tuple of its values. Adds unreadable bodies to `bad`."""
        values: list[Any] = []
        waiting = iter(bodies)
        while len(values) < len(bodies):
            try:
                # On an error the list has the values before it, and the iterator continues behind the body.
                values.extend(map(self._pick, map(self._quick, waiting)))
            except self._doubts:
                row = len(values)
                try:
                    values.append(self._pick(self._decode(bodies[row])))
                except Unreadable as error:
                    bad[row] = f"the body cannot be read as {self._type_name}: {error}"
                    values.append(None)
        return values

    def _set_aside(self, values: list[Any], bad: dict[int, str]) -> dict[int, Any]:
        """Return the values that are not in normal form, by row. Replaces them and those of bad rows."""
        single: dict[int, Any] = {}
        normal = self._normal
        for row, value in enumerate(values):
            if row not in bad:
                if type(value) in normal if self._one else normal.issuperset(map(type, value)):
                    continue
                single[row] = value
            values[row] = "" if self._one else ("",) * len(self._fields)
        return single

    def _encoded(self, values: list[Any], topics: Sequence[str] | None) -> list[bytes] | None:
        """Return the keys, or None if one of them cannot be encoded or is too long."""
        rows: Any = values
        if topics is not None:
            rows = (
                zip(topics, values, strict=True)
                if self._one
                else zip(topics, *zip(*values, strict=True), strict=True)
            )
        try:
            keys = list(map(encode_canonical, rows))
        except (OverflowError, ValueError):  # an integer beyond 64 bits, or a text with a lone surrogate
            return None
        return keys if max(map(len, keys), default=0) <= sow_key_bytes_max else None

    def _key(self, values: tuple[Any, ...], topic: str | None) -> bytes | str:
        """Return the key of a message, or the reason why it has none."""
        parts: list[Any] = [] if topic is None else [topic]
        for value, field in zip(values, self._fields, strict=True):
            if value is None and not self._null:
                return f"the key field '{field}' is missing or null"
            container = _CONTAINERS.get(type(value))
            if container is not None:
                return f"the key field '{field}' is {container}"
            parts.append(normal_form(value))
        try:
            key = encode_canonical(parts[0] if len(parts) == 1 else parts)
        except ValueError as error:
            return f"the key cannot be encoded: {error}"
        return _too_long(key) or key


class ExplicitKeys:
    """Keys from message keys: 1 to 256 characters of Base64, standard or URL-safe.

    The canonical key is the MessagePack text of the message key.
    """

    def __init__(self, *, topic_in_key: bool = False) -> None:
        self._topic_in_key = topic_in_key

    def read(self, labels: Sequence[bytes], /, topics: Sequence[str] | None = None) -> KeyColumn:
        """Return the key of each label (see `labels_between`). `topics` are the topics of the messages, for a
        SOW over a pattern."""
        topics = _topics_for(topics, len(labels)) if self._topic_in_key else None
        bad: dict[int, str] = {}
        lengths = list(map(len, labels))
        if (
            min(lengths, default=1) < 1
            or max(lengths, default=1) > sow_explicit_key_characters_max
            or b"".join(labels).translate(None, _BASE64)
        ):
            bad = {row: reason for row, label in enumerate(labels) if (reason := label_fault(label))}
            labels = [b"" if row in bad else label for row, label in enumerate(labels)]
            lengths = list(map(len, labels))
        keys = list(map(add, map(_TEXT_HEADERS.__getitem__, lengths), labels))
        if topics is not None:
            prefixes = {topic: _PAIR + encode_canonical(topic) for topic in set(topics)}
            keys = [prefixes[topic] + key for topic, key in zip(topics, keys, strict=True)]
        for row in bad:
            keys[row] = b""
        return KeyColumn(keys, bad)


def labels_between(labels: Labels | None, low: int, high: int) -> list[bytes]:
    """Return the labels of the messages `[low, high)` of a batch. They are empty if it has no column."""
    if labels is None:
        return [b""] * (high - low)
    offsets = labels.offsets[low : high + 1]
    text = memoryview(labels.text)[int(offsets[0]) : int(offsets[-1])]
    return list(map(io.BytesIO(text).read, lengths_of(offsets).tolist()))


def label_fault(label: bytes) -> str:
    """Return the reason why a label is not an explicit key, or an empty text."""
    if not label:
        return "the message key is missing"
    if len(label) > sow_explicit_key_characters_max:
        return (
            f"the message key has {len(label):,} bytes, and at most {sow_explicit_key_characters_max} "
            "are allowed"
        )
    if label.translate(None, _BASE64):
        return "the message key has a character that is not in the Base64 alphabets"
    return ""


def _too_long(key: bytes) -> str:
    """Return the reason why a canonical key is invalid, or an empty text."""
    if len(key) <= sow_key_bytes_max:
        return ""
    return f"the key has {len(key):,} bytes, and at most {sow_key_bytes_max:,} are allowed"


def _topics_for(topics: Sequence[str] | None, count: int) -> Sequence[str]:
    """Return the topics of `count` messages. Raises `ValueError` if some are missing."""
    if topics is None or len(topics) != count:
        raise ValueError("Cannot read keys: a message has no topic. Pass the topics of all messages.")
    return topics
