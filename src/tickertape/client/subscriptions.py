"""Owns the subscriptions of one connection and their credit.

One that is to be replaced goes on until the server answers: what comes before the answer is the old one's,
what comes behind it the new one's. Must never hold messages: what arrives is handed on at once. Credit is
given back when half of the window was consumed, or, for the little that remains, a moment after the last
delivery: a server whose next message does not fit what is left waits for exactly that.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import SubscriptionExists, TickertapeError, error_from_code
from tickertape.base.limits import credit_bytes_default, credit_linger_seconds
from tickertape.base.ports import Now
from tickertape.batch.layout import MessageBatch
from tickertape.client.effects import CaughtUp, Effect, End, Hand, HandAll, Joined, Notice, Part
from tickertape.client.shares import Recent, Route
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
    filter: str | None = None
    options: str = ""
    replace: bool = False
    """Whether it may take the place of one with its id; `options` say so too."""
    depth_bytes: int = credit_bytes_default
    until_caught_up: bool = False
    positions: tuple[int, int] | None = None
    journal: str | None = None


class _Subscription:
    __slots__ = (
        "consumed",
        "context",
        "deadline",
        "delivered",
        "left",
        "overdue",
        "replays",
        "request",
        "sink",
        "successor",
        "unconsumed",
        "window",
    )  # fmt: skip

    def __init__(self, request: Request, sink: object) -> None:
        self.request = request
        self.replays = request.bookmark is not None or request.positions is not None
        self.context = request.context
        self.sink = sink
        self.window = request.depth_bytes
        self.unconsumed = 0
        self.consumed = 0
        self.deadline = 0.0
        self.delivered = 0.0
        self.overdue = False
        self.successor: _Subscription | None = None
        """What was asked to replace it, until the server has answered."""
        self.left = False
        """Nobody holds its stream any more, and the server is still to be told."""


class Subscriptions:
    """The subscribing half of the client machine."""

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self._by_id: dict[str, _Subscription] = {}
        self._lingering: dict[str, _Subscription] = {}
        self._recent = Recent()

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, sub_id: object) -> bool:
        return sub_id in self._by_id

    def begin(self, request: Request, sink: object) -> None:
        """Expect deliveries to `sink`. Raises `SubscriptionExists`."""
        sub_id = request.context.sub_id
        present = self._by_id.get(sub_id)
        if present is None:
            self._by_id[sub_id] = _Subscription(request, sink)
        elif not request.replace:
            raise SubscriptionExists(f"subscription id {sub_id!r} is in use on this connection")
        elif present.successor is not None:
            raise SubscriptionExists(f"subscription {sub_id!r} is just being replaced")
        else:
            present.successor = _Subscription(request, sink)

    def stands(self, request: Request) -> bool:
        """The server took it; what it replaces is over. Whether its stream was left meanwhile."""
        sub_id = request.context.sub_id
        present = self._by_id.get(sub_id)
        if present is not None and present.successor is not None and present.successor.request is request:
            successor = present.successor
            if present.replays and not successor.replays:  # it goes on where the old one was
                successor.replays = True
                successor.context = msgspec.structs.replace(successor.context, with_bookmark=True)
            self.end(sub_id, "replaced", None)
            present = successor
        if present is None or present.request is not request or not present.left:
            return False
        present.left = False
        return True

    def refused(self, request: Request, reason: str, error: TickertapeError) -> tuple[Credit | None, bool]:
        """The server did not take it. What it was to replace goes on: the credit to give back for that, and
        whether its stream was left meanwhile."""
        sub_id = request.context.sub_id
        present = self._by_id.get(sub_id)
        if present is None:
            return None, False
        if present.request is request:
            self.end(sub_id, reason, error)
            return None, False
        successor = present.successor
        if successor is None or successor.request is not request:
            return None, False
        present.successor = None
        self._effects.append(End(successor.sink, reason, error))
        left, present.left = present.left, False
        return (_give_back(present) if present.consumed else None), left

    def leave(self, request: Request) -> bool:
        """Nobody holds its stream any more; whether the server is to be told now."""
        present = self._by_id.get(request.context.sub_id)
        if present is None:
            return False
        successor = present.successor
        if present.request is request:
            present.left = successor is not None
            return successor is None
        if successor is not None and successor.request is request:
            successor.left = True
        return False

    def delivered(self, command: Deliver, batch: MessageBatch, now: Now) -> None:
        """A batch came; one for a subscription that is over was on its way when it ended."""
        subscription = self._by_id.get(command.sub_id)
        if subscription is None:
            return
        batch.context = subscription.context
        subscription.unconsumed += batch.cost
        subscription.overdue = False
        subscription.delivered = now.mono
        if not subscription.deadline:
            self._linger(subscription, now.mono)
        self._effects.append(Hand(subscription.sink, batch))

    def delivered_to_all(self, routes: Sequence[Route], batch: MessageBatch, now: Now) -> None:
        """A batch came for several subscriptions: each gets its share of it."""
        shared = self._recent.add(batch)
        parts: list[Part] = []
        by_id, share, mono = self._by_id, shared.share, now.mono
        for sub_id, rows, cost in routes:
            subscription = by_id.get(sub_id)
            if subscription is not None:
                subscription.unconsumed += cost
                subscription.overdue = False
                subscription.delivered = mono
                if not subscription.deadline:
                    self._linger(subscription, mono)
                parts.append((subscription.sink, share(rows, cost, subscription.context), rows))
        if parts:
            self._effects.append(HandAll(shared, parts))

    def _linger(self, subscription: _Subscription, mono: float) -> None:
        subscription.deadline = mono + credit_linger_seconds
        self._lingering[subscription.context.sub_id] = subscription

    def consumed(self, sub_id: str, cost: int, request: Request | None = None) -> Credit | None:
        """The application took `cost` of the subscription that `request` asked for, which may have been
        replaced since; the credit to give back now, if any."""
        subscription = self._by_id.get(sub_id)
        if subscription is None or (request is not None and subscription.request is not request):
            return None
        return self._consumed(subscription, cost)

    @staticmethod
    def _consumed(subscription: _Subscription, cost: int) -> Credit | None:
        subscription.unconsumed -= cost
        subscription.consumed += cost
        if subscription.successor is not None:
            return None  # it would be credit of the one that replaces it
        if 2 * subscription.consumed >= subscription.window or (
            subscription.overdue and subscription.unconsumed <= 0
        ):
            return _give_back(subscription)
        return None

    def consumed_all(self, takings: Sequence[tuple[Request, int]]) -> list[Credit]:
        """As `consumed`, for several."""
        grants = []
        by_id = self._by_id
        for request, cost in takings:
            subscription = by_id.get(request.context.sub_id)
            if subscription is not None and subscription.request is request:
                credit = self._consumed(subscription, cost)
                if credit is not None:
                    grants.append(credit)
        return grants

    def resumed(self, sub_ids: Sequence[str]) -> None:
        """Subscriptions were resumed by one command: the server may read the log once for all of them."""
        sinks = [self._by_id[sub_id].sink for sub_id in dict.fromkeys(sub_ids) if sub_id in self._by_id]
        if len(sinks) > 1:
            self._effects.append(Joined(sinks))

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
            quiet = subscription.delivered + credit_linger_seconds
            if quiet > now.mono:
                subscription.deadline = quiet
                self._lingering[sub_id] = subscription
                continue
            subscription.deadline = 0.0
            if subscription.unconsumed > 0:
                subscription.overdue = True
            elif subscription.consumed and subscription.successor is None:
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
        """Forget a subscription and tell its sink; nothing when there is none. What was to replace it is in
        its place then."""
        subscription = self._by_id.pop(sub_id, None)
        if subscription is None:
            return
        self._lingering.pop(sub_id, None)
        self._effects.append(End(subscription.sink, reason, error))
        if subscription.successor is not None:
            self._by_id[sub_id] = subscription.successor

    def lost(self, reason: str, error: TickertapeError) -> None:
        """The connection is gone, and all of its subscriptions."""
        for sub_id in list(self._by_id):
            while sub_id in self._by_id:
                self.end(sub_id, reason, error)


def _give_back(subscription: _Subscription) -> Credit:
    credit = Credit(sub_id=subscription.context.sub_id, bytes=subscription.consumed)
    subscription.consumed = 0
    return credit
