"""Fan-out: sends new parts of the log to all feeds at one position (the end, or a shared cursor).

Feeds with the same interest share one selection (subscription_index.py).

Invariants:
- A step stays within its budget.
- No feed receives more than its credit. A feed that cannot accept its whole part is ejected, and continues
  from exactly this position with its own cursor.
- At the end of the log, an ejected feed keeps its index entry until it returns, ends or is far behind.
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
    suspended_messages_max,
    suspended_removals_max,
)
from tickertape.engine.matching.subscription_index import InterestGroup, SubscriptionIndex
from tickertape.engine.runtime.scheduling import DeadlineQueue, Pending
from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.log_feed import LogFeed, Phase
from tickertape.journal.reading.log_view import LogPart

_FINDING_OUT_BYTES: Final = 64 * KIB
"""Cost of building the tasks of a batch, in bytes of the step budget."""

FeedIndex: TypeAlias = SubscriptionIndex[LogFeed, InterestGroup[LogFeed]]


class Fanout:
    """All feeds at one position. They are in `phase`.

    A feed that cannot accept its part is ejected: it must continue with its own cursor."""

    def __init__(self, position: int, sender: FrameSender, phase: Phase = Phase.TAIL) -> None:
        self.position = position
        """All feeds were offered every message below this position."""
        self.backlog_bytes_max = dispatch_backlog_bytes_max
        """Maximum size of waiting parts, before all feeds must continue with their own cursors."""
        self.overruns = 0
        """How often this maximum was exceeded."""
        self._sender = sender
        self._phase = phase
        self._ejected: list[LogFeed] = []
        """Feeds ejected since the last `step` or `eject_all`."""
        self._index: FeedIndex = SubscriptionIndex(InterestGroup)
        self._parts: deque[LogPart] = deque()
        self.pending: Pending = (self._parts,)
        """Not empty while parts wait for delivery."""
        self._waiting_bytes = 0
        self._work: Iterator[int] | None = None
        """Remaining work for the first part. None if it has not started."""
        self._boundaries: DeadlineQueue[LogFeed] = DeadlineQueue()
        self.boundaries = self._boundaries.items
        """Feeds with a boundary."""

    # -- feeds ----------------------------------------------------------------------------------------

    def add(self, sub: LogFeed) -> None:
        """Add a feed that has considered everything below its position. The position is at least
        `open_from`."""
        sub.phase, sub.group = self._phase, self
        self._index.add(sub)
        self.reschedule(sub)

    def reschedule(self, sub: LogFeed) -> None:
        """Update the boundary of a feed after it changed."""
        boundary = sub.boundary()
        if boundary is None:
            self._boundaries.drop(sub)
        else:
            self._boundaries.put(sub, boundary)

    def remove(self, sub: LogFeed) -> None:
        """Remove a feed, if it is in this group. Its position becomes the position of the group, if that is
        higher. An ejected feed loses its index entry."""
        if sub.group is self:
            self._gone(sub)
        self._index.discard(sub)

    def feeds(self) -> Iterator[LogFeed]:
        """Return all feeds of the group."""
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def entries(self) -> int:
        """Number of feeds with an index entry, including ejected ones."""
        return self._index.entries

    def entries_missing(self, group: Fanout) -> int:
        """Return the number of feeds of another group without an index entry in this one."""
        return sum(not self._index.is_suspended(sub) for sub in group.feeds())

    @property
    def full_connection(self) -> Session | None:
        """The connection of all feeds, if they have the same and it is not writable."""
        first = next(self.feeds(), None)
        if first is None or first.session.writable or first.session.ended:
            return None
        return first.session if all(sub.session is first.session for sub in self.feeds()) else None

    def take_filtered(self) -> list[FeedIndex]:
        """Remove feeds with indexed filters: one index for each topic, and one for all patterns."""
        taken = self._index.take_filtered()
        for sub in chain.from_iterable(taken):
            self._gone(sub)
        return taken

    def drain(self) -> FeedIndex:
        """Remove all feeds together, and discard the waiting parts."""
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
        """Add all feeds of `others`. Their positions are up to date."""
        for sub in others:
            sub.phase, sub.group = self._phase, self
            self.reschedule(sub)
        if len(others) > self._index.entries and not self._parts:
            others, self._index = self._index, others  # move the smaller index
        for sub in others:
            self._index.add(sub)

    # -- commits --------------------------------------------------------------------------------------

    def take(self, part: LogPart) -> None:
        """Append the next part of any size, which waits for `step`."""
        self._parts.append(part)
        self._waiting_bytes += part.batch.nbytes

    def rewind(self) -> None:
        """Discard the waiting parts. The caller must take all parts from the position of the group on."""
        self._parts.clear()
        self._begin_next()

    def persisted(self, part: LogPart) -> bool:
        """Append a persisted part (or, at the live end, an accepted part), which waits for `step`.

        Return whether too much waits, because publishers are faster than delivery. The caller must then call
        `eject_all`."""
        if not self._index:
            if self._parts:
                self._parts.clear()
                self._begin_next()
            self.position = part.end_position
            self._index.expire(0, suspended_removals_max)  # only vacant groups
            return False
        self.take(part)
        if self._waiting_bytes <= self.backlog_bytes_max or len(self._parts) == 1:
            return False
        self.overruns += 1
        return True

    def eject_all(self, position: int) -> list[LogFeed]:
        """Eject and return all feeds. The group continues at `position`."""
        self._parts.clear()
        self._begin_next()
        for sub in list(self.feeds()):
            self._eject(sub, self.position)
        self.position = position
        return self._take_ejected()

    @property
    def open_from(self) -> int:
        """First position that is not matched yet. A feed to be added has considered everything below it."""
        return self.position if self._work is None else self._parts[0].end_position

    def passed(self, position: int) -> None:
        """Advance to `position`. No feed needs the messages below it, and no part waits."""
        self.position = max(self.position, position)

    def step(self, budget: int) -> tuple[int, list[LogFeed]]:
        """Deliver waiting parts for about `budget` bytes. Return the remaining budget and the ejected
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
                self._index.expire(self.position - suspended_messages_max, suspended_removals_max)
        return budget, self._take_ejected()

    def take_reached(self) -> list[LogFeed]:
        """Return the feeds whose boundary is reached, each once."""
        return self._boundaries.due(self.position)

    def _take_ejected(self) -> list[LogFeed]:
        ejected, self._ejected = self._ejected, []
        return ejected

    def _begin_next(self) -> None:
        self._work = None
        self._waiting_bytes = sum(part.batch.nbytes for part in self._parts)

    def _hand_on(self, part: LogPart) -> Iterator[int]:
        """Deliver a part in small pieces. Yield the bytes examined and sent for each piece."""
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
        """Serve one connection. Return the bytes sent, and the remaining task."""
        costs, first, end = sharing.costs, part.first_position, part.end_position
        writable = task[0][0].session.writable
        room = outbox_bytes_max
        sent = step_delivery_bytes + len(task) * step_share_bytes
        parts: list[Part] = []
        rest: list[Part] = []
        for at, (sub, number) in enumerate(task):
            if sub.position > first and sub.group is self:  # the feed has considered some of the part
                later = sharing.since(number, part.index_at(sub.position))
                if later is None:
                    continue
                number = later
            cost = costs[number]
            if room < cost <= outbox_bytes_max:
                rest = task[at:]  # the frames of this round are written first
                break
            # The common case first, because a task may have thousands of feeds.
            usual = sub.group is self and writable and sub.simple and cost <= outbox_bytes_max
            if (usual and cost <= sub.allowance.credit) or self._takes(sub, cost, part):
                parts.append((sub, number))
                room -= cost
        for command, batch in sharing.frames(parts, end):
            self._sender.deliver_shared(parts[0][0].session.conn, command, batch)
            sent += batch.nbytes + step_delivery_bytes
        return sent, rest

    def _give(self, sub: LogFeed, frame: IdenticalFrames, crc: int | None, part: LogPart) -> int:
        """Send one feed the messages of a part that it has not considered. Return the bytes sent."""
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
        """Return whether a feed gets a part and can accept it. A feed that cannot accept it is ejected."""
        if sub.group is not self or sub.position >= part.end_position:
            return False
        fits = cost <= sub.allowance.credit and cost <= outbox_bytes_max
        if fits and sub.session.writable and sub.is_free_to(part.end_position):
            return True
        self._eject(sub, part.first_position, part.end_position)
        return False

    def _eject(self, sub: LogFeed, position: int, solo_until: int = 0) -> None:
        self._gone(sub)
        if self._phase is Phase.TAIL:
            self._index.suspend(sub, self.position)  # it returns when it has caught up
        else:
            self._index.discard(sub)
        sub.position = max(sub.position, position)
        # A feed that only waits for its connection may share a cursor as soon as it resumes.
        sub.solo_until = solo_until if sub.session.writable else 0
        self._ejected.append(sub)


assert outbox_bytes_max < dispatch_backlog_bytes_max
