"""Owns delivery of the log: subscriptions behind its end read by themselves, those at the end share one
dispatcher.

A subscription leaves the dispatcher when it lacks credit or its connection is full, goes on from exactly
there by reading, and joins again when it has caught up. Must never leave a gap or send a message twice at
either crossing, hold more for slow readers than the read budget, or do more in one step than
`step_bytes_max`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tickertape.base.errors import TickertapeError
from tickertape.base.limits import step_bytes_max, step_delivery_bytes
from tickertape.base.ports import Buffer, Now
from tickertape.batch import MessageBatch
from tickertape.engine.agenda import Agenda
from tickertape.engine.answers import Answers
from tickertape.engine.dispatcher import Dispatcher
from tickertape.engine.effects import Effect, Read, Send
from tickertape.engine.notices import Notices
from tickertape.engine.read_budget import ReadBudget
from tickertape.engine.selection import Selection, selections
from tickertape.engine.session import Session
from tickertape.engine.subscription import Phase, Subscription
from tickertape.journal.journal import Journal
from tickertape.journal.reading import Part, ReadRequest
from tickertape.journal.retired import expired
from tickertape.wire.commands import Command, Completed, Deliver, Ended
from tickertape.wire.frames import encode_frame

_CLOCK_CHECK_SECONDS = 1.0


class Delivery:
    """All subscriptions to recorded topics. Appends effects to the list it is given; `ended` is told of each
    one that is over."""

    def __init__(
        self,
        journal: Journal,
        effects: list[Effect],
        answers: Answers,
        new_token: Callable[[], int],
        budget: ReadBudget,
        ended: Callable[[Subscription], None],
    ) -> None:
        self._journal = journal
        self._effects = effects
        self._answers = answers
        self._new_token = new_token
        self._budget = budget
        self._ended = ended
        self.step_bytes_max = step_bytes_max
        """About what one step delivers."""
        self._runnable: deque[Subscription] = deque()
        self._reads: dict[int, Subscription] = {}
        self._waiting: dict[int, dict[Subscription, None]] = {}
        """Subscriptions that go on when their connection is writable again."""
        self.dispatcher = Dispatcher(journal.persisted_end, self._deliver, self.run)
        self._clocked: Agenda[Subscription] = Agenda()
        """Subscriptions that end at a log time still to come."""
        self._notices = Notices(effects)

    # -- inputs ---------------------------------------------------------------------------------------

    def begin(self, sub: Subscription) -> None:
        """Its extent is known: start to deliver."""
        if sub.stop_time is not None:
            self._clocked.put(sub, sub.stop_time)
        self.run(sub)

    def run(self, sub: Subscription) -> None:
        """Something changed for it (credit, room, data): look at it in the next step."""
        if not sub.queued and sub.phase is Phase.BEHIND and not sub.reading:
            sub.queued = True
            self._runnable.append(sub)

    def credit(self, sub: Subscription, amount: int) -> None:
        """The application consumed `amount` of cost."""
        sub.credit += amount
        sub.starved = False
        self.run(sub)

    def writable(self, session: Session) -> None:
        """A connection has room again."""
        session.writable = True
        for sub in self._waiting.pop(session.conn, ()):
            self.run(sub)

    def remove(self, sub: Subscription) -> None:
        """It is over; an answer to its read will be ignored."""
        self.dispatcher.leave(sub)
        sub.phase = Phase.OVER
        sub.parts = []
        sub.reader = None
        if not sub.reading:
            self._budget.forget(sub)
        self._clocked.drop(sub)
        waiting = self._waiting.get(sub.session.conn)
        if waiting is not None:
            waiting.pop(sub, None)
            if not waiting:
                del self._waiting[sub.session.conn]
        self._ended(sub)

    def read_done(self, token: int, data: Buffer | TickertapeError) -> bool:
        """The answer to a read of ours; False when the token is none of ours."""
        sub = self._reads.pop(token, None)
        if sub is None:
            return False
        sub.reading = False
        if sub.phase is Phase.OVER or sub.reader is None:
            self._budget.forget(sub)
            return True
        try:
            if isinstance(data, TickertapeError):
                raise data
            sub.parts = selections(sub.reader.answer(data), sub.topic)
        except TickertapeError as error:
            self._answers.end_subscription(sub.session.conn, sub.sub_id, sub.topic, error)
            self.remove(sub)
            return True
        self.run(sub)
        return True

    def persisted(self, part: Part) -> None:
        """A commit became persisted."""
        self.dispatcher.persisted(part)
        self._notices.moved(part)

    def settle(self, now: Now) -> None:
        """After commits, and when the clock moved: completions, ends and notices that are due."""
        if self._clocked:
            for sub in self._clocked.due(self._journal.log_time(now)):
                self._stop_by_clock(sub)
        self._cross_reached()
        self._notices.settle(now, self.dispatcher)

    def _stop_by_clock(self, sub: Subscription) -> None:
        """The log time of its end has come: whatever is accepted from now on is stamped later, so the end is
        a position.
        """
        if sub.stop_time is not None:
            end = self._journal.accepted_end
            # `stop_time` stays: whoever is still behind must not be given what is stamped later.
            sub.stop = end if sub.stop is None else min(sub.stop, end)
        if sub.phase is Phase.AT_END:
            self.dispatcher.bound(sub)
        else:
            self.run(sub)

    # -- outputs --------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return bool(self._runnable) or self.dispatcher.has_work

    def next_deadline(self, now: Now) -> float | None:
        """Monotonic second at which `settle` is wanted: ranges that end by the clock, notices."""
        deadline = self._notices.next_deadline()
        stop = self._clocked.first()
        if stop is not None:
            # The wall clock may be set forward: look at it every second whatever it says now.
            wait = min(max((stop - now.wall) / 1e6, 0.0), _CLOCK_CHECK_SECONDS)
            deadline = now.mono + wait if deadline is None else min(deadline, now.mono + wait)
        return deadline

    def step(self) -> None:
        """Serve those at the end and then those behind it, in turn, about `step_bytes_max` in all."""
        budget = self.dispatch()
        while self._runnable and budget > 0:
            sub = self._runnable.popleft()
            sub.queued = False
            if sub.phase is Phase.BEHIND and not sub.reading:
                budget -= self._advance(sub) + step_delivery_bytes

    def dispatch(self) -> int:
        """Serve those at the end of the log; returns what is left of the bytes of a step."""
        budget = self.step_bytes_max
        if self.dispatcher.has_work:
            budget = self.dispatcher.step(budget)
            self._cross_reached()
        return budget

    # -- subscriptions behind the end -----------------------------------------------------------------

    def _advance(self, sub: Subscription) -> int:
        """Send what was read, then read on, or join the dispatcher. Returns the bytes sent."""
        if not self._cross(sub, sub.position):
            return 0
        if not sub.session.writable:
            self._waiting.setdefault(sub.session.conn, {})[sub] = None
            self._budget.idle(sub, sub.let_go)
            return 0
        if sub.starved:
            return 0
        self._budget.busy(sub)
        if not sub.parts:
            self._fetch(sub)
            if not sub.parts:
                return 0
        return self._offer(sub, sub.parts[0])

    def _offer(self, sub: Subscription, part: Selection) -> int:
        """Give a subscription its share of what it has read."""
        share = sub.share(part)
        sub.position = max(sub.position, share.next)
        sent = 0
        if share.batch is not None:
            sent = share.batch.nbytes
            self._deliver(sub, share.batch, share.next)
        if sub.position >= part.end:
            sub.parts.pop(0)
        elif share.blocked:
            sub.starved = True
            self._budget.idle(sub, sub.let_go)
            return sent
        self.run(sub)
        return sent

    def _fetch(self, sub: Subscription) -> None:
        """Read on. What was read before is written by now, or it would not be this one's turn."""
        if sub.reader is None:
            if sub.position >= self._journal.persisted_end:
                self._join(sub)
                return
            if sub.position < self._journal.view.first_position:
                self._expire(sub)
                return
            sub.reader = self._journal.reader(sub.position, sub.topic)
        step = sub.reader.poll()
        if isinstance(step, ReadRequest):
            if self._budget.reserve(sub, step.size, lambda: self.run(sub)):
                token = self._new_token()
                sub.reading = True
                self._reads[token] = sub
                self._effects.append(Read(token, step))
            return
        self._budget.release(sub)
        if step is None:
            sub.position = max(sub.position, sub.reader.position)
            self._join(sub)
        else:
            sub.parts = selections(step, sub.topic)

    def _expire(self, sub: Subscription) -> None:
        """What it needs is gone, which its pin should have prevented: nothing is skipped silently."""
        view = self._journal.view
        error = expired(f"position {sub.position}", view.retired, view.first)
        self._answers.end_subscription(sub.session.conn, sub.sub_id, sub.topic, error)
        self.remove(sub)

    def _join(self, sub: Subscription) -> None:
        """It has caught up."""
        sub.reader = None
        sub.parts = []
        self._budget.forget(sub)
        if self._cross(sub, self._journal.persisted_end):
            self.dispatcher.join(sub)
            self._notices.joined(sub)

    # -- completions and ends -------------------------------------------------------------------------

    def _cross_reached(self) -> None:
        for sub in self.dispatcher.reached():
            if self._cross(sub, self.dispatcher.position):
                self.dispatcher.bound(sub)

    def _cross(self, sub: Subscription, position: int) -> bool:
        """Send what is due when everything below `position` was considered; False when it is over."""
        if sub.stop is not None and position >= sub.stop:
            self._send(sub, Completed(sub_id=sub.sub_id, next=sub.stop))
            self._send(sub, Ended(sub_id=sub.sub_id))
            self.remove(sub)
            return False
        if sub.target is not None and position >= sub.target:
            self._send(sub, Completed(sub_id=sub.sub_id, next=sub.target))
            sub.target = None
        return True

    def _deliver(self, sub: Subscription, batch: MessageBatch, after: int, crc: int | None = None) -> None:
        sub.spend(batch)
        sub.told = after
        frame = encode_frame(Deliver(sub_id=sub.sub_id, next=after), batch, batch_crc=crc)
        self._effects.append(Send(sub.session.conn, frame))

    def _send(self, sub: Subscription, command: Command) -> None:
        buffers: list[Buffer] = encode_frame(command)
        self._effects.append(Send(sub.session.conn, buffers))
