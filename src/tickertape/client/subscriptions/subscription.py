"""Subscription of a client: its request, its credit, and its state on the connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from tickertape.base.bookmarks import EPOCH
from tickertape.base.errors import BadCommand, SubscriptionExists, TickertapeError
from tickertape.base.limits import combined_subscriptions_max, message_cost_bytes
from tickertape.batch.queue_lease import Hold, Lease
from tickertape.client.common.effects import (
    DeliverBatch,
    Effect,
    ResolveCall,
    Sink,
    SnapshotBegun,
    SnapshotEnded,
    Started,
    Waiter,
)
from tickertape.client.common.request import SubscribeRequest, SubscriptionContext
from tickertape.client.limits import credit_linger_seconds
from tickertape.client.sow.query_result import QueryResult
from tickertape.client.subscriptions.resubscribe import ReplayState, ServerTerms, place_after
from tickertape.wire.commands import Credit, Credits, Deliver, GroupBegin, GroupEnd, Records, Sow, Subscribe


class Leases(Protocol):
    """Leases on queue messages, and the backlog limit of each queue subscription."""

    def granted(self, sub_id: str, backlog: int) -> None:
        """Set the number of unacknowledged messages that a subscription may hold. 0: not a queue."""

    def ended(self, sub_id: str) -> None:
        """Record the end of a subscription."""

    def lease(self, command: Deliver, sub_id: str, hold: Hold, *, browsed: bool) -> Lease:
        """Return the lease on the messages of a delivery from a queue."""


@dataclass(eq=False, repr=False, slots=True)
class Subscription:
    """State of one subscription of a client."""

    request: SubscribeRequest
    sink: Sink
    replay: ReplayState | None
    """None without a replay."""
    order: int
    """Rank by the first subscribe. A resubscribe keeps it."""
    context: SubscriptionContext = field(init=False)
    terms: ServerTerms = field(init=False)
    result: QueryResult | None = None
    """Result of its query, or None without a query."""
    opening: Waiter | None = None
    """The caller that waits for the start of the result."""
    command_id: int = 0
    """Id of its subscribe command on this connection."""
    window: int = field(init=False)
    bound: int = field(init=False)
    """Allowed outstanding cost on this connection: unconsumed, or consumed and not granted again."""
    unconsumed: int = 0
    consumed: int = 0
    deadline: float = 0.0
    delivered: float = 0.0
    overdue: bool = False
    successor: Subscription | None = None
    """Pending replacement, until the server has answered."""
    abandoned: bool = False
    """Whether its stream has no reader, but the unsubscribe is not sent yet."""
    unsubscribe_sent: bool = False
    """Whether its stream has no reader, and the unsubscribe was sent."""
    placed: bool = True
    """Whether the subscribe was sent on this connection."""
    accepted: bool = False
    """Whether a server has accepted it."""
    hold: Hold = field(default_factory=Hold)
    """Hold on leased queue messages. It ends with this connection."""

    def __post_init__(self) -> None:
        self.context = self.request.context
        self.terms = ServerTerms(self.request.options)
        self.window = self.bound = self.request.depth_bytes
        if self.request.query is not None:
            self.result = QueryResult(self.request)

    def command(self, call_id: int) -> Subscribe | Sow:
        """Return the command of the first subscribe, or of the query."""
        request, bookmark = self.request, self.request.bookmark
        if request.query is not None:
            self.command_id = call_id
            return self._query(call_id, request.options, request.depth_bytes)
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

    def check_replaceable(self, request: SubscribeRequest) -> None:
        """Raise `SubscriptionExists` unless a new subscription may replace this one."""
        sub_id = self.context.sub_id
        if not request.replace:
            raise SubscriptionExists(
                f"Cannot subscribe: the id {sub_id!r} is in use on this connection. "
                "Unsubscribe first, or use another id."
            )
        if self.successor is not None:
            raise SubscriptionExists(
                f"Cannot replace subscription {sub_id!r}: another replacement is pending. Wait for it."
            )
        if not self.placed:
            raise SubscriptionExists(
                f"Cannot replace subscription {sub_id!r}: its resubscription is pending. Wait for it."
            )

    def command_again(self, call_id: int, journal: str) -> Subscribe | Sow:
        """Return the command that resubscribes at a server with log `journal`.

        Unconsumed messages reduce the credit. A query is sent again if it is renewed, if it has no complete
        result, or if the messages after the result may not follow without a gap.
        """
        request, replay, terms = self.request, self.replay, self.terms
        self.command_id, self.consumed = call_id, 0
        credit = max(message_cost_bytes, self.window - self.unconsumed)
        self.bound = self.unconsumed + credit
        bookmark = None if replay is None else replay.again(conflated=terms.conflated, live=terms.live)
        if request.query is not None and request.query.renewed:
            bookmark = EPOCH
        if self.result is not None and (bookmark == EPOCH or not self.result.can_continue(journal)):
            self.query_again()
            return self._query(call_id, terms.again(None), credit)
        return Subscribe(
            id=call_id,
            sub_id=request.context.sub_id,
            topic=request.topic,
            bookmark=bookmark,
            filter=request.filter,
            options=terms.again(replay),
            credit=credit,
            until_caught_up=replay is not None and replay.until_caught_up,
        )

    def _query(self, call_id: int, options: str, credit: int) -> Sow:
        request, query = self.request, self.request.query
        assert query is not None
        return Sow(
            id=call_id,
            sub_id=request.context.sub_id,
            topic=request.topic,
            filter=request.filter,
            keys=query.keys,
            order_by=query.order_by,
            top_n=query.top_n,
            skip_n=query.skip_n,
            batch_size=query.batch_size,
            options=options,
            credit=credit,
            follow=query.follow,
        )

    # -- result of a query ------------------------------------------------------------------------------

    def begin_group(self, command: GroupBegin, journal: str) -> Iterator[Effect]:
        """Process the start of the result of one SOW topic, from the log `journal`.

        Raises `BadCommand`, and errors of the tracker.

        The caller of the query gets its stream with the first one.
        """
        result = self.queried(command)
        place = place_after(command.as_of)
        first = result.begin(command, place, journal)
        if not self.request.limited:  # messages follow
            self.context = msgspec.structs.replace(self.context, sow_keys=result.keys)
        if first:
            if self.replay is not None:
                self.replay.begun_by_query(place)
                yield Started(self.sink, command.as_of, found=True)
            yield SnapshotBegun(self.sink, command.as_of, command.position)
            yield from self.open(None)
        if self.marks_groups:
            yield DeliverBatch(self.sink, result.marker("group_begin", command.topic))

    def end_group(self, command: GroupEnd) -> Iterator[Effect]:
        """Process the end of the result. Raises `BadCommand`."""
        result = self.queried(command)
        begun = result.begun
        matches, topic_matches, records = result.end(command)
        as_of = EPOCH if result.as_of is None else str(result.as_of)
        if not begun:
            yield SnapshotBegun(self.sink, as_of, None)
        yield SnapshotEnded(self.sink, as_of, matches, topic_matches, records)
        if self.opening is not None:  # a pattern without SOW topics has no group
            yield from self.open(None)
        if self.marks_groups:
            yield DeliverBatch(self.sink, result.marker("group_end", self.request.topic))

    def queried(self, command: GroupBegin | Records | GroupEnd) -> QueryResult:
        """Return the result of its query, to which `command` belongs. Raises `BadCommand` without a query."""
        if self.result is None:
            raise BadCommand(
                f"Unexpected {type(command).__name__} from the server: subscription {self.context.sub_id!r} "
                "is not a query. Report the defect of the server."
            )
        return self.result

    def query_again(self) -> bool:
        """Forget the result, so that the next command is the query. Return whether it was complete."""
        if self.result is None:
            return False
        complete = self.result.complete
        self.result = QueryResult(self.request)
        return complete

    @property
    def outlives(self) -> bool:
        """Whether it continues on the next connection, if the client keeps subscriptions.

        A result is never continued on another connection: its end would be missing. A query whose caller
        waits for the position ends with the connection, as every call does.
        """
        if not (self.request.handled and self.accepted) or self.opening is not None:
            return False
        return self.result is None or not self.request.limited

    @property
    def marks_groups(self) -> bool:
        """Whether the application gets the start and the end of the result as messages."""
        query = self.request.query
        return query is not None and (query.groups or self.request.handled)

    def open(self, error: TickertapeError | None) -> Iterator[Effect]:
        """Settle the caller that waits for the start of the result, if any."""
        opening, self.opening = self.opening, None
        if opening is not None:
            yield ResolveCall(opening, error)

    def take_over(self, old: Subscription) -> None:
        """Continue in place of `old`, with its leases on queue messages."""
        self.order = old.order
        self.hold, old.hold = old.hold, self.hold
        if old.replay is not None and self.replay is None:
            self.replay = old.replay
            self.terms.pause(paused=self.terms.paused or old.terms.paused)
            self.context = msgspec.structs.replace(self.context, with_bookmark=True, store=old.context.store)

    def lose(self) -> None:
        """Reset the state after a lost connection."""
        self.placed = self.overdue = False
        self.deadline = 0.0
        self.end_leases()
        self.hold = Hold()

    def end_leases(self) -> None:
        """End its leases, because the messages have returned to their queues."""
        self.hold.end()

    def leased(self, command: Deliver, leases: Leases) -> SubscriptionContext:
        """Return the context of a batch from a queue."""
        browsed = "browse" in self.terms.options
        lease = leases.lease(command, self.context.sub_id, self.hold, browsed=browsed)
        return msgspec.structs.replace(self.context, lease=lease)

    def browse_lease(self, queue: str, leases: Leases) -> Lease:
        """Return the lease of messages of a queue in the result of a query: they cannot be acknowledged."""
        return leases.lease(Deliver(queue=queue), self.context.sub_id, self.hold, browsed=True)

    def check_credit(self, messages: int, cost: int) -> None:
        """Raise `BadCommand` for a delivery above the credit.

        One message may exceed the credit while the bound is not exceeded. A server sends such a message if,
        to its knowledge, no cost is outstanding.
        """
        outstanding = self.unconsumed + self.consumed
        if outstanding + cost > self.bound and (messages > 1 or outstanding > self.bound):
            raise BadCommand(
                f"Invalid delivery: {cost:,} bytes exceed the credit of "
                f"subscription {self.context.sub_id!r}, "
                f"which has {outstanding:,} of {self.bound:,} bytes outstanding. Update the server."
            )

    def take(self, cost: int) -> Credit | None:
        """Record consumption of `cost`. Return the credit to grant now, or None."""
        self.unconsumed -= cost
        if not self.placed:
            return None
        self.consumed += cost
        if self.successor is not None:
            return None  # the credit would count for the replacement
        if 2 * self.consumed >= self.window or (self.overdue and self.unconsumed <= 0):
            return self.give_back()
        return None

    def give_back(self) -> Credit:
        """Return all consumed credit as a grant."""
        credit = Credit(sub_id=self.context.sub_id, bytes=self.consumed)
        self.consumed = 0
        return credit


def combined(grants: Sequence[Credit]) -> Iterator[Credit | Credits]:
    """Yield the commands that grant these credits."""
    for at in range(0, len(grants), combined_subscriptions_max):
        some = grants[at : at + combined_subscriptions_max]
        if len(some) == 1:
            yield some[0]
        else:
            sub_ids = tuple([credit.sub_id for credit in some])
            yield Credits(sub_ids=sub_ids, bytes=tuple([credit.bytes for credit in some]))


class IdleCredit:
    """Subscriptions with recent deliveries, in the order of their deadlines.

    It grants credit below half of a window once deliveries pause. A server whose next message exceeds the
    remaining credit waits for this grant.
    """

    def __init__(self) -> None:
        self._lingering: dict[str, Subscription] = {}

    def delivered(self, subscription: Subscription, cost: int, mono: float) -> None:
        """Record a delivery of this cost at `mono` (monotonic seconds)."""
        subscription.unconsumed += cost
        subscription.overdue = False
        subscription.delivered = mono
        if not subscription.deadline:
            subscription.deadline = mono + credit_linger_seconds
            self._lingering[subscription.context.sub_id] = subscription

    def forget(self, sub_id: str) -> None:
        """Remove a subscription that ended or lost its connection."""
        self._lingering.pop(sub_id, None)

    def next_deadline(self) -> float | None:
        """Return when to call `wake` (monotonic seconds), or None."""
        for subscription in self._lingering.values():
            return subscription.deadline
        return None

    def wake(self, mono: float) -> list[Credit]:
        """Return the credit to grant for subscriptions without recent deliveries."""
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
