"""Queue: the rules of one queue: its messages, its leases, and how a failed delivery ends.

Every change that the log must know is an `Outcome`. `apply` carries it out in memory at once; the caller
writes it to the log.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from pyroaring import BitMap64

from tickertape.batch import MessageBatch
from tickertape.batch.format import Int64s
from tickertape.engine.limits import queue_step_outcomes_max
from tickertape.engine.queues.state.admission import Admitted
from tickertape.engine.queues.state.bit_sliced_index import first_of
from tickertape.engine.queues.state.delivery_order import DeliveryOrder
from tickertape.engine.queues.state.expiry import Expiry
from tickertape.engine.queues.state.leases import Lease, LeaseTable
from tickertape.engine.queues.state.messages import QueueMessages
from tickertape.engine.queues.state.records import Outcome, OutcomeKind, Reason, bitmap_of, ranges_of
from tickertape.engine.runtime.queue_definition import QueueDefinition


class QueueHolder(Protocol):
    """Holds messages of queues."""

    unacked: int
    """Messages that it holds, out of all its queues."""

    def __hash__(self) -> int:
        """Each holder is itself."""


H = TypeVar("H", bound=QueueHolder)

Held: TypeAlias = list[tuple[Lease[H], BitMap64]]
"""Leased messages, by lease."""


class Queue(Generic[H]):
    """Messages, leases and rules of one queue."""

    def __init__(self, definition: QueueDefinition) -> None:
        self.definition = definition
        self.name = definition.name
        self.state = QueueMessages(definition.target_queue_depth)
        self.order = DeliveryOrder(self.state, prioritised=definition.priority is not None)
        self.leases: LeaseTable[H] = LeaseTable()
        self.expiry = Expiry(definition.expiration, definition.expiration_model)
        self.consumers: list[H] = []
        self.turn = 0
        """Index of the consumer with which round-robin goes on."""
        self.considered = 0
        """Position below which everything has entered."""
        self.filtered = 0
        self.unrecorded = 0
        self.unjudged = BitMap64()
        """Messages that went back to wait without a judgement of their age."""
        self._late = BitMap64()
        """Messages that are too old, and expire in the next steps."""
        self.deferred = 0
        """Acknowledgements of messages that were not active yet."""

    def take_over(self, state: QueueMessages, expiry: Expiry, order: DeliveryOrder) -> None:
        """Go on from a state that was stored."""
        self.state, self.expiry, self.order, self._late = state, expiry, order, BitMap64()
        if expiry.active:
            self.unjudged = state.ready | state.inactive

    def start_over(self) -> None:
        """Forget a state that was stored: nothing has entered."""
        definition = self.definition
        state = QueueMessages(definition.target_queue_depth)
        expiry = Expiry(definition.expiration, definition.expiration_model)
        self.take_over(state, expiry, DeliveryOrder(state, prioritised=definition.priority is not None))

    # -- the fold ---------------------------------------------------------------------------------------

    def enter(self, entered: Admitted) -> None:
        """Admit messages."""
        self.filtered += entered.filtered
        if not len(entered.positions):
            return
        self.state.enter(entered.bitmap)
        self.order.enter(entered.positions, entered.priorities, entered.barriers)
        if self.expiry.active:
            self.expiry.enter(entered.positions, entered.timestamps, entered.expirations)

    def apply(self, outcome: Outcome) -> BitMap64:
        """Something became of messages; returns those of them for which it did."""
        if self.state.inactive and outcome.what is OutcomeKind.DONE:
            self.deferred += len(outcome.positions & self.state.inactive)
        affected = self.state.apply(outcome)
        if outcome.what is OutcomeKind.RETURNED:
            self.order.delivered(affected)  # a barrier among them was, in an earlier life of the server too
        elif outcome.what is not OutcomeKind.DEAD_LETTERED:
            self.order.left(affected)
        return affected

    def compact(self) -> None:
        """Forget when messages expire that have left."""
        if self.expiry.active:
            oldest = self.state.oldest()
            self.expiry.forget_below(self.considered if oldest is None else oldest)
            self.expiry.keep(self.state.ready | self.state.inactive | self.state.leased)

    # -- what consumers hold ----------------------------------------------------------------------------

    def grant(self, consumer: H, batch: MessageBatch, positions: Int64s, mono: float) -> Lease[H]:
        """Messages are about to be delivered to a consumer."""
        chosen = bitmap_of(np.sort(positions))
        period = self.definition.lease_period
        deadline = None if period is None or self.definition.at_most_once else mono + period
        lease = self.leases.grant(consumer, batch, positions, mono, deadline)
        consumer.unacked += len(positions)
        if self.definition.at_most_once:
            self.state.owe(chosen)
        else:
            self.state.lease(chosen)
        self.order.delivered(chosen)
        return lease

    def release(self, lease: Lease[H], positions: BitMap64) -> H:
        """Take messages out of a lease; an outcome says what becomes of them. Return the consumer: it has
        room again, in its other queues too."""
        self.leases.release(lease, positions)
        lease.holder.unacked -= len(positions)
        if self.definition.at_most_once:
            self.state.acknowledge_owed(positions)
        return lease.holder

    def set_turn(self, turn: int, given: bool) -> None:
        """Set the turn after messages were `given` out: behind the last consumer there is room for a new
        one."""
        self.turn = turn if turn or not given else len(self.consumers)

    def give_back(self, positions: BitMap64) -> None:
        """Make messages ready again, as after a crash: that counts nowhere."""
        self.state.give_back(positions)
        if self.expiry.active:
            self.unjudged |= positions

    def room(self) -> int | None:
        """How many more messages may be delivered and not acknowledged; None: any number."""
        limit = self.definition.max_backlog
        return None if limit is None else max(limit - self.leases.count, 0)

    # -- decisions --------------------------------------------------------------------------------------

    def done(self, positions: BitMap64) -> Outcome:
        """They were acknowledged."""
        return Outcome(OutcomeKind.DONE, ranges_of(positions))

    def expired(self, positions: BitMap64, reason: Reason, *, delivered: bool) -> Outcome:
        """They leave the queue undone."""
        doomed = self.definition.dead_letter is not None
        return Outcome(OutcomeKind.EXPIRED, ranges_of(positions), reason, doomed, delivered)

    def given_back(self, positions: BitMap64, reason: Reason, wall: int) -> list[Outcome]:
        """A delivery of messages ended without success: those that are too old, or were tried often enough,
        expire, the others return. One rule for lease end, cancel, disconnect and unsubscribe."""
        outcomes: list[Outcome] = []
        left = positions
        if self.expiry.active:
            overdue = self.expiry.overdue(positions, wall)
            if overdue:
                outcomes.append(self.expired(overdue, Reason.EXPIRATION, delivered=True))
                left = left - overdue
        for spent, why in self._spent(left, reason):
            outcomes.append(self.expired(spent, why, delivered=True))
            left = left - spent
        if left:
            outcomes.append(Outcome(OutcomeKind.RETURNED, ranges_of(left), reason))
        return outcomes

    def _spent(self, positions: BitMap64, reason: Reason) -> list[tuple[BitMap64, Reason]]:
        """Those that were tried as often as they may be, this time included, and why."""
        deliveries_max, cancels_max = self.definition.max_deliveries, self.definition.max_cancels
        spent: list[tuple[BitMap64, Reason]] = []
        left = positions
        if deliveries_max is not None:
            spent.append((self.state.deliveries.at_least(left, deliveries_max - 1), Reason.MAX_DELIVERIES))
            left = left - spent[0][0]
        if cancels_max is not None and reason is Reason.CANCELLED:
            spent.append((self.state.cancels.at_least(left, cancels_max), Reason.MAX_CANCELS))
        return [(found, why) for found, why in spent if found]

    def next_due(self) -> int | None:
        """When `expire_due` may find something, wall microseconds; None: never, as things are."""
        if not self.expiry.active:
            return None
        return 0 if self.unjudged or self._late else self.expiry.next_due()

    @property
    def late(self) -> bool:
        """Whether `expire_due` has more than it gave."""
        return bool(self._late)

    def expire_due(self, wall: int) -> Outcome | None:
        """Expire the oldest `queue_step_outcomes_max` waiting messages that are too old; leased messages are
        judged at the end of their leases."""
        self._late |= self.expiry.due(wall)
        if self.unjudged:
            self._late |= self.expiry.overdue(self.state.has(self.unjudged), wall)
            self.unjudged = BitMap64()
        if not self._late:
            return None
        self._late &= self.state.ready | self.state.inactive
        waiting = first_of(self._late, queue_step_outcomes_max)
        self._late -= waiting
        return self.expired(waiting, Reason.EXPIRATION, delivered=False) if waiting else None
