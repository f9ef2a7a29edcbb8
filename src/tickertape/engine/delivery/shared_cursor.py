"""Shared cursors: read the log once for many filtered feeds at about the same position.

A shared cursor tests each message once for all its feeds, in one index. It delivers like the end of the log
(fanout.py). A feed that cannot accept its part leaves, and uses its own cursor until it may return. If all
feeds have one connection and it is full, they stay and wait for it, in at most half of the cursors.

Invariants:
- Feeds that are far behind do not delay other feeds.
- Memory of shared cursors is limited by the read budget.
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
from tickertape.engine.delivery.cursor_scheduler import CursorScheduler
from tickertape.engine.delivery.fanout import Fanout, FeedIndex
from tickertape.engine.delivery.fanout_frames import FrameSender
from tickertape.engine.delivery.transitions import GroupCaughtUp, GroupMoved, Transition, Transitions
from tickertape.engine.limits import (
    shared_cursor_bytes_max,
    shared_cursor_moves_max,
    shared_cursor_reach_messages,
    shared_cursors_max,
    step_delivery_bytes,
)
from tickertape.engine.log_reads.log_reads import LogReads
from tickertape.engine.matching.filter_groups import is_indexed
from tickertape.engine.runtime.scheduling import Pending
from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.log_feed import LogFeed, Phase
from tickertape.journal.journal import Journal
from tickertape.journal.limits import read_bytes_target
from tickertape.journal.reading.archive_reader import ArchiveAnswer
from tickertape.journal.reading.log_reader import LogReader
from tickertape.journal.reading.log_view import LogPart, ReadRequest


class SharedCursor:
    """One read of the log for several feeds: all on one topic, or all with patterns."""

    __slots__ = ("buffered", "fanout", "queued", "reader", "reading", "topic_name")

    def __init__(self, fanout: Fanout, topic_name: str | None) -> None:
        self.fanout = fanout
        self.topic_name = topic_name
        self.reader: LogReader | None = None
        self.reading = False
        """Whether a read is in progress."""
        self.queued = False
        """Whether the cursor is in the run queue."""
        self.buffered: list[LogPart] = []
        """Parts that are read but not yet passed to the fan-out."""

    @property
    def buffered_bytes(self) -> int:
        """Encoded size of these parts."""
        return sum([part.batch.nbytes for part in self.buffered])


def _merged(parts: list[LogPart]) -> LogPart:
    first, end = parts[0].first_position, parts[-1].end_position
    batch = merge([part.batch for part in parts])
    if end - first == batch.count:
        return LogPart(first, batch)
    positions = [part.positions_of(np.arange(part.batch.count)) for part in parts]
    return LogPart(first, batch, np.concatenate(positions), end)


_MEMBERS_PER_READ = 64
"""Number of feeds that justifies one additional read at a time."""


def can_share(sub: LogFeed) -> bool:
    """Return whether a feed can share a cursor at its position."""
    return (
        is_indexed(sub.interest)
        and sub.phase is Phase.REPLAY
        and sub.position >= sub.solo_until
        and not (sub.has_own_pace or sub.paused or sub.pending_replacements)
        and sub.not_before is None
        and sub.stop_time is None
    )


class SharedCursors:
    """All shared cursors."""

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
        self._run_queue: deque[SharedCursor] = deque()
        self.pending: Pending = (self._run_queue,)
        """Not empty while a shared cursor is ready to run."""
        self._blocked_on_connection: dict[int, dict[SharedCursor, None]] = {}
        """Shared cursors of one connection, which resume when it is writable again."""
        self._alone: WeakValueDictionary[str | None, LogFeed] = WeakValueDictionary()
        """The feed of each topic that last used its own cursor. The next feed may share a cursor with it."""

    def __len__(self) -> int:
        return len(self._all)

    def feeds(self) -> Iterator[LogFeed]:
        """Yield all feeds that share a cursor."""
        for shared in self._all:
            yield from shared.fanout.feeds()

    # -- membership -----------------------------------------------------------------------------------

    def join(self, sub: LogFeed) -> bool:
        """Let a feed with its own cursor share a cursor. Return whether it does."""
        if not can_share(sub) or self._is_older(sub):
            return False
        shared = self._near(sub) or self._with_another(sub)
        if shared is None:
            return False
        self._cursors.discard(sub)
        shared.fanout.add(sub)
        self._run(shared)
        return True

    def begin(self, feeds: FeedIndex, position: int) -> bool:
        """Create a shared cursor for feeds without a cursor, at a position. Return whether it was created."""
        first = next(iter(feeds))
        if len(feeds) < 2 or len(self._all) >= shared_cursors_max:
            return False
        self._begin(first.interest.topic_name, position).fanout.absorb(feeds)
        return True

    def _near(self, sub: LogFeed) -> SharedCursor | None:
        for shared in self._all:
            if shared.topic_name == sub.interest.topic_name:
                ahead = sub.position - shared.fanout.open_from
                if 0 <= ahead <= shared_cursor_reach_messages:
                    return shared
        return None

    def _with_another(self, sub: LogFeed) -> SharedCursor | None:
        """Share a new cursor with a nearby feed that has its own cursor, if possible."""
        topic_name = sub.interest.topic_name
        other = self._alone.get(topic_name)
        if (
            other is None
            or other is sub
            or abs(other.position - sub.position) > shared_cursor_reach_messages
            or len(self._all) >= shared_cursors_max
            or not (can_share(other) and self._cursors.is_free(other))
        ):
            self._alone[topic_name] = sub
            return None
        shared = self._begin(topic_name, min(sub.position, other.position))
        self._cursors.discard(other)
        shared.fanout.add(other)
        return shared

    def _is_older(self, sub: LogFeed) -> bool:
        """Return whether a feed reads before the log. The archive is read for each feed separately."""
        return sub.position < self._journal.view.first_position

    def _begin(self, topic_name: str | None, position: int) -> SharedCursor:
        shared = SharedCursor(Fanout(position, self._sender, Phase.SHARED_REPLAY), topic_name)
        self._all[shared] = None
        self._run(shared)
        return shared

    def _end(self, shared: SharedCursor) -> None:
        self._all.pop(shared, None)
        if not shared.reading:
            self._budget.forget(shared)

    # -- inputs ---------------------------------------------------------------------------------------

    def resume(self, session: Session) -> None:
        """Resume the shared cursors of a connection that is writable again or closed."""
        for shared in self._blocked_on_connection.pop(session.conn, ()):
            self._budget.busy(shared)
            self._run(shared)

    def read_done(
        self, shared: SharedCursor, data: Buffer | ArchiveAnswer | TickertapeError
    ) -> list[Transition]:
        """Handle the answer to a read."""
        shared.reading = False
        if shared not in self._all or shared.reader is None:
            self._budget.forget(shared)
            return []
        try:
            if isinstance(data, TickertapeError):
                raise data
            assert isinstance(data, Buffer)
            shared.buffered += shared.reader.answer(data)
        except TickertapeError:
            # Perhaps only some of the feeds need the corrupt messages, so each continues separately.
            self._end(shared)
            return [_dismiss(shared, shared.reader.position + 1)]
        self._run(shared)
        return []

    # -- outputs --------------------------------------------------------------------------------------

    def step(self, budget: int) -> Transitions[int]:
        """Run shared cursors in turn for about `budget` bytes. Return the remaining budget."""
        while self._run_queue and budget > 0:
            shared = self._run_queue.popleft()
            shared.queued = False
            if shared in self._all and not shared.reading:
                spent = yield from self._advance(shared, budget)
                budget -= spent + step_delivery_bytes
        return budget

    # -- one shared cursor ----------------------------------------------------------------------------

    def _run(self, shared: SharedCursor) -> None:
        if not shared.queued:
            shared.queued = True
            self._run_queue.append(shared)

    def _advance(self, shared: SharedCursor, budget: int) -> Transitions[int]:
        """Deliver buffered messages, or merge, or read more. Return the bytes examined and sent."""
        fanout = shared.fanout
        if not len(fanout):
            self._end(shared)
            return 0
        if any(fanout.pending):
            # At most half of the cursors wait, otherwise full connections could keep others from sharing.
            session = fanout.full_connection if len(self._all) <= shared_cursors_max // 2 else None
            if session is not None:  # ejecting all feeds would cost more than the delivery
                self._blocked_on_connection.setdefault(session.conn, {})[shared] = None
                self._budget.idle(shared, lambda: self._evict(shared))
                return 0
            self._budget.busy(shared)
            left, ejected = fanout.step(min(budget, read_bytes_target))
            yield GroupMoved(fanout, ejected)
            if not any(shared.fanout.pending):
                self._budget.release(shared)
            self._run(shared)
            return min(budget, read_bytes_target) - left
        if not (self._merge_nearby(shared) or (yield from self._fetch(shared))):
            yield from self._reach_tail(shared)
        return 0

    def _evict(self, shared: SharedCursor) -> None:
        """Discard the messages of a cursor whose connection is full. They are read again later."""
        shared.fanout.rewind()
        shared.buffered = []
        shared.reader = None

    def _merge_nearby(self, shared: SharedCursor) -> bool:
        """Absorb feeds of a cursor at the same position or a little ahead. Return whether one was found."""
        for other in self._all:
            ahead = other.fanout.position - shared.fanout.position
            if (
                other is shared
                or other.topic_name != shared.topic_name
                or not 0 <= ahead <= shared_cursor_reach_messages
            ):
                continue
            if not ahead and len(other.fanout) > len(shared.fanout):
                continue  # the smaller group moves, otherwise both would take feeds from each other
            if min(len(other.fanout), len(shared.fanout)) <= shared_cursor_moves_max:
                shared.fanout.absorb(other.fanout.drain())
                self._end(other)
            else:
                for sub in [*islice(other.fanout.feeds(), shared_cursor_moves_max)]:
                    other.fanout.remove(sub)
                    shared.fanout.add(sub)
            self._run(shared)
            return True
        return False

    def _fetch(self, shared: SharedCursor) -> Transitions[bool]:
        """Read more. Return False at the end of the log."""
        if shared.reader is None:
            position = shared.fanout.position
            if position >= self._journal.commits.persisted_end:
                return False
            if position < self._journal.view.first_position:  # retention pins should prevent this
                self._end(shared)
                yield _dismiss(shared, position)
                return True
            shared.reader = self._journal.reader(position, shared.topic_name)
        reads = 1 + len(shared.fanout) // _MEMBERS_PER_READ
        wanted = min(reads * read_bytes_target, shared_cursor_bytes_max)
        merged = len(shared.buffered) > 1 and self._budget.extend(shared, shared.buffered_bytes)
        while shared.buffered_bytes < wanted:
            step = shared.reader.poll()
            if isinstance(step, ReadRequest):
                if self._read(shared, step):
                    return True
                break
            if step is None:
                if shared.buffered:
                    break
                shared.fanout.passed(shared.reader.position)
                yield GroupMoved(shared.fanout, [])
                return False
            shared.buffered += step
            merged = len(shared.buffered) > 1 and self._budget.extend(shared, shared.buffered_bytes)
            if not merged and len(shared.buffered) > 1:
                break  # no more memory: deliver the buffered parts unmerged
        parts, shared.buffered = shared.buffered, []
        for part in [_merged(parts)] if merged else parts:
            shared.fanout.take(part)
        self._run(shared)
        return True

    def _read(self, shared: SharedCursor, request: ReadRequest) -> bool:
        """Read now or when memory is available. Return False to deliver the buffered parts first."""
        size = shared.buffered_bytes + request.size
        if shared.buffered:
            if not self._budget.extend(shared, size):
                return False
        elif not self._budget.reserve(shared, size, lambda: self._run(shared)):
            return True
        shared.reading = True
        self._reads.read(shared, request)
        return True

    def _reach_tail(self, shared: SharedCursor) -> Transitions[None]:
        """Move feeds to the end of the log, or let them continue with their own cursors."""
        shared.reader = None
        self._budget.forget(shared)
        yield GroupCaughtUp(shared.fanout)
        if not len(shared.fanout):
            self._end(shared)
            return
        yield _dismiss(shared, self._journal.commits.persisted_end, shared_cursor_moves_max)
        self._run(shared)


def _dismiss(shared: SharedCursor, solo_until: int, feeds_max: int | None = None) -> GroupMoved:
    """Remove all feeds, or up to `feeds_max`. They use their own cursors up to `solo_until`."""
    left = [*islice(shared.fanout.feeds(), feeds_max)]
    for sub in left:
        shared.fanout.remove(sub)
        sub.solo_until = max(sub.solo_until, solo_until)
    return GroupMoved(shared.fanout, left)
