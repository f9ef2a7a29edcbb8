"""Cursor: a position in the log with the feeds of one connection that read from there."""

from __future__ import annotations

from typing import NamedTuple

from tickertape.batch import MessageBatch
from tickertape.batch.format import Int64s
from tickertape.engine.log_reads.read_buffer import ReadBuffer
from tickertape.engine.log_reads.selection import Selection
from tickertape.engine.matching.interest import Interest
from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.log_feed import LogFeed, Phase
from tickertape.journal.reading.archive_reader import ArchivedLogReader
from tickertape.journal.reading.log_reader import LogReader


class RowSet(NamedTuple):
    """Messages of a stretch of the log that are for one feed."""

    indices: Int64s
    chosen: MessageBatch | None
    """The messages, where a rate limiter looks at them; None without one, and for no message."""


class RowCache(NamedTuple):
    """Messages of a stretch of the log that are for each feed of a cursor."""

    raw: Selection
    low: int
    high: int
    """The stretch is the messages `[low, high)` of `raw`."""
    row_sets: list[RowSet]
    """In the order of the feeds of the cursor."""


class Cursor:
    """A position in the log and the feeds that read from there, all of which have considered the same
    messages."""

    __slots__ = ("ahead", "cached_rows", "out_of_credit", "queued", "reader", "reading", "session", "subs")

    def __init__(self, subs: list[LogFeed]) -> None:
        self.subs = subs
        self.session: Session = subs[0].session
        self.reader: LogReader | ArchivedLogReader | None = None
        self.reading = False
        """A read is under way."""
        self.queued = False
        """It is in the run queue."""
        self.out_of_credit = False
        """Credit does not suffice for the next message: nothing is read until more is granted."""
        self.ahead = ReadBuffer()
        """Messages that were read and are not consumed yet, bounded by one read."""
        self.cached_rows: RowCache | None = None
        """The stretch that was filtered last, for several feeds."""

    @property
    def position(self) -> int:
        """The next message to consider."""
        return self.subs[0].position

    @property
    def topic_name(self) -> str | None:
        """The one topic that all feeds cover, or None."""
        names = {sub.interest.topic_name for sub in self.subs}
        return names.pop() if len(names) == 1 else None

    @property
    def topic(self) -> str | None:
        """The topic or pattern to read from the archive: that of all feeds, or None."""
        topic = self.subs[0].interest.topic
        if self.subs[0].interest.has_exclusions or any(sub.interest.topic != topic for sub in self.subs):
            return None
        return topic

    @property
    def interest(self) -> Interest | None:
        """The interest of the only feed; None for several feeds."""
        return self.subs[0].interest if len(self.subs) == 1 else None

    @property
    def runs(self) -> bool:
        """Whether its feeds replay and are not paused."""
        return bool(self.subs) and self.subs[0].phase is Phase.REPLAY and not self.subs[0].paused

    @property
    def releases(self) -> bool:
        """Whether conflation has something to send first."""
        conflating = self.subs[0].conflating
        return conflating is not None and conflating.waits

    def advance(self, position: int, end: int) -> None:
        """Everything below `position` was considered of what reaches to `end`."""
        for sub in self.subs:
            sub.position = max(sub.position, position)
        if position >= end:
            self.ahead.consumed()

    def evict(self) -> None:
        """Forget what was read and is not consumed: it is read again."""
        self.ahead.clear()
        self.cached_rows = None
        self.reader = None
