"""Owns what filters are told of the world beside a body: the message type of a topic, who subscribes, and
what time it is.

Must never read a clock: it is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tickertape.base.limits import filter_bytes_max
from tickertape.engine.runtime.clock import EngineClock
from tickertape.filter import FilterInputs

DEFAULT_TYPE: Final = "json"


class Subscriber(NamedTuple):
    """Who subscribes."""

    user: str | None
    name: str
    software: str = ""
    """Name and version of its client software, as it says; empty when it does not."""


class FilterContext:
    """Of one instance. `types` maps a topic to its message type where that is not `DEFAULT_TYPE`."""

    def __init__(
        self, types: Mapping[str, str], clock: EngineClock, filter_bytes: int = filter_bytes_max
    ) -> None:
        self.types = types
        self.filter_bytes_max = filter_bytes
        """The longest filter that a client may give."""
        self._clock = clock
        self.unreadable = 0
        """Bodies that filters could not read, each as often as it was looked at; only ever rising."""

    def filter_bytes_of(self, subscriber: Subscriber) -> int:
        """The longest filter that a subscriber may give. A queue has no name here: its expressions are the
        operator's, checked with the configuration, and no limit of clients applies to them."""
        return self.filter_bytes_max if subscriber.name else filter_bytes_max

    def constants_for(self, subscriber: Subscriber) -> FilterInputs:
        """What functions of filters give that is the same for all messages to a subscriber now."""
        return FilterInputs(
            user=subscriber.user,
            client_name=subscriber.name,
            client_version=subscriber.software,
            now=self._clock.wall / 1e6,
        )

    def type_of(self, topic: str) -> str:
        """Name of the message type of a topic."""
        return self.types.get(topic, DEFAULT_TYPE)
