"""Owns the subscriptions of one connection and their credit.

Must never hold messages: what arrives is handed on at once. Credit is given back when half of the window was
consumed, or, for the little that remains, a moment after the last delivery: a server whose next message does
not fit what is left waits for exactly that.
"""

from __future__ import annotations

import msgspec

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import SubscriptionExists, TickertapeError, error_from_code
from tickertape.base.limits import credit_bytes_default, credit_linger_seconds
from tickertape.base.ports import Now
from tickertape.batch.layout import MessageBatch
from tickertape.client.effects import CaughtUp, Effect, End, Hand, Notice
from tickertape.wire.commands import Completed, Credit, Deliver, Ended, PersistedNotice


class DeliveryContext(msgspec.Struct, frozen=True):
    """What the messages of a subscription know about it."""

    sub_id: str
    with_bookmark: bool = False
    with_timestamp: bool = False
    command: str = "publish"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription as asked for. `depth_bytes` is the credit granted at first, in cost."""

    topic: str
    context: DeliveryContext
    bookmark: str | None = None
    options: str = ""
    depth_bytes: int = credit_bytes_default
    until_caught_up: bool = False
    positions: tuple[int, int] | None = None
    journal: str | None = None


class _Subscription:
    __slots__ = ("consumed", "context", "deadline", "overdue", "sink", "unconsumed", "window")

    def __init__(self, context: DeliveryContext, sink: object, window: int) -> None:
        self.context = context
        self.sink = sink
        self.window = window
        self.unconsumed = 0
        self.consumed = 0
        self.deadline = 0.0
        self.overdue = False


class Subscriptions:
    """The subscribing half of the client machine."""

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self._by_id: dict[str, _Subscription] = {}
        self._lingering: dict[str, _Subscription] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, sub_id: str) -> bool:
        return sub_id in self._by_id

    def begin(self, request: Request, sink: object) -> None:
        """Expect deliveries to `sink`. Raises `SubscriptionExists`."""
        sub_id = request.context.sub_id
        if sub_id in self._by_id:
            raise SubscriptionExists(f"subscription id {sub_id!r} is in use on this connection")
        self._by_id[sub_id] = _Subscription(request.context, sink, request.depth_bytes)

    def delivered(self, command: Deliver, batch: MessageBatch, now: Now) -> None:
        """A batch came; one for a subscription that is over was on its way when it ended."""
        subscription = self._by_id.get(command.sub_id)
        if subscription is None:
            return
        batch.context = subscription.context
        subscription.unconsumed += batch.cost
        subscription.overdue = False
        if not subscription.deadline:
            subscription.deadline = now.mono + credit_linger_seconds
            self._lingering[command.sub_id] = subscription
        self._effects.append(Hand(subscription.sink, batch))

    def consumed(self, sub_id: str, cost: int) -> Credit | None:
        """The application took `cost`; the credit to give back now, if any."""
        subscription = self._by_id.get(sub_id)
        if subscription is None:
            return None
        subscription.unconsumed -= cost
        subscription.consumed += cost
        if 2 * subscription.consumed >= subscription.window or (
            subscription.overdue and subscription.unconsumed <= 0
        ):
            return _give_back(subscription)
        return None

    def next_deadline(self) -> float | None:
        """When `wake` wants to be called (monotonic seconds), or None."""
        for subscription in self._lingering.values():
            return subscription.deadline
        return None

    def wake(self, now: Now) -> list[Credit]:
        """The credit to give back for subscriptions that have been quiet for a moment."""
        grants = []
        for sub_id, subscription in list(self._lingering.items()):
            if subscription.deadline > now.mono:
                break
            del self._lingering[sub_id]
            subscription.deadline = 0.0
            if subscription.unconsumed > 0:
                subscription.overdue = True
            elif subscription.consumed:
                grants.append(_give_back(subscription))
        return grants

    def completed(self, command: Completed) -> None:
        """The replay has caught up or reached its stop."""
        subscription = self._by_id.get(command.sub_id)
        if subscription is not None:
            self._effects.append(CaughtUp(subscription.sink))

    def noticed(self, command: PersistedNotice) -> None:
        """Subscriptions were sent everything of theirs up to a bookmark: each may resume there."""
        for sub_id in command.sub_ids:
            subscription = self._by_id.get(sub_id)
            if subscription is not None:
                bookmark = Bookmark(command.publisher, command.sequence)
                self._effects.append(Notice(subscription.sink, str(bookmark)))

    def ended(self, command: Ended) -> None:
        """The server says that it is over."""
        if command.code:
            error = error_from_code(command.code, command.text)
            self.end(command.sub_id, command.code, error)
        else:
            self.end(command.sub_id, "complete", None)

    def end(self, sub_id: str, reason: str, error: TickertapeError | None) -> None:
        """Forget a subscription and tell its sink; nothing when there is none."""
        subscription = self._by_id.pop(sub_id, None)
        self._lingering.pop(sub_id, None)
        if subscription is not None:
            self._effects.append(End(subscription.sink, reason, error))

    def lost(self, reason: str, error: TickertapeError) -> None:
        """The connection is gone, and all of its subscriptions."""
        for sub_id in list(self._by_id):
            self.end(sub_id, reason, error)


def _give_back(subscription: _Subscription) -> Credit:
    credit = Credit(sub_id=subscription.context.sub_id, bytes=subscription.consumed)
    subscription.consumed = 0
    return credit
