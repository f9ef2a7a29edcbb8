"""Delivery: checks a delivered batch and finds its subscriptions."""

from __future__ import annotations

from typing import Final

import numpy as np

from tickertape.base.errors import BadCommand, CorruptBatch
from tickertape.base.interfaces import Now
from tickertape.batch.format import U8, UInt64s
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.subscriptions.registry import SubscriptionRegistry
from tickertape.client.subscriptions.routing import routes_of
from tickertape.wire.commands import Deliver

MESSAGES_A_RUN_CHECKED: Final = 8
"""Runs are checked on delivery when they have this many messages on average."""


def route_delivery(
    subscriptions: SubscriptionRegistry, command: Deliver, batch: MessageBatch, now: Now
) -> None:
    """A batch came: give it to whom it is for, or tell them that it is damaged. Raises `BadCommand`."""
    several = bool(command.sub_ids or command.counts or command.indices)
    if several and (command.sub_id or not command.sub_ids):
        raise BadCommand("a delivery is for one subscription or for several, not for both")
    if several and command.queue:
        raise BadCommand("a delivery out of a queue is for one subscription")
    routes = routes_of(command, batch) if several else []
    if command.positions:
        batch.positions = _positions(command.positions, batch.count)
    try:
        # Checksums made by the publishers; with many small runs the frame's own has to do.
        if batch.run_count * MESSAGES_A_RUN_CHECKED <= batch.count:
            batch.verify()
    except CorruptBatch as error:
        subscriptions.damaged(command.sub_ids or (command.sub_id,), error)
        return
    if several:
        subscriptions.delivered_to_all(routes, batch, now)
    else:
        subscriptions.delivered(command, batch, now)


def _positions(encoded: bytes, count: int) -> UInt64s:
    """Return the positions of the messages of a batch. Raises `BadCommand`."""
    if len(encoded) == U8.itemsize:
        return np.arange(count, dtype=U8) + np.frombuffer(encoded, U8)
    if len(encoded) != U8.itemsize * count:
        raise BadCommand(f"{len(encoded)} bytes of positions for a batch of {count} messages")
    positions = np.frombuffer(encoded, U8)
    if (positions[1:] <= positions[:-1]).any():
        raise BadCommand("the positions of a batch do not rise")
    return positions
