"""Owns what filters are told of the world beside a body: the message type of a topic, and what time it is.

Must never read a clock: it is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tickertape.base.ports import Now

DEFAULT_TYPE: Final = "json"


class Surroundings:
    """Of one instance. `types` maps a topic to its message type where that is not `DEFAULT_TYPE`."""

    def __init__(self, types: Mapping[str, str]) -> None:
        self.types = types
        self.wall = 0
        """Now, microseconds since 1970 UTC."""
        self.unreadable = 0
        """Bodies that filters could not read, each as often as it was looked at; only ever rising."""

    def moment(self, now: Now) -> None:
        """It is now."""
        self.wall = now.wall

    def type_of(self, topic: str) -> str:
        """Name of the message type of a topic."""
        return self.types.get(topic, DEFAULT_TYPE)
