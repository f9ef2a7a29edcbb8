"""Fan-out frames: one frame for several feeds of a connection, or equal frames for many connections.

Invariants:
- Frames are built on demand.
- No frame is larger than the outbox limit of a connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from tickertape.base.limits import combined_subscriptions_max
from tickertape.batch import MessageBatch, message_costs, select
from tickertape.batch.format import Int64s, lengths_of
from tickertape.engine.limits import routes_per_frame_max
from tickertape.engine.matching.filter_groups import GroupMatches
from tickertape.engine.matching.subscription_index import InterestGroup
from tickertape.engine.runtime.effects import Send
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.log_feed import LogFeed
from tickertape.wire.commands import Deliver
from tickertape.wire.frames import encode_frame


def routed_frame(
    batch: MessageBatch, sub_ids: Sequence[str], counts: Int64s, routes: Int64s, after: int
) -> tuple[Deliver, MessageBatch]:
    """Return the `Deliver` command and the messages for several subscriptions.

    `routes` has the ascending message indices for each id, one id after the other. `counts` has the number of
    indices for each id, at least one. `after` is the position after all considered messages."""
    if len(sub_ids) == 1:
        return Deliver(sub_id=sub_ids[0], next=after), select(batch, routes)
    union = np.sort(routes)
    distinct = union[1:] != union[:-1]
    if not distinct.all():  # otherwise no message is routed twice
        union = union[np.concatenate(([True], distinct))]
    command = Deliver(
        next=after,
        sub_ids=tuple(sub_ids),
        counts=counts.astype("<u4").tobytes(),
        indices=union.searchsorted(routes).astype("<u4").tobytes(),
    )
    return command, select(batch, union)


Part: TypeAlias = tuple[LogFeed, int]
"""A feed, and the number of its selection."""


_GROUPS_AT_A_TIME: Final = 1024


class IdenticalFrames(NamedTuple):
    """Feeds that get the same messages, each in its own frame."""

    batch: MessageBatch
    subs: list[LogFeed]
    indices: Int64s | None
    """Indices of the messages in the part. None if they are unknown."""


class FrameSharing:
    """Frames of one part for several groups of feeds."""

    def __init__(self, batch: MessageBatch, found: GroupMatches[InterestGroup[LogFeed]]) -> None:
        self._batch = batch
        self._found = found
        self._cut: list[Int64s] = []
        """Additional selections. Their numbers follow the numbers of the matched selections."""
        self._begins = np.array(found.bounds[:-1])
        self._each_cost = message_costs(batch)
        self._each_size = lengths_of(batch.offsets).astype(np.int64)
        self.costs: list[int] = np.add.reduceat(self._each_cost[found.indices], self._begins).tolist()
        """Credit cost of each selection."""
        self._counts: list[int] = np.diff(found.bounds).tolist()

    def since(self, number: int, index: int) -> int | None:
        """Add the rest of a selection from message `index` on. Return its number, or None if it is empty."""
        own = self._of(number)
        own = own[int(own.searchsorted(index)) :]
        if not len(own):
            return None
        self._cut.append(own)
        self.costs.append(int(self._each_cost[own].sum()))
        self._counts.append(len(own))
        return len(self.costs) - 1

    def _of(self, number: int) -> Int64s:
        found = len(self._begins)
        return self._found.of(number) if number < found else self._cut[number - found]

    def tasks(self) -> Iterator[IdenticalFrames | list[Part]]:
        """Yield tasks: equal frames for several connections, or parts for one connection. An empty list is an
        opportunity to yield to other work."""
        connections: dict[Session, list[Part]] = {}
        for number, group in enumerate(self._found.groups):
            if number % _GROUPS_AT_A_TIME == _GROUPS_AT_A_TIME - 1:
                yield []
            for sub in group.subs:
                parts = connections.get(sub.session)
                if parts is None:
                    connections[sub.session] = [(sub, number)]
                else:
                    parts.append((sub, number))
        alike: dict[int, list[LogFeed]] = {}
        for parts in connections.values():
            if len(parts) == 1:
                alike.setdefault(parts[0][1], []).append(parts[0][0])
            else:
                yield parts
        for number, subs in alike.items():
            indices = self._found.of(number)
            yield IdenticalFrames(select(self._batch, indices), subs, indices)

    def frames(self, parts: list[Part], after: int) -> Iterator[tuple[Deliver, MessageBatch]]:
        """Build the frames that deliver `parts` to their connection.

        All parts fit into the outbox, and each feed has the credit for its part. The credit is spent when the
        frame is yielded. `after` is the position after the batch."""
        numbers = [number for _, number in parts]
        counts = np.array([self._counts[number] for number in numbers])
        ends = counts.cumsum()
        low = reached = 0
        while low < len(parts):
            high = int(ends.searchsorted(reached + routes_per_frame_max, "right"))
            high = min(max(high, low + 1), low + combined_subscriptions_max)
            reached = int(ends[high - 1])
            yield self._frame(parts[low:high], numbers[low:high], counts[low:high], after)
            low = high

    def _frame(
        self, parts: list[Part], numbers: list[int], counts: Int64s, after: int
    ) -> tuple[Deliver, MessageBatch]:
        costs = self.costs
        for sub, number in parts:
            sub.allowance.credit -= costs[number]
            sub.notified_to = sub.position = after
        routes = self._routes(numbers, counts)
        # Counted once per frame, because it may have hundreds of feeds.
        parts[0][0].session.sent(len(routes), int(self._each_size[routes].sum()))
        return routed_frame(self._batch, [sub.sub_id for sub, _ in parts], counts, routes, after)

    def _routes(self, numbers: list[int], counts: Int64s) -> Int64s:
        """Return the concatenated selections."""
        if max(numbers) >= len(self._begins):
            return np.concatenate([self._of(number) for number in numbers])
        ends = counts.cumsum()
        shifts = np.repeat(self._begins[numbers] - ends + counts, counts)
        return self._found.indices[shifts + np.arange(len(shifts))]


class FrameSender:
    """Sends all deliveries of the log."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def deliver(
        self,
        sub: LogFeed,
        batch: MessageBatch,
        after: int,
        crc: int | None = None,
        positions: bytes = b"",
    ) -> None:
        """Send a batch to a feed, which has then considered everything below `after`. See `Deliver.positions`
        for `positions`."""
        sub.spend(batch)
        sub.notified_to = after
        command = Deliver(sub_id=sub.sub_id, next=after, positions=positions)
        self._outbox.put(Send(sub.session.conn, encode_frame(command, batch, batch_crc=crc)))

    def deliver_shared(self, conn: int, command: Deliver, batch: MessageBatch) -> None:
        """Send a frame for several feeds of a connection. Their credit is already spent."""
        self._outbox.put(Send(conn, encode_frame(command, batch)))
