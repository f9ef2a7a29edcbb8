"""Message buffer: delivered and unconsumed batches of one subscription, and their conflation by key.

A stream of either client guards it against concurrent calls and reports due credit. A signal handler may
raise an exception between any two steps. Therefore one assignment counts a taken batch, which stays available
until `settle`. The credit of the subscription bounds the size. While a caller waits for the replay to catch
up, `catch_up_bytes_max` bounds it.

With conflation it keeps only the newest message of each key. Taken batches and the order of the others do not
change. Bodies of superseded messages are released once they are half of a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from operator import length_hint
from typing import Final, NamedTuple

import numpy as np

from tickertape.base.errors import Closed, StreamEnded, TickertapeError, TimedOut, UsageError
from tickertape.base.text_format import not_one_of
from tickertape.base.units import within
from tickertape.batch.delivery_context import DeliveryContext
from tickertape.batch.derive import message_costs, select, slice_batch
from tickertape.batch.format import I8, U8
from tickertape.batch.message_batch import Message, MessageBatch, sow_key_of
from tickertape.client.limits import catch_up_bytes_max
from tickertape.client.subscriptions.bookmark_tracker import asked
from tickertape.client.subscriptions.duplicates import left_of

Key = tuple[str, str | None]


def _by_sow_key(batch: MessageBatch) -> Iterator[Key | None]:
    context = batch.context
    if batch.keys is None and (context is None or context.sow_keys is None):
        yield from [None] * batch.count
        return
    for row in range(batch.count):
        key = sow_key_of(batch, row)
        yield None if key is None else (batch.topic(row), key)


def _by_topic(batch: MessageBatch) -> Iterator[Key | None]:
    for row in range(batch.count):
        yield batch.topic(row), None


_KEYS: Final[dict[str, Callable[[MessageBatch], Iterator[Key | None]]]] = {
    "sow_key": _by_sow_key,
    "topic": _by_topic,
}


class Superseded(NamedTuple):
    """Superseded messages of a subscription with a bookmark store."""

    context: DeliveryContext
    marks: list[tuple[int, int]]
    """Publisher and sequence of each message."""


class WaitingMessage:
    """Waiting batch without its superseded messages."""

    __slots__ = ("_alive", "_rows", "batch", "costs", "left", "paid")

    def __init__(self, batch: MessageBatch) -> None:
        self.batch = batch
        self.costs: list[int] = message_costs(batch).tolist()
        self.left = batch.count
        self.paid = False
        """Whether its cost was reported before it was taken."""
        self._rows = list(range(batch.count))
        """Original row of each message of `batch`."""
        self._alive = bytearray(b"\1") * batch.count

    def mark(self, row: int) -> tuple[int, int]:
        """Return publisher and sequence of a message, by its original row in the batch."""
        index = self._rows.index(row) if len(self._rows) < len(self.costs) else row
        return self.batch.publisher(index), self.batch.sequence(index)

    def drop(self, row: int) -> int:
        """Remove a message by its original row in the batch, and return its cost."""
        self._alive[row] = 0
        self.left -= 1
        if self.left and 2 * self.left < len(self._rows):
            self.batch = self.rest()
            self._rows = [row for row in self._rows if self._alive[row]]
        return self.costs[row]

    def rest(self) -> MessageBatch:
        """Return the remaining messages, at least one."""
        if self.left == len(self._rows):
            return self.batch
        at = [index for index, row in enumerate(self._rows) if self._alive[row]]
        rest = select(self.batch, np.array(at, I8))
        rest.context = self.batch.context
        return rest


class StreamConflation:
    """Newest message per key. Raises `UsageError` for an unknown kind of key."""

    def __init__(self, by: str) -> None:
        if by not in _KEYS:
            raise UsageError(not_one_of("Unknown conflation key", by, _KEYS))
        self._keys = _KEYS[by]
        self._newest: dict[Key, tuple[WaitingMessage, int]] = {}

    def add(self, batch: MessageBatch) -> tuple[WaitingMessage, list[tuple[WaitingMessage, int]]]:
        """Add a batch. Return its waiting form, and the superseded messages with their original rows."""
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
        """Remove a batch that was taken."""
        for key in self._keys(waiting.batch):
            if key is not None and self._newest.get(key, (None, 0))[0] is waiting:
                del self._newest[key]


def discard_superseded(superseded: Superseded) -> TickertapeError | None:
    """Discard superseded messages in the bookmark store. Return its error, or None."""
    context, marks = superseded
    store, numbers = context.store, np.array(marks, U8)
    if store is None:
        return None
    try:
        asked(lambda: store.discard_all(context.sub_id, numbers[:, 0], numbers[:, 1]))
    except TickertapeError as error:
        return error
    return None


Taken = tuple[int, int, MessageBatch | None]
"""Number of taken batches, their cost, and the last one until it is settled."""


class ReadPosition(NamedTuple):
    """Read position of the application in the current batch. `batch` is that batch, or its rest."""

    at_hand: MessageBatch | None
    batch: MessageBatch | None
    messages: Iterator[Message]
    indices: Iterator[int]

    @staticmethod
    def begin(at_hand: MessageBatch, rest: MessageBatch | None = None) -> ReadPosition:
        """Return the position at the first message of the batch, or of its `rest` if given."""
        batch = at_hand if rest is None else rest
        indices = iter(range(batch.count))
        return ReadPosition(
            at_hand, batch, map(Message, batch.bodies_list(), repeat(batch), indices), indices
        )

    @staticmethod
    def end(at_hand: MessageBatch | None) -> ReadPosition:
        """Return the position after the last message."""
        return ReadPosition(at_hand, None, iter(()), iter(()))

    def rest(self) -> MessageBatch | None:
        """Return the unread messages as a batch. They can still be read individually."""
        left = length_hint(self.indices)
        if self.batch is None or not left:
            return None
        return _slice(self.batch, self.batch.count - left)


NO_POSITION: Final = ReadPosition.end(None)
"""Position without a batch."""


@dataclass(eq=False, repr=False, slots=True)
class MessageBuffer:
    """Batches of one subscription, in log order. Costs are flow-control costs of the subscription."""

    sub_id: str
    limited: bool
    """Whether a premature end is an error, because the reader expects all messages."""
    end_reason: str | None = None
    end_error: TickertapeError | None = None
    started_after: str | None = None
    bookmark_found: bool | None = None
    caught_up: bool = False
    as_of: str | None = None
    """Bookmark of the last message before the result of the query, or None before its start."""
    as_of_position: int | None = None
    """Position of the result in the log. None before its start, and for a result of no SOW topic."""
    restarts: int = 0
    """Number of times that the query was sent again."""
    matches: int | None = None
    topic_matches: int | None = None
    records: int | None = None
    """Numbers of records of the result, None before its end."""
    closed: bool = False
    """Whether the application closed the stream. Later deliveries are dropped."""
    _batches: deque[MessageBatch | WaitingMessage] = field(default_factory=deque)
    _conflation: StreamConflation | None = None
    _superseded: list[tuple[int, int]] = field(default_factory=list)
    _superseded_of: DeliveryContext | None = None
    _pushed_batches: int = 0
    _pushed_cost: int = 0
    _taken: Taken = (0, 0, None)
    _prepaid_cost: int = 0
    """Total cost up to which credit was granted before the batches were taken."""
    credit_due: int = 0
    """Cost to report for the current batch once it is processed, reduced by `paid`."""
    passed: bool = False
    """Whether all messages of the last batch were redelivered and discarded since."""
    credit_early: int = 0
    """Credit to report for batches that were granted before they were taken."""
    _catching_up: set[object] = field(default_factory=set)
    _done: MessageBatch | str | None = None
    _notice: tuple[int, str] | None = None
    _void_batches: int = -1
    _kept_batches: int = -1
    """Batches up to this one are not invalid, because they are records, which are not redelivered."""
    generation: int = 0
    """Number of times that waiting messages were invalidated."""

    # -- input of the client ----------------------------------------------------------------------------

    def push(self, batch: MessageBatch) -> int:
        """Add a delivered batch. Return the cost to report as consumed at once."""
        if self.closed:
            return 0
        if self._conflation is not None:
            return self._conflate(self._conflation, batch)
        self._batches.append(batch)
        self._pushed_batches += 1
        self._pushed_cost += batch.cost
        return self._prepay() if self._catching_up else 0

    def conflate(self, by: str) -> None:
        """Keep only the newest waiting message of each key from now on. Raises `UsageError`."""
        conflation = StreamConflation(by)
        came, self._batches = self._batches, deque()
        self._conflation = conflation
        due, paid_cost, at = 0, self._prepaid_cost, self._taken[1]
        for item in came:
            if isinstance(item, WaitingMessage) and not item.left:
                self._batches.append(item)  # empty, but counted
                continue
            batch = item.rest() if isinstance(item, WaitingMessage) else item
            at += batch.cost
            self._pushed_batches -= 1
            self._pushed_cost -= batch.cost
            due += self._conflate(conflation, batch, paid=at <= paid_cost)
        self.credit_early += due

    def take_superseded(self) -> Superseded | None:
        """Return and clear the superseded messages, which the caller must discard in the bookmark store."""
        if self._superseded_of is None or not self._superseded:
            return None
        marks, self._superseded = self._superseded, []
        return Superseded(self._superseded_of, marks)

    def _conflate(self, conflation: StreamConflation, batch: MessageBatch, *, paid: bool = False) -> int:
        waiting, superseded = conflation.add(batch)
        waiting.paid = paid
        self._batches.append(waiting)
        self._pushed_batches += 1
        self._pushed_cost += batch.cost
        due = 0
        with_store = batch.context is not None and batch.context.store is not None
        if with_store:
            self._superseded_of = batch.context
        for earlier, row in superseded:
            if with_store:
                self._superseded.append(earlier.mark(row))
            cost = earlier.drop(row)
            self._pushed_cost -= cost
            if earlier.paid:
                self._prepaid_cost -= cost
            else:
                due += cost
        return due + (self._prepay() if self._catching_up else 0)

    def started(self, after: str, *, found: bool) -> None:
        """Record the start of the subscription, after bookmark `after` if known."""
        self.started_after, self.bookmark_found = after or None, found
        if self._done is None:
            self._done = self.started_after

    def snapshot_begun(self, as_of: str, position: int | None) -> None:
        """Record the start of the result of a query, which may be sent again."""
        if self.as_of is not None:
            self.restarts += 1
            self.caught_up = False
        self.as_of, self.as_of_position = as_of, position
        self.matches = self.topic_matches = self.records = None

    def snapshot_ended(self, as_of: str, matches: int, topic_matches: int, records: int) -> None:
        """Record the end of the result of a query, which was delivered into this buffer."""
        self.as_of = as_of
        self.matches, self.topic_matches, self.records = matches, topic_matches, records
        self.notice(as_of)

    def notice(self, bookmark: str) -> None:
        """Record a recovery point up to which everything was delivered into this buffer."""
        self._notice = (self._pushed_batches, bookmark)
        self._apply_notice()

    def catch_up(self) -> None:
        """Record that the replay caught up or reached its end."""
        self.caught_up = True

    def restart(self) -> None:
        """Record that waiting messages will be redelivered."""
        self.generation += 1

    def void(self) -> None:
        """Invalidate waiting batches, which will be redelivered. They count as taken in their turn.

        Records of a query before them remain: a stream that continues after its result does not repeat them.
        """
        records = [at for at, batch in enumerate(self._batches, 1) if _has_records(batch)]
        if records:
            self._kept_batches = self._taken[0] + records[-1]
        elif self.at_hand is not None and _has_records(self.at_hand):
            self._kept_batches = self._taken[0]
        self._void_batches = self._pushed_batches
        self._notice = None
        self.restart()

    def end(self, reason: str, error: TickertapeError | None) -> None:
        """End the stream. Waiting batches can still be taken. Only the first end counts."""
        if self.end_reason is None:
            self.end_reason, self.end_error = reason, error

    # -- calls of the application -----------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether `take` returns without waiting."""
        return bool(self._batches) or self.end_reason is not None

    @property
    def waiting(self) -> int:
        """Number of delivered batches that were not taken."""
        return self._pushed_batches - self._taken[0]

    @property
    def voided(self) -> bool:
        """Whether the last taken batch is invalidated."""
        return self._kept_batches < self._taken[0] <= self._void_batches

    @property
    def at_hand(self) -> MessageBatch | None:
        """Last taken batch, until it is settled."""
        return self._taken[2]

    def paid(self, *, early: int, due: int) -> None:
        """Record that these parts of `credit_early` and `credit_due` were reported."""
        self.credit_early -= early
        self.credit_due -= due

    def settle(self) -> int:
        """Settle the last taken batch, and return its cost to report.

        A request for the next batch implies that the last one is processed.
        """
        due, self.credit_due = self.credit_due, 0
        batches, cost, batch = self._taken
        if batch is not None:
            if len(self._batches) > self._pushed_batches - batches:
                self._batches.popleft()  # an exception interrupted `take` after counting
            self.done(batch)
            self._taken = (batches, cost, None)
        self._apply_notice()
        return due

    def done(self, batch: MessageBatch) -> None:
        """Record that the application processed `batch` and all earlier batches."""
        context = batch.context
        if context is None or not context.with_bookmark or self.voided:
            return
        if context.command == "publish":  # a stream cannot continue from a record
            self._done = batch

    @property
    def recovery_point(self) -> str | None:
        """Bookmark up to which the application processed everything, or None if unknown."""
        done = self._done
        return done.bookmark(done.count - 1) if isinstance(done, MessageBatch) else done

    def take(self, *, whole: bool = False) -> MessageBatch | None:
        """Return the next batch when `ready`, or None at the end.

        Raises the error that ended a limited read prematurely. Redelivered messages that were discarded
        meanwhile are left out, unless `whole` is set. A `passed` batch counts as taken but must not be
        delivered.
        """
        if not self._batches:
            if self.limited and self.end_error is not None:
                raise self.end_error
            return None
        batch = self._first()
        batches, begin, _ = self._taken
        end = begin + batch.cost
        # Credit that was granted while the batch waited is not granted twice.
        self.credit_due = end - min(end, max(begin, self._prepaid_cost))
        left = batch if whole else left_of(batch)
        self.passed = left is None
        if left is not None:
            batch = left
        self._taken = (batches + 1, end, batch)
        self._batches.popleft()
        return batch

    def _first(self) -> MessageBatch:
        """Return the first waiting batch. Empty batches before it count as taken."""
        while len(self._batches) > self._pushed_batches - self._taken[0]:
            self._batches.popleft()  # see `settle`
        while isinstance(first := self._batches[0], WaitingMessage):
            if self._conflation is not None:
                self._conflation.taken(first)
            if first.left:
                return first.rest()
            self._taken = (self._taken[0] + 1, *self._taken[1:])
            self._batches.popleft()
        return first

    def close(self) -> bool:
        """Drop waiting and later batches. Return whether the subscription was active."""
        self.closed = True
        self._batches.clear()
        return self.end_reason is None

    # -- waiting for the replay to catch up -------------------------------------------------------------

    def begin_catch_up(self, who: object) -> None:
        """Start to wait for the replay. Credit for waiting batches is granted again."""
        self._catching_up.add(who)
        self.credit_early += self._prepay()

    def end_catch_up(self, who: object) -> None:
        """Stop waiting for the replay."""
        self._catching_up.discard(who)

    @property
    def settled(self) -> bool:
        """Whether the replay caught up or the stream ended."""
        return self.caught_up or self.end_reason is not None

    def check_caught_up(self, timeout: float | None) -> None:
        """Report the result of waiting for the replay. Raises `StreamEnded`, `TimedOut`."""
        if self.caught_up:
            return
        if self.end_reason is not None:
            why, cure = self._end()
            raise StreamEnded(
                f"Cannot catch up: stream {self.sub_id!r} ended before the end of its replay ({why}). {cure}"
            )
        full = "Its buffer is full. Read its messages in another thread or task during the call."
        raise TimedOut(
            f"Cannot catch up: stream {self.sub_id!r} did not reach the end of its replay {within(timeout)}."
            f" {full if self._full else 'Pass a longer timeout.'}"
        )

    # -- errors of both clients -------------------------------------------------------------------------

    def over(self) -> StreamEnded:
        """Return the error of `get` at the end of the stream."""
        why, cure = self._end()
        return StreamEnded(f"Cannot read stream {self.sub_id!r}: it has ended ({why}). {cure}")

    def _end(self) -> tuple[str, str]:
        """Return the cause of the end, and the cure."""
        if isinstance(self.end_error, Closed):
            return "the client is closed", "Create a new client."
        why = str(self.end_error or self.end_reason)
        return why.removesuffix(" Connect again.").rstrip("."), "Subscribe again."

    def late(self, timeout: float | None) -> TimedOut:
        """Return the error for a timeout without a message."""
        return TimedOut(
            f"Cannot read stream {self.sub_id!r}: no message received {within(timeout)}. "
            "Pass a longer timeout."
        )

    # -- inside -----------------------------------------------------------------------------------------

    def _apply_notice(self) -> None:
        notice = self._notice
        if notice is not None and self._taken[2] is None and self._taken[0] >= notice[0]:
            self._done, self._notice = notice[1], None

    @property
    def _full(self) -> bool:
        return not self.closed and self._pushed_cost - self._taken[1] >= catch_up_bytes_max

    def _prepay(self) -> int:
        if self._full or self.closed:
            return 0
        if self._conflation is not None:
            for item in self._batches:
                if isinstance(item, WaitingMessage):
                    item.paid = True
        due = self._pushed_cost - max(self._prepaid_cost, self._taken[1])
        self._prepaid_cost = self._pushed_cost
        return due


def _has_records(item: MessageBatch | WaitingMessage) -> bool:
    """Return whether a batch is a part of the result of a query."""
    context = item.batch.context if isinstance(item, WaitingMessage) else item.context
    return context is not None and context.command != "publish"


def rest_of(current: Iterator[Message]) -> MessageBatch | None:
    """Return the unread messages of an iteration as a batch. The iteration is exhausted afterwards."""
    first = next(current, None)
    if first is None:
        return None
    for _ in current:
        pass
    return _slice(first.batch, first.index)


def _slice(batch: MessageBatch, begin: int) -> MessageBatch:
    rest = slice_batch(batch, begin, batch.count)
    rest.context = batch.context
    return rest
