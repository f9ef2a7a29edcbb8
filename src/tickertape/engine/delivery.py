"""Owns delivery of the log: subscriptions behind its end read by themselves, those at the end share one
dispatcher.

A subscription leaves the dispatcher when it lacks credit or its connection is full, goes on from exactly
there by reading, and joins again when it has caught up. Must never leave a gap or send a message twice at
either crossing, hold messages for a slow reader, or do more in one step than `step_bytes_max`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tickertape.base.errors import TickertapeError
from tickertape.base.limits import (
    batch_bytes_max,
    batch_bytes_target,
    outbox_bytes_max,
    read_ahead_bytes_max,
    step_bytes_max,
)
from tickertape.base.ports import Buffer, Now
from tickertape.batch import MessageBatch, select_topic
from tickertape.engine.effects import Effect, Read, Send
from tickertape.engine.sessions import Session
from tickertape.engine.subscription import Phase, Subscription
from tickertape.journal.journal import Journal
from tickertape.journal.reading import Part, ReadRequest
from tickertape.wire.commands import Command, Completed, Deliver, Ended
from tickertape.wire.frames import encode_frame

_CLOCK_CHECK_SECONDS = 1.0


class Delivery:
    """All subscriptions to recorded topics. Appends effects to the list it is given."""

    def __init__(self, journal: Journal, effects: list[Effect], new_token: Callable[[], int]) -> None:
        self._journal = journal
        self._effects = effects
        self._new_token = new_token
        self._runnable: deque[Subscription] = deque()
        self._reads: dict[int, Subscription] = {}
        self._at_end: dict[str, dict[Subscription, None]] = {}
        self._bounded: dict[Subscription, None] = {}
        """Subscriptions with a boundary ahead: looked at after each commit."""
        self._clocked: dict[Subscription, None] = {}
        """Subscriptions that end at a log time still to come."""
        self._kept: dict[Subscription, int] = {}
        """Bytes that waiting subscriptions keep of what was read for them; who waits longest is first."""
        self._kept_bytes = 0

    # -- inputs ---------------------------------------------------------------------------------------

    def begin(self, sub: Subscription) -> None:
        """Its extent is known: start to deliver."""
        if sub.stop_time is not None:
            self._clocked[sub] = None
        if sub.boundary() is not None:
            self._bounded[sub] = None
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
        waiting, session.waiting = session.waiting, {}
        for sub in waiting:
            self.run(sub)

    def remove(self, sub: Subscription) -> None:
        """It is over; an answer to its read will be ignored."""
        self._leave(sub)
        sub.phase = Phase.OVER
        sub.parts = []
        sub.reader = None
        self._let_go(sub)
        self._bounded.pop(sub, None)
        self._clocked.pop(sub, None)
        sub.session.subscriptions.pop(sub.sub_id, None)

    def read_done(self, token: int, data: Buffer | TickertapeError) -> bool:
        """The answer to a read of ours; False when the token is none of ours."""
        sub = self._reads.pop(token, None)
        if sub is None:
            return False
        sub.reading = False
        if sub.phase is Phase.OVER or sub.reader is None:
            return True
        try:
            if isinstance(data, TickertapeError):
                raise data
            sub.parts = sub.reader.answer(data)
        except TickertapeError as error:
            self._end(sub, error.code, str(error))
            return True
        self.run(sub)
        return True

    def persisted(self, part: Part) -> None:
        """A commit became persisted: serve those at the end of the log, all from one selection a topic."""
        for topic in part.batch.topics:
            subs = self._at_end.get(topic)
            if subs:
                chosen = select_topic(part.batch, topic)
                if chosen is not None:
                    crc = chosen.crc()
                    for sub in list(subs):
                        self._dispatch(sub, part, chosen, crc)

    def settle(self, now: Now) -> None:
        """After commits, and when the clock moved: completions and ends that are due without a message."""
        log_time = self._journal.log_time(now) if self._clocked else 0
        for sub in list(self._clocked):
            if sub.stop_time is None or log_time >= sub.stop_time:
                # Whatever is accepted from now on is stamped later, so the end is a position.
                if sub.stop_time is not None:
                    end = self._journal.accepted_end
                    sub.stop = end if sub.stop is None else min(sub.stop, end)
                    # `stop_time` stays: whoever is still behind must not be given what is stamped later.
                self._clocked.pop(sub)
                self._bounded[sub] = None
        for sub in list(self._bounded):
            if sub.phase is Phase.AT_END:
                self._cross(sub, self._journal.persisted_end)
            elif sub.phase is Phase.BEHIND:
                self.run(sub)

    # -- outputs --------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return bool(self._runnable)

    def next_deadline(self, now: Now) -> float | None:
        """Monotonic second at which `settle` is wanted for ranges that end by the clock."""
        stops = [s.stop_time for s in self._clocked if s.stop_time is not None]
        if not stops:
            return None
        # The wall clock may be set forward: look at it every second whatever it says now.
        return now.mono + min(max((min(stops) - now.wall) / 1e6, 0.0), _CLOCK_CHECK_SECONDS)

    def step(self) -> None:
        """Serve runnable subscriptions in turn, about `step_bytes_max` in all."""
        budget = step_bytes_max
        while self._runnable and budget > 0:
            sub = self._runnable.popleft()
            sub.queued = False
            if sub.phase is Phase.BEHIND and not sub.reading:
                budget -= self._advance(sub) + 1024

    # -- subscriptions behind the end -----------------------------------------------------------------

    def _advance(self, sub: Subscription) -> int:
        """Send what was read, then read on, or join the dispatcher. Returns the bytes sent."""
        if not self._cross(sub, sub.position):
            return 0
        if not sub.session.writable:
            sub.session.waiting[sub] = None
            self._keep(sub)
            return 0
        if sub.starved:
            return 0
        self._let_go(sub)
        if not sub.parts:
            self._fetch(sub)
            if not sub.parts:
                return 0
        return self._offer(sub, sub.parts[0])

    def _offer(self, sub: Subscription, part: Part) -> int:
        """Give a subscription its share of a part it has read."""
        share = sub.share(part)
        sub.position = max(sub.position, share.next)
        sent = 0
        if share.batch is not None:
            sent = share.batch.nbytes
            self._deliver(sub, share.batch, share.next)
        if sub.position >= part.end_position:
            sub.parts.pop(0)
        elif share.blocked:
            sub.starved = True
            self._keep(sub)
            return sent
        self.run(sub)
        return sent

    def _keep(self, sub: Subscription) -> None:
        """It has to wait: keep what was read for it. Who has waited longest beyond the bound reads again."""
        self._let_go(sub)
        size = self._kept[sub] = sum(part.batch.nbytes for part in sub.parts)
        self._kept_bytes += size
        while self._kept_bytes > read_ahead_bytes_max:
            longest = next(iter(self._kept))
            self._let_go(longest)
            longest.parts, longest.reader = [], None

    def _let_go(self, sub: Subscription) -> None:
        self._kept_bytes -= self._kept.pop(sub, 0)

    def _fetch(self, sub: Subscription) -> None:
        if sub.reader is None:
            if sub.position >= self._journal.persisted_end:
                self._join(sub)
                return
            sub.reader = self._journal.reader(sub.position, sub.topic)
        step = sub.reader.poll()
        if step is None:
            sub.position = max(sub.position, sub.reader.position)
            self._join(sub)
        elif isinstance(step, ReadRequest):
            token = self._new_token()
            sub.reading = True
            self._reads[token] = sub
            self._effects.append(Read(token, step))
        else:
            sub.parts = step

    # -- the shared end -------------------------------------------------------------------------------

    def _join(self, sub: Subscription) -> None:
        sub.reader = None
        sub.parts = []
        sub.phase = Phase.AT_END
        self._at_end.setdefault(sub.topic, {})[sub] = None
        self._cross(sub, self._journal.persisted_end)

    def _leave(self, sub: Subscription) -> None:
        if sub.phase is not Phase.AT_END:
            return
        sub.phase = Phase.BEHIND
        subs = self._at_end[sub.topic]
        del subs[sub]
        if not subs:
            del self._at_end[sub.topic]

    def _dispatch(self, sub: Subscription, part: Part, chosen: MessageBatch, crc: int) -> None:
        position = max(sub.position, part.first_position)
        fits = chosen.cost <= min(sub.credit, outbox_bytes_max) and chosen.nbytes <= batch_bytes_max
        if fits and sub.simple and sub.session.writable and position == part.first_position:
            sub.position = part.end_position
            self._deliver(sub, chosen, part.end_position, crc)
            return
        if position >= part.end_position:
            return
        self._leave(sub)
        sub.position = position
        self.run(sub)

    # -- completions and ends -------------------------------------------------------------------------

    def _cross(self, sub: Subscription, position: int) -> bool:
        """Send what is due when everything below `position` was considered; False when it is over."""
        if sub.stop is not None and position >= sub.stop:
            self._send(sub, Completed(sub_id=sub.sub_id, next=sub.stop))
            self._end(sub)
            return False
        if sub.target is not None and position >= sub.target:
            self._send(sub, Completed(sub_id=sub.sub_id, next=sub.target))
            sub.target = None
            self._bounded.pop(sub, None)
        return True

    def _end(self, sub: Subscription, code: str = "", text: str = "") -> None:
        self._send(sub, Ended(sub_id=sub.sub_id, code=code, text=text))
        self.remove(sub)

    def _deliver(self, sub: Subscription, batch: MessageBatch, after: int, crc: int | None = None) -> None:
        sub.spend(batch)
        frame = encode_frame(Deliver(sub_id=sub.sub_id, next=after), batch, batch_crc=crc)
        self._effects.append(Send(sub.session.conn, frame))

    def _send(self, sub: Subscription, command: Command) -> None:
        buffers: list[Buffer] = encode_frame(command)
        self._effects.append(Send(sub.session.conn, buffers))


assert batch_bytes_target <= step_bytes_max
