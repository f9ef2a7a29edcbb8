"""Cursor shares: divides what a cursor read among its feeds, in lockstep or conflated.

Invariants:
- Feeds of one cursor go on together as far as the credit and the rate of each of them allow, so that the
  order of the log holds across them.
- No message is sent in two frames.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tickertape.batch import MessageBatch, message_costs, select
from tickertape.batch.format import Int64s, lengths_of
from tickertape.engine.delivery.cursor import Cursor, RowCache, RowSet
from tickertape.engine.delivery.fanout_frames import routed_frame
from tickertape.engine.limits import (
    conflation_piece_messages_max,
    outbox_bytes_max,
    routes_per_frame_max,
    step_delivery_bytes,
)
from tickertape.engine.subscriptions.log_feed import LogFeed, Portion
from tickertape.wire.commands import Deliver

Frame = tuple[Deliver, MessageBatch]


class StepResult(NamedTuple):
    """Result of one step over a stretch of the log."""

    frames: list[Frame]
    spent: int
    """Bytes looked at and sent."""
    blocked: bool
    """The stretch has more, but a feed lacks credit or must wait for its rate."""
    at: float | None
    """Monotonic second from which on the pace lets more go."""


class _Share(NamedTuple):
    """Messages for a feed: those of a row set from `begin` on, and before the limit."""

    sub: LogFeed
    taking: RowSet
    begin: int
    indices: Int64s

    def before(self, limit: int) -> _Share:
        """Restrict it to messages before message `limit`."""
        return self._replace(indices=self.indices[: int(self.indices.searchsorted(limit))])


def lockstep_frames(cursor: Cursor, mono: float) -> StepResult:
    """Send the next messages that the cursor has read, and move the positions of all feeds behind them."""
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
        high = min(high, looked.high)  # at a pace a stretch is taken in many steps
    else:
        looked = None
        filtered = [sub.interest.content for sub in cursor.subs if sub.interest.content is not None]
        if filtered:  # each of them looks at the stretch
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
    """Count deliveries of the messages before `limit`."""
    return sum([int(share.indices.searchsorted(limit)) for share in shares])


def _taking(sub: LogFeed, batch: MessageBatch, low: int, high: int) -> RowSet:
    """Return the messages of `[low, high)` that are for a feed."""
    mask = sub.interest.mask(batch)
    if mask is None or sub.not_before is not None:
        return RowSet(np.empty(0, np.int64), None)
    indices: Int64s = mask[low:high].nonzero()[0] + low
    content = sub.interest.content
    if content is not None:
        indices = content.matching_rows(batch, indices)
    return RowSet(indices, select(batch, indices) if sub.rate_limiter is not None and len(indices) else None)


def _limit(share: _Share, costs: Int64s, high: int, mono: float) -> tuple[int, float | None]:
    """Return the message before which credit and rate end (`high` when they do not), and when the rate allows
    more."""
    sub, taking, begin, indices = share
    if not len(indices):
        return high, None
    fitting = int(costs[indices].cumsum().searchsorted(sub.allowance.credit, "right"))
    if not fitting and sub.allowance.credit >= sub.allowance.window:
        fitting = 1  # nothing is outstanding: then one message may exceed the credit
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
    """Return the conflated messages to send, and the bytes looked at."""
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
