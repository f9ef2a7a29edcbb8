"""Queue: the rules of one queue, its messages and its leases.

Every change that the log must record is an `Outcome`. `apply` changes the state in memory at once. The caller
writes the outcome to the log.
"""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeAlias, TypeVar

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

_END: Final = 1 << 63
"""Above all positions."""


class QueueHolder(Protocol):
    """A consumer that holds messages of queues."""

    unacked: int
    """Number of unacknowledged messages from all its queues."""

    def __hash__(self) -> int:
        """Holders are compared by identity."""


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
        self.passed_over: dict[H, float] = {}
        """Consumers whose lease expired, with the monotonic time (seconds) until which others are preferred.
        In the order of that time."""
        self.turn = 0
        """Index of the next consumer in round-robin order."""
        self.considered = 0
        """Position below which everything has entered."""
        self.filtered = 0
        self.unrecorded = 0
        self.unjudged = BitMap64()
        """Messages that became ready again without an expiry check."""
        self._late = BitMap64()
        """Messages that are too old and expire in later steps."""
        self.deferred = 0
        """Acknowledgements of messages that were not active yet."""

    def take_over(self, state: QueueMessages, expiry: Expiry, order: DeliveryOrder) -> None:
        """Replace the state by a restored one."""
        self.state, self.expiry, self.order, self._late = state, expiry, order, BitMap64()
        if expiry.active:
            self.unjudged = state.ready | state.inactive

    def start_over(self) -> None:
        """Reset the state to an empty queue."""
        definition = self.definition
        state = QueueMessages(definition.target_queue_depth)
        expiry = Expiry(definition.expiration, definition.expiration_model)
        self.take_over(state, expiry, DeliveryOrder(state, prioritised=definition.priority is not None))

    # -- state from the log -----------------------------------------------------------------------------

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
        """Apply an outcome. Return the affected messages."""
        if self.state.inactive and outcome.what is OutcomeKind.DONE:
            self.deferred += len(outcome.positions & self.state.inactive)
        affected = self.state.apply(outcome)
        if outcome.what is OutcomeKind.RETURNED:
            self.order.delivered(affected)  # including barriers delivered before a restart
        elif outcome.what is not OutcomeKind.DEAD_LETTERED:
            self.order.left(affected)
        return affected

    def compact(self) -> None:
        """Remove expiry data of messages that have left."""
        if self.expiry.active:
            oldest = self.state.oldest()
            self.expiry.forget_below(self.considered if oldest is None else oldest)
            self.expiry.keep(self.state.ready | self.state.inactive | self.state.leased)

    # -- consumers --------------------------------------------------------------------------------------

    def grant(self, consumer: H, batch: MessageBatch, positions: Int64s, mono: float) -> Lease[H]:
        """Lease messages to a consumer before they are delivered."""
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
        """Remove messages from a lease. An outcome must follow. Return the consumer, which can receive more
        messages now, also from its other queues."""
        self.leases.release(lease, positions)
        lease.holder.unacked -= len(positions)
        if self.definition.at_most_once:
            self.state.acknowledge_owed(positions)
        return lease.holder

    def pass_over(self, consumer: H, mono: float) -> None:
        """Prefer other consumers for one lease period, because a lease of this one expired."""
        self.passed_over.pop(consumer, None)
        if self.definition.lease_period is not None:
            self.passed_over[consumer] = mono + self.definition.lease_period

    def end_pass_over(self, mono: float) -> bool:
        """Treat consumers like others again after their time. Return whether any changed."""
        over = [consumer for consumer, until in self.passed_over.items() if until <= mono]
        for consumer in over:
            del self.passed_over[consumer]
        return bool(over)

    def next_pass_over_end(self) -> float | None:
        """Return the monotonic time (seconds) at which to call `end_pass_over`, or None."""
        return next(iter(self.passed_over.values()), None)

    def set_turn(self, turn: int, given: bool) -> None:
        """Set the turn after an assignment. If messages were `given`, a turn of 0 becomes the index after the
        last consumer, so that a new consumer is next."""
        self.turn = turn if turn or not given else len(self.consumers)

    def give_back(self, positions: BitMap64) -> None:
        """Make messages ready again without counting a delivery, like after a crash."""
        self.state.give_back(positions)
        if self.expiry.active:
            self.unjudged |= positions

    def room(self) -> int | None:
        """Return how many more messages may be unacknowledged. None: any number."""
        limit = self.definition.max_backlog
        return None if limit is None else max(limit - self.leases.count, 0)

    def available(self, end: int, wall: int) -> BitMap64:
        """Return the ready messages below `end`, in a set of its own.

        It has no messages that are too old, which expire in later steps. `end` is a persisted end of the log,
        because a part of a later commit or transaction may have entered."""
        ready = self.state.ready.copy()
        ready.remove_range(end, _END)
        if self.expiry.active:
            ready -= self.expiry.overdue(ready, wall)
        return ready

    # -- decisions --------------------------------------------------------------------------------------

    def done(self, positions: BitMap64) -> Outcome:
        """Return the outcome of acknowledged messages."""
        return Outcome(OutcomeKind.DONE, ranges_of(positions))

    def expired(self, positions: BitMap64, reason: Reason, *, delivered: bool) -> Outcome:
        """Return the outcome of messages that leave the queue unprocessed."""
        doomed = self.definition.dead_letter is not None
        return Outcome(OutcomeKind.EXPIRED, ranges_of(positions), reason, doomed, delivered)

    def given_back(self, positions: BitMap64, reason: Reason, wall: int) -> list[Outcome]:
        """Return the outcomes of a delivery that ended without success.

        Messages that are too old or reached a limit of attempts expire. The others return to the queue. The
        same rule applies to lease end, cancel, disconnect and unsubscribe."""
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
        """Return messages that reached a limit of attempts, including the current one, with the reason."""
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
        """Return the time (wall clock, microseconds) at which to call `expire_due`, or None."""
        if not self.expiry.active:
            return None
        return 0 if self.unjudged or self._late else self.expiry.next_due()

    @property
    def late(self) -> bool:
        """Whether `expire_due` has more messages to expire."""
        return bool(self._late)

    def expire_due(self, wall: int) -> Outcome | None:
        """Expire the oldest `queue_step_outcomes_max` waiting messages that are too old.

        Leased messages are checked at the end of their leases."""
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
