"""Filter context: inputs of filters beside the body (message types, subscriber, time)."""

from __future__ import annotations

from tickertape.base.limits import filter_bytes_max
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.topic_catalog import DEFAULT_TYPE, TopicCatalog
from tickertape.engine.sessions.session import Subscriber
from tickertape.filter import FilterInputs


class FilterContext:
    """The filter context of a server."""

    def __init__(
        self, catalog: TopicCatalog, clock: EngineClock, filter_bytes: int = filter_bytes_max
    ) -> None:
        self._types = catalog.message_types
        self.filter_bytes_max = filter_bytes
        """Maximum length of a client's filter."""
        self._clock = clock
        self.unreadable = 0
        """Bodies that filters could not read, counted once for each test."""

    def count_unreadable(self, bodies: int) -> None:
        """Count bodies that a filter could not read."""
        self.unreadable += bodies

    def filter_bytes_of(self, subscriber: Subscriber) -> int:
        """Return the maximum length of a subscriber's filter.

        A queue has no subscriber name. Its expressions are configured, so client limits do not apply."""
        return self.filter_bytes_max if subscriber.name else filter_bytes_max

    def constants_for(self, subscriber: Subscriber) -> FilterInputs:
        """Return the inputs of filter functions that are the same for all messages to a subscriber."""
        return FilterInputs(
            user=subscriber.user,
            client_name=subscriber.name,
            client_version=subscriber.software,
            now=self._clock.wall / 1e6,
        )

    def type_of(self, topic: str) -> str:
        """Return the message type of a topic."""
        return self._types.get(topic, DEFAULT_TYPE)
