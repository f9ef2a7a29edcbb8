"""Cursor: a position in the log, with the feeds of one connection that read from there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tickertape.batch import MessageBatch, message_costs, select
from tickertape.batch.format import Int64s, lengths_of
from tickertape.engine.delivery.fanout_frames import routed_frame
from tickertape.engine.limits import (
    conflation_piece_messages_max,
    outbox_bytes_max,
    routes_per_frame_max,
    step_delivery_bytes,
)
from tickertape.engine.log_reads.read_buffer import ReadBuffer
from tickertape.engine.log_reads.selection import Selection
from tickertape.engine.matching.interest import Interest
from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.log_feed import LogFeed, Phase, Portion
from tickertape.journal.reading.archive_reader import ArchivedLogReader
from tickertape.journal.reading.log_reader import LogReader
from tickertape.wire.commands import Deliver


class RowSet(NamedTuple):
    """Messages of a log range for one feed."""

    indices: Int64s
    chosen: MessageBatch | None
    """The messages, if a rate limiter needs them. None otherwise, or if no message is selected."""


class RowCache(NamedTuple):
    """Messages of a log range for each feed of a cursor."""

    raw: Selection
    low: int
    high: int
    """End of the range `[low, high)` of the messages of `raw`."""
    row_sets: list[RowSet]
    """One row set per feed, in the order of the cursor."""


class Cursor:
    """A position in the log and the feeds that read from there. All feeds have considered the same
    messages."""

    __slots__ = ("ahead", "cached_rows", "out_of_credit", "queued", "reader", "reading", "session", "subs")

    def __init__(self, subs: list[LogFeed]) -> None:
        self.subs = subs
        self.session: Session = subs[0].session
        self.reader: LogReader | ArchivedLogReader | None = None
        self.reading = False
        """Whether a read is in progress."""
        self.queued = False
        """Whether the cursor is in the run queue."""
        self.out_of_credit = False
        """Whether a feed lacks credit for the next message. Nothing is read until more credit arrives."""
        self.ahead = ReadBuffer()
        """Messages that are read but not consumed yet, at most one read."""
        self.cached_rows: RowCache | None = None
        """The last filtered range, for several feeds."""

    @property
    def position(self) -> int:
        """Position of the next message to consider."""
        return self.subs[0].position

    @property
    def topic_name(self) -> str | None:
        """The only topic that all feeds cover, or None."""
        names = {sub.interest.topic_name for sub in self.subs}
        return names.pop() if len(names) == 1 else None

    @property
    def topic(self) -> str | None:
        """The topic or pattern to read from the archive, or None if the feeds differ."""
        topic = self.subs[0].interest.topic
        if self.subs[0].interest.has_exclusions or any(sub.interest.topic != topic for sub in self.subs):
            return None
        return topic

    @property
    def interest(self) -> Interest | None:
        """The interest of a single feed. None for several feeds."""
        return self.subs[0].interest if len(self.subs) == 1 else None

    @property
    def runs(self) -> bool:
        """Whether the feeds replay, and are neither paused nor held."""
        if not self.subs:
            return False
        first = self.subs[0]
        return first.phase is Phase.REPLAY and not (first.paused or first.held)

    @property
    def releases(self) -> bool:
        """Whether conflation has messages to send before new ones are read."""
        conflating = self.subs[0].conflating
        return conflating is not None and conflating.waits

    def advance(self, position: int, end: int) -> None:
        """Move all feeds to `position`. `end` is the end of the buffered selection."""
        for sub in self.subs:
            sub.position = max(sub.position, position)
        if position >= end:
            self.ahead.consumed()

    def evict(self) -> None:
        """Discard the reader and buffered messages, which are read again later."""
        self.ahead.clear()
        self.cached_rows = None
        self.reader = None


Frame = tuple[Deliver, MessageBatch]


class StepResult(NamedTuple):
    """Result of one step over a range of the log."""

    frames: list[Frame]
    spent: int
    """Bytes examined and sent."""
    blocked: bool
    """Whether the range has more messages, but a feed lacks credit or must wait for its rate limiter."""
    at: float | None
    """Monotonic time (seconds) at which the rate limiter permits the next message."""


class _Share(NamedTuple):
    """Messages for a feed: rows of a row set starting at `begin`, and before the limit."""

    sub: LogFeed
    taking: RowSet
    begin: int
    indices: Int64s

    def before(self, limit: int) -> _Share:
        """Restrict the share to messages before message `limit`."""
        return self._replace(indices=self.indices[: int(self.indices.searchsorted(limit))])


def lockstep_frames(cursor: Cursor, mono: float) -> StepResult:
    """Build frames with the next buffered messages, and advance the position of all feeds."""
    raw, _ = cursor.ahead.next_selection(None, cursor.position)
    batch = raw.batch
    low = raw.index_at(cursor.position)
    if batch is None or low >= raw.count:
        cursor.advance(raw.end, raw.end)
        return StepResult([], 0, False, None)
    costs = message_costs(batch)
    high = min(low + max(int(costs[low:].cumsum().searchsorted(outbox_bytes_max, "right")), 1), batch.count)
    looked, looked_at = cursor.cached_rows, 0
    if looked is not None and looked.raw is raw and looked.low <= low < looked.high:
        high = min(high, looked.high)  # a rate limiter consumes a range in many steps
    else:
        looked = None
        filtered = [sub.interest.content for sub in cursor.subs if sub.interest.content is not None]
        if filtered:  # each filter examines the range
            reach = min([content.piece_end(batch, low) for content in filtered])
            high = min(high, low + max((reach - low) // len(filtered), 1))
    for sub in cursor.subs:
        high = sub.clip(raw, low, high)
    if looked is None:
        looked = RowCache(raw, low, high, [_taking(sub, batch, low, high) for sub in cursor.subs])
        cursor.cached_rows = looked
        looked_at = (int(batch.offsets[high]) - int(batch.offsets[low])) * len(filtered)
    shares = []
    for sub, taking in zip(cursor.subs, looked.row_sets, strict=True):
        begin = int(taking.indices.searchsorted(low))
        shares.append(_Share(sub, taking, begin, taking.indices[begin:]).before(high))
    limit, at = high, None
    for share in shares:
        reached, later = _limit(share, costs, high, mono)
        limit = min(limit, reached)
        if later is not None and reached == limit:
            at = later
    blocked = limit < high
    while limit > low + 1 and _routes(shares, limit) > routes_per_frame_max:
        limit = low + (limit - low) // 2
        blocked, at = False, None
    shares = [share.before(limit) for share in shares]
    some = [share for share in shares if len(share.indices)]
    frames = [_frame(some, batch, costs, raw.position(limit))] if some else []
    for sub, taking, begin, indices in some:
        if sub.rate_limiter is not None and taking.chosen is not None:
            sub.rate_limiter.sent(taking.chosen, begin, begin + len(indices), mono)
    spent = looked_at + sum(frame[1].nbytes for frame in frames)
    cursor.advance(raw.position(limit), raw.end)
    return StepResult(frames, spent, blocked, at)


def _routes(shares: list[_Share], limit: int) -> int:
    """Count the deliveries of messages before `limit`."""
    return sum([int(share.indices.searchsorted(limit)) for share in shares])


def _taking(sub: LogFeed, batch: MessageBatch, low: int, high: int) -> RowSet:
    """Return the messages of `[low, high)` for a feed."""
    mask = sub.interest.mask(batch)
    if mask is None or sub.not_before is not None:
        return RowSet(np.empty(0, np.int64), None)
    indices: Int64s = mask[low:high].nonzero()[0] + low
    content = sub.interest.content
    if content is not None:
        indices = content.matching_rows(batch, indices)
    return RowSet(indices, select(batch, indices) if sub.rate_limiter is not None and len(indices) else None)


def _limit(share: _Share, costs: Int64s, high: int, mono: float) -> tuple[int, float | None]:
    """Return the message that credit or rate limiter stop at (`high` if none), and when the rate limiter
    permits more."""
    sub, taking, begin, indices = share
    if not len(indices):
        return high, None
    fitting = int(costs[indices].cumsum().searchsorted(sub.allowance.credit, "right"))
    if not fitting and sub.allowance.unspent:
        fitting = 1
    at = None
    if sub.rate_limiter is not None and taking.chosen is not None:
        allowed, at = sub.rate_limiter.allowed(taking.chosen, begin, begin + len(indices), mono)
        if allowed > fitting:
            at = None
        fitting = min(fitting, allowed)
    if fitting == len(indices):
        return high, None
    return int(indices[fitting]), at


def _frame(shares: list[_Share], batch: MessageBatch, costs: Int64s, after: int) -> Frame:
    for sub, _, _, indices in shares:
        sub.notified_to = after
        sub.allowance.credit -= int(costs[indices].sum())
    counts = np.array([len(share.indices) for share in shares])
    routes = np.concatenate([share.indices for share in shares])
    shares[0].sub.session.sent(len(routes), int(lengths_of(batch.offsets)[routes].sum()))
    return routed_frame(batch, [share.sub.sub_id for share in shares], counts, routes, after)


def conflated_portion(cursor: Cursor, mono: float) -> tuple[Portion, int]:
    """Return the conflated messages to send, and the number of examined bytes."""
    (sub,) = cursor.subs
    conflating = sub.conflating
    assert conflating is not None
    spent = 0
    if not conflating.waits:
        piece, spent = cursor.ahead.next_selection(sub.interest, sub.position, project=False)
        low, high, end = sub.bounds(piece)
        if high - low > conflation_piece_messages_max:
            high = low + conflation_piece_messages_max
            end = piece.position(high)
        conflating.consider(piece, low, high, piece.last_timestamp if end == piece.end else None)
        cursor.advance(end, piece.end)
        spent += (high - low) * step_delivery_bytes // 4
    if not conflating.waits:
        return Portion(None, sub.position, False), spent
    return sub.release(mono), spent
