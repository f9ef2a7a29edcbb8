"""Queue worker: runs one queue: admits, delivers and expires messages, and publishes dead letters.

Invariants:
- Each step is bounded.
- No unreadable message is skipped: the queue stops and reports the error.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from pyroaring import BitMap64

from tickertape.base.errors import TickertapeError
from tickertape.engine.limits import queue_step_messages_max, queue_step_outcomes_max, step_bytes_max
from tickertape.engine.log_reads.log_scan import LogScan
from tickertape.engine.queues.dead_letters import DeadLetterPublisher
from tickertape.engine.queues.dispatch import DeferredDelivery, QueueDispatch
from tickertape.engine.queues.message_reader import QueueAccess
from tickertape.engine.queues.queue_feed import FeedQueue, QueueFeed
from tickertape.engine.queues.state.admission import QueueAdmission
from tickertape.engine.queues.state.leases import Lease
from tickertape.engine.queues.state.records import Outcome, Reason
from tickertape.engine.runtime.clock import earlier
from tickertape.journal.reading.log_view import LogPart

_RETRY_SECONDS: Final = 1.0
"""Interval between attempts to write to the log, in seconds."""
_COMPACT_MESSAGES: Final = 65_536


class RoomFreed(NamedTuple):
    """A consumer holds fewer messages, so its other queues may deliver to it."""

    holder: QueueFeed


class QueueStopped(NamedTuple):
    """The queue stopped because it cannot read its messages."""

    error: TickertapeError


QueueTransition: TypeAlias = DeferredDelivery | RoomFreed | QueueStopped
"""Results of a step, which the registry applies."""


class QueueWorker:
    """Runs one queue."""

    def __init__(self, queue: FeedQueue, admission: QueueAdmission, access: QueueAccess) -> None:
        self.queue = queue
        self.admission = admission
        self._access = access
        self._clock = access.clock
        self._queue_log = access.log
        self._journal = access.journal
        self._topic = admission.interest.topic_name
        self.dispatch = QueueDispatch(queue, access, admission.interest, self)
        self._dead_letters = DeadLetterPublisher(queue, access, self)
        self._scan = LogScan(access.journal.view, access.reads, queue.considered, self._topic, self)
        self._parts: list[LogPart] = []
        self._low = 0
        self.is_active = True
        """Whether messages may be deliverable."""
        self._uncompacted = 0
        """Messages that entered since the last compaction of the queue."""
        self._retry_at: float | None = None
        self._gone: dict[QueueFeed, None] = {}
        """Ended consumers whose messages are being requeued."""
        self._transitions: list[QueueTransition] = []
        self.failure: TickertapeError | None = None

    def begin(self) -> None:
        """Start scanning the log after the recovery of the queue."""
        self._clock.announce(self)
        self._scan = LogScan(self._journal.view, self._access.reads, self.queue.considered, self._topic, self)

    # -- inputs -----------------------------------------------------------------------------------------

    def mark_active(self) -> None:
        """Record that messages may be deliverable."""
        self.is_active = True
        self._clock.announce(self)

    def add(self, consumer: QueueFeed) -> None:
        """Add a consumer."""
        self.queue.consumers.append(consumer)
        self.dispatch.filters.add(consumer)

    def leave(self, consumer: QueueFeed) -> None:
        """Stop delivery to a consumer. It keeps its leases."""
        queue = self.queue
        index = queue.consumers.index(consumer)
        del queue.consumers[index]
        if index < queue.turn:
            queue.turn -= 1
        queue.passed_over.pop(consumer, None)
        self.dispatch.discard(consumer)

    def requeue_of(self, consumer: QueueFeed) -> list[QueueTransition]:
        """Requeue the messages of an ended consumer, in steps."""
        self._gone[consumer] = None
        self._requeue_some()
        while self.failure is not None and self._gone:  # a stopped queue runs no steps
            self._requeue_some()
        return self._taken()

    def _taken(self) -> list[QueueTransition]:
        taken, self._transitions = self._transitions, []
        return taken

    def _requeue_some(self) -> None:
        consumer = next(iter(self._gone))
        leases = _some(self.queue.leases.of_holder(consumer))
        self._end_leases(leases, Reason.HOLDER_GONE, counted=self._queue_log.can_write())
        if not self.queue.leases.of_holder(consumer):
            del self._gone[consumer]

    def _end_leases(self, leases: list[Lease[QueueFeed]], reason: Reason, *, counted: bool) -> None:
        """End leases without success. With `counted`, write a record to the log."""
        queue = self.queue
        ended = BitMap64()
        holders: dict[QueueFeed, None] = {}
        for lease in leases:
            positions = lease.positions.copy()
            holders[queue.release(lease, positions)] = None
            ended |= positions
        self._transitions += map(RoomFreed, holders)
        if not ended or queue.definition.at_most_once:
            return  # at-most-once messages have already left the queue
        if counted:
            self._write(queue.given_back(ended, reason, self._clock.wall))
        else:
            queue.give_back(ended)

    def read_done(self) -> None:
        """Resume after the answer to a read of this queue."""
        self.mark_active()
        if self.failure is not None:
            self._release_memory()

    def _release_memory(self) -> None:
        self.dispatch.release_memory()
        self._dead_letters.release_memory()

    # -- time -------------------------------------------------------------------------------------------

    def wake(self) -> list[QueueTransition]:
        """End expired leases, and expire old messages. Sets `is_active` if any were due."""
        self._wake()
        return self._taken()

    def _wake(self) -> None:
        if self.failure is not None:
            return
        if self._retry_at is not None:
            if self._clock.mono < self._retry_at:
                return
            self._retry_at = None
            self.mark_active()
        queue = self.queue
        if queue.end_pass_over(self._clock.mono):
            self.mark_active()
        due = queue.leases.due(self._clock.mono)
        at = queue.next_due()
        expires = at is not None and at <= self._clock.wall
        if not due and not expires:
            return
        if not self._queue_log.can_write():
            self._retry_at = self._clock.mono + _RETRY_SECONDS
            return
        ended = _some(due)
        self._end_leases(ended, Reason.LEASE_EXPIRED, counted=True)
        for lease in ended:
            if queue in lease.holder.queues:
                queue.pass_over(lease.holder, self._clock.mono)
        old = queue.expire_due(self._clock.wall)
        if old is not None:
            self._write([old])
        self.mark_active()

    def next_deadline(self) -> float | None:
        """Return the monotonic time (seconds) at which to call `wake`, or None."""
        if self.failure is not None or self._journal.commits.stopping:
            return None
        if self._retry_at is not None:
            return self._retry_at
        deadline = earlier(self.queue.leases.next_deadline(), self.queue.next_pass_over_end())
        return earlier(deadline, self._clock.reached(self.queue.next_due()))

    def _expire(self) -> bool:
        """Expire old messages before delivery. Return False if more of them remain for later steps."""
        at = self.queue.next_due()
        if at is not None and at <= self._clock.wall:
            self._wake()
        return not self.queue.late or self._retry_at is not None

    # -- steps ------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `step` has work."""
        if self.failure is not None:
            return False
        return (
            self.is_active
            or bool(self._gone)
            or self._entering
            or self._dead_letters.has_work
            or self.dispatch.filters.has_work
        )

    @property
    def _entering(self) -> bool:
        return bool(self._parts) or (
            self.queue.considered < self._journal.commits.persisted_end and not self._scan.waiting
        )

    def step(self) -> list[QueueTransition]:
        """Execute one bounded step."""
        if self.failure is not None:
            return []
        self._clock.announce(self)
        queue = self.queue
        if self._entering:
            self._admit()
        if self._gone:
            self._requeue_some()
            self.is_active = True
        if self.dispatch.filters.step():
            self.is_active = True
        if self._dead_letters.has_work:
            self._dead_letters.step()
        else:
            self._dead_letters.release_memory()
        if self._journal.commits.closing:
            self.is_active = False  # a consumer could not acknowledge a new message any more
        elif queue.definition.at_most_once and not self._queue_log.can_write():
            self._retry_soon()
            self.is_active = False
        elif self._dead_letters.stuck:
            self._retry_soon()
        if self.is_active and self._expire():
            self.is_active = self.dispatch.deliver()
        if not self.is_active:
            self.dispatch.release_memory()
        failure = self._scan.failure or self.dispatch.failure or self._dead_letters.failure
        if failure is not None:
            self.failure = failure
            self._release_memory()
            self._transitions.append(QueueStopped(failure))
        self._transitions += self.dispatch.take_deferred()
        return self._taken()

    def _retry_soon(self) -> None:
        if self._retry_at is None:
            self._retry_at = self._clock.mono + _RETRY_SECONDS

    def _admit(self) -> None:
        """Admit new messages of the log."""
        queue = self.queue
        parts = self._parts or self._scan.parts()
        budget, messages = step_bytes_max, queue_step_messages_max
        at = 0
        while at < len(parts) and budget > 0 and messages > 0:
            part = parts[at]
            if part.end_position <= queue.considered or not self.admission.wants(part.batch):
                high = part.batch.count
            else:
                entered, high = self.admission.look(part, self._low)
                if entered is not None:
                    queue.enter(entered)
                    self._uncompacted += len(entered.positions)
                    self.is_active = True
                    if not self.admission.plain:
                        messages -= high - self._low
            if high < part.batch.count:
                self._low = high
                budget -= step_bytes_max // 8
                continue
            self._low = 0
            queue.considered = max(queue.considered, part.end_position)
            budget -= part.batch.nbytes // 16 if self.admission.plain else part.batch.nbytes
            at += 1
        self._parts = parts[at:]
        if self._uncompacted > _COMPACT_MESSAGES:
            self._uncompacted = 0
            queue.compact()
        if not parts and not self._scan.waiting:
            queue.considered = max(
                queue.considered, min(self._scan.position, self._journal.commits.persisted_end)
            )

    def _write(self, outcomes: list[Outcome]) -> None:
        if not outcomes:
            return
        for outcome in outcomes:
            self.queue.apply(outcome)
        self._queue_log.write(self.queue.name, outcomes)


def _some(leases: list[Lease[QueueFeed]]) -> list[Lease[QueueFeed]]:
    """Return the first leases with about `queue_step_outcomes_max` messages."""
    messages = 0
    for number, lease in enumerate(leases):
        messages += len(lease.positions)
        if messages >= queue_step_outcomes_max:
            return leases[: number + 1]
    return leases
