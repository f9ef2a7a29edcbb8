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
from tickertape.engine.conflation.buffer import ConflationBuffer
from tickertape.engine.limits import step_bytes_max, step_delivery_bytes, unrecorded_waiting_bytes_max
from tickertape.engine.matching.interest import Interest
from tickertape.engine.matching.subscription_index import InterestGroup, Match, SubscriptionIndex
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.effects import Send
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.sessions.read_throttle import ReadThrottle
from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.credit import affordable_rows
from tickertape.engine.transient.backlog import Backlog, TransientFeed
from tickertape.engine.transient.conflation_timers import TransientConflation, micros
from tickertape.engine.transient.shared_frames import SharedFrame, SharedFrames, detach
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


class TransientGroup(InterestGroup[TransientFeed]):
    """Subscriptions with the same interest, and their backlog."""

    def __init__(self, interest: Interest) -> None:
        super().__init__(interest)
        self.backlog = Backlog()


class TransientDelivery:
    """All subscriptions to topics that are not recorded. `end(session, why)` closes a slow consumer."""

    def __init__(
        self,
        outbox: Outbox,
        clock: EngineClock,
        limits: SlowConsumerLimits,
        throttle: ReadThrottle,
        end: Callable[[Session, str], None],
    ) -> None:
        self.step_bytes_max = step_bytes_max
        """About what is sent between two writes."""
        self.waiting_bytes_max = unrecorded_waiting_bytes_max
        self.slow_consumers = SlowConsumerBuffers(outbox, clock, limits, end)
        self._outbox = outbox
        self._clock = clock
        self._throttle = throttle
        self._standing: SubscriptionIndex[TransientFeed, TransientGroup] = SubscriptionIndex(TransientGroup)
        self._budget = self.step_bytes_max
        self._number = 0
        self._publishes: deque[_Publish] = deque()
        self._conflated_out: deque[_Publish] = deque()
        """What conflation gave: it goes before the publishes that are not begun yet."""
        self._queue = self._publishes
        """Of which of the two the first is begun, or is next."""
        self._waiting_bytes = 0
        # What is left to do of the first publish: its offers, the subscribers of the one begun, and what of
        # its pieces the next of them was sent.
        self._group: TransientGroup | None = None
        self._offers: Iterator[Match[TransientGroup]] | None = None
        self._subs: list[TransientFeed] = []
        self._pieces: SharedFrames | None = None
        self._reached = (0, 0)
        self._holding = TransientConflation()
        self._ready_by_connection: dict[Session, dict[TransientFeed, None]] = {}
        """Subscriptions that wait for nothing but their connection, and their turn there."""
        self._runnable: dict[Session, None] = {}
        """Connections with ready subscriptions, in turn."""

    # -- coming and going -----------------------------------------------------------------------------

    def add(self, sub: TransientFeed) -> None:
        """Begin to deliver to it what is published from now on."""
        sub.since = self._number
        group = self._standing.add(sub)
        if sub.conflating is None:
            sub.backlog = group.backlog

    def replace(self, old: TransientFeed, new: TransientFeed) -> None:
        """`new` takes the place of `old`, from what is published next on; what `old` has still to get comes
        first."""
        old.until = self._number
        new.earlier, old.later = old, new
        self.add(new)
        self._retired(old)

    def retire(self, sub: TransientFeed) -> None:
        """It is given what was published so far, and nothing more."""
        sub.until = self._number
        self._retired(sub)

    def _retired(self, sub: TransientFeed) -> None:
        self.after(lambda: self._flush(sub, lambda: self._standing.discard(sub)))

    def remove(self, sub: TransientFeed) -> None:
        """It is over, and those whose place it took."""
        earlier = sub.earlier
        while earlier is not None:
            self._remove(earlier)
            earlier = earlier.earlier
        self._remove(sub)

    def _remove(self, sub: TransientFeed) -> None:
        sub.over = True
        self._holding.drop(sub)
        self.slow_consumers.drop(sub)
        self._unmark_ready(sub)
        self._standing.discard(sub)

    def credit(self, sub: TransientFeed) -> None:
        """It was granted more credit."""
        sub = self._next_to_send(sub)
        if sub.waiting:
            self._mark_ready(sub)
            self.step()

    def writable(self, session: Session) -> None:
        """A connection has room again: its line goes on in the next step."""
        if session in self._ready_by_connection:
            self._runnable[session] = None

    def spill_done(self, token: int, data: Buffer | OSError | None) -> None:
        """The answer to a `SpillWrite` (None, or an error) or a `SpillRead`."""
        for sub in self.slow_consumers.spill_done(token, data):
            if not sub.over:
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
    def is_behind(self) -> bool:
        """Whether more waits to be handed on than should."""
        return self._waiting_bytes > self.waiting_bytes_max

    def pause_if_behind(self, session: Session) -> None:
        """Stop reading from a publisher that is ahead of delivery."""
        if self.is_behind:
            self._throttle.pause(session.conn, "unrecorded")

    def resume_unless_behind(self) -> None:
        """Read again from publishers that were ahead."""
        if not self.is_behind:
            self._throttle.resume_all("unrecorded")

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
        while self._budget > 0 and self.has_work:
            if self.passing:
                self._hand_on()
            if self._runnable and self._budget > 0:
                self._serve_connection()
            if self._holding and self._budget > 0:
                self._release()

    def _hand_on(self) -> None:
        """Give the next subscriber what the first publish has for it."""
        if self._offers is None:
            self._queue = self._conflated_out or self._publishes
        publish = self._queue[0]
        if not self._subs and self._group is not None:
            self.slow_consumers.fanned_out(self._group.backlog)
            self._group = None
        if not self._subs:
            offer = self._next_offer(publish)
            if offer is None:
                self._queue.popleft()
                self._waiting_bytes -= publish.waiting_bytes
                self._offers = self._pieces = None
                publish.done()
                return
            self._budget -= offer.looked_at
            if offer.batch is None or offer.group is None:
                return
            self._group = offer.group
            self._subs = list(offer.group.subs)
            self._subs.reverse()
            self._pieces = SharedFrames(offer.batch)
            if not self._subs:
                return
        assert self._pieces is not None
        sub = self._subs[-1]
        held, budget = False, self._budget
        if _is_for(publish, sub):
            if sub.conflating is not None and publish.to is None:
                if not self._conflate(sub, sub.conflating, publish.time, self._pieces):
                    return  # there is more of it
            else:
                if self._next_to_send(sub) is sub and not sub.waiting:
                    self._reached = self._send(sub, self._pieces, *self._reached)
                held = self._reached[0] < self._pieces.count
            if held and self._budget <= 0 and sub.session.writable and not self._next_to_send(sub).waiting:
                return  # it is not slow: it goes on in the next step
        self._visited(budget)
        reached, self._reached = self._reached, (0, 0)
        self._subs.pop()
        if held:
            self._hold(sub, self._pieces, reached)

    def _next_offer(self, publish: _Publish) -> Match[TransientGroup] | None:
        if publish.batch is None:
            return None
        if self._offers is None and publish.to is not None:
            self._offers = iter((Match(publish.batch, _alone(publish.to), 0),))
        elif self._offers is None:
            self._offers = self._standing.matches(publish.batch)
        return next(self._offers, None)

    def _next_to_send(self, sub: TransientFeed) -> TransientFeed:
        """The first of those whose place it took for which something waits, or itself."""
        first, later = sub, sub
        fanned_out = self._publishes[0].number if self._publishes else self._number
        while (earlier := later.earlier) is not None:
            if earlier.waiting:
                first = earlier
            elif earlier.earlier is None and earlier.until is not None and earlier.until <= fanned_out:
                if earlier.conflating is None:
                    later.earlier = None  # nothing comes for it any more
                break
            later = earlier
        return first

    def _hold(self, sub: TransientFeed, pieces: SharedFrames, reached: tuple[int, int]) -> None:
        first = not sub.waiting
        self._budget -= max(self.slow_consumers.hold(sub, pieces, *reached), 0)
        if first and not sub.over and not sub.session.writable:
            self._mark_ready(sub)  # else it waits for credit

    # -- conflation -----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Nothing more is published: nothing is held back any more."""
        self.after(self._flush_all)

    def _flush_all(self) -> None:
        for sub in self._holding.holders():
            self._flush(sub, _nothing)

    def _conflate(
        self, sub: TransientFeed, conflating: ConflationBuffer, time: int, pieces: SharedFrames
    ) -> bool:
        """Let conflation look at a stretch of what is handed on; False when there is more."""
        self._reached, cost = self._holding.consider(sub, conflating, pieces, self._reached, time)
        self._budget -= cost
        self._give(sub, conflating.take())
        if self._reached[0] < pieces.count:
            return False
        self._reached = (0, 0)
        return True

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
        self._ready_by_connection.setdefault(sub.session, {})[sub] = None
        if sub.session.writable:
            self._runnable[sub.session] = None

    def _unmark_ready(self, sub: TransientFeed) -> None:
        line = self._ready_by_connection.get(sub.session)
        if line is not None:
            line.pop(sub, None)
            if not line:
                del self._ready_by_connection[sub.session]
                self._runnable.pop(sub.session, None)

    def _serve_connection(self) -> None:
        """Send to the first ready subscription of a connection."""
        session = next(iter(self._runnable))
        del self._runnable[session]
        if not session.writable:
            self.slow_consumers.reading.unpin_all(session)
            return
        sub, budget = next(iter(self._ready_by_connection[session])), self._budget
        self._unmark_ready(sub)
        sub = self._next_to_send(sub)
        self._unmark_ready(sub)
        self._send_waiting(sub)
        self.slow_consumers.reading.unpin(sub)
        if not sub.waiting:
            self._mark_next_ready(sub)
        if session in self._ready_by_connection:
            self._runnable[session] = None
        self._visited(budget)

    def _mark_next_ready(self, sub: TransientFeed) -> None:
        """Nothing waits for it any more: it is the turn of what took its place."""
        later = sub.later
        while later is not None and not later.waiting:
            later = later.later
        if later is not None:
            self._mark_ready(later)

    def _visited(self, budget: int) -> None:
        """To look at a subscription counts as much as a delivery, unless something was sent."""
        if self._budget == budget:
            self._budget -= step_delivery_bytes

    # -- sending --------------------------------------------------------------------------------------

    def _send(self, sub: TransientFeed, pieces: SharedFrames, piece: int, message: int) -> tuple[int, int]:
        """Send from a message of a piece on what credit, connection and step allow; returns what is next."""
        while piece < pieces.count and self._budget > 0 and sub.session.writable:
            part = pieces.pieces[piece]
            sent = self._send_of(sub, part, message, part.batch.count)
            if sent is None:
                break
            message += sent.count
            if message == part.batch.count:
                piece, message = piece + 1, 0
        return piece, message

    def _send_waiting(self, sub: TransientFeed) -> None:
        """Send of what waits for it what credit, connection and step allow."""
        while sub.waiting and sub.session.writable:
            if self._budget <= 0:
                self._ready_by_connection.setdefault(sub.session, {})[sub] = None
                return
            block = sub.block
            assert block is not None
            if not block.pieces:
                if sub.allowance.credit > 0 or sub.allowance.credit == sub.allowance.window:
                    self.slow_consumers.reading.load(sub)  # it comes back to its line then
                return
            piece, first = block.piece_at(sub.message)
            batch = self._send_of(sub, piece, sub.message - first, sub.left)
            if batch is None:
                return  # it waits for credit
            self.slow_consumers.advance(sub, batch)

    def _send_of(
        self, sub: TransientFeed, piece: SharedFrame, start: int, messages_max: int
    ) -> MessageBatch | None:
        """Send a piece from a message on, so many messages or what credit allows of them; returns what was
        sent."""
        batch = piece.batch
        stop = min(batch.count, start + messages_max)
        if start == 0 and stop == batch.count and batch.cost <= sub.allowance.credit:
            crc = piece.crc()
        else:
            fitting = affordable_rows(batch, start, stop, sub.allowance.credit)
            if fitting == 0:
                if sub.allowance.credit < sub.allowance.window:
                    return None
                fitting = 1  # nothing is outstanding: then one message may exceed the credit
            batch = detach(slice_batch(batch, start, start + fitting))
            crc = piece.crc() if batch is piece.batch else batch.crc()
        sub.allowance.credit -= batch.cost
        sub.session.sent(batch.count, batch.body_bytes)
        frame = encode_frame(Deliver(sub_id=sub.sub_id), batch, batch_crc=crc)
        self._outbox.put(Send(sub.session.conn, frame))
        self._budget -= batch.nbytes + step_delivery_bytes
        return batch


def _is_for(publish: _Publish, sub: TransientFeed) -> bool:
    if sub.over or publish.to is not None:
        return not sub.over
    return sub.since <= publish.number and (sub.until is None or publish.number < sub.until)


def _alone(sub: TransientFeed) -> TransientGroup:
    """Nobody but `sub`, which waits by itself."""
    audience = TransientGroup(sub.interest)
    audience.subs[sub] = None
    audience.backlog = sub.backlog
    return audience


def _nothing() -> None:
    """Nobody wants to know."""
