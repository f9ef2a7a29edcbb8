"""Idle credit: returns what is left below half of a window once deliveries pause.

A server whose next message does not fit the remaining credit waits for exactly that.
"""

from __future__ import annotations

from tickertape.client.limits import credit_linger_seconds
from tickertape.client.subscriptions.subscription import Subscription
from tickertape.wire.commands import Credit


class IdleCredit:
    """The subscriptions that had deliveries lately, in the order of their deadlines."""

    def __init__(self) -> None:
        self._lingering: dict[str, Subscription] = {}

    def delivered(self, subscription: Subscription, cost: int, mono: float) -> None:
        """Count a delivery of that cost; `mono` is the time, monotonic seconds."""
        subscription.unconsumed += cost
        subscription.overdue = False
        subscription.delivered = mono
        if not subscription.deadline:
            subscription.deadline = mono + credit_linger_seconds
            self._lingering[subscription.context.sub_id] = subscription

    def forget(self, sub_id: str) -> None:
        """The subscription ended, or lost its connection."""
        self._lingering.pop(sub_id, None)

    def next_deadline(self) -> float | None:
        """When to call `wake` (monotonic seconds), or None."""
        for subscription in self._lingering.values():
            return subscription.deadline
        return None

    def wake(self, mono: float) -> list[Credit]:
        """Return the credit to give back for subscriptions without recent deliveries."""
        grants = []
        for sub_id, subscription in list(self._lingering.items()):
            if subscription.deadline > mono:
                break
            del self._lingering[sub_id]
            quiet = subscription.delivered + credit_linger_seconds
            if quiet > mono:
                subscription.deadline = quiet
                self._lingering[sub_id] = subscription
                continue
            subscription.deadline = 0.0
            if subscription.unconsumed > 0:
                subscription.overdue = True
            elif subscription.consumed and subscription.successor is None:
                grants.append(subscription.give_back())
        return grants
