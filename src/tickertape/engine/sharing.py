"""Owns how what a commit holds for many subscriptions is put into frames: one for all subscriptions of a
connection that get several, one for all connections where each gets the same.

Must never make more of the frames than are asked for, or one that is larger than one connection may queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tickertape.base.limits import combined_subscriptions_max, outbox_bytes_max, routes_per_frame_max
from tickertape.batch import MessageBatch, message_costs, select
from tickertape.batch.format import Int64s, lengths_of
from tickertape.engine.session import Session
from tickertape.engine.standing import Group
from tickertape.engine.subscription import Subscription
from tickertape.wire.commands import Deliver


class Part(NamedTuple):
    """What a subscription gets."""

    sub: Subscription
    number: int
    """Of its selection."""
    cost: int
    """Against its credit."""


class Alike(NamedTuple):
    """Subscriptions of different connections that get the same."""

    batch: MessageBatch
    subs: list[Subscription]


class Sharing:
    """What of `batch` groups get: `found` has the indexes of their messages."""

    def __init__(self, batch: MessageBatch, found: list[tuple[Group[Subscription], Int64s]]) -> None:
        self._batch = batch
        self._found = [indices for _, indices in found]
        self._groups = [group for group, _ in found]
        counts = np.fromiter(map(len, self._found), np.int64, len(found))
        begins = counts.cumsum() - counts
        every = np.concatenate(self._found)
        self._counts: list[int] = counts.tolist()
        self._costs: list[int] = np.add.reduceat(message_costs(batch)[every], begins).tolist()
        lengths = lengths_of(batch.offsets).astype(np.int64)
        self._sizes: list[int] = np.add.reduceat(lengths[every], begins).tolist()

    def tasks(self) -> Iterator[Alike | list[Part]]:
        """What is to be sent, one after the other: the same to several, or parts to one connection."""
        connections: dict[Session, list[Part]] = {}
        for number, group in enumerate(self._groups):
            cost = self._costs[number]
            for sub in group.subs:
                connections.setdefault(sub.session, []).append(Part(sub, number, cost))
        alike: dict[int, list[Subscription]] = {}
        for parts in connections.values():
            if len(parts) == 1:
                alike.setdefault(parts[0].number, []).append(parts[0].sub)
            else:
                yield parts
        for number, subs in alike.items():
            yield Alike(select(self._batch, self._found[number]), subs)

    def frames(self, parts: list[Part], after: int) -> Iterator[tuple[Deliver, MessageBatch]]:
        """Frames that bring `parts` to their connection; each has the credit for its own, which is spent when
        its frame is given. `after` is the position behind the batch."""
        low = 0
        while low < len(parts):
            high, cost, routes = low, 0, 0
            while high < len(parts) and high - low < combined_subscriptions_max:
                cost += parts[high].cost
                routes += self._counts[parts[high].number]
                if high > low and (cost > outbox_bytes_max or routes > routes_per_frame_max):
                    break
                high += 1
            yield self._frame(parts[low:high], after)
            low = high

    def _frame(self, parts: list[Part], after: int) -> tuple[Deliver, MessageBatch]:
        numbers = [part.number for part in parts]
        routes = np.concatenate([self._found[number] for number in numbers])
        union = np.unique(routes)
        for sub, number, cost in parts:
            sub.spend_of(self._counts[number], self._sizes[number], cost)
            sub.told = after
        if len(parts) == 1:
            return Deliver(sub_id=parts[0].sub.sub_id, next=after), select(self._batch, union)
        command = Deliver(
            next=after,
            sub_ids=tuple([part.sub.sub_id for part in parts]),
            counts=np.array([self._counts[number] for number in numbers], "<u4").tobytes(),
            indices=union.searchsorted(routes).astype("<u4").tobytes(),
        )
        return command, select(self._batch, union)
