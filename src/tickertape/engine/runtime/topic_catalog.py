"""Topic catalog: the configuration of topics, queues and SOW topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tickertape.base.names import is_pattern
from tickertape.engine.limits import sow_topics_kept_max
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.filter import TopicSet, compile_topic_pattern
from tickertape.filter.compiler.regex import PatternSet
from tickertape.journal.format.segment import CONTROL_TOPIC
from tickertape.payload import message_type
from tickertape.wire.settlement import QUEUE_TOPIC
from tickertape.wire.sow_command import SOW_TOPIC

DEFAULT_TYPE: Final = "json"


class TopicCatalog:
    """Topics, queues and SOW topics of one server.

    `recorded` contains names and patterns of persistent topics. None makes all topics persistent. `validated`
    and `message_types` map a name to a message type. Raises `BadOption` for an unknown message type."""

    def __init__(
        self,
        recorded: frozenset[str] | None = None,
        validated: Mapping[str, str] | None = None,
        message_types: Mapping[str, str] | None = None,
        queues: Sequence[QueueDefinition] = (),
        sow: Sequence[SowDefinition] = (),
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
        self._always_recorded = frozenset((QUEUE_TOPIC, SOW_TOPIC, *self.queues))
        """Topics of settlements and of deletes of records, and queues."""
        self.sow: Sequence[SowDefinition] = tuple(sow)
        """SOW topics in the order of the configuration."""
        self._sow_by_name = {definition.name: definition for definition in self.sow}
        self._sow_patterns = [definition for definition in self.sow if definition.pattern is not None]
        texts = [definition.pattern or "" for definition in self._sow_patterns]
        self._sow_pattern_set = PatternSet([compile_topic_pattern(text) for text in texts]) if texts else None
        self._sow_of: dict[str, SowDefinition | None] = dict(self._sow_by_name)
        """SOW topics by name, and results for other topics."""

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
    def recorded_topics(self) -> tuple[str, ...] | None:
        """Names and patterns of persistent topics, without queues. None for all topics."""
        return None if self._recorded is None else tuple(sorted(self._recorded))

    @property
    def recorded_for_clients(self) -> tuple[str, ...] | None:
        """Names and patterns of persistent topics, queues included. None for all topics."""
        return None if self._recorded is None else tuple(sorted(self._recorded.union(self.queues)))

    @property
    def validated_for_clients(self) -> tuple[str, ...]:
        """Names and patterns of topics that may refuse single messages, for their bodies or keys."""
        patterns = [definition.pattern for definition in self._sow_patterns if definition.pattern is not None]
        return tuple(sorted({*self.validated, *self._sow_by_name, *patterns}))

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

    # -- SOW topics -------------------------------------------------------------------------------------

    def sow_of(self, topic: str) -> SowDefinition | None:
        """Return the SOW topic that has the records of `topic`, or None.

        It has this name, or it is the first in the configuration whose pattern matches and the topic is
        persistent. A name of a queue or an internal topic has no records."""
        try:
            return self._sow_of[topic]
        except KeyError:
            return self._search(topic)

    def _search(self, topic: str) -> SowDefinition | None:
        patterns, found = self._sow_pattern_set, None
        plain = not is_pattern(topic) and topic not in self.queues
        if patterns is not None and plain and self.recorded(topic):
            found = next((self._sow_patterns[number] for number in sorted(patterns.found(topic))), None)
        if len(self._sow_of) >= len(self._sow_by_name) + sow_topics_kept_max:
            self._sow_of = dict(self._sow_by_name)
        self._sow_of[topic] = found
        return found
