"""Topic catalog: what the configuration says of each topic."""

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
    """Topics and queues of one instance.

    `recorded` are names and patterns of topics in the log, None: all. `validated` and `message_types` map a
    name to a message type. Raises `BadOption` for a type that does not exist."""

    def __init__(
        self,
        recorded: frozenset[str] | None = None,
        validated: Mapping[str, str] | None = None,
        message_types: Mapping[str, str] | None = None,
        queues: Sequence[QueueDefinition] = (),
    ) -> None:
        self.queues = {definition.name: definition for definition in queues}
        """Definitions by name."""
        self.message_types: Mapping[str, str] = dict(message_types or {})
        """Configured message types."""
        # Every body is binary: such topics refuse nothing.
        named = {name: kind for name, kind in (validated or {}).items() if kind != "binary"}
        self.validated = {name: message_type(kind) for name, kind in named.items()}
        """Topics that can refuse a message for its body."""
        self._recorded = recorded
        self._recorded_topics = None if recorded is None else TopicSet(recorded)
        self._always_recorded = frozenset((QUEUE_TOPIC, *self.queues))
        """Settlements, and what is published to queues."""

    # -- the log ----------------------------------------------------------------------------------------

    def recorded(self, topic: str) -> bool:
        """Return whether the log records a topic."""
        if topic in self._always_recorded:
            return True
        return topic != CONTROL_TOPIC and (self._recorded_topics is None or topic in self._recorded_topics)

    @property
    def records_everything(self) -> bool:
        """Whether the log records every topic."""
        return self._recorded is None

    @property
    def records_nothing(self) -> bool:
        """Whether the log records no topic of the configuration."""
        return self._recorded == frozenset()

    @property
    def recorded_names(self) -> list[str]:
        """Names of recorded topics, as far as the configuration names them."""
        return sorted(name for name in self._recorded or () if not is_pattern(name))

    @property
    def recorded_for_clients(self) -> tuple[str, ...] | None:
        """Names and patterns of topics, queues included, that go into the log; None: all."""
        return None if self._recorded is None else tuple(sorted(self._recorded.union(self.queues)))

    # -- bodies -----------------------------------------------------------------------------------------

    def message_type(self, topic: str) -> str:
        """Return the name of the message type of a topic."""
        return self.message_types.get(topic, DEFAULT_TYPE)

    # -- queues -----------------------------------------------------------------------------------------

    def queue(self, name: str) -> QueueDefinition | None:
        """Return the queue of that name."""
        return self.queues.get(name)

    def underlying(self, topic: str) -> str:
        """Return what a replay of `topic` reads: of a queue, its underlying topics."""
        definition = self.queues.get(topic)
        return topic if definition is None else definition.topic

    def publish_target(self, topic: str) -> str | None:
        """Return the topic that messages published to `topic` go to; None: a queue that takes none."""
        definition = self.queues.get(topic)
        if definition is None:
            return topic
        if definition.default_publish_target is not None:
            return definition.default_publish_target
        return None if is_pattern(definition.topic) else definition.topic
