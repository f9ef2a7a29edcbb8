"""Owns what one connection subscribed to, by id.

Must never serve anything: it is looked up here.
"""

from __future__ import annotations

from collections.abc import Iterator

from tickertape.engine.queues.browser import Browsing
from tickertape.engine.queues.consumer import Consumer
from tickertape.engine.subscriptions.log_feed import Subscription
from tickertape.engine.transient.backlog import LiveSubscription


class Held:
    """What one connection subscribed to, by id."""

    def __init__(self) -> None:
        self.recorded: dict[str, Subscription] = {}
        self.live: dict[str, LiveSubscription] = {}
        """Subscriptions to unrecorded topics."""
        self.coming: dict[str, Subscription] = {}
        """Those that take the place of one of the others once their start was found."""
        self.of_queues: dict[str, Consumer | Browsing] = {}
        """Subscriptions to queues."""

    def __len__(self) -> int:
        """Subscriptions: one by a pattern may be in several places."""
        count = len(self.recorded) + len(self.live)
        if self.of_queues:
            return len(self.recorded.keys() | self.live.keys() | self.of_queues.keys())
        if not self.recorded or not self.live:
            return count
        return count - len(self.recorded.keys() & self.live.keys())

    def __bool__(self) -> bool:
        return bool(self.recorded or self.live or self.of_queues)

    def __contains__(self, sub_id: object) -> bool:
        return sub_id in self.recorded or sub_id in self.live or sub_id in self.of_queues

    def __iter__(self) -> Iterator[str]:
        yield from self.recorded
        for sub_id in self.live:
            if sub_id not in self.recorded:
                yield sub_id
        for sub_id in self.of_queues:
            if sub_id not in self.recorded and sub_id not in self.live:
                yield sub_id

    @property
    def owed(self) -> bool:
        """Whether something is still to be sent."""
        return any(sub.owed for sub in self.recorded.values()) or any(
            live.waiting for live in self.live.values()
        )
