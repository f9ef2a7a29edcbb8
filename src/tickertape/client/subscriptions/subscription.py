"""Subscription of a client: its request, its credit, and its state on the connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from tickertape.base.errors import BadCommand
from tickertape.base.limits import combined_subscriptions_max, message_cost_bytes
from tickertape.batch.queue_lease import Hold, Lease
from tickertape.client.common.effects import Sink
from tickertape.client.common.request import SubscribeRequest, SubscriptionContext
from tickertape.client.limits import credit_linger_seconds
from tickertape.client.subscriptions.resubscribe import ReplayState, ServerTerms
from tickertape.wire.commands import Credit, Credits, Deliver, Subscribe


class Leases(Protocol):
    """Leases on messages of queues, and the backlog of each subscription to queues."""

    def granted(self, sub_id: str, backlog: int) -> None:
        """The server lets a subscription hold that many unacknowledged messages; 0: it is not to a queue."""

    def ended(self, sub_id: str) -> None:
        """The subscription has ended."""

    def lease(self, command: Deliver, sub_id: str, hold: Hold, *, browsed: bool) -> Lease:
        """Return the lease on the messages of a delivery from a queue."""


@dataclass(eq=False, repr=False, slots=True)
class Subscription:
    """State of one subscription of the client machine."""

    request: SubscribeRequest
    sink: Sink
    replay: ReplayState | None
    """None for one that only has what comes."""
    order: int
    """Rank in the order of the first placement, which a new placement keeps."""
    context: SubscriptionContext = field(init=False)
    terms: ServerTerms = field(init=False)
    command_id: int = 0
    """The number of the command that asked for it on this connection."""
    window: int = field(init=False)
    bound: int = field(init=False)
    """Cost that may be outstanding on this connection: unconsumed, or consumed and not given back."""
    unconsumed: int = 0
    consumed: int = 0
    deadline: float = 0.0
    delivered: float = 0.0
    overdue: bool = False
    successor: Subscription | None = None
    """The subscription that is to replace it, until the server has answered."""
    abandoned: bool = False
    """Its stream has no reader any more, and the unsubscribe is still to be sent."""
    unsubscribe_sent: bool = False
    """Its stream has no reader any more, and the unsubscribe was sent."""
    placed: bool = True
    """The server of this connection was asked for it."""
    accepted: bool = False
    """A server has taken it."""
    hold: Hold = field(default_factory=Hold)
    """Ends with this connection, and the leases on queue messages with it."""

    def __post_init__(self) -> None:
        self.context = self.request.context
        self.terms = ServerTerms(self.request.options)
        self.window = self.bound = self.request.depth_bytes

    def command(self, call_id: int) -> Subscribe:
        """Return the command that places it for the first time."""
        request, bookmark = self.request, self.request.bookmark
        if self.replay is not None:
            bookmark = self.replay.first(conflated=self.terms.conflated)
        self.command_id = call_id
        return Subscribe(
            id=call_id,
            sub_id=request.context.sub_id,
            topic=request.topic,
            bookmark=bookmark,
            filter=request.filter,
            options=request.options,
            credit=request.depth_bytes,
            until_caught_up=request.until_caught_up,
            positions=request.positions,
            journal=request.journal,
            numbered=request.numbered,
        )

    def command_again(self, call_id: int) -> Subscribe:
        """Return the command that places it on another connection. Unconsumed messages fill its window."""
        request, replay, terms = self.request, self.replay, self.terms
        self.command_id, self.consumed = call_id, 0
        credit = max(message_cost_bytes, self.window - self.unconsumed)
        self.bound = self.unconsumed + credit
        return Subscribe(
            id=call_id,
            sub_id=request.context.sub_id,
            topic=request.topic,
            bookmark=None if replay is None else replay.again(conflated=terms.conflated, live=terms.live),
            filter=request.filter,
            options=terms.again(replay),
            credit=credit,
            until_caught_up=replay is not None and replay.until_caught_up,
        )

    def take_over(self, old: Subscription) -> None:
        """It goes on in the place of `old`, and with what that one holds of queues."""
        self.order = old.order
        self.hold, old.hold = old.hold, self.hold
        if old.replay is not None and self.replay is None:
            self.replay = old.replay
            self.terms.pause(paused=self.terms.paused or old.terms.paused)
            self.context = msgspec.structs.replace(self.context, with_bookmark=True, store=old.context.store)

    def lose(self) -> None:
        """Its connection is lost; it waits for another one."""
        self.placed = self.overdue = False
        self.deadline = 0.0
        self.end_leases()
        self.hold = Hold()

    def end_leases(self) -> None:
        """End its leases: the messages have gone back to their queues."""
        self.hold.end()

    def leased(self, command: Deliver, leases: Leases) -> SubscriptionContext:
        """The context of a batch that came out of a queue."""
        browsed = "browse" in self.terms.options
        lease = leases.lease(command, self.context.sub_id, self.hold, browsed=browsed)
        return msgspec.structs.replace(self.context, lease=lease)

    def check_credit(self, messages: int, cost: int) -> None:
        """Raise `BadCommand` for a delivery that the credit does not cover.

        One message may exceed it while the bound is not passed: a server sends that when, as far as it knows,
        nothing is outstanding."""
        outstanding = self.unconsumed + self.consumed
        if outstanding + cost > self.bound and (messages > 1 or outstanding > self.bound):
            raise BadCommand(
                f"the server exceeded the credit of subscription {self.context.sub_id!r}: {outstanding:,} "
                f"bytes are outstanding, it sent {cost:,} more, and {self.bound:,} are allowed"
            )

    def take(self, cost: int) -> Credit | None:
        """The application took `cost`; the credit to give back now, if any."""
        self.unconsumed -= cost
        if not self.placed:
            return None
        self.consumed += cost
        if self.successor is not None:
            return None  # it would be credit of the one that replaces it
        if 2 * self.consumed >= self.window or (self.overdue and self.unconsumed <= 0):
            return self.give_back()
        return None

    def give_back(self) -> Credit:
        """All credit that was consumed and not given back."""
        credit = Credit(sub_id=self.context.sub_id, bytes=self.consumed)
        self.consumed = 0
        return credit


def combined(grants: Sequence[Credit]) -> Iterator[Credit | Credits]:
    """The commands that give these credits back."""
    for at in range(0, len(grants), combined_subscriptions_max):
        some = grants[at : at + combined_subscriptions_max]
        if len(some) == 1:
            yield some[0]
        else:
            sub_ids = tuple([credit.sub_id for credit in some])
            yield Credits(sub_ids=sub_ids, bytes=tuple([credit.bytes for credit in some]))


class IdleCredit:
    """The subscriptions that had deliveries lately, in the order of their deadlines.

    It returns what is left below half of a window once deliveries pause: a server whose next message does not
    fit the remaining credit waits for exactly that."""

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
