"""Transient delivery: messages of topics that are not recorded, for subscriptions that exist.

A publish is cut and checksummed once for each topic, and handed to its subscriptions in bounded steps.

Invariants:
- At most about `step_bytes_max` are sent between two writes.
- No subscription is waited for: the buffers of slow consumers keep what it cannot take.
- A subscription is sent its messages in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tickertape.base.interfaces import Buffer
from tickertape.batch import MessageBatch, slice_batch
from tickertape.engine.limits import step_bytes_max, step_delivery_bytes, unrecorded_waiting_bytes_max
from tickertape.engine.matching.subscription_index import Match, SubscriptionIndex
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.effects import Send
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.credit import affordable_rows
from tickertape.engine.transient.backlog import Backlog, TransientFeed
from tickertape.engine.transient.conflation_timers import TransientConflation, micros
from tickertape.engine.transient.shared_frames import SharedFrames, cut, detach
from tickertape.engine.transient.slow_consumers import SlowConsumerBuffers, SlowConsumerLimits
from tickertape.journal.limits import batch_memory_bytes
from tickertape.wire.commands import Deliver
from tickertape.wire.frames import encode_frame


class _Publish(NamedTuple):
    """A publish to deliver, or the turn of a callback."""

    number: int
    batch: MessageBatch | None
    done: Callable[[], None]
    time: int
    """When it came, microseconds."""
    to: TransientFeed | None = None
    """It is what conflation gave this one, and for nobody else."""

    @property
    def waiting_bytes(self) -> int:
        return batch_memory_bytes + (0 if self.batch is None else self.batch.nbytes)


class TransientDelivery:
    """All subscriptions to topics that are not recorded. `end(session, why)` closes a slow consumer."""

    def __init__(
        self,
        outbox: Outbox,
        clock: EngineClock,
        limits: SlowConsumerLimits,
        end: Callable[[Session, str], None],
    ) -> None:
        self.step_bytes_max = step_bytes_max
        """About what is sent between two writes."""
        self.waiting_bytes_max = unrecorded_waiting_bytes_max
        self.slow_consumers = SlowConsumerBuffers(outbox, clock, limits, end)
        self._outbox = outbox
        self._clock = clock
        self._standing: SubscriptionIndex[TransientFeed, Backlog] = SubscriptionIndex(Backlog)
        self._budget = self.step_bytes_max
        self._number = 0
        self._publishes: deque[_Publish] = deque()
        self._conflated_out: deque[_Publish] = deque()
        """What conflation gave: it goes before the publishes that are not begun yet."""
        self._queue = self._publishes
        """Of which of the two the first is begun, or is next."""
        self._waiting_bytes = 0
        self._work: Iterator[None] | None = None
        """What is left to do of that one."""
        self._stepping = False
        self._holding = TransientConflation()
        self._ready: dict[Session, dict[TransientFeed, None]] = {}
        """Subscriptions that wait for nothing but their connection, and their turn there."""
        self._runnable: dict[Session, None] = {}
        """Connections with ready subscriptions, in turn."""

    # -- coming and going -----------------------------------------------------------------------------

    def add(self, sub: TransientFeed) -> None:
        """Begin to deliver to it what is published from now on."""
        sub.since = self._number
        group = self._standing.add(sub)
        if sub.conflating is None:
            sub.backlog = group

    def replace(self, old: TransientFeed, new: TransientFeed) -> None:
        """`new` takes the place of `old`, from what is published next on; what `old` has still to get comes
        first."""
        new.line = old.line
        new.line.append(new)
        self.add(new)
        self.retire(old)

    def retire(self, sub: TransientFeed) -> None:
        """It is given what was published so far, and nothing more."""
        if sub.until is None:
            sub.until = self._number
            self.after(lambda: self._flush(sub, lambda: self._retired(sub)))

    def _retired(self, sub: TransientFeed) -> None:
        sub.over = True
        self._standing.discard(sub)
        sub.leave_line()

    def remove(self, sub: TransientFeed) -> None:
        """It is over, and those whose place it took."""
        while sub.line:
            self._remove(sub.line.pop())

    def _remove(self, sub: TransientFeed) -> None:
        sub.over = True
        self._holding.drop(sub)
        self.slow_consumers.drop(sub)
        self._unmark_ready(sub)
        self._standing.discard(sub)

    def credit(self, sub: TransientFeed) -> None:
        """It was granted more credit."""
        if sub.line and sub.line[0].left:
            self._mark_ready(sub)
            self.step()

    def writable(self, session: Session) -> None:
        """A connection has room again: its line goes on in the next step."""
        if session in self._ready:
            self._runnable[session] = None

    def spill_done(self, token: int, data: Buffer | OSError | None) -> None:
        """The answer to a `SpillWrite` (None, or an error) or a `SpillRead`."""
        for sub in self.slow_consumers.spill_done(token, data):
            if sub.left:
                self._mark_ready(sub)

    # -- time -----------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `settle` is wanted (monotonic seconds), or None."""
        deadlines = (self.slow_consumers.next_deadline(), self._holding.next_deadline())
        return min([deadline for deadline in deadlines if deadline is not None], default=None)

    def settle(self) -> None:
        """Do what is due by the clock."""
        self.slow_consumers.check_age()
        self._holding.clock(self._clock.mono)
        if self._holding:
            self.step()

    # -- publishes ------------------------------------------------------------------------------------

    def publish(self, batch: MessageBatch, done: Callable[[], None]) -> None:
        """Hand a batch to its subscribers, and call `done` then: at once when it is little."""
        self._append(batch if self._standing.may_match(batch) else None, done)

    def after(self, done: Callable[[], None]) -> None:
        """Call `done` when all that was published so far has been handed on."""
        self._append(None, done)

    def _append(self, batch: MessageBatch | None, done: Callable[[], None]) -> None:
        number = self._number
        self._number += 1
        if batch is None and not self.passing:
            done()
            return
        self._publishes.append(self._counted(_Publish(number, batch, done, micros(self._clock.mono))))
        if len(self._publishes) == 1:
            self.step()

    def _counted(self, publish: _Publish) -> _Publish:
        self._waiting_bytes += publish.waiting_bytes
        return publish

    @property
    def passing(self) -> bool:
        """Whether something published is not handed on yet."""
        return bool(self._publishes or self._conflated_out)

    @property
    def congested(self) -> bool:
        """More waits to be handed on than should: read nothing more from who publishes."""
        return self._waiting_bytes > self.waiting_bytes_max

    # -- steps ----------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return bool(self._publishes or self._conflated_out or self._runnable or self._holding)

    def written(self) -> None:
        """The effects were taken: whose connection is full now will be known before the next step."""
        self._budget = self.step_bytes_max

    def step(self) -> None:
        """Go on for what is left of the bytes between two writes: publishes and lines in turn."""
        if self._stepping:
            return  # who publishes was ended by it, and what waited to be handled was published
        self._stepping = True
        while self._budget > 0 and self.has_work:
            if self.passing:
                self._hand_on()
            if self._runnable and self._budget > 0:
                self._serve_connection()
            if self._holding and self._budget > 0:
                self._release()
        self._stepping = False

    def _hand_on(self) -> None:
        """Give the next subscriber what the first publish has for it."""
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
        """Give what is published to one subscriber after the other, or a part of it."""
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
            for sub in list(match.group.subs):
                message, budget = 0, self._budget
                while _is_for(publish, sub) and message < frames.count:
                    budget = self._budget
                    if sub.conflating is not None and to is None:
                        message, cost = self._holding.consider(sub, frames, message, publish.time)
                        self._budget -= cost
                        self._give(sub, sub.conflating.take())
                    elif sub.line[0].left or not sub.session.writable:
                        self._hold(sub, frames, message)
                        break
                    else:
                        message = self._send(sub, frames, message, frames.count)
                        if message < frames.count and self._budget > 0:  # else it is not slow: it goes on
                            self._hold(sub, frames, message)
                            break
                    if message < frames.count:
                        yield
                if self._budget == budget:
                    self._budget -= step_delivery_bytes
                yield
            self.slow_consumers.fanned_out()

    def _hold(self, sub: TransientFeed, frames: SharedFrames, message: int) -> None:
        first = not sub.left
        self._budget -= max(self.slow_consumers.hold(sub, frames, message), 0)
        if first and sub.left and not sub.session.writable:
            self._mark_ready(sub)  # else it waits for credit

    # -- conflation -----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Nothing more is published: nothing is held back any more."""
        self.after(self._flush_all)

    def _flush_all(self) -> None:
        for sub in self._holding.holders():
            self._flush(sub, _nothing)

    def _release(self) -> None:
        """Hand on what conflation gives the next whose interval is over."""
        time = self._publishes[0].time if self._publishes else micros(self._clock.mono)
        sub, batches, cost = self._holding.release(time)
        self._give(sub, batches)
        self._budget -= cost

    def _give(self, sub: TransientFeed, batches: list[MessageBatch]) -> None:
        """Hand on what conflation gave it."""
        self._conflated_out.extend(self._counted(_Publish(0, batch, _nothing, 0, sub)) for batch in batches)

    def _flush(self, sub: TransientFeed, done: Callable[[], None]) -> None:
        """Hand on what is held back for it, a stretch at a time; then it does not conflate any more."""
        batches = self._holding.flush(sub)
        if not batches:
            self._holding.drop(sub)
            done()
            return
        self._give(sub, batches)
        self._conflated_out.append(self._counted(_Publish(0, None, lambda: self._flush(sub, done), 0)))

    # -- ready feeds ----------------------------------------------------------------------------------

    def _mark_ready(self, sub: TransientFeed) -> None:
        """It is the turn of the first in its line."""
        self._ready.setdefault(sub.session, {})[sub.line[0]] = None
        if sub.session.writable:
            self._runnable[sub.session] = None

    def _unmark_ready(self, sub: TransientFeed) -> None:
        ready = self._ready.get(sub.session)
        if ready is not None:
            ready.pop(sub, None)
            if not ready:
                del self._ready[sub.session]
                self._runnable.pop(sub.session, None)

    def _serve_connection(self) -> None:
        """Send to the first ready subscription of a connection."""
        session = next(iter(self._runnable))
        del self._runnable[session]
        if not session.writable:
            self.slow_consumers.unpin_all(session)
            return
        sub, budget = next(iter(self._ready[session])), self._budget
        self._unmark_ready(sub)
        again = self._send_waiting(sub)
        self.slow_consumers.unpin(sub)
        if sub.over and not sub.left:
            sub.leave_line()
            again = bool(sub.line and sub.line[0].left)
        if again:
            self._mark_ready(sub)
        elif session in self._ready:
            self._runnable[session] = None
        if self._budget == budget:
            self._budget -= step_delivery_bytes

    # -- sending --------------------------------------------------------------------------------------

    def _send_waiting(self, sub: TransientFeed) -> bool:
        """Send of what waits for it what credit and step allow; return whether it can go on."""
        while (block := sub.block) is not None and self._budget > 0:
            allowance = sub.allowance
            credit = allowance.credit
            if not block.pieces:
                if credit > 0 or credit == allowance.window:
                    self.slow_consumers.load(sub)  # it is ready again then
                return False
            message = self._send(sub, block, sub.message, min(block.count, sub.message + sub.left))
            if message == sub.message:
                return False  # it waits for credit
            self.slow_consumers.advance(sub, message - sub.message, credit - allowance.credit)
        return sub.left > 0

    def _send(self, sub: TransientFeed, frames: SharedFrames, message: int, end: int) -> int:
        """Send messages up to `end` as far as credit and step allow; return the next one."""
        allowance = sub.allowance
        while message < end and self._budget > 0:
            piece, first = frames.piece_at(message)
            batch, start = piece.batch, message - first
            stop = min(batch.count, end - first)
            if start or stop < batch.count or batch.cost > allowance.credit:
                fitting = affordable_rows(batch, start, stop, allowance.credit)
                if not fitting and allowance.credit < allowance.window:
                    break
                # When nothing is outstanding, one message may exceed the credit.
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


def _is_for(publish: _Publish, sub: TransientFeed) -> bool:
    if sub.over or publish.to is not None:
        return not sub.over
    return sub.since <= publish.number and (sub.until is None or publish.number < sub.until)


def _nothing() -> None:
    """Nobody wants to know."""
