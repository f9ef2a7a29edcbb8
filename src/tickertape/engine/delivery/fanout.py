"""Fan-out: hands parts of the log to all feeds at one position: at the end, or of a shared cursor.

Feeds with the same interest are sent the same selection (subscription_index.py).

Invariants:
- A step does no more than its budget.
- No feed is sent more than its credit: a feed that cannot take all of its part is ejected, and reads on by
  itself from exactly there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, TypeAlias

from tickertape.base.limits import KIB, batch_bytes_max
from tickertape.batch import slice_batch
from tickertape.engine.delivery.fanout_frames import FrameSender, FrameSharing, IdenticalFrames, Part
from tickertape.engine.limits import (
    dispatch_backlog_bytes_max,
    outbox_bytes_max,
    step_delivery_bytes,
    step_share_bytes,
)
from tickertape.engine.matching.subscription_index import InterestGroup, SubscriptionIndex
from tickertape.engine.runtime.scheduling import DeadlineQueue
from tickertape.engine.subscriptions.log_feed import LogFeed, Phase
from tickertape.journal.reading.log_view import LogPart

_FINDING_OUT_BYTES: Final = 64 * KIB
"""Budget that one batch of routing counts."""

FeedIndex: TypeAlias = SubscriptionIndex[LogFeed, InterestGroup[LogFeed]]


class Fanout:
    """All feeds at one position, which are in `phase` here. A feed that cannot take its part is ejected: it
    is to read on by itself."""

    def __init__(self, position: int, sender: FrameSender, phase: Phase = Phase.TAIL) -> None:
        self.position = position
        """Everything below was offered to all feeds here."""
        self.backlog_bytes_max = dispatch_backlog_bytes_max
        """Bytes that may wait to be handed on before all feeds read by themselves."""
        self.overruns = 0
        """How often more waited."""
        self._sender = sender
        self._phase = phase
        self._ejected: list[LogFeed] = []
        """Feeds that were ejected since `step` or `eject_all` began."""
        self._index: FeedIndex = SubscriptionIndex(InterestGroup)
        self._parts: deque[LogPart] = deque()
        self._waiting_bytes = 0
        self._work: Iterator[int] | None = None
        """What is left to do of the first part; None when it is not begun."""
        self._boundaries: DeadlineQueue[LogFeed] = DeadlineQueue()

    # -- coming and going -----------------------------------------------------------------------------

    def add(self, sub: LogFeed) -> None:
        """Add a feed that has considered everything below its position, which is not below `open_from`."""
        sub.phase, sub.group = self._phase, self
        self._index.add(sub)
        self.reschedule(sub)

    def reschedule(self, sub: LogFeed) -> None:
        """Note that the boundary of a feed is new or has moved."""
        boundary = sub.boundary()
        if boundary is None:
            self._boundaries.drop(sub)
        else:
            self._boundaries.put(sub, boundary)

    def remove(self, sub: LogFeed) -> None:
        """Remove a feed, if it is here. Its position is then what it has considered."""
        if sub.group is self:
            self._gone(sub)
            self._index.discard(sub)

    def feeds(self) -> Iterator[LogFeed]:
        """Return all feeds here."""
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def take_filtered(self) -> list[FeedIndex]:
        """Remove feeds with filters: those of one topic together, and all with patterns."""
        taken = self._index.take_filtered()
        for sub in chain.from_iterable(taken):
            self._gone(sub)
        return taken

    def drain(self) -> FeedIndex:
        """Remove all feeds together, and forget the parts that wait."""
        for sub in self.feeds():
            self._gone(sub)
        taken, self._index = self._index, SubscriptionIndex(InterestGroup)
        self._parts.clear()
        self._begin_next()
        return taken

    def _gone(self, sub: LogFeed) -> None:
        sub.phase, sub.group = Phase.REPLAY, None
        sub.position = max(sub.position, self.position)
        self._boundaries.drop(sub)

    def absorb(self, others: FeedIndex) -> None:
        """Add all feeds of `others`, whose positions say what they have considered."""
        for sub in others:
            sub.phase, sub.group = self._phase, self
            self.reschedule(sub)
        if len(others) > len(self._index) and not self._parts:
            others, self._index = self._index, others  # who are fewer move
        for sub in others:
            self._index.add(sub)

    # -- commits --------------------------------------------------------------------------------------

    def take(self, part: LogPart) -> None:
        """Take the next part, however large: it waits for `step`."""
        self._parts.append(part)
        self._waiting_bytes += part.batch.nbytes

    def persisted(self, part: LogPart) -> bool:
        """A commit became persisted (or, at the live end, was accepted): it waits for `step`. Return whether
        too much waits: publishers are faster than all the sending, and `eject_all` is wanted."""
        if not self._index:
            self._parts.clear()
            self._begin_next()
            self.position = part.end_position
            return False
        self.take(part)
        if self._waiting_bytes <= self.backlog_bytes_max or len(self._parts) == 1:
            return False
        self.overruns += 1
        return True

    def eject_all(self, position: int) -> list[LogFeed]:
        """Put all feeds out and return them: nothing below `position` is handed on here any more."""
        self._parts.clear()
        self._begin_next()
        for sub in list(self.feeds()):
            self._eject(sub, self.position)
        self.position = position
        return self._take_ejected()

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return bool(self._parts)

    @property
    def open_from(self) -> int:
        """Position from which nothing is matched yet: a feed that is added has considered everything
        below."""
        return self.position if self._work is None else self._parts[0].end_position

    def passed(self, position: int) -> None:
        """Pass over what is below `position`, which is for no feed here. Nothing waits to be handed on."""
        self.position = max(self.position, position)

    def step(self, budget: int) -> tuple[int, list[LogFeed]]:
        """Hand on persisted messages for about `budget` bytes; return the bytes left and the ejected
        feeds."""
        while self._parts and budget > 0:
            part = self._parts[0]
            if self._work is None:
                self._work = self._hand_on(part)
            for spent in self._work:
                budget -= spent
                if budget <= 0:
                    break
            else:
                self.position = part.end_position
                self._parts.popleft()
                self._begin_next()
        return budget, self._take_ejected()

    def take_reached(self) -> list[LogFeed]:
        """Take the feeds whose boundary is reached, each once."""
        return self._boundaries.due(self.position)

    def _take_ejected(self) -> list[LogFeed]:
        ejected, self._ejected = self._ejected, []
        return ejected

    def _begin_next(self) -> None:
        self._work = None
        self._waiting_bytes = sum(part.batch.nbytes for part in self._parts)

    def _hand_on(self, part: LogPart) -> Iterator[int]:
        """Hand on a part, in small pieces; yield the bytes looked at and sent for each."""
        for match in self._index.matches(part.batch, parted=True):
            tasks: Iterable[IdenticalFrames | list[Part]] = ()
            if match.looked_at:
                yield match.looked_at
            if match.found:
                sharing = FrameSharing(part.batch, match.found)
                tasks = sharing.tasks()
            elif match.batch is not None and match.group is not None:
                tasks = [IdenticalFrames(match.batch, [*match.group.subs], match.indices)]
            for task in tasks:
                if isinstance(task, IdenticalFrames):
                    crc = task.batch.crc()
                    for sub in task.subs:
                        yield self._give(sub, task, crc, part) + step_delivery_bytes
                    continue
                if not task:
                    yield _FINDING_OUT_BYTES
                while task:
                    sent, task = self._share(sharing, task, part)
                    yield sent

    def _share(self, sharing: FrameSharing, task: list[Part], part: LogPart) -> tuple[int, list[Part]]:
        """Serve a connection; return the bytes sent, and what is to come after them."""
        costs, first, end = sharing.costs, part.first_position, part.end_position
        writable = task[0][0].session.writable
        room = outbox_bytes_max
        sent = step_delivery_bytes + len(task) * step_share_bytes
        parts: list[Part] = []
        rest: list[Part] = []
        for at, (sub, number) in enumerate(task):
            if sub.position > first and sub.group is self:  # in the middle of it, or behind it
                later = sharing.since(number, part.index_at(sub.position))
                if later is None:
                    continue
                number = later
            cost = costs[number]
            if room < cost <= outbox_bytes_max:
                rest = task[at:]  # first what it has been given is to be written
                break
            # What most are, first: there may be thousands.
            usual = sub.group is self and writable and sub.simple and cost <= outbox_bytes_max
            if (usual and cost <= sub.allowance.credit) or self._takes(sub, cost, part):
                parts.append((sub, number))
                room -= cost
        for command, batch in sharing.frames(parts, end):
            self._sender.deliver_shared(parts[0][0].session.conn, command, batch)
            sent += batch.nbytes + step_delivery_bytes
        return sent, rest

    def _give(self, sub: LogFeed, frame: IdenticalFrames, crc: int | None, part: LogPart) -> int:
        """Send one feed what it has not considered of a part; return the bytes sent."""
        chosen, indices = frame.batch, frame.indices
        if part.first_position < sub.position < part.end_position:
            if indices is None:
                if sub.group is self:
                    self._eject(sub, part.first_position, part.end_position)
                return 0
            since = int(indices.searchsorted(part.index_at(sub.position)))
            if since == chosen.count:
                return 0
            chosen, crc = slice_batch(chosen, since, chosen.count), None
        cost = chosen.cost if chosen.nbytes <= batch_bytes_max else outbox_bytes_max + 1
        if not self._takes(sub, cost, part):
            return 0
        sub.position = part.end_position
        self._sender.deliver(sub, chosen, part.end_position, crc)
        return chosen.nbytes

    def _takes(self, sub: LogFeed, cost: int, part: LogPart) -> bool:
        """Whether a feed gets a part and can take it; one that cannot is ejected."""
        if sub.group is not self or sub.position >= part.end_position:
            return False
        fits = cost <= sub.allowance.credit and cost <= outbox_bytes_max
        if fits and sub.session.writable and sub.is_free_to(part.end_position):
            return True
        self._eject(sub, part.first_position, part.end_position)
        return False

    def _eject(self, sub: LogFeed, position: int, solo_until: int = 0) -> None:
        self.remove(sub)
        sub.position = max(sub.position, position)
        # Who waits for its connection only is no trouble to others, once it goes on.
        sub.solo_until = solo_until if sub.session.writable else 0
        self._ejected.append(sub)


assert outbox_bytes_max < dispatch_backlog_bytes_max
