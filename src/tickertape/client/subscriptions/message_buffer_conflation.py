"""Conflation in a message buffer: keeps only the newest message of each key.

Batches that were taken do not change, nor does the order of what is left. Bodies of superseded messages are
released when they are half of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from tickertape.base.errors import TickertapeError, UsageError
from tickertape.batch import message_costs, select
from tickertape.batch.delivery_context import DeliveryContext
from tickertape.batch.format import I8, U8
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.subscriptions.bookmark_tracker import asked

Key = tuple[str, str | None]


def _by_sow_key(batch: MessageBatch) -> Iterator[Key | None]:
    if batch.keys is None:
        yield from [None] * batch.count
        return
    for row in range(batch.count):
        key = batch.key(row)
        yield None if key is None else (batch.topic(row), key)


def _by_topic(batch: MessageBatch) -> Iterator[Key | None]:
    for row in range(batch.count):
        yield batch.topic(row), None


_KEYS: Final[dict[str, Callable[[MessageBatch], Iterator[Key | None]]]] = {
    "sow_key": _by_sow_key,
    "topic": _by_topic,
}


class Superseded(NamedTuple):
    """Messages of a subscription with a bookmark store that newer ones took the place of."""

    context: DeliveryContext
    marks: list[tuple[int, int]]
    """Publisher and sequence of each."""


class WaitingMessage:
    """A batch that waits, without the messages that newer ones took the place of."""

    __slots__ = ("_alive", "_rows", "batch", "costs", "left", "paid")

    def __init__(self, batch: MessageBatch) -> None:
        self.batch = batch
        self.costs: list[int] = message_costs(batch).tolist()
        self.left = batch.count
        self.paid = False
        """Its cost was reported before it was taken."""
        self._rows = list(range(batch.count))
        """Of the messages of `batch`, the rows they had when it came."""
        self._alive = bytearray(b"\1") * batch.count

    def mark(self, row: int) -> tuple[int, int]:
        """Publisher and sequence of a message, by the row it had when the batch came."""
        index = self._rows.index(row) if len(self._rows) < len(self.costs) else row
        return self.batch.publisher(index), self.batch.sequence(index)

    def drop(self, row: int) -> int:
        """Forget a message by the row it had when the batch came; its cost."""
        self._alive[row] = 0
        self.left -= 1
        if self.left and 2 * self.left < len(self._rows):
            self.batch = self.rest()
            self._rows = [row for row in self._rows if self._alive[row]]
        return self.costs[row]

    def rest(self) -> MessageBatch:
        """Return the messages that are left, at least one."""
        if self.left == len(self._rows):
            return self.batch
        at = [index for index, row in enumerate(self._rows) if self._alive[row]]
        rest = select(self.batch, np.array(at, I8))
        rest.context = self.batch.context
        return rest


class StreamConflation:
    """Which message of each key is the newest. Raises `UsageError` for a key that there is not."""

    def __init__(self, by: str) -> None:
        if by not in _KEYS:
            raise UsageError(f"conflate(by={by!r}): use one of {', '.join(map(repr, _KEYS))}")
        self._keys = _KEYS[by]
        self._newest: dict[Key, tuple[WaitingMessage, int]] = {}

    def add(self, batch: MessageBatch) -> tuple[WaitingMessage, list[tuple[WaitingMessage, int]]]:
        """A batch came: what to put in its place, and the waiting messages whose place newer ones take, by
        the rows they had when they came."""
        waiting = WaitingMessage(batch)
        superseded = []
        newest = self._newest
        for row, key in enumerate(self._keys(batch)):
            if key is not None:
                earlier = newest.get(key)
                if earlier is not None:
                    superseded.append(earlier)
                newest[key] = waiting, row
        return waiting, superseded

    def taken(self, waiting: WaitingMessage) -> None:
        """It does not wait any more."""
        for key in self._keys(waiting.batch):
            if key is not None and self._newest.get(key, (None, 0))[0] is waiting:
                del self._newest[key]


def discard_superseded(superseded: Superseded) -> TickertapeError | None:
    """Discard them in the bookmark store, as nobody will be given them. Returns what it raised, if it did."""
    context, marks = superseded
    store, numbers = context.store, np.array(marks, U8)
    if store is None:
        return None
    try:
        asked(lambda: store.discard_all(context.sub_id, numbers[:, 0], numbers[:, 1]))
    except TickertapeError as error:
        return error
    return None
