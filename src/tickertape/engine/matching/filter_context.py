"""Filter context: what filters read beside a body: message types, the subscriber and the time."""

from __future__ import annotations

from tickertape.base.limits import filter_bytes_max
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.topic_catalog import DEFAULT_TYPE, TopicCatalog
from tickertape.engine.sessions.session import Subscriber
from tickertape.filter import FilterInputs


class FilterContext:
    """Context of one instance."""

    def __init__(
        self, catalog: TopicCatalog, clock: EngineClock, filter_bytes: int = filter_bytes_max
    ) -> None:
        self._types = catalog.message_types
        self.filter_bytes_max = filter_bytes
        """The longest filter that a client may give."""
        self._clock = clock
        self.unreadable = 0
        """Bodies that filters could not read, each as often as it was tested."""

    def count_unreadable(self, bodies: int) -> None:
        """Count bodies that a filter could not read."""
        self.unreadable += bodies

    def filter_bytes_of(self, subscriber: Subscriber) -> int:
        """Return the longest filter that a subscriber may give. A queue has no name: its expressions are part
        of the configuration, and no limit of clients applies."""
        return self.filter_bytes_max if subscriber.name else filter_bytes_max

    def constants_for(self, subscriber: Subscriber) -> FilterInputs:
        """Return inputs of filter functions that are the same for all messages to a subscriber."""
        return FilterInputs(
            user=subscriber.user,
            client_name=subscriber.name,
            client_version=subscriber.software,
            now=self._clock.wall / 1e6,
        )

    def type_of(self, topic: str) -> str:
        """Return the name of the message type of a topic."""
        return self._types.get(topic, DEFAULT_TYPE)
