"""Cursor scheduler: reads the log for feeds behind its end, in bounded steps of one cursor.

A cursor runs while credit, connection and rate limiter permit. It reports feeds that caught up or may share a
cursor (shared_cursor.py). Feeds with their own replay rate keep their own cursor.

Invariants:
- Memory for slow feeds is limited by the read budget.
- Connections take turns, regardless of their number of cursors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tickertape.base.errors import TickertapeError
from tickertape.base.limits import combined_subscriptions_max
from tickertape.engine.delivery.cursor import Cursor, conflated_portion, lockstep_frames
from tickertape.engine.delivery.fanout_frames import FrameSender
from tickertape.engine.delivery.transitions import (
    BoundaryReached,
    CaughtUp,
    MayShare,
    ReadFailed,
    Transition,
    Transitions,
)
from tickertape.engine.limits import step_delivery_bytes
from tickertape.engine.log_reads.log_reads import LogReads
from tickertape.engine.matching.interest import ALL_TOPICS
from tickertape.engine.runtime.clock import EngineClock, earlier
from tickertape.engine.runtime.scheduling import DeadlineQueue, FairQueue, Pending
from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.log_feed import LogFeed
from tickertape.journal.journal import Journal
from tickertape.journal.reading.archive_reader import ArchivedLogReader, expired_error
from tickertape.journal.reading.log_reader import LogReader

_MICROS = 1_000_000


class CursorScheduler:
    """All cursors of feeds that do not share one."""

    def __init__(
        self,
        journal: Journal,
        clock: EngineClock,
        reads: LogReads,
        sender: FrameSender,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._reads = reads
        self._budgets = reads.budgets
        self._sender = sender
        self._cursor_of: dict[LogFeed, Cursor] = {}
        self._run_queue: FairQueue[Cursor] = FairQueue()
        self.pending: Pending = (self._run_queue.keys,)
        """Not empty while a cursor is ready to run."""
        self._blocked_on_connection: dict[int, dict[Cursor, None]] = {}
        """Cursors that resume when their connection is writable again."""
        self._at_tail: dict[Cursor, None] = {}
        """Cursors that have caught up and resume with the next commit."""
        self._behind_links: dict[Cursor, None] = {}
        """Cursors that have sent everything that synchronous destinations have on their disks."""
        self._conflation_ends: DeadlineQueue[Cursor] = DeadlineQueue()
        """Caught-up cursors with conflation, by the log time at which an interval ends."""
        self._timers: DeadlineQueue[Cursor] = DeadlineQueue()
        """Cursors by the monotonic time (microseconds) at which they resume. Their rate limiter then permits
        more, or their conflation has waited too long for the log time."""
        self.timed: Pending = (self._conflation_ends.items, self._timers.items)
        """Not empty while a cursor waits for a time."""

    # -- feeds ----------------------------------------------------------------------------------------

    def add(self, *subs: LogFeed) -> None:
        """Read together for feeds of one connection that have the same position."""
        for at in range(0, len(subs), combined_subscriptions_max):
            some = list(subs[at : at + combined_subscriptions_max])
            cursor = Cursor(some)
            self._cursor_of.update(dict.fromkeys(some, cursor))
            self._run(cursor)

    def add_each(self, subs: Iterable[LogFeed]) -> None:
        """Read separately for each feed."""
        for sub in subs:
            self.add(sub)

    def discard(self, sub: LogFeed) -> None:
        """Remove a feed from its cursor, if it has one. The answer to its read is ignored."""
        cursor = self._cursor_of.pop(sub, None)
        if cursor is None:
            return
        cursor.subs.remove(sub)
        cursor.evict()  # a read for several feeds differs from a read for one
        if cursor.subs:
            cursor.out_of_credit = False  # perhaps only the removed feed lacked credit
            self._run(cursor)
            return
        if not cursor.reading:
            self._budgets.forget(cursor)
        self._at_tail.pop(cursor, None)
        self._behind_links.pop(cursor, None)
        self._timers.drop(cursor)
        self._conflation_ends.drop(cursor)
        full = self._blocked_on_connection.get(cursor.session.conn)
        if full is not None:
            full.pop(cursor, None)
            if not full:
                del self._blocked_on_connection[cursor.session.conn]

    def feeds(self) -> Iterable[LogFeed]:
        """Return all feeds that do not share a cursor."""
        return self._cursor_of

    # -- inputs ---------------------------------------------------------------------------------------

    def credit(self, sub: LogFeed) -> None:
        """Resume a feed that received more credit."""
        cursor = self._cursor_of.get(sub)
        if cursor is not None:
            cursor.out_of_credit = False
            self._run(cursor)

    def wake(self, sub: LogFeed) -> None:
        """Schedule a feed for the next step, if it has a cursor."""
        cursor = self._cursor_of.get(sub)
        if cursor is not None:
            self._run(cursor)

    def writable(self, session: Session) -> None:
        """Resume the cursors of a connection that is writable again."""
        for cursor in self._blocked_on_connection.pop(session.conn, ()):
            self._run(cursor)

    def read_done(self, cursor: Cursor, data: Any) -> list[Transition]:
        """Handle the answer to a read of a cursor, or the error."""
        cursor.reading = False
        if not cursor.subs or cursor.reader is None:
            self._budgets.forget(cursor)
            self._run(cursor)
            return []
        try:
            if isinstance(data, TickertapeError):
                raise data
            cursor.ahead.fill(cursor.reader.answer(data), cursor.interest or ALL_TOPICS)
        except TickertapeError as error:
            return [ReadFailed(sub, error) for sub in cursor.subs]
        self._run(cursor)
        return []

    def persisted(self) -> None:
        """Resume caught-up cursors: a commit is persisted."""
        if self._at_tail:
            waiting, self._at_tail = self._at_tail, {}
            for cursor in waiting:
                cursor.subs[0].limit = None
                self._run(cursor)
        if self._behind_links:
            self.links_moved()

    def links_moved(self) -> None:
        """Resume cursors that wait for synchronous destinations."""
        waiting, self._behind_links = self._behind_links, {}
        for cursor in waiting:
            cursor.subs[0].limit = None
            self._run(cursor)

    def settle(self) -> None:
        """Resume cursors whose deadline has passed."""
        if self._conflation_ends.items:
            for cursor in self._conflation_ends.due(self._journal.log_time(self._clock.now)):
                self._run(cursor)
        if self._timers.items:
            for cursor in self._timers.due(int(self._clock.mono * _MICROS)):
                self._run(cursor)

    # -- outputs --------------------------------------------------------------------------------------

    def caught_up(self, sub: LogFeed) -> bool:
        """Return whether a feed has its own cursor and was sent everything persisted."""
        return self._cursor_of.get(sub) in self._at_tail

    def is_free(self, sub: LogFeed) -> bool:
        """Return whether a feed has its own cursor that neither credit nor connection blocks."""
        cursor = self._cursor_of.get(sub)
        return (
            cursor is not None
            and cursor.interest is not None
            and cursor.runs
            and cursor.session.writable
            and not cursor.out_of_credit
        )

    def reads_with(self, sub: LogFeed) -> int:
        """Return the number of other feeds of its cursor."""
        cursor = self._cursor_of.get(sub)
        return 0 if cursor is None else len(cursor.subs) - 1

    def blocked(self, sub: LogFeed) -> bool:
        """Return whether credit or connection block the delivery to a feed."""
        cursor = self._cursor_of.get(sub)
        return cursor is not None and (cursor.out_of_credit or not cursor.session.writable)

    def all_sent(self) -> Iterator[LogFeed]:
        """Yield caught-up feeds for which conflation holds no messages."""
        for cursor in self._at_tail:
            for sub in cursor.subs:
                if sub.conflating is None or sub.conflating.unsent_position is None:
                    yield sub

    def next_deadline(self) -> float | None:
        """Return the monotonic time (seconds) at which to call `settle`, or None."""
        first = self._timers.first()
        deadline = None if first is None else (first + 1) / _MICROS  # rounded up, so that it is not early
        return earlier(deadline, self._clock.reached(self._conflation_ends.first()))

    def step(self, budget: int) -> Transitions[None]:
        """Run cursors in turn for about `budget` bytes. The caller applies each transition before the next
        one."""
        while self._run_queue and budget > 0:
            cursor = self._run_queue.next()
            cursor.queued = False
            if cursor.runs and not cursor.reading:
                spent = yield from self._advance(cursor)
                budget -= spent + step_delivery_bytes

    # -- one cursor -----------------------------------------------------------------------------------

    def _run(self, cursor: Cursor) -> None:
        if not cursor.queued and not cursor.reading and cursor.runs:
            cursor.queued = True
            self._run_queue.put(cursor.session.conn, cursor)

    def _advance(self, cursor: Cursor) -> Transitions[int]:
        """Send buffered messages, then read more, or catch up. Return the bytes examined and sent."""
        for sub in list(cursor.subs):
            boundary = sub.boundary()
            if boundary is not None and sub.position >= boundary:
                yield BoundaryReached(sub)
        if not cursor.subs or cursor.out_of_credit:
            return 0
        if not cursor.session.writable:
            self._blocked_on_connection.setdefault(cursor.session.conn, {})[cursor] = None
            self._budgets.idle(cursor, cursor.evict)
            return 0
        if cursor.subs[0].horizon is not None and self._waits_for_links(cursor):
            return 0
        self._budgets.busy(cursor)
        if not cursor.ahead and not cursor.releases:
            yield from self._fetch(cursor)
            if not cursor.ahead:
                return 0
        return self._offer(cursor)

    def _waits_for_links(self, cursor: Cursor) -> bool:
        """Limit delivery to the horizon of a feed. Return whether it has sent everything before that."""
        sub = cursor.subs[0]
        if sub.horizon is None:
            return False
        end = self._journal.commits.persisted_end
        sub.limit = sub.horizon.position(end)
        if sub.limit >= end or not sub.waits_for_links or cursor.releases:
            return False
        self._budgets.idle(cursor, cursor.evict)
        if self._settle_conflation(cursor, all_known=False):
            return False
        self._behind_links[cursor] = None
        return True

    def _offer(self, cursor: Cursor) -> int:
        """Send buffered messages to the feeds. Return the bytes examined and sent."""
        interest, sub = cursor.interest, cursor.subs[0]
        if interest is None:
            frames, spent, blocked, at = lockstep_frames(cursor, self._clock.mono)
            for command, batch in frames:
                self._sender.deliver_shared(cursor.session.conn, command, batch)
        else:
            if sub.conflating is not None:
                share, spent = conflated_portion(cursor, self._clock.mono)
            else:
                piece, spent = cursor.ahead.next_selection(interest, sub.position)
                share = sub.next_portion(piece, self._clock.mono)
                cursor.advance(share.next, piece.end)
            if share.batch is not None:
                spent += share.batch.nbytes
                self._sender.deliver(sub, share.batch, share.next, None, share.positions)
            blocked, at = share.blocked, share.at
        if at is not None:
            self._timers.put(cursor, int(at * _MICROS) + 1)
            self._clock.announce(self)
        elif blocked:
            cursor.out_of_credit = True
        else:
            self._run(cursor)
            return spent
        self._budgets.idle(cursor, cursor.evict)
        return spent

    def _fetch(self, cursor: Cursor) -> Transitions[None]:
        """Read more. Earlier frames are already written, otherwise this cursor would not run."""
        if cursor.position >= self._journal.commits.persisted_end:
            yield from self._join(cursor)
            return
        interest = cursor.interest
        if interest is not None:
            yield MayShare(cursor.subs[0])
            if not cursor.subs:
                return
        try:
            if cursor.reader is None:
                cursor.reader = self._reader(cursor)
            step = cursor.reader.poll()
        except TickertapeError as error:
            for sub in list(cursor.subs):
                yield ReadFailed(sub, error)
            return
        if step is not None and not isinstance(step, list):
            if self._budgets.reserve(cursor, step, lambda: self._run(cursor)):
                cursor.reading = True
                self._reads.read(cursor, step, cursor.session.conn)
            return
        self._budgets.release(cursor)
        if step is not None:
            cursor.ahead.fill(step, interest or ALL_TOPICS)
            return
        turns = [sub.pending_replacements[0].position for sub in cursor.subs if sub.pending_replacements]
        reached = min([cursor.reader.position, *turns])
        cursor.advance(reached, reached)
        if reached < cursor.reader.position or isinstance(cursor.reader, ArchivedLogReader):
            # The replacement may cover skipped messages, and after the archive the log must be read.
            cursor.evict()
            self._run(cursor)
        else:
            yield from self._join(cursor)

    def _reader(self, cursor: Cursor) -> LogReader | ArchivedLogReader:
        """Create a reader of the log or the archive.

        Raises `BookmarkExpired` if the position is deleted. Its retention pin should have prevented this, but
        no message may be skipped silently."""
        view, position = self._journal.view, cursor.position
        if position >= view.first_position:
            return self._journal.reader(position, cursor.topic_name)
        if view.archive is None:
            raise expired_error(f"position {position}", view)
        return ArchivedLogReader(view, view.archive, position, cursor.topic, self._reads.new_token())

    def _join(self, cursor: Cursor) -> Transitions[None]:
        """Catch up: hand feeds over to the live end of the log, or wait for the next commit."""
        cursor.evict()
        self._budgets.forget(cursor)
        for sub in list(cursor.subs):
            yield CaughtUp(sub)
        if not cursor.subs:
            return
        all_known = self._journal.commits.persisted_end == self._journal.commits.accepted_end
        if cursor.subs[0].conflating is not None and self._settle_conflation(cursor, all_known=all_known):
            self._run(cursor)
        else:
            self._at_tail[cursor] = None

    def _settle_conflation(self, cursor: Cursor, *, all_known: bool) -> bool:
        """End the conflation intervals that are over. Return whether messages wait to be sent.

        `all_known`: the cursor has considered all accepted messages."""
        conflating = cursor.subs[0].conflating
        if conflating is None:
            return False
        now = self._journal.log_time(self._clock.now)
        if all_known:
            # Later messages have later timestamps, so the interval ends by the clock.
            conflating.settle(now)
        conflating.lose_patience(self._clock.mono, now)
        if conflating.waits:
            return True
        at = conflating.next_time()
        if at is not None:
            self._clock.announce(self)
            if all_known:  # otherwise the next commit resumes it
                self._conflation_ends.put(cursor, at)
            if now < at:  # otherwise it waits for commits, not for the clock
                self._timers.put(cursor, int(conflating.patience(self._clock.mono) * _MICROS) + 1)
        return False
