"""Routing: views of one batch for several subscriptions, each with its own context.

No body is copied until a share is used as a table. `RouteCache` converts shares into separate batches after
later deliveries, so that a small share does not keep a large batch in memory.
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
from tickertape.batch.format import I8, U8, UInt64s
from tickertape.client.limits import shared_batches_bytes_max
from tickertape.wire.commands import Deliver

_MADE: Final = frozenset(
    {
        "_places",
        "_table",
        "bodies",
        "body_bytes",
        "columns",
        "has_sequences",
        "head_bytes",
        "nbytes",
        "run_count",
        "topics",
    }
)
"""Attributes that a view lacks. Access to one of them converts the share into a batch."""


_reference: Final = weakref.ref

Route = tuple[str, Sequence[int], int]
"""Subscription id, rows of its messages in the batch, and their flow-control cost."""


def routes_of(command: Deliver, batch: MessageBatch) -> list[Route]:
    """Return the routes of a batch for several subscriptions. Raises `BadCommand` for inconsistent input.

    Allocations are bounded by the input, because counts must add up to its size.
    """
    sub_ids = command.sub_ids
    if len(command.counts) != 4 * len(sub_ids) or len(command.indices) & 3:
        raise _bad(f"it has {len(sub_ids)} subscriptions and {len(command.counts)} bytes of counts")
    if len(set(sub_ids)) < len(sub_ids):
        raise _bad("it names a subscription twice")
    counts = np.frombuffer(command.counts, "<u4")
    ends = counts.cumsum(dtype=I8)
    indices = np.frombuffer(command.indices, "<u4")
    if not counts.all() or int(ends[-1]) != len(indices):
        raise _bad(f"its counts add up to {int(ends[-1])}, but it has {len(indices)} indices")
    rises = indices[1:] > indices[:-1]
    rises[ends[:-1] - 1] = True
    if not rises.all() or int(indices.max()) >= batch.count:
        raise _bad(f"its indices do not increase within the {batch.count} messages")
    if not np.bincount(indices, minlength=batch.count).all():
        raise _bad("a message has no subscription")
    starts = ends - counts
    costs = np.add.reduceat(message_costs(batch)[indices], starts).tolist()
    edges = [0, *ends.tolist()]
    rows = indices.tolist()
    shares = [rows[begin:end] for begin, end in pairwise(edges)]
    return list(zip(sub_ids, shares, costs, strict=True))


def _bad(what: str) -> BadCommand:
    return BadCommand(f"Invalid delivery for several subscriptions: {what}. Update the server.")


def positions_of(encoded: bytes, count: int) -> UInt64s:
    """Return the positions of the messages of a batch. Raises `BadCommand`."""
    if len(encoded) == U8.itemsize:
        return np.arange(count, dtype=U8) + np.frombuffer(encoded, U8)
    if len(encoded) != U8.itemsize * count:
        raise BadCommand(
            f"Invalid delivery: {len(encoded)} bytes of positions for {count} messages. Update the server."
        )
    positions = np.frombuffer(encoded, U8)
    if (positions[1:] <= positions[:-1]).any():
        raise BadCommand(
            "Invalid delivery: the positions of its messages do not increase. Update the server."
        )
    return positions


def in_order(shares: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return every row of `shares` with the index of its share, in batch order."""
    order: list[tuple[int, int]] = []
    for number, rows in enumerate(shares):
        order += zip(rows, repeat(number))
    order.sort()
    return order


class SharedBatch:
    """Batch for several subscriptions, and its views in use."""

    __slots__ = ("__weakref__", "_bodies", "_shares", "batch", "count")

    def __init__(self, batch: MessageBatch) -> None:
        self.batch = batch
        self.count = batch.count
        self._bodies: list[bytes] | None = None
        self._shares: list[weakref.ref[BatchView]] = []

    def bodies(self) -> list[bytes]:
        """Return all bodies of the batch, created once for all views."""
        bodies = self._bodies
        if bodies is None:
            bodies = self._bodies = self.batch.bodies_list()
        return bodies

    def share(self, rows: Sequence[int], cost: int, context: DeliveryContext) -> MessageBatch:
        """Return the share of one subscription: these rows and their cost."""
        if len(rows) == self.count:
            whole = MessageBatch.__new__(MessageBatch)
            whole.__dict__.update(self.batch.__dict__)
            whole.context = context
            return whole
        share = BatchView(self, rows, cost, context)
        self._shares.append(_reference(share))
        return share

    def part(self) -> None:
        """Convert the views in use into separate batches, so that they do not keep this batch."""
        for reference in self._shares:
            share = reference()
            if share is not None:
                share.detach()
        self._shares.clear()


def _of_row(own: Callable[[MessageBatch, int], object]) -> Any:
    """Return a method of `BatchView` that calls `own` on the whole batch for the row of a message."""

    @wraps(own)
    def of_row(self: BatchView, i: int) -> object:
        view = self._view
        return own(self, i) if view is None else own(view[0].batch, view[1][i])

    return of_row


class BatchView(MessageBatch):
    """Some messages of a `SharedBatch`, with the interface of a batch of these messages."""

    def __init__(self, shared: SharedBatch, rows: Sequence[int], cost: int, context: DeliveryContext) -> None:
        self.count = len(rows)
        self.cost = cost
        self.context = context
        self._view: tuple[SharedBatch, Sequence[int]] | None = (shared, rows)
        # Attributes of a separate batch are complete or absent: readers read `_view` once.

    def detach(self) -> None:
        """Become a separate batch with only its own messages. Threads may do this concurrently."""
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
            raise AttributeError(f"MessageBatch has no attribute {name!r}")
        self.detach()
        return self.__dict__[name]

    def bodies_list(self) -> list[bytes]:
        """Return all bodies as `bytes` objects, in order."""
        view = self._view
        if view is None:
            return super().bodies_list()
        bodies = view[0].bodies()
        return [bodies[row] for row in view[1]]

    def body(self, i: int) -> bytes:
        """Return the body of message `i`. Raises `IndexError` outside the batch."""
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
        """Discard message `i`."""
        context = self.context
        if context is None or context.store is None:
            return False
        return context.store.discard(context.sub_id, self.publisher(i), self.sequence(i))


class RouteCache:
    """Latest batches for several subscriptions, up to `shared_batches_bytes_max`. Only these are shared."""

    def __init__(self) -> None:
        self._batches: deque[tuple[weakref.ref[SharedBatch], int]] = deque()
        self._bytes = 0

    def add(self, batch: MessageBatch) -> SharedBatch:
        """Add a batch. Views of batches beyond the bound become separate batches."""
        shared = SharedBatch(batch)
        size = 2 * batch.nbytes  # the bodies may exist a second time as `bytes` objects
        self._batches.append((weakref.ref(shared), size))
        self._bytes += size
        while self._bytes > shared_batches_bytes_max and len(self._batches) > 1:
            reference, gone = self._batches.popleft()
            self._bytes -= gone
            oldest = reference()
            if oldest is not None:
                oldest.part()
        return shared
