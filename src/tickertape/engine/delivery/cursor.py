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
    """What of a stretch is for one of several."""

    indices: Int64s
    chosen: MessageBatch | None
    """These messages, where the pace looks at them; None where there is no pace, or no message."""


class RowCache(NamedTuple):
    """What of a stretch is for each of several."""

    raw: Selection
    low: int
    high: int
    """It is of the messages `[low, high)` of `raw`."""
    row_sets: list[RowSet]
    """In the order in which they stand in the cursor."""


class Cursor:
    """A place in the log, and who is there. All feeds in it have considered the same messages."""

    __slots__ = ("ahead", "cached_rows", "out_of_credit", "queued", "reader", "reading", "session", "subs")

    def __init__(self, subs: list[LogFeed]) -> None:
        self.subs = subs
        self.session: Session = subs[0].session
        self.reader: LogReader | ArchivedLogReader | None = None
        self.reading = False
        """An answer to a read is to come."""
        self.queued = False
        """It stands in the delivery's run queue."""
        self.out_of_credit = False
        """Credit does not reach for the next message: nothing is read until more is granted."""
        self.ahead = ReadBuffer()
        """What was read and is not yet taken, bounded by one read."""
        self.cached_rows: RowCache | None = None
        """What was looked at last, for several."""

    @property
    def position(self) -> int:
        """The next message to consider."""
        return self.subs[0].position

    @property
    def literal(self) -> str | None:
        """The one topic that all of them cover, or None."""
        literal = self.subs[0].cover.literal
        for sub in self.subs:
            if sub.cover.literal != literal:
                return None
        return literal

    @property
    def topic(self) -> str | None:
        """What the archive is asked for: the topic or the pattern that all of them cover, or None."""
        topic = self.subs[0].cover.topic
        if self.subs[0].cover.is_odd or any(sub.cover.topic != topic for sub in self.subs):
            return None
        return topic

    @property
    def cover(self) -> Interest | None:
        """What all of it covers when it is of one subscription."""
        return self.subs[0].cover if len(self.subs) == 1 else None

    @property
    def runs(self) -> bool:
        """Whether it goes on by itself when there is something for it."""
        return bool(self.subs) and self.subs[0].phase is Phase.REPLAY and not self.subs[0].paused

    @property
    def releases(self) -> bool:
        """Something that was held back is to be sent first."""
        conflating = self.subs[0].conflating
        return conflating is not None and conflating.waits

    def evict(self) -> None:
        """Forget what was read and is not taken: it is read again."""
        self.ahead.clear()
        self.cached_rows = None
        self.reader = None
