"""Log delivery: moves feeds between replay, shared replay and the end of the log.

A feed behind the end has its own cursor (cursor_scheduler.py) or a shared one (shared_cursor.py). Feeds at
the end share a fan-out. A feed leaves the fan-out when it lacks credit, is paused or its connection is full.
It then continues from exactly the same position.

Invariants:
- Transitions between these states neither skip nor duplicate messages.
- One step delivers about `step_bytes_max`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from tickertape.base.errors import TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.base.text_format import shown
from tickertape.engine.conflation.buffer import ConflationBuffer
from tickertape.engine.delivery.cursor import Cursor
from tickertape.engine.delivery.cursor_scheduler import CursorScheduler
from tickertape.engine.delivery.fanout import Fanout
from tickertape.engine.delivery.fanout_frames import FrameSender
from tickertape.engine.delivery.live_tail import LiveTail
from tickertape.engine.delivery.progress_notices import ProgressNotices
from tickertape.engine.delivery.shared_cursor import SharedCursor, SharedCursors
from tickertape.engine.delivery.transitions import (
    BoundaryReached,
    CaughtUp,
    GroupCaughtUp,
    GroupMoved,
    MayShare,
    Transition,
    Transitions,
)
from tickertape.engine.limits import shared_cursor_moves_max, step_bytes_in_commit_max, step_bytes_max
from tickertape.engine.log_reads.log_reads import LogReads
from tickertape.engine.matching.interest import Interest
from tickertape.engine.retention import RetentionPin
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.effects import Send
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.runtime.scheduling import DeadlineQueue, Pending
from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.log_feed import LogFeed, Phase, Replacement
from tickertape.engine.subscriptions.options import ReplayRate
from tickertape.journal.journal import AcceptedBatch, Journal
from tickertape.journal.reading.archive_reader import ArchiveAnswer
from tickertape.journal.reading.log_view import LogPart
from tickertape.wire.commands import Command, Completed, Ended
from tickertape.wire.frames import encode_frame

if TYPE_CHECKING:
    from tickertape.engine.subscriptions.log_places import NoticeFacts

_SHARE_OF_THE_LAST = 4
"""Feeds behind the end get at least one part in this many of a step."""

T = TypeVar("T")


class LogDelivery:
    """All feeds of persistent topics.

    The session of a live feed that is behind for `age_seconds` is overdue."""

    def __init__(
        self,
        journal: Journal,
        outbox: Outbox,
        clock: EngineClock,
        reads: LogReads,
        age_seconds: float | None,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._outbox = outbox
        self.ended: list[LogFeed] = []
        """Feeds that ended by themselves, until `take_ended`."""
        self.step_bytes_max = step_bytes_max
        """Approximate number of bytes that one step delivers."""
        sender = FrameSender(outbox)
        self.cursors = CursorScheduler(journal, clock, reads, sender)
        self.shared_cursors = SharedCursors(journal, reads, self.cursors, sender)
        self.fanout = Fanout(journal.commits.persisted_end, sender)
        self.live = LiveTail(journal.commits.accepted_end, clock, sender, age_seconds)
        self._at_end = (*self.fanout.pending, *self.live.fanout.pending)
        self._clocked: DeadlineQueue[LogFeed] = DeadlineQueue()
        """Feeds that end at a future log time."""
        self._notices = ProgressNotices(outbox, clock)
        self.pending: Pending = (
            *self._at_end,
            *self.cursors.pending,
            *self.shared_cursors.pending,
            *self._notices.pending,
        )
        """Not empty while `step` has messages or notices to send."""

    def use_facts(self, facts: NoticeFacts) -> None:
        """Send places and holes of a server that replicates."""
        self._notices.use_facts(facts)

    # -- inputs ---------------------------------------------------------------------------------------

    def begin(self, sub: LogFeed) -> None:
        """Start delivery to a feed whose range is known, unless it is paused."""
        if sub.stop_time is not None:
            self._clocked.put(sub, sub.stop_time)
            self._clock.announce(self)
        if sub.live:
            self.live.begin(self._journal.commits.accepted_end)
        self.cursors.add(sub)

    def hold(self, sub: LogFeed) -> None:
        """Start a feed that is sent nothing before `release`. Retention keeps its messages."""
        sub.held = True
        self.begin(sub)

    def release(self, sub: LogFeed) -> None:
        """Let a held feed receive its messages, unless it has ended."""
        sub.held = False
        self.cursors.wake(sub)

    def credit(self, sub: LogFeed) -> None:
        """Resume a feed that received more credit."""
        self.cursors.credit(sub)

    def writable(self, session: Session) -> None:
        """Resume the feeds of a connection that is writable again."""
        session.writable = True
        self.cursors.writable(session)
        self.shared_cursors.resume(session)

    def drop(self, session: Session) -> None:
        """Prepare for the end of the feeds of a closed connection."""
        self.shared_cursors.resume(session)

    def pause(self, subs: Iterable[LogFeed]) -> None:
        """Pause feeds. They keep their positions."""
        for sub in subs:
            if sub.paused:
                continue
            sub.pause(self._clock.mono)
            self._leave(sub)
            if sub.phase is Phase.REPLAY:
                self.cursors.add(sub)

    def resume(self, subs: Iterable[LogFeed]) -> None:
        """Resume feeds. Feeds with the same position and rate share a cursor."""
        alike: dict[object, list[LogFeed]] = {}
        for number, sub in enumerate(subs):
            if not sub.paused:
                continue
            sub.resume(self._clock.mono)
            if sub.phase is Phase.REPLAY:
                key = (sub.position, sub.pace) if sub.may_combine else number
                alike.setdefault(key, []).append(sub)
        for group in alike.values():
            for sub in group:
                self.cursors.discard(sub)
            self.cursors.add(*group)

    def replace(
        self,
        sub: LogFeed,
        interest: Interest | None,
        pace: ReplayRate | None = None,
        conflating: ConflationBuffer | None = None,
        *,
        live: bool = False,
    ) -> None:
        """Replace a feed under the same id, or end it if `interest` is None.

        A replay is replaced at its current position. A feed that has caught up is replaced at the first
        message accepted after this call."""
        replay = sub.replays and not (sub.target is None and not sub.has_stop) and not self.caught_up(sub)
        replay = replay or sub.horizon is not None
        position = sub.considered_to if replay else self._journal.commits.accepted_end
        if sub.phase is Phase.SEARCHING:
            position = sub.position
            sub.pending_replacements.clear()
        if sub.pending_replacements and sub.pending_replacements[-1].position == position:
            sub.pending_replacements.pop()  # the earlier replacement would apply to no message
        sub.pending_replacements.append(Replacement(position, interest, pace, conflating, live))
        if sub.phase is Phase.SEARCHING:
            self._apply_replacement(sub)
            return
        if sub.group is not None:
            # A fan-out would skip messages that only the replacement covers.
            sub.group.remove(sub)
            self.cursors.add(sub)
        if self._pass_boundary(sub, sub.position):
            self.cursors.wake(sub)

    def remove(self, sub: LogFeed) -> None:
        """End a feed. The answer to its read is ignored."""
        if sub.phase is Phase.ENDED:
            return
        self._leave(sub)
        if sub.live and sub.phase is not Phase.SEARCHING:
            self.live.end(sub)
        sub.phase = Phase.ENDED
        if sub.conflating is not None:
            sub.conflating.forget()
        self._clocked.drop(sub)
        self.ended.append(sub)

    def read_done(
        self, reader: Cursor | SharedCursor, data: Buffer | ArchiveAnswer | TickertapeError
    ) -> None:
        """Handle the answer to a read."""
        transitions = (
            self.cursors.read_done(reader, data)
            if isinstance(reader, Cursor)
            else self.shared_cursors.read_done(reader, data)
        )
        for transition in transitions:
            self._apply(transition)

    def accepted(self, batches: Iterable[AcceptedBatch]) -> None:
        """Offer accepted batches to live feeds."""
        if self.live.known_from is not None:
            self.cursors.add_each(self.live.accepted(batches))

    def persisted(self, part: LogPart) -> None:
        """Offer a persisted commit to all feeds."""
        if self.fanout.persisted(part):
            self._tail_overloaded(part.end_position)
        if self.live.known_from is not None:
            self.live.persisted(part.end_position)
        self._notices.moved(part)
        self.cursors.persisted()

    def links_moved(self) -> None:
        """Resume feeds that wait for synchronous destinations."""
        self.cursors.links_moved()

    def oldest_needed(self) -> RetentionPin:
        """Return the retention pin of the feed that is farthest behind."""
        oldest: LogFeed | None = None
        end = least = self.fanout.position
        for sub in (*self.cursors.feeds(), *self.shared_cursors.feeds()):
            needed = self._needed(sub)
            if needed < least or (oldest is None and needed == least):
                oldest, least = sub, needed
        if oldest is None:
            return RetentionPin(end, "feeds at the end of the log", brief=True)
        who = f"subscription {shown(oldest.sub_id)} of client {shown(oldest.session.name)}"
        return RetentionPin(least, who)

    def _needed(self, sub: LogFeed) -> int:
        """Return the lowest log position that a feed needs. The archive may hold earlier messages."""
        view = self._journal.view
        if sub.considered_to >= view.first_position or view.archive is None:
            return sub.considered_to
        return max(sub.considered_to, view.archive.end)

    def stop(self) -> None:
        """Wake caught-up feeds after conflation is disabled for shutdown."""
        self.cursors.persisted()

    def overdue(self) -> dict[Session, str]:
        """Return sessions to close because a live feed was behind for too long, with the reason."""
        return self.live.overdue()

    def settle(self) -> None:
        """Execute everything that is due by the clock. Called after commits too."""
        if self._clocked.items:
            for sub in self._clocked.due(self._journal.log_time(self._clock.now)):
                self._stop_by_clock(sub)
        if any(self.cursors.timed):
            self.cursors.settle()
        for fanout in (self.fanout, self.live.fanout):
            if fanout.boundaries:
                self._moved(fanout)
        if not any(self._at_end):  # otherwise messages still wait
            self._notices.settle(self._all_sent)

    def _stop_by_clock(self, sub: LogFeed) -> None:
        """Convert the end time of a feed into a position. Messages accepted later have later timestamps."""
        if sub.stop_time is not None:
            end = self._journal.commits.accepted_end
            # `stop_time` remains, because a feed behind must not receive messages with later timestamps.
            sub.stop = end if sub.stop is None else min(sub.stop, end)
        if sub.group is not None:
            sub.group.reschedule(sub)
        else:
            self.cursors.wake(sub)

    # -- outputs --------------------------------------------------------------------------------------

    def take_ended(self) -> list[LogFeed]:
        """Return the feeds that ended since the last call."""
        ended, self.ended = self.ended, []
        return ended

    def caught_up(self, sub: LogFeed) -> bool:
        """Return whether a feed was sent everything persisted."""
        return sub.phase is Phase.TAIL or self.cursors.caught_up(sub)

    def next_deadline(self) -> float | None:
        """Return the monotonic time (seconds) at which to call `settle` for a feed that ends, or None."""
        return self._clock.reached(self._clocked.first())

    def step(self) -> None:
        """Deliver about `step_bytes_max`, to feeds at the end and to feeds behind it in turn.

        While a publisher waits for a commit, feeds behind the end get less."""
        left = max(self.dispatch(), self.step_bytes_max // _SHARE_OF_THE_LAST)
        if self._journal.commits.in_flight:
            left = min(left, step_bytes_in_commit_max)
        self._notices.step()
        share = left // 2 if any(self.cursors.pending) else left
        self._apply_all(self.cursors.step(left - share + self._apply_all(self.shared_cursors.step(share))))

    def dispatch(self) -> int:
        """Deliver to feeds at the end of the log. Return the remaining budget of the step."""
        budget = self.step_bytes_max
        for end, fanout in ((self.live, self.live.fanout), (self.fanout, self.fanout)):
            if any(fanout.pending):
                budget, ejected = end.step(budget)
                self._moved(fanout, ejected)
        return budget

    # -- transitions ----------------------------------------------------------------------------------

    def _apply_all(self, transitions: Transitions[T]) -> T:
        """Apply each transition before requesting the next one. Return the generator's return value."""
        while True:
            try:
                transition = next(transitions)
            except StopIteration as done:
                result: T = done.value
                return result
            self._apply(transition)

    def _apply(self, transition: Transition) -> None:
        if isinstance(transition, MayShare):
            self.shared_cursors.join(transition.feed)
        elif isinstance(transition, BoundaryReached):
            self._pass_boundary(transition.feed, transition.feed.position)
        elif isinstance(transition, CaughtUp):
            self._caught_up(transition.feed)
        elif isinstance(transition, GroupMoved):
            self._moved(*transition)
        elif isinstance(transition, GroupCaughtUp):
            self._promote_to_tail(transition.group)
        else:
            self._failed(*transition)

    # -- at the end -----------------------------------------------------------------------------------

    def _tail_overloaded(self, end: int) -> None:
        """Relieve the fan-out at the end. Feeds with indexed filters get shared cursors if possible, other
        feeds get their own."""
        for feeds in self.fanout.take_filtered():
            if not self.shared_cursors.begin(feeds, self.fanout.position):
                self.cursors.add_each(feeds)
        self.cursors.add_each(self.fanout.eject_all(end))

    def _promote_to_tail(self, group: Fanout) -> None:
        """Move a group to the end of the log, unless it has too many feeds, or needs too many index
        entries."""
        moving, there = len(group), len(self.fanout)
        if moving > shared_cursor_moves_max and (there > shared_cursor_moves_max or any(self.fanout.pending)):
            return
        if min(self.fanout.entries, self.fanout.entries_missing(group)) > shared_cursor_moves_max:
            return
        if any(sub.live for sub in group.feeds()):
            return
        feeds = group.drain()
        for sub in feeds:
            self._notices.joined(sub)
        self.fanout.absorb(feeds)

    def _caught_up(self, sub: LogFeed) -> None:
        """Move a feed to the end of the log, unless it has its own rate or a pending replacement."""
        if not self._pass_boundary(sub, self._journal.commits.persisted_end):
            return
        if not (sub.has_own_pace or sub.pending_replacements):
            if sub.live and not self.live.join(sub):
                return
            self.cursors.discard(sub)
            if not sub.live:
                self.fanout.add(sub)
        self._notices.joined(sub)

    def _failed(self, sub: LogFeed, error: TickertapeError) -> None:
        if not sub.session.ended:
            self._outbox.end_subscription(sub.session.conn, sub.sub_id, sub.interest.topic, error)
        self.remove(sub)

    def _all_sent(self) -> Iterator[LogFeed]:
        """Yield feeds that were sent everything."""
        for sub in chain(self.fanout.feeds(), self.live.fanout.feeds(), self.cursors.all_sent()):
            if not sub.session.ended:
                yield sub

    # -- completions and ends -------------------------------------------------------------------------

    def _moved(self, fanout: Fanout, left: Iterable[LogFeed] = ()) -> None:
        """Handle progress of a fan-out, and the feeds that left it."""
        for sub in left:
            self.cursors.add(sub)
        for sub in fanout.take_reached():
            if self._pass_boundary(sub, fanout.position) and sub.group is fanout:
                fanout.reschedule(sub)

    def _pass_boundary(self, sub: LogFeed, position: int) -> bool:
        """Perform the actions due at `position`. Return False if the feed ended."""
        boundary = sub.boundary()
        if boundary is None or position < boundary:
            return True
        if sub.conflating is not None:
            sub.conflating.flush()
            if sub.conflating.waits:
                return True  # held messages are sent first
        if sub.pending_replacements and position >= sub.pending_replacements[0].position:
            self._apply_replacement(sub)
            if sub.phase is Phase.ENDED:
                return False
        if sub.stop is not None and position >= sub.stop:
            self._send(sub, Completed(sub_id=sub.sub_id, next=sub.stop))
            self._send(sub, Ended(sub_id=sub.sub_id))
            self.remove(sub)
            return False
        if sub.target is not None and position >= sub.target:
            self._send(sub, Completed(sub_id=sub.sub_id, next=sub.target))
            sub.target = None
        return True

    def _apply_replacement(self, sub: LogFeed) -> None:
        if sub.pending_replacements[0].interest is None and len(sub.pending_replacements) == 1:
            self.remove(sub)
            return
        self._leave(sub)
        was_live = sub.live
        sub.apply_replacement()
        if was_live and not sub.live and sub.phase is not Phase.SEARCHING:
            self.live.end(sub)
        elif sub.live and not was_live and sub.phase is not Phase.SEARCHING:
            self.live.begin(self._journal.commits.accepted_end)
        if sub.phase is not Phase.SEARCHING:
            self.cursors.add(sub)

    def _send(self, sub: LogFeed, command: Command) -> None:
        if not sub.session.ended:
            buffers: list[Buffer] = encode_frame(command)
            self._outbox.put(Send(sub.session.conn, buffers))

    def _leave(self, sub: LogFeed) -> None:
        """Remove a feed from its group and its cursor, and its kept index entry."""
        if sub.group is not None:
            sub.group.remove(sub)
        (self.live.fanout if sub.live else self.fanout).remove(sub)
        self.cursors.discard(sub)
