"""Owns plain subscriptions to topics that are not recorded: what is published goes to whoever is there.

A publish is cut and checksummed once for each topic, and handed to its subscribers one after the other, a
bounded step at a time. Must never do more than `step_bytes_max` between two writes, wait for a subscriber
(backlogs.py keeps what it cannot take), or give a subscription anything out of order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tickertape.base.limits import (
    batch_memory_bytes,
    step_bytes_max,
    step_delivery_bytes,
    unrecorded_waiting_bytes_max,
)
from tickertape.base.ports import Buffer, Now
from tickertape.batch import MessageBatch, slice_batch, split_topics
from tickertape.engine.backlog import Backlog, LiveSubscription
from tickertape.engine.backlogs import Backlogs, SlowLimits
from tickertape.engine.effects import Effect, Send
from tickertape.engine.pieces import Piece, Pieces, owned
from tickertape.engine.session import Session
from tickertape.engine.subscription import affordable
from tickertape.wire.commands import Deliver
from tickertape.wire.frames import encode_frame


class _Publish(NamedTuple):
    """A publish that is to be handed on, or nothing but its turn."""

    number: int
    batch: MessageBatch | None
    topics: list[str]
    """Those that somebody subscribed to."""
    done: Callable[[], None]

    @property
    def waiting_bytes(self) -> int:
        return batch_memory_bytes + (0 if self.batch is None else self.batch.nbytes)


class Audience:
    """Subscriptions that are given the same messages, and where those that are behind wait for them."""

    __slots__ = ("backlog", "subs")

    def __init__(self) -> None:
        self.backlog = Backlog()
        self.subs: dict[LiveSubscription, None] = {}


class Unrecorded:
    """All subscriptions to unrecorded topics. `end(session, why)` ends a connection that is too slow.

    What it does is appended to `effects`; `written` says that they were taken."""

    def __init__(
        self, effects: list[Effect], limits: SlowLimits, end: Callable[[Session, str], None]
    ) -> None:
        self.step_bytes_max = step_bytes_max
        """About what is sent between two writes."""
        self.waiting_bytes_max = unrecorded_waiting_bytes_max
        self.backlogs = Backlogs(effects, limits, end, self._line)
        self._effects = effects
        self._by_topic: dict[str, Audience] = {}
        self._budget = self.step_bytes_max
        self._number = 0
        self._publishes: deque[_Publish] = deque()
        self._waiting_bytes = 0
        # What is left to do of the first publish: its topics, the subscribers of the one begun, and what of
        # its pieces the next of them was sent.
        self._audience: Audience | None = None
        self._topics: Iterator[tuple[str, MessageBatch]] | None = None
        self._subs: list[LiveSubscription] = []
        self._pieces: Pieces | None = None
        self._reached = (0, 0)
        self._lines: dict[Session, dict[LiveSubscription, None]] = {}
        """Subscriptions that wait for nothing but their connection, and their turn there."""
        self._runnable: dict[Session, None] = {}
        """Connections whose line goes on, in turn."""

    # -- coming and going -----------------------------------------------------------------------------

    def add(self, sub: LiveSubscription) -> None:
        """Begin to deliver to it what is published from now on."""
        sub.since = self._number
        audience = self._by_topic.setdefault(sub.topic, Audience())
        audience.subs[sub] = None
        sub.backlog = audience.backlog

    def remove(self, sub: LiveSubscription) -> None:
        """It is over."""
        sub.over = True
        self.backlogs.drop(sub)
        self._unline(sub)
        audience = self._by_topic.get(sub.topic)
        if audience is not None and sub in audience.subs:
            del audience.subs[sub]
            if not audience.subs:
                del self._by_topic[sub.topic]

    def credit(self, sub: LiveSubscription, amount: int) -> None:
        """The application consumed `amount` of cost."""
        sub.credit += amount
        if sub.waiting:
            self._line(sub)
            self.step()

    def writable(self, session: Session) -> None:
        """A connection has room again: its line goes on in the next step."""
        if session in self._lines:
            self._runnable[session] = None

    def spill_done(self, token: int, data: Buffer | OSError | None) -> None:
        """The answer to a `SpillWrite` (None, or an error) or a `SpillRead`."""
        self.backlogs.spill_done(token, data)

    # -- time -----------------------------------------------------------------------------------------

    def moment(self, now: Now) -> None:
        """It is now; nothing is done about it."""
        self.backlogs.now = now.mono

    def next_deadline(self) -> float | None:
        """When `settle` is wanted (monotonic seconds), or None."""
        return self.backlogs.next_deadline()

    def settle(self) -> None:
        """Do what is due by the clock."""
        self.backlogs.check_age()

    # -- publishes ------------------------------------------------------------------------------------

    def publish(self, batch: MessageBatch, done: Callable[[], None]) -> None:
        """Hand a batch to its subscribers, and call `done` then: at once when it is little."""
        self._append(batch, [topic for topic in batch.topics if topic in self._by_topic], done)

    def after(self, done: Callable[[], None]) -> None:
        """Call `done` when all that was published so far has been handed on."""
        self._append(None, [], done)

    def _append(self, batch: MessageBatch | None, topics: list[str], done: Callable[[], None]) -> None:
        number = self._number
        self._number += 1
        if not topics:
            batch = None
            if not self._publishes:
                done()
                return
        publish = _Publish(number, batch, topics, done)
        self._publishes.append(publish)
        self._waiting_bytes += publish.waiting_bytes
        if len(self._publishes) == 1:
            self.step()

    @property
    def passing(self) -> bool:
        """Whether something published is not handed on yet."""
        return bool(self._publishes)

    @property
    def congested(self) -> bool:
        """More waits to be handed on than should: read nothing more from who publishes."""
        return self._waiting_bytes > self.waiting_bytes_max

    # -- steps ----------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return bool(self._publishes or self._runnable)

    def written(self) -> None:
        """The effects were taken: whose connection is full now will be known before the next step."""
        self._budget = self.step_bytes_max

    def step(self) -> None:
        """Go on for what is left of the bytes between two writes: publishes and lines in turn."""
        while self._budget > 0 and self.has_work:
            if self._publishes:
                self._hand_on()
            if self._runnable and self._budget > 0:
                self._serve_line()

    def _hand_on(self) -> None:
        """Give the next subscriber what the first publish has for it."""
        publish = self._publishes[0]
        if not self._subs and self._audience is not None:
            self.backlogs.handed_on(self._audience.backlog)
            self._audience = None
        if not self._subs and not self._next_topic(publish):
            self._publishes.popleft()
            self._waiting_bytes -= publish.waiting_bytes
            self._topics = self._pieces = None
            publish.done()
            return
        assert self._pieces is not None
        sub = self._subs[-1]
        held, budget = False, self._budget
        if not sub.over and sub.since <= publish.number:
            if not sub.waiting:
                self._reached = self._send(sub, self._pieces, *self._reached)
            held = self._reached[0] < self._pieces.count
            if held and self._budget <= 0 and not sub.waiting and sub.session.writable:
                return  # it is not slow: it goes on in the next step
        self._visited(budget)
        reached, self._reached = self._reached, (0, 0)
        self._subs.pop()
        if held:
            self._hold(sub, self._pieces, reached)

    def _next_topic(self, publish: _Publish) -> bool:
        if publish.batch is None:
            return False
        if self._topics is None:
            self._topics = split_topics(publish.batch, publish.topics)
        for topic, chosen in self._topics:
            audience = self._by_topic.get(topic)
            if audience is not None:
                self._audience = audience
                self._subs = list(audience.subs)
                self._subs.reverse()
                self._pieces = Pieces(chosen)
                return True
        return False

    def _hold(self, sub: LiveSubscription, pieces: Pieces, reached: tuple[int, int]) -> None:
        first = not sub.waiting
        self._budget -= max(self.backlogs.hold(sub, pieces, *reached), 0)
        if first and not sub.over and not sub.session.writable:
            self._line(sub)  # else it waits for credit

    # -- lines ----------------------------------------------------------------------------------------

    def _line(self, sub: LiveSubscription) -> None:
        self._lines.setdefault(sub.session, {})[sub] = None
        if sub.session.writable:
            self._runnable[sub.session] = None

    def _unline(self, sub: LiveSubscription) -> None:
        line = self._lines.get(sub.session)
        if line is not None:
            line.pop(sub, None)
            if not line:
                del self._lines[sub.session]
                self._runnable.pop(sub.session, None)

    def _serve_line(self) -> None:
        """Send to the first subscription in the line of a connection what it waits for."""
        session = next(iter(self._runnable))
        del self._runnable[session]
        if not session.writable:
            self.backlogs.reading.unpin_all(session)
            return
        sub, budget = next(iter(self._lines[session])), self._budget
        self._unline(sub)
        self._send_waiting(sub)
        self.backlogs.reading.unpin(sub)
        if session in self._lines:
            self._runnable[session] = None
        self._visited(budget)

    def _visited(self, budget: int) -> None:
        """To look at a subscription counts as much as a delivery, unless something was sent."""
        if self._budget == budget:
            self._budget -= step_delivery_bytes

    # -- sending --------------------------------------------------------------------------------------

    def _send(self, sub: LiveSubscription, pieces: Pieces, piece: int, message: int) -> tuple[int, int]:
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

    def _send_waiting(self, sub: LiveSubscription) -> None:
        """Send of what waits for it what credit, connection and step allow."""
        while sub.waiting and sub.session.writable:
            if self._budget <= 0:
                self._lines.setdefault(sub.session, {})[sub] = None
                return
            block = sub.block
            assert block is not None
            if not block.pieces:
                if sub.credit > 0 or sub.credit == sub.window:
                    self.backlogs.reading.load(sub)  # it comes back to its line then
                return
            piece, first = block.piece_at(sub.message)
            batch = self._send_of(sub, piece, sub.message - first, sub.left)
            if batch is None:
                return  # it waits for credit
            self.backlogs.advance(sub, batch)

    def _send_of(
        self, sub: LiveSubscription, piece: Piece, start: int, messages_max: int
    ) -> MessageBatch | None:
        """Send a piece from a message on, so many messages or what credit allows of them; returns what was
        sent."""
        batch = piece.batch
        stop = min(batch.count, start + messages_max)
        if start == 0 and stop == batch.count and batch.cost <= sub.credit:
            crc = piece.crc()
        else:
            fitting = affordable(batch, start, stop, sub.credit)
            if fitting == 0:
                if sub.credit < sub.window:
                    return None
                fitting = 1  # nothing is outstanding: then one message may exceed the credit
            batch = owned(slice_batch(batch, start, start + fitting))
            crc = piece.crc() if batch is piece.batch else batch.crc()
        sub.credit -= batch.cost
        sub.session.sent(batch)
        frame = encode_frame(Deliver(sub_id=sub.sub_id), batch, batch_crc=crc)
        self._effects.append(Send(sub.session.conn, frame))
        self._budget -= batch.nbytes + step_delivery_bytes
        return batch
