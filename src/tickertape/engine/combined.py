"""Owns what several subscriptions of one connection that read the log together take of a stretch of it.

All go on together as far as credit and pace of every one of them reach, so that the order of the log holds
across them. Must never let one of them pass another, or send a message in two frames.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tickertape.base.limits import outbox_bytes_max, routes_per_frame_max
from tickertape.base.ports import Now
from tickertape.batch import MessageBatch, message_costs, select
from tickertape.batch.format import Int64s, lengths_of
from tickertape.engine.cursor import Cursor
from tickertape.engine.routed import routed
from tickertape.engine.selection import Selection
from tickertape.engine.subscription import Subscription
from tickertape.wire.commands import Deliver

Frame = tuple[Deliver, MessageBatch]


class Offered(NamedTuple):
    """What became of a stretch."""

    frames: list[Frame]
    spent: int
    """Bytes looked at and sent."""
    blocked: bool
    """There is more in the stretch, but one of them has no credit, or must wait for its pace."""
    at: float | None
    """Monotonic second from which on the pace lets more go."""


class _Share(NamedTuple):
    """Which messages are for a subscription."""

    sub: Subscription
    indices: Int64s


def together(cursor: Cursor, now: Now) -> Offered:
    """Take what comes next of what the cursor has read; the positions of all are moved to behind it."""
    raw, _ = cursor.ahead.piece(None, cursor.position)
    batch = raw.batch
    low = raw.index_at(cursor.position)
    if batch is None or low >= raw.count:
        return _reach(cursor, raw, raw.count, Offered([], 0, False, None))
    costs = message_costs(batch)
    high = min(low + max(int(costs[low:].cumsum().searchsorted(outbox_bytes_max, "right")), 1), batch.count)
    filtered = [sub.cover.content for sub in cursor.subs if sub.cover.content is not None]
    if filtered:  # each of them looks at the stretch
        reach = min([content.reach(batch, low) for content in filtered])
        high = min(high, low + max((reach - low) // len(filtered), 1))
    for sub in cursor.subs:
        high = sub.clip(raw, low, high)
    shares = [_Share(sub, _wanted(sub, batch, low, high)) for sub in cursor.subs]
    limit, at = high, None
    for share in shares:
        reached, later = _limit(share, batch, costs, high, now)
        limit = min(limit, reached)
        if later is not None and reached == limit:
            at = later
    blocked = limit < high
    while limit > low + 1 and _routes(shares, limit) > routes_per_frame_max:
        limit = low + (limit - low) // 2
        blocked, at = False, None
    shares = [_Share(sub, indices[: int(indices.searchsorted(limit))]) for sub, indices in shares]
    looked_at = (int(batch.offsets[high]) - int(batch.offsets[low])) * len(filtered)
    some = [share for share in shares if len(share.indices)]
    frames = [_frame(some, batch, costs, raw.position(limit))] if some else []
    for share in shares:
        if len(share.indices) and share.sub.pacer is not None:
            chosen = select(batch, share.indices)
            share.sub.pacer.sent(chosen, 0, chosen.count, now.mono)
    spent = looked_at + sum(frame[1].nbytes for frame in frames)
    return _reach(cursor, raw, limit, Offered(frames, spent, blocked, at))


def _routes(shares: list[_Share], limit: int) -> int:
    """Deliveries of the messages before `limit`."""
    return sum([int(share.indices.searchsorted(limit)) for share in shares])


def _reach(cursor: Cursor, raw: Selection, limit: int, offered: Offered) -> Offered:
    position = raw.end if limit >= raw.count else raw.position(limit)
    for sub in cursor.subs:
        sub.position = max(sub.position, position)
    if position >= raw.end:
        cursor.ahead.used()
    return offered


def _wanted(sub: Subscription, batch: MessageBatch, low: int, high: int) -> Int64s:
    """Which messages of `[low, high)` are for it."""
    mask = sub.cover.mask(batch)
    if mask is None or sub.not_before is not None:
        return np.empty(0, np.int64)
    indices: Int64s = mask[low:high].nonzero()[0] + low
    content = sub.cover.content
    return indices if content is None else content.passing(batch, indices)


def _limit(
    share: _Share, batch: MessageBatch, costs: Int64s, high: int, now: Now
) -> tuple[int, float | None]:
    """Before which message its credit and pace end, `high` when they do not; and when its pace goes on."""
    sub, indices = share
    if not len(indices):
        return high, None
    fitting = int(costs[indices].cumsum().searchsorted(sub.allowance.credit, "right"))
    if not fitting and sub.allowance.credit >= sub.allowance.window:
        fitting = 1  # nothing is outstanding: then one message may exceed the credit
    at = None
    if sub.pacer is not None:
        allowed, at = sub.pacer.allowed(select(batch, indices), 0, len(indices), now.mono)
        if allowed > fitting:
            at = None
        fitting = min(fitting, allowed)
    if fitting == len(indices):
        return high, None
    return int(indices[fitting]), at


def _frame(shares: list[_Share], batch: MessageBatch, costs: Int64s, after: int) -> Frame:
    lengths = lengths_of(batch.offsets)
    for sub, indices in shares:
        sub.told = after
        sub.spend_of(len(indices), int(lengths[indices].sum()), int(costs[indices].sum()))
    counts = np.array([len(indices) for _, indices in shares])
    routes = np.concatenate([indices for _, indices in shares])
    return routed(batch, [sub.sub_id for sub, _ in shares], counts, routes, after)
