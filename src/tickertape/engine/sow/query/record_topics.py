"""Topics, message types and keys of the records of one SOW topic or queue, from canonical keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tickertape.base.names import is_pattern
from tickertape.engine.matching.filter_context import FilterContext
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow.state.keys import generated_key

_ENCODE: Final = msgspec.msgpack.Encoder().encode
_ARRAY_16: Final = 0xDC
_TEXT_8: Final = 0xD9
_FIXED_TEXT: Final = 0xA0

Group = tuple[str, "list[int] | None"]
"""Message type, and the indices of its records, ascending. None: all records."""


class RecordTopics:
    """Topics of records. `over_pattern`: whether canonical keys start with the topic of the record.

    Messages of a queue have no keys. Over a pattern, each has a key with its topic alone (`topic_key`)."""

    def __init__(self, definition: SowDefinition | QueueDefinition, filter_context: FilterContext) -> None:
        self.name = definition.name
        """Topic of the records, unless they are over a pattern."""
        self.queue = ""
        """Name of the queue. Empty for a SOW topic."""
        self._filter_context = filter_context
        if isinstance(definition, QueueDefinition):
            self.queue, self.name = definition.name, definition.topic
            self.over_pattern, self.explicit = is_pattern(definition.topic), False
            self._domain = ""
            return
        self.over_pattern = definition.pattern is not None
        self.explicit = not definition.key
        """Whether records have explicit keys."""
        self._domain = definition.key_domain

    def topics(self, keys: Sequence[bytes]) -> list[str]:
        """Return the topic of each record of a SOW over a pattern, from its canonical key."""
        names: dict[bytes, str] = {}
        topics = []
        for key in keys:
            low, high = _text_span(key, _first_element(key))
            data = key[low:high]
            name = names.get(data)
            if name is None:
                name = names[data] = data.decode()
            topics.append(name)
        return topics

    def by_type(self, keys: Sequence[bytes]) -> list[Group]:
        """Group records by the message types of their topics, from their canonical keys."""
        type_of = self._filter_context.type_of
        if not self.over_pattern:
            return [(type_of(self.name), None)]
        topics = self.topics(keys)
        types = {topic: type_of(topic) for topic in set(topics)}
        if len(set(types.values())) == 1:
            return [(types[topics[0]], None)]
        groups: dict[str, list[int]] = {}
        for at, topic in enumerate(topics):
            groups.setdefault(types[topic], []).append(at)
        return [*groups.items()]

    def explicit_keys(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return the explicit key of each record, in ASCII, from its canonical key."""
        found = []
        for key in keys:
            at = _text_span(key, _first_element(key))[1] if self.over_pattern else 0
            low, high = _text_span(key, at)
            found.append(key[low:high])
        return found

    def record_keys(self, keys: Sequence[bytes]) -> list[str]:
        """Return the explicit or generated key of each record as clients see it."""
        if self.explicit:
            return [key.decode() for key in self.explicit_keys(keys)]
        return [generated_key(self._domain, key) for key in keys]


def topic_key(topic: str) -> bytes:
    """Return a canonical key with a topic alone."""
    return _ENCODE((topic,))


def _first_element(key: bytes) -> int:
    """Return the place of the first element of a MessagePack array."""
    return 3 if key[0] == _ARRAY_16 else 1


def _text_span(key: bytes, at: int) -> tuple[int, int]:
    """Return the start and end of the bytes of a MessagePack text at `at`."""
    head = key[at]
    if head < _TEXT_8:
        return at + 1, at + 1 + head - _FIXED_TEXT
    if head == _TEXT_8:
        return at + 2, at + 2 + key[at + 1]
    return at + 3, at + 3 + int.from_bytes(key[at + 1 : at + 3], "big")
