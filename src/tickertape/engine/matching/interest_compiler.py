"""Interest compiler: compiles topic, filter and select list of a command, and caches live results."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from tickertape.base.client_limits import DEFAULT, ClientLimits
from tickertape.base.errors import BadFilter, BadOption, BadTopic, LimitReached
from tickertape.base.limits import topic_bytes_max
from tickertape.base.names import check_topic, is_pattern
from tickertape.base.text_format import did_you_mean, shown
from tickertape.engine.limits import (
    small_filter_effort,
    small_filter_work_max,
    topic_names_bytes_max,
    turn_effort_max,
)
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.matching.filter_context import FilterContext
from tickertape.engine.matching.interest import Interest
from tickertape.engine.matching.topic_patterns import TopicPatternIndex
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.topic_catalog import DEFAULT_TYPE, TopicCatalog
from tickertape.engine.sessions.session import Subscriber
from tickertape.filter.language.parse_counter import PARSES
from tickertape.journal.format.segment import CONTROL_TOPIC
from tickertape.wire.settlement import QUEUE_TOPIC
from tickertape.wire.sow_command import SOW_TOPIC

_NAME_OVERHEAD_BYTES: Final = 3
"""Maximum overhead of MessagePack for a name."""

Made = TypeVar("Made")


class InterestCompiler:
    """Compiles the interests of a server."""

    def __init__(self, catalog: TopicCatalog, clock: EngineClock, limits: ClientLimits = DEFAULT) -> None:
        self.limits = limits
        self.catalog = catalog
        self.filter_context = FilterContext(catalog, clock, limits.filter_bytes_max)
        self.effort = 0
        """Effort of all compilations, failed ones included, and of searches for near names. Only this class
        counts. Each has 1, a small filter of a known shape `small_filter_effort` more. Anything else may take
        milliseconds and has `turn_effort_max` more."""
        self._patterns = TopicPatternIndex()
        self._covers: WeakValueDictionary[Hashable, Interest] = WeakValueDictionary()

    def compile(self, topic: str, filter: str | None, select: str | None, subscriber: Subscriber) -> Interest:
        """Return the interest of a subscription. Raises `BadTopic`, `BadFilter` or `BadOption`."""
        self.effort += 1
        key = (topic, filter, select)
        interest = self._covers.get(key)
        if interest is None:
            interest = self._make(topic, filter, select, subscriber)
            if interest.content is None or not interest.content.depends_on_subscriber:
                self._covers[key] = interest
        return interest

    def compile_for(
        self, interest: Interest, filter: str | None, select: str | None, subscriber: Subscriber
    ) -> ContentFilter:
        """Return the content filter for the topics of an interest. Counts as slow. Raises `BadFilter` or
        `BadOption`."""
        return self.for_types(
            interest, lambda types: ContentFilter(filter, select, types, self.filter_context, subscriber)
        )

    def for_types(self, interest: Interest, make: Callable[[list[str]], Made]) -> Made:
        """Call `make` with the message types of an interest and return its result. Counts as
        slow."""
        self.effort += turn_effort_max
        return self._for_types(interest, make)

    def suggest_persistent(self, topic: str) -> str:
        """Return a suggestion of the nearest persistent topic, or "". Counts as slow."""
        self.effort += turn_effort_max
        return did_you_mean(topic, self.catalog.recorded_names)

    def without_select(self, interest: Interest, subscriber: Subscriber) -> Interest:
        """Return `interest` without its select list."""
        content = interest.content
        if content is None or content.select is None:
            return interest
        return self.compile(interest.topic, content.filter, None, subscriber)

    def other_types(self, interest: Interest) -> dict[str, tuple[str, ...]]:
        """Return covered topics whose message type is not `DEFAULT_TYPE`, by message type.

        Raises `LimitReached` if their names exceed `topic_names_bytes_max`."""
        found: dict[str, list[str]] = {}
        size = 0
        for name, kind in self.catalog.message_types.items():
            if kind != DEFAULT_TYPE and interest.covers(name):
                found.setdefault(kind, []).append(name)
                size += len(name.encode()) + _NAME_OVERHEAD_BYTES
        if size > topic_names_bytes_max:
            raise LimitReached(
                f"Cannot subscribe to {shown(interest.topic)}: it matches too many topics with another "
                f"message type than JSON. Their names need {size:,} bytes, more than "
                f"{topic_names_bytes_max:,} (topic_names_bytes_max). Use a pattern that matches fewer."
            )
        return {kind: tuple(names) for kind, names in found.items()}

    def _expected(self, interest: Interest) -> list[str]:
        """Return the known message types of covered topics."""
        if interest.topic_name is not None:
            return [self.catalog.message_type(interest.topic_name)]
        types = self.catalog.message_types.items()
        return sorted({DEFAULT_TYPE} | {kind for name, kind in types if interest.covers(name)})

    def _make(self, topic: str, filter: str | None, select: str | None, subscriber: Subscriber) -> Interest:
        fits = None
        if topic in (CONTROL_TOPIC, QUEUE_TOPIC, SOW_TOPIC):
            raise BadTopic(f"Cannot subscribe to {shown(topic)}: it is an internal topic. Use another topic.")
        pattern, parsed = is_pattern(topic), PARSES.count
        if filter is not None or select is not None or pattern:
            self.effort += turn_effort_max
        if pattern:
            if len(topic.encode()) > topic_bytes_max:
                raise BadTopic(
                    f"Invalid topic pattern of {len(topic):,} characters. "
                    f"Use at most {topic_bytes_max:,} bytes."
                )
            fits = self._patterns.pattern(topic)
        else:
            check_topic(topic)
        if filter is None and select is None:
            return Interest(topic, fits)
        content = self._for_types(
            Interest(topic, fits),
            lambda types: ContentFilter(filter, select, types, self.filter_context, subscriber),
        )
        small = content.work <= small_filter_work_max and select is None and not pattern
        if small and PARSES.count == parsed:  # the shape was known
            self.effort -= turn_effort_max - small_filter_effort
        return Interest(topic, fits, content)

    def _for_types(self, interest: Interest, make: Callable[[list[str]], Made]) -> Made:
        """Call `make` and return its result. If only the type of one topic causes an error, name the
        topic."""
        types = self._expected(interest)
        try:
            return make(types)
        except (BadFilter, BadOption) as error:
            if interest.topic_name is None or types == [DEFAULT_TYPE]:
                raise
            make([DEFAULT_TYPE])
            where = f"topic {shown(interest.topic_name)} (message type {types[0]})"
            error.args = (f"Cannot read fields of {where}: {error}",)
            raise
