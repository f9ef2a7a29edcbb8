"""Transient delivery: delivers messages of non-persistent topics to existing subscriptions.

A publish is split and checksummed once for each topic, and delivered to its subscriptions in bounded steps.

Invariants:
- At most about `step_bytes_max` are sent between two writes.
- Delivery does not wait for a slow consumer: backlogs hold the messages that it cannot accept.
- Each subscription receives its messages in order.
- A conflation interval follows the clock, starting at the time of the publish. It ends after all messages
  published in it were considered, a bounded piece at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tickertape.base.interfaces import Buffer
from tickertape.batch import MessageBatch, slice_batch
from tickertape.engine.conflation.buffer import ConflationBuffer
from tickertape.engine.limits import (
    conflation_piece_messages_max,
    step_bytes_max,
    step_delivery_bytes,
    unrecorded_waiting_bytes_max,
)
from tickertape.engine.matching.subscription_index import Match, SubscriptionIndex
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.effects import Send
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.runtime.scheduling import DeadlineQueue, Pending
from tickertape.engine.sessions.read_throttle import ReadThrottle
from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.credit import affordable_rows
from tickertape.engine.transient.backlog import Backlog, TransientFeed
from tickertape.engine.transient.shared_frames import SharedFrames, cut, detach
from tickertape.engine.transient.slow_consumers import SlowConsumerBuffers, SlowConsumerLimits
from tickertape.journal.limits import batch_memory_bytes
from tickertape.wire.commands import Deliver
from tickertape.wire.frames import encode_frame

_MICROS: Final = 1_000_000
_NEVER: Final = 1 << 63
_CONFLATED_BYTES: Final = step_delivery_bytes // 4
"""Cost of conflating one message, in bytes of the step budget."""


class _Publish(NamedTuple):
    """A publish to deliver, or a callback in publish order."""

    number: int
    batch: MessageBatch | None
    done: Callable[[], None]
    time: int
    """Time of the publish, in microseconds."""
    to: TransientFeed | None = None
    """The only recipient, for messages released by conflation."""

    @property
    def waiting_bytes(self) -> int:
        return batch_memory_bytes + (0 if self.batch is None else self.batch.nbytes)


class TransientDelivery:
    """All subscriptions to non-persistent topics. `end(session, why)` closes a slow consumer."""

    def __init__(
        self,
        outbox: Outbox,
        clock: EngineClock,
        limits: SlowConsumerLimits,
        throttle: ReadThrottle,
        end: Callable[[Session, str], None],
    ) -> None:
        self.step_bytes_max = step_bytes_max
        """Approximate number of bytes sent between two writes."""
        self.waiting_bytes_max = unrecorded_waiting_bytes_max
        self.slow_consumers = SlowConsumerBuffers(outbox, clock, limits, end)
        self._outbox = outbox
        self._clock = clock
        self._throttle = throttle
        self._standing: SubscriptionIndex[TransientFeed, Backlog] = SubscriptionIndex(Backlog)
        self._budget = self.step_bytes_max
        self.spends = False
        """Whether a step used the budget since the last write."""
        self._number = 0
        self._publishes: deque[_Publish] = deque()
        self._conflated_out: deque[_Publish] = deque()
        """Messages released by conflation. They precede publishes that have not started."""
        self._queue = self._publishes
        """The queue with the current or next publish."""
        self._waiting_bytes = 0
        self._work: Iterator[None] | None = None
        """Remaining work for this publish."""
        self._stepping = False
        self._intervals: DeadlineQueue[TransientFeed] = DeadlineQueue()
        """Conflating subscriptions by the end of an interval, in microseconds of the monotonic clock."""
        self._due: dict[TransientFeed, None] = {}
        """Subscriptions whose interval has ended."""
        self._runnable: dict[Session, None] = {}
        """Connections with ready subscriptions, in round-robin order."""
        self.pending: Pending = (self._publishes, self._conflated_out, self._runnable, self._due)
        """Not empty while `step` has messages to deliver."""

    # -- feeds ----------------------------------------------------------------------------------------

    def add(self, sub: TransientFeed) -> None:
        """Start delivery of later publishes to a subscription."""
        sub.since = self._number
        group = self._standing.add(sub)
        if sub.conflating is None:
            sub.backlog = group

    def replace(self, old: TransientFeed, new: TransientFeed) -> None:
        """Replace `old` by `new` for later publishes. `old` first receives its remaining messages."""
        new.line = old.line
        new.line.append(new)
        self.add(new)
        self.retire(old)

    def retire(self, sub: TransientFeed) -> None:
        """End a subscription after it received everything published until now."""
        self.after(lambda: self._flush(sub, lambda: self._retired(sub)))

    def _retired(self, sub: TransientFeed) -> None:
        sub.over = True
        self._standing.discard(sub)
        sub.leave_line()

    def remove(self, sub: TransientFeed) -> None:
        """Remove a subscription, and the subscriptions that it replaces."""
        while sub.line:
            self._remove(sub.line.pop())

    def drop(self, session: Session) -> None:
        """Discard the waiting messages of a closed connection, whose subscriptions are removed later."""
        self.slow_consumers.drop_session(session)
        self._runnable.pop(session, None)

    def _remove(self, sub: TransientFeed) -> None:
        sub.over = True
        self._stop_conflating(sub)
        self.slow_consumers.drop(sub)
        waiting = self.slow_consumers.waiting.get(sub.session)
        if waiting is None or not waiting.ready:
            self._runnable.pop(sub.session, None)
        self._standing.discard(sub)

    def credit(self, sub: TransientFeed) -> None:
        """Resume a subscription that received more credit."""
        if sub.line and sub.line[0].left:
            self._mark_ready(sub)
            self.step()

    def writable(self, session: Session) -> None:
        """Resume a connection that is writable again, in the next step."""
        waiting = self.slow_consumers.waiting.get(session)
        if waiting is not None and waiting.ready:
            self._runnable[session] = None

    def spill_done(self, token: int, data: Buffer | OSError | None) -> None:
        """Handle the answer to a `SpillWrite` (None, or an error) or a `SpillRead`."""
        for sub in self.slow_consumers.spill_done(token, data):
            if sub.left:
                self._mark_ready(sub)

    # -- time -----------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return the monotonic time (seconds) at which to call `settle`, or None."""
        interval = self._intervals.first()
        return None if interval is None else (interval + 1) / _MICROS

    def settle(self) -> None:
        """Execute everything that is due by the clock."""
        self.slow_consumers.check_age()
        self._due.update(dict.fromkeys(self._intervals.due(self._micros())))
        if self._due:
            self.step()

    # -- publishes ------------------------------------------------------------------------------------

    def publish(self, batch: MessageBatch, done: Callable[[], None]) -> None:
        """Deliver a batch to its subscribers, and then call `done`: at once if the batch is small."""
        self.after(done, batch if self._standing.may_match(batch) else None)

    def after(self, done: Callable[[], None], batch: MessageBatch | None = None) -> None:
        """Deliver `batch` after all earlier publishes, and then call `done`."""
        number = self._number
        self._number += 1
        if batch is None and not self.passing:
            done()
            return
        self._publishes.append(self._counted(_Publish(number, batch, done, self._micros())))
        # During a step, these are publishes of a slow consumer that the step closes: they wait.
        if len(self._publishes) == 1 and not self._stepping:
            self.step()

    def _micros(self) -> int:
        return int(self._clock.mono * _MICROS)

    def _counted(self, publish: _Publish) -> _Publish:
        self._waiting_bytes += publish.waiting_bytes
        return publish

    @property
    def passing(self) -> bool:
        """Whether a publish is not fully delivered yet."""
        return bool(self._publishes or self._conflated_out)

    @property
    def is_behind(self) -> bool:
        """Whether waiting publishes exceed the limit."""
        return self._waiting_bytes > self.waiting_bytes_max

    def pause_if_behind(self, session: Session) -> None:
        """Stop reading from a publisher that is ahead of delivery."""
        if self.is_behind:
            self._throttle.pause(session.conn, "unrecorded")

    def resume_unless_behind(self) -> None:
        """Resume reading from publishers that were ahead of delivery."""
        if not self.is_behind:
            self._throttle.resume_all("unrecorded")

    # -- steps ----------------------------------------------------------------------------------------

    def written(self) -> None:
        """Reset the budget after the effects were taken. Full connections are reported before the next
        step."""
        self._budget = self.step_bytes_max
        self.spends = False

    def step(self) -> None:
        """Use the remaining budget between two writes, for publishes and for waiting messages in turn."""
        self._stepping = self.spends = True
        while self._budget > 0 and any(self.pending):
            if self.passing:
                self._hand_on()
            if self._runnable and self._budget > 0:
                self._serve_connection()
            if self._due and self._budget > 0:
                self._release()
        self._stepping = False

    def _hand_on(self) -> None:
        """Deliver the first publish to the next subscriber."""
        if self._work is None:
            self._queue = self._conflated_out or self._publishes
            self._work = self._fan_out(self._queue[0])
        for _ in self._work:
            return
        self._work = None
        publish = self._queue.popleft()
        self._waiting_bytes -= publish.waiting_bytes
        publish.done()

    def _fan_out(self, publish: _Publish) -> Iterator[None]:
        """Deliver a publish to one subscriber after the other, in parts."""
        batch, to = publish.batch, publish.to
        if batch is None:
            return
        matches = self._standing.matches(batch) if to is None else iter((Match(batch, to.backlog, 0),))
        for match in matches:
            self._budget -= match.looked_at
            if match.batch is None or match.group is None:
                yield
                continue
            frames = cut(match.batch)
            for sub in list(match.group.subs) if to is None else [to]:
                message, held, budget = 0, False, self._budget
                late = publish.number < sub.since
                while message < frames.count and not (held or late or sub.over or sub.session.ended):
                    budget = self._budget
                    if sub.conflating is not None and to is None:
                        message = self._consider(sub, sub.conflating, frames, message, publish.time)
                    else:
                        slow = sub.line[0].left > 0 or not sub.session.writable
                        if not slow:
                            message = self._send(sub, frames, message, frames.count)
                        held = message < frames.count and (slow or self._budget > 0)
                    if message < frames.count and not held:
                        yield  # continues in the next step
                if self._budget == budget:
                    self._budget -= step_delivery_bytes
                if held:
                    first = not sub.left
                    self._budget -= max(self.slow_consumers.hold(sub, frames, message), 0)
                    if first and sub.left and not sub.session.writable:
                        self._mark_ready(sub)  # otherwise it waits for credit
                yield
            self.slow_consumers.fanned_out()

    # -- conflation -----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Release all conflated messages after the last publish."""
        self.after(self._flush_all)

    def _flush_all(self) -> None:
        for sub in [*self._due, *self._intervals.due(_NEVER)]:
            self._flush(sub, _nothing)

    def _consider(
        self, sub: TransientFeed, conflating: ConflationBuffer, frames: SharedFrames, message: int, time: int
    ) -> int:
        """Pass a range of `frames`, published at `time`, to conflation, starting at `message`. Return the
        next message."""
        looked_at = conflation_piece_messages_max
        if conflating.settle_live(time):
            piece, first = frames.piece_at(message)
            low = message - first
            high = min(piece.batch.count, low + looked_at)
            conflating.consider_live(piece.batch, low, high, time)
            self._begin_interval(sub, conflating)
            message, looked_at = first + high, high - low
        self._budget -= looked_at * _CONFLATED_BYTES
        self._give(sub, conflating.take())
        return message

    def _release(self) -> None:
        """Deliver messages of the next subscription whose interval has ended."""
        sub = next(iter(self._due))
        del self._due[sub]
        conflating = sub.conflating
        assert conflating is not None
        time = self._publishes[0].time if self._publishes else self._micros()
        if conflating.settle_live(time):  # all earlier messages were considered
            self._begin_interval(sub, conflating)
        else:
            self._due[sub] = None
        batches = conflating.take()
        self._give(sub, batches)
        self._budget -= step_delivery_bytes + sum(batch.count for batch in batches) * _CONFLATED_BYTES

    def _begin_interval(self, sub: TransientFeed, conflating: ConflationBuffer) -> None:
        at = conflating.next_time()
        if at is not None and sub not in self._due:
            self._intervals.put(sub, at)
            self._clock.announce(self)

    def _give(self, sub: TransientFeed, batches: list[MessageBatch]) -> None:
        """Queue messages released by conflation for delivery."""
        self._conflated_out.extend(
            self._counted(_Publish(self._number, batch, _nothing, 0, sub)) for batch in batches
        )

    def _flush(self, sub: TransientFeed, done: Callable[[], None]) -> None:
        """Release all conflated messages in bounded pieces, then stop conflation and call `done`."""
        batches = []
        if sub.conflating is not None:
            self._forget_interval(sub)  # at its end, messages would be queued behind `done`
            sub.conflating.flush(conflation_piece_messages_max)
            batches = sub.conflating.take()
        if not batches:
            self._stop_conflating(sub)
            done()
            return
        self._give(sub, batches)
        self._conflated_out.append(self._counted(_Publish(0, None, lambda: self._flush(sub, done), 0)))

    def _stop_conflating(self, sub: TransientFeed) -> None:
        """Stop conflation, and discard its messages."""
        if sub.conflating is not None:
            sub.conflating.forget()
            sub.conflating = None
            self._forget_interval(sub)

    def _forget_interval(self, sub: TransientFeed) -> None:
        self._intervals.drop(sub)
        self._due.pop(sub, None)

    # -- ready feeds ----------------------------------------------------------------------------------

    def _mark_ready(self, sub: TransientFeed) -> None:
        """Schedule the first subscription in the line, which has waiting messages."""
        waiting = self.slow_consumers.waiting[sub.session]
        waiting.ready[sub.line[0]] = None
        if sub.session.writable:
            self._runnable[sub.session] = None

    def _serve_connection(self) -> None:
        """Send to the first ready subscription of a connection."""
        session = next(iter(self._runnable))
        del self._runnable[session]
        waiting, budget = self.slow_consumers.waiting[session], self._budget
        if not session.writable:
            self.slow_consumers.unpin_all(waiting)
            return
        sub = next(iter(waiting.ready))
        del waiting.ready[sub]
        again = self._send_waiting(sub)
        self.slow_consumers.unpin(sub)
        if sub.over and not sub.left:
            sub.leave_line()
            again = bool(sub.line and sub.line[0].left)
        if again:
            self._mark_ready(sub)
        elif waiting.ready:
            self._runnable[session] = None
        if self._budget == budget:
            self._budget -= step_delivery_bytes

    # -- sending --------------------------------------------------------------------------------------

    def _send_waiting(self, sub: TransientFeed) -> bool:
        """Send waiting messages within credit and budget. Return whether it can continue."""
        while (block := sub.block) is not None and self._budget > 0:
            allowance = sub.allowance
            credit = allowance.credit
            if not block.pieces:
                if credit > 0 or allowance.unspent:
                    self.slow_consumers.load(sub)  # this makes it ready again
                return False
            message = self._send(sub, block, sub.message, min(block.count, sub.message + sub.left))
            if message == sub.message:
                return False  # waits for credit
            self.slow_consumers.advance(sub, message - sub.message, credit - allowance.credit)
        return sub.left > 0

    def _send(self, sub: TransientFeed, frames: SharedFrames, message: int, end: int) -> int:
        """Send messages before `end` within credit and budget. Return the next message."""
        allowance = sub.allowance
        while message < end and self._budget > 0:
            piece, first = frames.piece_at(message)
            batch, start = piece.batch, message - first
            stop = min(batch.count, end - first)
            if start or stop < batch.count or batch.cost > allowance.credit:
                fitting = affordable_rows(batch, start, stop, allowance.credit)
                if not fitting and not allowance.unspent:
                    break
                batch = detach(slice_batch(batch, start, start + max(fitting, 1)))
            allowance.credit -= batch.cost
            sub.session.sent(batch.count, batch.body_bytes)
            crc = piece.crc() if batch is piece.batch else batch.crc()
            self._outbox.put(
                Send(sub.session.conn, encode_frame(Deliver(sub_id=sub.sub_id), batch, batch_crc=crc))
            )
            self._budget -= batch.nbytes + step_delivery_bytes
            message += batch.count
        return message


def _nothing() -> None:
    """Callback without effect."""
