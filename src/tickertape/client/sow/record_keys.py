"""Record keys: the keys of records and messages of a query, computed from their bodies when requested.

The server does not send generated keys. It names the key fields and the key domain of each SOW topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final

import msgspec

from tickertape.base.errors import TickertapeError
from tickertape.payload import Unreadable, message_type, parse_path
from tickertape.payload.canonical import encode_canonical, generated_key, normal_form
from tickertape.wire.commands import GroupBegin

_READERS_CACHED: Final = 256

Values = Callable[[bytes], tuple[Any, ...]]


class GroupKeys(msgspec.Struct, frozen=True):
    """Keys of the records of one SOW topic."""

    topic: str
    fields: tuple[str, ...]
    """Paths of the key fields, empty for explicit keys."""
    domain: str
    pattern: str
    types: Mapping[str, str]
    """Message types of the topics that are not JSON."""

    def key(self, topic: str, body: bytes, *, whole: bool) -> str | None:
        """Return the generated key of a body. `whole`: the body has all fields of the record."""
        if not self.fields:
            return None
        values = _values(self.types.get(topic, "json"), self.fields)
        if values is None:
            return None
        parts: list[Any] = [topic] if self.pattern else []
        try:
            for value in values(body):
                if isinstance(value, list | dict) or (value is None and not whole):
                    return None
                parts.append(normal_form(value))
            canonical = encode_canonical(parts[0] if len(parts) == 1 else parts)
        except (Unreadable, ValueError):
            return None
        return generated_key(self.domain, canonical)


class RecordKeys(msgspec.Struct, frozen=True, dict=True):
    """Keys of the records and messages of one query."""

    topics: tuple[GroupKeys, ...] = ()
    whole: bool = True
    """Whether bodies have all fields: the query has no `select`."""

    def key(self, topic: str, body: bytes) -> str | None:
        """Return the generated key of a record with this body.

        None for explicit keys, and for a body without valid key fields.
        """
        found = self._of(topic)
        return None if found is None else found.key(topic, body, whole=self.whole)

    def _of(self, topic: str) -> GroupKeys | None:
        if len(self.topics) == 1:
            return self.topics[0]
        matching = (keys for keys in self.topics if keys.pattern and _matches(keys.pattern, topic))
        return self._by_name.get(topic) or next(matching, None)

    @cached_property
    def _by_name(self) -> dict[str, GroupKeys]:
        return {keys.topic: keys for keys in reversed(self.topics)}


def keys_of(groups: Sequence[GroupBegin], *, whole: bool) -> RecordKeys:
    """Return the keys of a query with these groups. Messages of queues have no keys."""
    return RecordKeys(tuple([_keys_of_group(group) for group in groups if not group.queue]), whole)


def _keys_of_group(group: GroupBegin) -> GroupKeys:
    types = {topic: kind for kind, topics in group.types.items() for topic in topics} if group.types else {}
    fields = () if group.explicit else group.key
    return GroupKeys(group.topic, fields, group.domain, group.pattern, types)


@lru_cache(_READERS_CACHED)
def _values(type_name: str, fields: tuple[str, ...]) -> Values | None:
    """Return a function that reads the key fields of a body, or None for an unknown type or path."""
    from tickertape.payload.getter import values_getter  # only who reads keys needs it

    try:
        reader = message_type(type_name).reader([parse_path(field) for field in fields])
    except TickertapeError:  # of a newer server
        return None
    decode, values = reader.decode, values_getter(reader.access)
    return lambda body: values(decode(body))


@lru_cache(_READERS_CACHED)
def _topic_set(pattern: str) -> Any:
    from tickertape.filter.topic_set import TopicSet  # takes longer to import than the rest of the client

    return TopicSet((pattern,))


def _matches(pattern: str, topic: str) -> bool:
    try:
        return topic in _topic_set(pattern)
    except TickertapeError:
        return False
