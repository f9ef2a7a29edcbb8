"""Routing: views of one batch for several subscriptions, each with a context of its own.

No body is copied before a share is used as a table. `RouteCache` turns shares into batches of their own when
others have been delivered meanwhile, so that a share does not keep a whole batch alive beyond the bound.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import pairwise, repeat
from typing import Any, Final

import numpy as np

from tickertape.base.errors import BadCommand
from tickertape.batch import MessageBatch, message_costs, select
from tickertape.batch.delivery_context import DeliveryContext
from tickertape.batch.format import I8
from tickertape.client.limits import shared_batches_bytes_max
from tickertape.wire.commands import Deliver

_MADE: Final = frozenset(
    {"_places", "_table", "bodies", "body_bytes", "columns", "head_bytes", "nbytes", "run_count", "topics"}
)
"""Attributes of a batch that a view lacks: reading one of them makes the share a batch."""


_reference: Final = weakref.ref

Route = tuple[str, Sequence[int], int]
"""A subscription, which messages of a batch are for it, and what they cost against its credit."""


def routes_of(command: Deliver, batch: MessageBatch) -> list[Route]:
    """Where the messages of a batch for several go. Raises `BadCommand` unless all of it fits together.

    What is made here is as large as what came: counts are believed only when they add up to it.
    """
    sub_ids = command.sub_ids
    if len(command.counts) != 4 * len(sub_ids) or len(command.indices) & 3:
        raise _bad(f"{len(sub_ids)} subscriptions with {len(command.counts)} bytes of counts")
    if len(set(sub_ids)) < len(sub_ids):
        raise _bad("a subscription named twice")
    counts = np.frombuffer(command.counts, "<u4")
    ends = counts.cumsum(dtype=I8)
    indices = np.frombuffer(command.indices, "<u4")
    if not counts.all() or int(ends[-1]) != len(indices):
        raise _bad(f"counts that add up to {int(ends[-1])}, and {len(indices)} indices")
    rises = indices[1:] > indices[:-1]
    rises[ends[:-1] - 1] = True
    if not rises.all() or int(indices.max()) >= batch.count:
        raise _bad(f"indices that do not rise within the {batch.count} messages")
    if not np.bincount(indices, minlength=batch.count).all():
        raise _bad("a message for nobody")
    starts = ends - counts
    costs = np.add.reduceat(message_costs(batch)[indices], starts).tolist()
    edges = [0, *ends.tolist()]
    rows = indices.tolist()
    shares = [rows[begin:end] for begin, end in pairwise(edges)]
    return list(zip(sub_ids, shares, costs, strict=True))


def _bad(what: str) -> BadCommand:
    return BadCommand(f"a delivery for several subscriptions has {what}")


def in_order(shares: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Every row of `shares` with the number of its share, in the order of the batch."""
    order: list[tuple[int, int]] = []
    for number, rows in enumerate(shares):
        order += zip(rows, repeat(number))
    order.sort()
    return order


class SharedBatch:
    """A batch that came for several, and the views on it that are in use."""

    __slots__ = ("__weakref__", "_bodies", "_shares", "batch", "count")

    def __init__(self, batch: MessageBatch) -> None:
        self.batch = batch
        self.count = batch.count
        self._bodies: list[bytes] | None = None
        self._shares: list[weakref.ref[BatchView]] = []

    def bodies(self) -> list[bytes]:
        """All bodies of the batch, made once for everybody."""
        bodies = self._bodies
        if bodies is None:
            bodies = self._bodies = self.batch.bodies_list()
        return bodies

    def share(self, rows: Sequence[int], cost: int, context: DeliveryContext) -> MessageBatch:
        """Return the share of one subscription: these rows, and their cost."""
        if len(rows) == self.count:
            whole = MessageBatch.__new__(MessageBatch)
            whole.__dict__.update(self.batch.__dict__)
            whole.context = context
            return whole
        share = BatchView(self, rows, cost, context)
        self._shares.append(_reference(share))
        return share

    def part(self) -> None:
        """Make batches of the views that are still in use: this one is not kept for them any more."""
        for reference in self._shares:
            share = reference()
            if share is not None:
                share.detach()
        self._shares.clear()


def _of_row(own: Callable[[MessageBatch, int], object]) -> Any:
    """Return a method of `BatchView` that asks the whole batch for what `own` says of a message."""

    @wraps(own)
    def of_row(self: BatchView, i: int) -> object:
        view = self._view
        return own(self, i) if view is None else own(view[0].batch, view[1][i])

    return of_row


class BatchView(MessageBatch):
    """Some messages of a `SharedBatch` batch; in every other way the batch of these messages."""

    def __init__(self, shared: SharedBatch, rows: Sequence[int], cost: int, context: DeliveryContext) -> None:
        self.count = len(rows)
        self.cost = cost
        self.context = context
        self._view: tuple[SharedBatch, Sequence[int]] | None = (shared, rows)
        # What a batch of its own has is never there halfway: whoever looks reads `_view` once.

    def detach(self) -> None:
        """Become a batch that holds its own messages only. Any thread may do it, and all do the same."""
        view = self._view
        if view is not None:
            shared, rows = view
            made = select(shared.batch, np.array(rows, I8))
            if made.bodies.obj is shared.batch.bodies.obj:
                made.bodies = memoryview(bytes(made.bodies))
            self.__dict__.update({name: made.__dict__[name] for name in _MADE})
            self._view = None

    def __getattr__(self, name: str) -> Any:
        if name not in _MADE:
            raise AttributeError(f"a message batch has no {name}")
        self.detach()
        return self.__dict__[name]

    def bodies_list(self) -> list[bytes]:
        """As a batch's."""
        view = self._view
        if view is None:
            return super().bodies_list()
        bodies = view[0].bodies()
        return [bodies[row] for row in view[1]]

    def body(self, i: int) -> bytes:
        """As a batch's."""
        view = self._view
        if view is None or not 0 <= i < self.count:
            return super().body(i)
        return view[0].batch.body(view[1][i])

    topic = _of_row(MessageBatch.topic)
    publisher = _of_row(MessageBatch.publisher)
    sequence = _of_row(MessageBatch.sequence)
    timestamp = _of_row(MessageBatch.timestamp)
    bookmark = _of_row(MessageBatch.bookmark)
    correlation_id = _of_row(MessageBatch.correlation_id)
    key = _of_row(MessageBatch.key)
    expiration = _of_row(MessageBatch.expiration)

    def discard_one(self, i: int) -> bool:
        """As a batch's."""
        context = self.context
        if context is None or context.store is None:
            return False
        return context.store.discard(context.sub_id, self.publisher(i), self.sequence(i))


class RouteCache:
    """The batches for several that came last, `shared_batches_bytes_max` of them: only these are shared."""

    def __init__(self) -> None:
        self._batches: deque[tuple[weakref.ref[SharedBatch], int]] = deque()
        self._bytes = 0

    def add(self, batch: MessageBatch) -> SharedBatch:
        """One more came. What it pushes out is taken apart, as far as somebody still uses it."""
        shared = SharedBatch(batch)
        size = 2 * batch.nbytes  # the bodies may be there a second time, one by one
        self._batches.append((weakref.ref(shared), size))
        self._bytes += size
        while self._bytes > shared_batches_bytes_max and len(self._batches) > 1:
            reference, gone = self._batches.popleft()
            self._bytes -= gone
            oldest = reference()
            if oldest is not None:
                oldest.part()
        return shared
