"""Acknowledgement batcher: gathers acknowledgements, and settlements that wait for store space.

Gathered acknowledgements are sent at a number, after a timeout, and before any command that would make them
late. Settlements are sent in order. A duplicate is harmless, so after an exception between two steps a
settlement is sent twice rather than never.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final
from weakref import WeakSet

from tickertape.base.errors import BadOption, Disconnected, StoreError, StoreFull, TickertapeError, UsageError
from tickertape.base.interfaces import Now
from tickertape.base.limits import lease_seconds_max, settlement_runs_max
from tickertape.base.units import parse_interval
from tickertape.batch.queue_lease import AckAccumulator, Action, BrowseLease, Hold, Lease, Marks, Settling
from tickertape.client.limits import (
    ack_batch_messages_max,
    ack_timeout_seconds_default,
    settlement_mark_bytes,
    settlement_wait_seconds,
)
from tickertape.client.publishing.publisher import Publisher
from tickertape.client.queues.settlements import bodies_of, bodies_of_gathered, body_of_filter
from tickertape.wire.commands import Deliver

_NOT_SENT: Final = "Cannot create a lease: call attach() first, so that settlements can be sent."


_AT_ONCE: Final = float("-inf")


class AckBatcher:
    """Settlements of one client. Leases report to the object given to `attach`."""

    def __init__(self, publishing: Publisher) -> None:
        self._publishing = publishing
        self.settling: Settling | None = None
        self.batch_size = 1
        """Number of acknowledgements that triggers sending."""
        self.timeout = ack_timeout_seconds_default
        """Longest time that acknowledgements are gathered, in seconds."""
        self.automatic = False
        """Whether messages delivered from now on are settled automatically."""
        self._outbox: deque[bytes] = deque()
        """Settlements that are not published yet."""
        self._by_id: dict[str, AckAccumulator] = {}
        """Accumulators of subscriptions with a backlog."""
        self._loose = AckAccumulator()
        """Accumulator of acknowledgements by bookmark."""
        self._leases: WeakSet[Lease] = WeakSet()
        """Leases whose messages are settled automatically."""
        self._deadline: float | None = None
        self._connected = False
        self.behind = False
        """Whether a stored settlement waits for the answer to earlier publishes.

        Later acknowledgements would wait too, so they are gathered further, and `answered` sends them.
        """

    def attach(self, settling: Settling) -> None:
        """Set `settling`, the driver of the client, as the receiver of reports from leases."""
        self.settling = settling

    # -- subscriptions ----------------------------------------------------------------------------------

    def granted(self, sub_id: str, backlog: int) -> None:
        """Set the number of unacknowledged messages that a subscription may hold. 0: not a queue."""
        if not backlog:
            self.ended(sub_id)
            return
        gathering = self._by_id.setdefault(sub_id, AckAccumulator())
        gathering.granted = backlog
        self._measure()

    def ended(self, sub_id: str) -> None:
        """Record the end of a subscription, and send its acknowledgements as `send_all` does."""
        gathering = self._by_id.pop(sub_id, None)
        if gathering is not None:
            gathering.gather(1)
            self._gather_out(gathering)
            self._measure()
            self.send_all()

    def lease(self, command: Deliver, sub_id: str, hold: Hold, *, browsed: bool) -> Lease:
        """Return the lease on the messages of a delivery from a queue."""
        if self.settling is None:
            raise UsageError(_NOT_SENT)
        kind = BrowseLease if browsed else Lease
        lease = kind(
            command.queue,
            command.lease,
            once=command.once,
            hold=hold,
            gathering=self._by_id.get(sub_id) or AckAccumulator(),
            settling=self.settling,
            automatic=self.automatic and not browsed,
        )
        if lease.touched is not None:
            self._leases.add(lease)
        return lease

    # -- calls of the application -----------------------------------------------------------------------

    def configure(self, *, batch_size: int | None = None, timeout: float | str | None = None) -> None:
        """Set the limits of gathering. The caller must call `flush` next. Raises `BadOption`."""
        if batch_size is not None:
            if type(batch_size) is not int or not 0 < batch_size <= ack_batch_messages_max:
                raise BadOption(
                    f"Invalid ack_batch_size {batch_size!r}. Use 1 to {ack_batch_messages_max:,}."
                )
            self.batch_size = batch_size
            self._measure()
        if timeout is not None:
            seconds = parse_interval(timeout)
            if not 0 < seconds <= lease_seconds_max:
                raise BadOption(
                    f"Invalid ack_timeout {timeout!r}. "
                    f"Use more than 0 and at most {lease_seconds_max:.0f} seconds."
                )
            self.timeout = seconds

    def set_automatic(self, *, enabled: bool) -> None:
        """Enable or disable automatic settlement of messages delivered from now on."""
        self.automatic = enabled

    def acknowledged(self, gathering: AckAccumulator, now: Now) -> None:
        """Send the acknowledgements of `gathering`, or schedule that. Raises the errors of `flush`."""
        if len(gathering.items) >= gathering.limit:
            if not self.behind or self.batch_size == 1:
                self._gather_out(gathering)
                self._drain()
                if self.behind:
                    self._look_at(now.mono + settlement_wait_seconds)
                return
            gathering.gather(len(gathering.items) + self.batch_size)
            self._look_at(now.mono + settlement_wait_seconds)
        if gathering.items and not gathering.timed:
            gathering.timed = True
            self._look_at(now.mono + self.timeout)
        elif not gathering.items and (gathering.dropped or not self._connected):
            dropped, gathering.dropped = gathering.dropped, False
            self._publishing.check_settles()  # a concurrent loss of the connection discarded the item
            if dropped:
                raise Disconnected(
                    "Cannot acknowledge: the connection was lost before the acknowledgement was sent. "
                    "The queue redelivers the message."
                )

    def _look_at(self, at: float) -> None:
        if self._deadline is None or at < self._deadline:
            self._deadline = at

    def acknowledge(
        self, queue: str, marks: Marks, now: Now, gathering: AckAccumulator | None = None
    ) -> None:
        """Acknowledge messages by bookmark. Raises the errors of `flush`.

        `gathering` is the accumulator of their subscription, if known.
        """
        marks = list(marks)
        self._touch(queue, marks)
        if gathering is None:
            gathering = next(iter(self._by_id.values())) if len(self._by_id) == 1 else self._loose
        gathering.items += [(queue, publisher, sequence) for publisher, sequence in marks]
        self.acknowledged(gathering, now)

    def settle(self, queue: str, action: Action, marks: Marks, extend_ms: int = 0) -> None:
        """Settle messages. Raises the errors of `flush`."""
        marks = list(marks)
        if action != "extend":
            self._touch(queue, marks)
        self._say(bodies_of(queue, action, marks, extend_ms, self._marks_max))

    def settle_all(self, queue: str, action: Action, filter: str, extend_ms: int = 0) -> None:
        """Settle all messages that match `filter`. Raises the errors of `flush`."""
        self._say([body_of_filter(queue, action, filter, extend_ms)])

    def flush(self) -> None:
        """Send all gathered settlements, within the space of the publish store.

        Raises the errors of `Publisher.publish`. Unsent settlements are then lost, except after a
        `StoreError`: they are sent once the store works again.
        """
        if self._loose.items or any(gathering.items for gathering in self._by_id.values()):
            for gathering in (*self._by_id.values(), self._loose):
                self._gather_out(gathering)
        self._deadline = None
        self._drain()

    def flush_all(self) -> None:
        """Flush. Also raises `StoreFull` without space for all settlements."""
        self.flush()
        while self._outbox:
            self._publishing.settle(self._outbox[0])
            self._outbox.popleft()

    # -- the connection and time ------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a queue subscription exists, or settlements are pending."""
        return bool(self._by_id or self._outbox or self._loose.items)

    @property
    def waiting(self) -> bool:
        """Whether settlements wait for space in the publish store."""
        return bool(self._outbox)

    def room(self) -> None:
        """Send waiting settlements, because the publish store may have space. Raises `StoreError`."""
        if self._outbox:
            self._drain()

    def answered(self) -> None:
        """Send settlements that waited for the answer to a publish. Raises the errors of `flush`."""
        self.behind = False
        self._measure()
        for gathering in (*self._by_id.values(), self._loose):
            if len(gathering.items) >= gathering.limit:
                self._gather_out(gathering)
        self._drain()
        self.behind = False

    def connected(self) -> None:
        """Continue on a new connection. Raises `StoreError`."""
        self._connected = True
        self._measure()
        self.room()

    def lost(self) -> None:
        """Process a lost connection: store gathered settlements, or drop them without a publish store."""
        self._connected = self.behind = False
        if self._publishing.store is None:
            for gathering in (*self._by_id.values(), self._loose):
                gathering.timed = False
                gathering.dropped = gathering.dropped or bool(gathering.items)
                del gathering.items[:]
            self._outbox.clear()
            self._deadline = None
        self._measure()
        self.send_all()

    def unsettled(self) -> bool:
        """Send all as `send_all` does. Return whether any publish is unanswered."""
        self.send_all()
        return bool(self._outbox) or self._publishing.unsettled()

    def send_all(self) -> None:
        """Flush without raising. Settlements that the store rejects wait."""
        try:
            self.flush()
        except TickertapeError:
            return

    def next_deadline(self) -> float | None:
        """Return when to call `wake` (monotonic seconds), or None."""
        return self._deadline

    def wake(self, now: Now) -> None:
        """Flush when due. Raises the errors of `flush`."""
        if self._deadline is not None and self._deadline <= now.mono:
            self.flush()
            # A handler may block the reader of answers for longer than a lease lasts.
            self._publishing.flush()

    # -- inside -----------------------------------------------------------------------------------------

    def _measure(self) -> None:
        """Set the limits so that no consumer waits for its own gathered acknowledgements."""
        size = self.batch_size if self._connected else 1
        least = size
        for gathering in self._by_id.values():
            gathering.gather(max(1, min(size, gathering.granted)))
            least = min(least, gathering.limit)
        self._loose.gather(least)

    def _say(self, bodies: Iterable[bytes]) -> None:
        for gathering in (*self._by_id.values(), self._loose):
            self._gather_out(gathering)
        self._deadline = None
        self._outbox += bodies
        self._drain()
        if self.behind:
            self._deadline = _AT_ONCE

    def _gather_out(self, gathering: AckAccumulator) -> None:
        gathering.timed = False  # first, so that a concurrent append schedules another call
        if self.behind:
            self._measure()
        items = gathering.items
        count = len(items)
        if count:
            self._outbox += bodies_of_gathered(items[:count], self._marks_max)
            del items[:count]

    def _drain(self) -> None:
        outbox = self._outbox
        while outbox:
            try:
                self.behind = self._publishing.settle(outbox[0])
            except StoreFull:
                return  # `room` continues
            except StoreError:
                raise
            except TickertapeError:
                outbox.clear()
                raise
            outbox.popleft()

    @property
    def _marks_max(self) -> int:
        return max(1, min(settlement_runs_max, self._publishing.chunk_bytes // settlement_mark_bytes))

    def _touch(self, queue: str, marks: list[tuple[int, int]]) -> None:
        for lease in self._leases:
            if lease.queue == queue and lease.touched is not None:
                lease.touched.update(marks)
