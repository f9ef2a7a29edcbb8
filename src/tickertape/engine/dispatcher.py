"""Owns the end of the log: the subscriptions that stand there, and handing each commit to all of them.

One pass over a commit: everybody who covers the same is sent the same selection (standing.py). Must never do
more in one step than it is told, or send to a subscription what does not fit its credit: who cannot take all
of its part leaves, and reads on by itself from exactly there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

from tickertape.base.limits import (
    batch_bytes_max,
    dispatch_backlog_bytes_max,
    outbox_bytes_max,
    step_delivery_bytes,
)
from tickertape.batch import MessageBatch
from tickertape.engine.agenda import Agenda
from tickertape.engine.session import Session
from tickertape.engine.sharing import Alike, Part, Sharing
from tickertape.engine.standing import Group, Offer, Standing
from tickertape.engine.subscription import Phase, Subscription
from tickertape.journal.reading import Part as LogPart
from tickertape.wire.commands import Deliver

Send: TypeAlias = Callable[[Session, Deliver, MessageBatch], None]


class Dispatcher:
    """All subscriptions at the end of the log.

    `deliver(sub, batch, next, crc)` sends to one, `send(session, command, batch)` to several of a connection;
    `left(sub)` is called for a subscription that was put out and goes on as a reader of its own."""

    def __init__(
        self,
        position: int,
        deliver: Callable[[Subscription, MessageBatch, int, int], None],
        left: Callable[[Subscription], None],
        send: Send,
    ) -> None:
        self.position = position
        """Everything below was offered to everybody here."""
        self.backlog_bytes_max = dispatch_backlog_bytes_max
        """What may wait to be handed on before everybody reads at a pace of their own."""
        self.overruns = 0
        """How often that happened."""
        self._deliver = deliver
        self._left = left
        self._send = send
        self._standing: Standing[Subscription, Group[Subscription]] = Standing(Group)
        self._parts: deque[LogPart] = deque()
        self._waiting_bytes = 0
        self._work: Iterator[Offer[Group[Subscription]]] | None = None
        """What is left to do of the first part, and of the offer begun last."""
        self._chosen: tuple[MessageBatch, int] | None = None
        self._subs: list[Subscription] = []
        self._sharing: Sharing | None = None
        self._tasks: Iterator[Alike | list[Part]] = iter(())
        """What is left to do of what was found for several."""
        self._boundaries: Agenda[Subscription] = Agenda()

    # -- coming and going -----------------------------------------------------------------------------

    def join(self, sub: Subscription) -> None:
        """`sub` has considered everything persisted."""
        sub.phase = Phase.AT_END
        self._standing.add(sub)
        self.bound(sub)

    def bound(self, sub: Subscription) -> None:
        """The boundary of `sub` is new or has moved."""
        boundary = sub.boundary()
        if boundary is None:
            self._boundaries.drop(sub)
        else:
            self._boundaries.put(sub, boundary)

    def leave(self, sub: Subscription) -> None:
        """`sub` stands here no more; nothing when it does not. Its position is what it has considered."""
        if sub.phase is not Phase.AT_END:
            return
        sub.phase = Phase.BEHIND
        sub.position = max(sub.position, self.position)
        self._boundaries.drop(sub)
        self._standing.discard(sub)

    def standing(self) -> Iterator[Subscription]:
        """Everybody here."""
        return iter(self._standing)

    # -- commits --------------------------------------------------------------------------------------

    def persisted(self, part: LogPart) -> None:
        """A commit became persisted: it waits for `step`."""
        if not self._standing:
            self._parts.clear()
            self._begin_next()
            self.position = part.end_position
            return
        self._parts.append(part)
        self._waiting_bytes += part.batch.nbytes
        if self._waiting_bytes > self.backlog_bytes_max and len(self._parts) > 1:
            self.overruns += 1
            # Publishers are faster than all the sending: everybody reads the log at a pace of their own.
            for sub in list(self.standing()):
                self._put_out(sub, self.position)
            self._parts.clear()
            self._begin_next()
            self.position = part.end_position

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return bool(self._parts)

    def step(self, budget: int) -> int:
        """Hand on what has become persisted, for about `budget` bytes; returns what is left of them."""
        while self._parts and budget > 0:
            part = self._parts[0]
            if self._work is None:
                self._work = self._standing.offers(part.batch, parted=True)
            while budget > 0:
                if self._subs:
                    budget -= self._dispatch(self._subs.pop(), part) + step_delivery_bytes
                    continue
                if self._sharing is not None:
                    budget -= self._go_on(self._sharing, part)
                    continue
                offer = next(self._work, None)
                if offer is None:
                    self.position = part.end_position
                    self._parts.popleft()
                    self._begin_next()
                    break
                budget -= offer.looked_at
                self._begin(offer, part)
        return budget

    def reached(self) -> list[Subscription]:
        """Those whose boundary everything was offered up to; each is given once."""
        return self._boundaries.due(self.position)

    def _begin_next(self) -> None:
        self._work = self._chosen = self._sharing = None
        self._tasks = iter(())
        self._subs = []
        self._waiting_bytes = sum(part.batch.nbytes for part in self._parts)

    def _begin(self, offer: Offer[Group[Subscription]], part: LogPart) -> None:
        if offer.found:
            self._sharing = Sharing(part.batch, offer.found)
            self._tasks = self._sharing.tasks()
        if offer.batch is None or offer.group is None:
            return
        self._chosen = (offer.batch, offer.batch.crc())
        self._subs = list(offer.group.subs)
        self._subs.reverse()

    def _go_on(self, sharing: Sharing, part: LogPart) -> int:
        """Serve the next connection, or begin with those who get the same; returns the bytes sent."""
        task = next(self._tasks, None)
        if task is None:
            self._sharing = None
            return 0
        if isinstance(task, Alike):
            self._chosen = (task.batch, task.batch.crc())
            self._subs = task.subs
            return 0
        costs, first, end = sharing.costs, part.first_position, part.end_position
        writable = task[0][0].session.writable
        room = outbox_bytes_max
        parts = []
        for one in task:
            sub, cost = one[0], costs[one[1]]
            if cost > room:  # the connection has been given what it may queue
                self._put_out_unless_done(sub, part)
                continue
            # What most are, first: there may be thousands.
            usual = sub.phase is Phase.AT_END and sub.position <= first and writable and sub.simple
            if (usual and cost <= sub.allowance.credit and cost <= outbox_bytes_max) or self._takes(
                sub, cost, part
            ):
                parts.append(one)
                room -= cost
        sent = step_delivery_bytes
        for command, batch in sharing.frames(parts, end):
            self._send(parts[0][0].session, command, batch)
            sent += batch.nbytes + step_delivery_bytes
        for sub, _ in parts:
            sub.position = end
        return sent

    def _dispatch(self, sub: Subscription, part: LogPart) -> int:
        """Give one subscription the selection; returns the bytes sent."""
        assert self._chosen is not None
        chosen, crc = self._chosen
        cost = chosen.cost if chosen.nbytes <= batch_bytes_max else outbox_bytes_max + 1
        if not self._takes(sub, cost, part):
            return 0
        sub.position = part.end_position
        self._deliver(sub, chosen, part.end_position, crc)
        return chosen.nbytes

    def _takes(self, sub: Subscription, cost: int, part: LogPart) -> bool:
        """Whether it is to be given a part, and can take it; who cannot is put out."""
        if sub.phase is not Phase.AT_END or sub.position >= part.end_position:
            return False
        fits = cost <= sub.allowance.credit and cost <= outbox_bytes_max
        if fits and sub.simple and sub.session.writable and sub.position <= part.first_position:
            return True
        self._put_out(sub, max(sub.position, part.first_position))
        return False

    def _put_out_unless_done(self, sub: Subscription, part: LogPart) -> None:
        if sub.phase is Phase.AT_END and sub.position < part.end_position:
            self._put_out(sub, max(sub.position, part.first_position))

    def _put_out(self, sub: Subscription, position: int) -> None:
        self.leave(sub)
        sub.position = max(sub.position, position)
        self._left(sub)


assert outbox_bytes_max < dispatch_backlog_bytes_max
