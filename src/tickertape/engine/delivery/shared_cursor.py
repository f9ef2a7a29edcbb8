"""Owns reading the log for many at once: subscriptions with filters that are behind its end at about the same
place go on together, so that each message is looked at once for all of them, in one index.

A cohort hands out what it reads as the end of the log does (dispatcher.py): who cannot take its part leaves,
and reads by itself until it may join again. Must never keep anybody waiting for who is far behind, or hold
more of the log than the read budget allows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from weakref import WeakValueDictionary

import numpy as np

from tickertape.base.errors import TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.batch import merge
from tickertape.batch.format import Int64s
from tickertape.engine.delivery.cursors import CursorScheduler
from tickertape.engine.delivery.fanout import Everybody, Fanout
from tickertape.engine.delivery.frame_sender import FrameSender
from tickertape.engine.delivery.transitions import (
    BoundaryReached,
    Ejected,
    GroupCaughtUp,
    ReadFailed,
    Transition,
    Transitions,
)
from tickertape.engine.limits import (
    cohort_moves_max,
    cohort_piece_bytes_max,
    cohort_reach_messages,
    cohorts_max,
    step_delivery_bytes,
)
from tickertape.engine.log_reads.log_reads import LogReads
from tickertape.engine.matching.filter_groups import is_indexed
from tickertape.engine.subscriptions.log_feed import LogFeed, Phase
from tickertape.journal.format.retired_state import expired
from tickertape.journal.journal import Journal
from tickertape.journal.limits import read_bytes_target
from tickertape.journal.reading.archive_reader import ArchiveAnswer
from tickertape.journal.reading.log_reader import LogReader
from tickertape.journal.reading.log_view import LogPart, ReadRequest


class SharedCursor:
    """Those who go on together: all of one topic, or all with patterns."""

    __slots__ = ("dispatcher", "gathered", "literal", "queued", "reader", "reading")

    def __init__(self, dispatcher: Fanout, literal: str | None) -> None:
        self.dispatcher = dispatcher
        self.literal = literal
        self.reader: LogReader | None = None
        self.reading = False
        """An answer to a read is to come."""
        self.queued = False
        """It stands in the run queue."""
        self.gathered: list[LogPart] = []
        """What was read and is not handed out yet."""

    @property
    def position(self) -> int:
        """Everything below was considered by everybody in it."""
        return self.dispatcher.position

    @property
    def is_idle(self) -> bool:
        """Everything that was read is handed out."""
        return not self.dispatcher.has_work

    @property
    def gathered_bytes(self) -> int:
        """Encoded bytes of what was read."""
        return sum([part.batch.nbytes for part in self.gathered])

    def hand_out(self, *, merged: bool) -> None:
        """What was read is handed out in the steps to come: as one part when `merged`, which is a copy."""
        parts, self.gathered = self.gathered, []
        for part in [_merged(parts)] if merged else parts:
            self.dispatcher.take(part)


def _merged(parts: list[LogPart]) -> LogPart:
    first, end = parts[0].first_position, parts[-1].end_position
    batch = merge([part.batch for part in parts])
    if end - first == batch.count:
        return LogPart(first, batch)
    return LogPart(first, batch, np.concatenate([_positions(part) for part in parts]), end)


def _positions(part: LogPart) -> Int64s:
    if part.positions is not None:
        return part.positions
    return np.arange(part.first_position, part.first_position + part.batch.count, dtype=np.int64)


_MEMBERS_PER_READ = 64
"""So many more are worth looking at one read more at a time."""


def can_share(sub: LogFeed) -> bool:
    """Whether it is one for a cohort, where it is now."""
    return (
        is_indexed(sub.cover)
        and sub.phase is Phase.BEHIND
        and sub.position >= sub.alone_to
        and not (sub.own_pace or sub.paused or sub.turns)
        and sub.not_before is None
        and sub.stop_time is None
    )


def _boundaries(group: Fanout) -> Iterator[BoundaryReached]:
    """Boundaries that a fan-out has reached."""
    for feed in group.reached():
        yield BoundaryReached(feed, group.position)


class SharedCursors:
    """All of them."""

    def __init__(
        self,
        journal: Journal,
        reads: LogReads,
        cursors: CursorScheduler,
        sender: FrameSender,
    ) -> None:
        self._journal = journal
        self._reads = reads
        self._budget = reads.budgets.log
        self._cursors = cursors
        self._sender = sender
        self._all: dict[SharedCursor, None] = {}
        self._runnable: deque[SharedCursor] = deque()
        self._alone: WeakValueDictionary[str | None, LogFeed] = WeakValueDictionary()
        """Of each topic the one that last went on by itself: with the next one it may make a cohort."""

    def __len__(self) -> int:
        return len(self._all)

    # -- who goes together ----------------------------------------------------------------------------

    def join(self, sub: LogFeed) -> bool:
        """Whether one that reads by itself goes on with others from here."""
        if not can_share(sub) or self._is_older(sub):
            return False
        cohort = self._near(sub) or self._with_another(sub)
        if cohort is None:
            return False
        self._cursors.discard(sub)
        cohort.dispatcher.join(sub)
        return True

    def begin(self, everybody: Everybody, position: int) -> bool:
        """Whether those who stand nowhere now go on together from a position."""
        first = next(iter(everybody))
        if len(everybody) < 2 or len(self._all) >= cohorts_max:
            return False
        self._begin(first.cover.literal, position).dispatcher.adopt(everybody)
        return True

    def _near(self, sub: LogFeed) -> SharedCursor | None:
        for cohort in self._all:
            if cohort.literal == sub.cover.literal:
                ahead = sub.position - cohort.dispatcher.open_from
                if 0 <= ahead <= cohort_reach_messages:
                    return cohort
        return None

    def _with_another(self, sub: LogFeed) -> SharedCursor | None:
        """A new one with another that reads by itself, if there is one near."""
        literal = sub.cover.literal
        other = self._alone.get(literal)
        if (
            other is None
            or other is sub
            or abs(other.position - sub.position) > cohort_reach_messages
            or len(self._all) >= cohorts_max
            or not (can_share(other) and self._cursors.is_free(other))
        ):
            self._alone[literal] = sub
            return None
        cohort = self._begin(literal, min(sub.position, other.position))
        self._cursors.discard(other)
        cohort.dispatcher.join(other)
        return cohort

    def _is_older(self, sub: LogFeed) -> bool:
        """Whether what it reads lies before the log: the archive is read by each by itself."""
        return sub.position < self._journal.view.first_position

    def _begin(self, literal: str | None, position: int) -> SharedCursor:
        cohort = SharedCursor(Fanout(position, self._sender, Phase.TOGETHER), literal)
        self._all[cohort] = None
        self._run(cohort)
        return cohort

    def _end(self, cohort: SharedCursor) -> None:
        self._all.pop(cohort, None)
        cohort.reader = None
        cohort.gathered.clear()
        if not cohort.reading:
            self._budget.forget(cohort)

    # -- inputs ---------------------------------------------------------------------------------------

    def read_done(
        self, cohort: SharedCursor, data: Buffer | ArchiveAnswer | TickertapeError
    ) -> list[Transition]:
        """The answer to a read."""
        cohort.reading = False
        if cohort not in self._all or cohort.reader is None:
            self._budget.forget(cohort)
            return []
        try:
            if isinstance(data, TickertapeError):
                raise data
            assert isinstance(data, Buffer)
            cohort.gathered += cohort.reader.answer(data)
        except TickertapeError:
            # It may be damage in what some of them do not need: each of them reads that by itself.
            left = [*cohort.dispatcher.standing()]
            for sub in left:
                cohort.dispatcher.leave(sub)
                sub.alone_to = max(sub.alone_to, cohort.reader.position + 1)
            self._end(cohort)
            return [*map(Ejected, left)]
        self._run(cohort)
        return []

    # -- outputs --------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return bool(self._runnable)

    def step(self, budget: int) -> Transitions[int]:
        """Let cohorts go on in turn, for about so many bytes; returns what is left of them."""
        while self._runnable and budget > 0:
            cohort = self._runnable.popleft()
            cohort.queued = False
            if cohort in self._all and not cohort.reading:
                spent = yield from self._advance(cohort, budget)
                budget -= spent + step_delivery_bytes
        return budget

    # -- one cohort -----------------------------------------------------------------------------------

    def _run(self, cohort: SharedCursor) -> None:
        if not cohort.queued:
            cohort.queued = True
            self._runnable.append(cohort)

    def _advance(self, cohort: SharedCursor, budget: int) -> Transitions[int]:
        """Hand out what was read, or read on, or go over to others; returns the bytes looked at and sent."""
        dispatcher = cohort.dispatcher
        if not len(dispatcher):
            self._end(cohort)
            return 0
        if dispatcher.has_work:
            left, ejected = dispatcher.step(min(budget, read_bytes_target))
            yield from map(Ejected, ejected)
            yield from _boundaries(dispatcher)
            if cohort.is_idle:
                self._budget.release(cohort)
            self._run(cohort)
            return min(budget, read_bytes_target) - left
        if not (self._meet(cohort) or (yield from self._fetch(cohort))):
            yield from self._land(cohort)
        return 0

    def _meet(self, cohort: SharedCursor) -> bool:
        """Let those who are a little ahead come here; whether some of them did."""
        for other in self._all:
            ahead = other.position - cohort.position
            if other is cohort or other.literal != cohort.literal or not 0 <= ahead <= cohort_reach_messages:
                continue
            if not ahead and len(other.dispatcher) > len(cohort.dispatcher):
                continue  # at one place the fewer go to the more: else each would take from the other
            if min(len(other.dispatcher), len(cohort.dispatcher)) <= cohort_moves_max:
                cohort.dispatcher.adopt(other.dispatcher.take_all())
                self._end(other)
            else:
                for sub in [*islice(other.dispatcher.standing(), cohort_moves_max)]:
                    other.dispatcher.leave(sub)
                    cohort.dispatcher.join(sub)
            self._run(cohort)
            return True
        return False

    def _fetch(self, cohort: SharedCursor) -> Transitions[bool]:
        """Read on; False at the end of the log."""
        if cohort.reader is None:
            if cohort.position >= self._journal.commits.persisted_end:
                return False
            if cohort.position < self._journal.view.first_position:
                yield from self._expire(cohort)
                return True
            cohort.reader = self._journal.reader(cohort.position, cohort.literal)
        reads = 1 + len(cohort.dispatcher) // _MEMBERS_PER_READ
        wanted = min(reads * read_bytes_target, cohort_piece_bytes_max)
        merged = len(cohort.gathered) > 1 and self._budget.extend(cohort, cohort.gathered_bytes)
        while cohort.gathered_bytes < wanted:
            step = cohort.reader.poll()
            if isinstance(step, ReadRequest):
                if self._read(cohort, step):
                    return True
                break
            if step is None:
                if cohort.gathered:
                    break
                cohort.dispatcher.passed(cohort.reader.position)
                yield from _boundaries(cohort.dispatcher)
                return False
            cohort.gathered += step
            merged = len(cohort.gathered) > 1 and self._budget.extend(cohort, cohort.gathered_bytes)
            if not merged and len(cohort.gathered) > 1:
                break  # no more memory: what was gathered is handed out as it is
        cohort.hand_out(merged=merged)
        self._run(cohort)
        return True

    def _read(self, cohort: SharedCursor, request: ReadRequest) -> bool:
        """Read, at once or when there is memory for it; False when that could take long, and something is to
        be handed out."""
        size = cohort.gathered_bytes + request.size
        if cohort.gathered:
            if not self._budget.extend(cohort, size):
                return False
        elif not self._budget.reserve(cohort, size, lambda: self._run(cohort)):
            return True
        cohort.reading = True
        self._reads.read(cohort, request)
        return True

    def _land(self, cohort: SharedCursor) -> Transitions[None]:
        """It has caught up."""
        cohort.reader = None
        self._budget.forget(cohort)
        yield GroupCaughtUp(cohort.dispatcher)
        if not len(cohort.dispatcher):
            self._end(cohort)
            return
        for sub in [*islice(cohort.dispatcher.standing(), cohort_moves_max)]:
            cohort.dispatcher.leave(sub)
            sub.alone_to = self._journal.commits.persisted_end
            yield Ejected(sub)
        self._run(cohort)

    def _expire(self, cohort: SharedCursor) -> Transitions[None]:
        """What they need is gone, which their pins should have prevented: nothing is skipped silently."""
        view = self._journal.view
        for sub in [*cohort.dispatcher.standing()]:
            yield ReadFailed(sub, expired(f"position {sub.reached}", view.retired, view.first))
        self._end(cohort)
