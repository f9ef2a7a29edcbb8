"""Acknowledgement batcher: gathers acknowledgements, and settlements that wait for store space.

Gathered acknowledgements are sent when there are enough, when their time has come, and before anything that
could make them too late. A settlement never overtakes an earlier one. A duplicate does no harm, so where an
exception comes between two steps a settlement is sent twice rather than never.
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

_NOT_SENT: Final = "a client without a front has nowhere to send settlements"


_AT_ONCE: Final = float("-inf")


class AckBatcher:
    """The settling part of the client machine. Leases report to what was given to `attach`."""

    def __init__(self, publishing: Publisher) -> None:
        self._publishing = publishing
        self.settling: Settling | None = None
        self.batch_size = 1
        """Acknowledgements that are gathered at most."""
        self.timeout = ack_timeout_seconds_default
        """How long they are kept, in seconds."""
        self.automatic = False
        """Whether messages delivered from now on are settled by themselves."""
        self._outbox: deque[bytes] = deque()
        """Settlements that are still to be published."""
        self._by_id: dict[str, AckAccumulator] = {}
        """Of each subscription that was granted a backlog."""
        self._loose = AckAccumulator()
        """Of acknowledgements by bookmark."""
        self._leases: WeakSet[Lease] = WeakSet()
        """Leases whose messages are settled by themselves."""
        self._deadline: float | None = None
        self._connected = False
        self.behind = False
        """A settlement is kept until there is an answer to what was published before: what comes meanwhile
        would be kept too, so that it is gathered further, and `answered` sends it."""

    def attach(self, settling: Settling) -> None:
        """Let leases report to `settling`, the driver of the client."""
        self.settling = settling

    # -- subscriptions ----------------------------------------------------------------------------------

    def granted(self, sub_id: str, backlog: int) -> None:
        """The server lets a subscription to queues hold so many unacknowledged messages; 0: it is to none."""
        if not backlog:
            self.ended(sub_id)
            return
        gathering = self._by_id.setdefault(sub_id, AckAccumulator())
        gathering.granted = backlog
        self._measure()

    def ended(self, sub_id: str) -> None:
        """The subscription is over. What is left of it to be sent is sent as `send_all` does."""
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

    # -- what the application says ----------------------------------------------------------------------

    def configure(self, *, batch_size: int | None = None, timeout: float | str | None = None) -> None:
        """Gather so many from now on, or so long; `flush` is to follow. Raises `BadOption`."""
        if batch_size is not None:
            if type(batch_size) is not int or not 0 < batch_size <= ack_batch_messages_max:
                raise BadOption(f"ack_batch_size is 1 to {ack_batch_messages_max:,}, not {batch_size!r}")
            self.batch_size = batch_size
            self._measure()
        if timeout is not None:
            seconds = parse_interval(timeout)
            if not 0 < seconds <= lease_seconds_max:
                raise BadOption(f"ack_timeout is above 0 and at most {lease_seconds_max:.0f} seconds")
            self.timeout = seconds

    def set_automatic(self, *, enabled: bool) -> None:
        """Settle what is delivered from now on by itself, or not."""
        self.automatic = enabled

    def acknowledged(self, gathering: AckAccumulator, now: Now) -> None:
        """Something was put into `gathering`: send it, or see to it that it is sent in time. Raises as
        `flush`."""
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
            self._publishing.check_settles()  # the loss of the connection was quicker, and took it
            if dropped:
                raise Disconnected(
                    "Cannot acknowledge: the connection was lost before the acknowledgement was sent. The "
                    "queue delivers the message again"
                )

    def _look_at(self, at: float) -> None:
        if self._deadline is None or at < self._deadline:
            self._deadline = at

    def acknowledge(
        self, queue: str, marks: Marks, now: Now, gathering: AckAccumulator | None = None
    ) -> None:
        """Messages are done that are named by their bookmarks; `gathering`: that of their subscription, where
        it is known. Raises as `flush`."""
        marks = list(marks)
        self._touch(queue, marks)
        if gathering is None:
            gathering = next(iter(self._by_id.values())) if len(self._by_id) == 1 else self._loose
        gathering.items += [(queue, publisher, sequence) for publisher, sequence in marks]
        self.acknowledged(gathering, now)

    def settle(self, queue: str, action: Action, marks: Marks, extend_ms: int = 0) -> None:
        """Settle messages. Raises as `flush`."""
        marks = list(marks)
        if action != "extend":
            self._touch(queue, marks)
        self._say(bodies_of(queue, action, marks, extend_ms, self._marks_max))

    def settle_all(self, queue: str, action: Action, filter: str, extend_ms: int = 0) -> None:
        """Settle all messages that pass `filter`. Raises as `flush`."""
        self._say([body_of_filter(queue, action, filter, extend_ms)])

    def flush(self) -> None:
        """Send all that is gathered, as far as the publish store has room.

        Raises what `Publisher.publish` raises; what it could not send is then lost, but for a `StoreError`:
        it is sent when the store works again.
        """
        if self._loose.items or any(gathering.items for gathering in self._by_id.values()):
            for gathering in (*self._by_id.values(), self._loose):
                self._gather_out(gathering)
        self._deadline = None
        self._drain()

    def flush_all(self) -> None:
        """As `flush`. Raises `StoreFull` too, while there is no room for all of it."""
        self.flush()
        while self._outbox:
            self._publishing.settle(self._outbox[0])
            self._outbox.popleft()

    # -- the connection and time ------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether there is a subscription to queues, or something to be sent."""
        return bool(self._by_id or self._outbox or self._loose.items)

    @property
    def waiting(self) -> bool:
        """Whether settlements wait for room in the publish store."""
        return bool(self._outbox)

    def room(self) -> None:
        """The publish store may have room for what waits. Raises `StoreError`."""
        if self._outbox:
            self._drain()

    def answered(self) -> None:
        """An answer to a publish is about to be taken: send what waited for it. Raises as `flush`."""
        self.behind = False
        self._measure()
        for gathering in (*self._by_id.values(), self._loose):
            if len(gathering.items) >= gathering.limit:
                self._gather_out(gathering)
        self._drain()
        self.behind = False

    def connected(self) -> None:
        """Everything may be called. Raises `StoreError`."""
        self._connected = True
        self._measure()
        self.room()

    def lost(self) -> None:
        """The connection is gone: what is gathered goes into the publish store, or is lost without one."""
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
        """Send all that is gathered, as `send_all`; whether anything published has no answer yet."""
        self.send_all()
        return bool(self._outbox) or self._publishing.unsettled()

    def send_all(self) -> None:
        """Flush without raising: what the store does not take waits."""
        try:
            self.flush()
        except TickertapeError:
            return

    def next_deadline(self) -> float | None:
        """When `wake` wants to be called (monotonic seconds), or None."""
        return self._deadline

    def wake(self, now: Now) -> None:
        """Flush when it is due. Raises as `flush`."""
        if self._deadline is not None and self._deadline <= now.mono:
            self.flush()
            # Who reads the answers may be busy with a handler for longer than a lease lasts.
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
        gathering.timed = False  # first: whoever appends from here on comes again
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
                return  # `room` goes on
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
