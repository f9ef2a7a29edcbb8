"""Owns what a subscription that conflates takes of what was read for it: first all of a piece goes to its
conflation, then what that releases goes out, as far as credit and pace reach.

Must never look at more than a bounded piece at a time, or read on while something waits to go out.
"""

from __future__ import annotations

from tickertape.base.interfaces import Now
from tickertape.base.limits import conflation_piece_messages_max, step_delivery_bytes
from tickertape.engine.delivery.cursor import Cursor
from tickertape.engine.subscriptions.log_feed import Portion


def conflated_portion(cursor: Cursor, now: Now) -> tuple[Portion, int]:
    """What is to be sent, and the bytes looked at and sent."""
    (sub,) = cursor.subs
    conflating = sub.conflating
    assert conflating is not None
    spent = 0
    if not conflating.waits:
        piece, spent = cursor.ahead.piece(sub.cover, sub.position, project=False)
        low, high, end = sub.bounds(piece)
        if high - low > conflation_piece_messages_max:
            high = low + conflation_piece_messages_max
            end = piece.position(high)
        conflating.consider(piece, low, high, piece.last_timestamp if end == piece.end else None)
        sub.position = max(sub.position, end)
        spent += (high - low) * step_delivery_bytes // 4
        if sub.position >= piece.end:
            cursor.ahead.used()
    if not conflating.waits:
        return Portion(None, sub.position, False), spent
    share = sub.release(now.mono)
    return share, spent + (0 if share.batch is None else share.batch.nbytes)
