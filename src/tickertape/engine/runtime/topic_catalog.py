"""Topic catalog: the configuration of topics and queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tickertape.base.names import is_pattern
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.filter import TopicSet
from tickertape.journal.format.segment import CONTROL_TOPIC
from tickertape.payload import message_type
from tickertape.wire.settlement import QUEUE_TOPIC

DEFAULT_TYPE: Final = "json"


class TopicCatalog:
    """Topics and queues of one server.

    `recorded` contains names and patterns of persistent topics. None makes all topics persistent. `validated`
    and `message_types` map a name to a message type. Raises `BadOption` for an unknown message type."""

    def __init__(
        self,
        recorded: frozenset[str] | None = None,
        validated: Mapping[str, str] | None = None,
        message_types: Mapping[str, str] | None = None,
        queues: Sequence[QueueDefinition] = (),
    ) -> None:
        self.queues = {definition.name: definition for definition in queues}
        """Queue definitions by name."""
        self.message_types: Mapping[str, str] = dict(message_types or {})
        """Configured message types by topic."""
        # Every body is valid binary data, so such topics need no validation.
        named = {name: kind for name, kind in (validated or {}).items() if kind != "binary"}
        self.validated = {name: message_type(kind) for name, kind in named.items()}
        """Topics that validate message bodies, with their message types."""
        self._recorded = recorded
        self._recorded_topics = None if recorded is None else TopicSet(recorded)
        self._always_recorded = frozenset((QUEUE_TOPIC, *self.queues))
        """Topics of settlements, and queues."""

    # -- the log ----------------------------------------------------------------------------------------

    def recorded(self, topic: str) -> bool:
        """Return whether a topic is persistent."""
        if topic in self._always_recorded:
            return True
        return topic != CONTROL_TOPIC and (self._recorded_topics is None or topic in self._recorded_topics)

    @property
    def records_everything(self) -> bool:
        """Whether all topics are persistent."""
        return self._recorded is None

    @property
    def records_nothing(self) -> bool:
        """Whether the configuration makes no topic persistent."""
        return self._recorded == frozenset()

    @property
    def recorded_names(self) -> list[str]:
        """Names of persistent topics, without patterns."""
        return sorted(name for name in self._recorded or () if not is_pattern(name))

    @property
    def recorded_for_clients(self) -> tuple[str, ...] | None:
        """Names and patterns of persistent topics, queues included. None for all topics."""
        return None if self._recorded is None else tuple(sorted(self._recorded.union(self.queues)))

    # -- bodies -----------------------------------------------------------------------------------------

    def message_type(self, topic: str) -> str:
        """Return the message type of a topic."""
        return self.message_types.get(topic, DEFAULT_TYPE)

    # -- queues -----------------------------------------------------------------------------------------

    def queue(self, name: str) -> QueueDefinition | None:
        """Return the queue with this name, or None."""
        return self.queues.get(name)

    def underlying(self, topic: str) -> str:
        """Return the topic that a replay of `topic` reads: for a queue, its underlying topics."""
        definition = self.queues.get(topic)
        return topic if definition is None else definition.topic

    def publish_target(self, topic: str) -> str | None:
        """Return the topic that stores messages published to `topic`, or None for a queue that rejects
        them."""
        definition = self.queues.get(topic)
        if definition is None:
            return topic
        if definition.default_publish_target is not None:
            return definition.default_publish_target
        return None if is_pattern(definition.topic) else definition.topic
