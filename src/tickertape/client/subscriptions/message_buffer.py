"""Message buffer: batches of one subscription that were delivered and not consumed.

A stream of either front guards it and reports the credit that is due. An exception that a signal handler
raises may come between any two steps: what was taken is counted in one assignment, and stays at hand until
`settle`. Its size is bounded by the credit of the subscription, and by `catch_up_bytes_max` while a caller
waits for the replay to catch up.

Where it is conflated it keeps only the newest message of each key. Batches that were taken do not change, nor
does the order of what is left. Bodies of superseded messages are released when they are half of a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from operator import length_hint
from typing import Final, NamedTuple

import numpy as np

from tickertape.base.errors import StreamEnded, TickertapeError, TimedOut, UsageError
from tickertape.base.units import within
from tickertape.batch.delivery_context import DeliveryContext
from tickertape.batch.derive import message_costs, select, slice_batch
from tickertape.batch.format import I8, U8
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.client.limits import catch_up_bytes_max
from tickertape.client.subscriptions.bookmark_tracker import asked
from tickertape.client.subscriptions.duplicates import left_of

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


Taken = tuple[int, int, MessageBatch | None]
"""Batches taken so far, their cost, and the last one until it is settled."""


class ReadPosition(NamedTuple):
    """Position of the application in the batch at hand; `batch` is that one, or the rest of it."""

    at_hand: MessageBatch | None
    batch: MessageBatch | None
    messages: Iterator[Message]
    indices: Iterator[int]

    @staticmethod
    def begin(at_hand: MessageBatch, rest: MessageBatch | None = None) -> ReadPosition:
        """At the first message; of `rest`, where that is all there is to come."""
        batch = at_hand if rest is None else rest
        indices = iter(range(batch.count))
        return ReadPosition(
            at_hand, batch, map(Message, batch.bodies_list(), repeat(batch), indices), indices
        )

    @staticmethod
    def end(at_hand: MessageBatch | None) -> ReadPosition:
        """Behind the last message."""
        return ReadPosition(at_hand, None, iter(()), iter(()))

    def rest(self) -> MessageBatch | None:
        """The messages not given yet, as a batch; they can still be given one by one."""
        left = length_hint(self.indices)
        if self.batch is None or not left:
            return None
        return _slice(self.batch, self.batch.count - left)


NO_POSITION: Final = ReadPosition.end(None)
"""No batch was begun."""


@dataclass(eq=False, repr=False, slots=True)
class MessageBuffer:
    """The batches of one subscription, in log order. Costs are those of the subscription's credit."""

    sub_id: str
    limited: bool
    """Whether its end means that everything was read, so that being cut short is an error."""
    end_reason: str | None = None
    end_error: TickertapeError | None = None
    started_after: str | None = None
    bookmark_found: bool | None = None
    caught_up: bool = False
    closed: bool = False
    """Whether the application wants no more; what comes then is dropped."""
    _batches: deque[MessageBatch | WaitingMessage] = field(default_factory=deque)
    _conflation: StreamConflation | None = None
    _superseded: list[tuple[int, int]] = field(default_factory=list)
    _superseded_of: DeliveryContext | None = None
    _pushed_batches: int = 0
    _pushed_cost: int = 0
    _taken: Taken = (0, 0, None)
    _prepaid_cost: int = 0
    """Up to where what came was granted again before it was taken."""
    credit_due: int = 0
    """The cost to report for the batch at hand once it is done with; `paid` takes from it."""
    passed: bool = False
    """Whether all messages of the batch taken last came again and were discarded meanwhile."""
    credit_early: int = 0
    """Credit to report for batches that were granted again before they were taken."""
    _catching_up: set[object] = field(default_factory=set)
    _done: MessageBatch | str | None = None
    _notice: tuple[int, str] | None = None
    _void_batches: int = -1
    generation: int = 0
    """How often the delivered messages were declared void."""

    # -- what the client hands in -----------------------------------------------------------------------

    def push(self, batch: MessageBatch) -> int:
        """A batch was delivered; the cost to report as consumed at once."""
        if self.closed:
            return 0
        if self._conflation is not None:
            return self._conflate(self._conflation, batch)
        self._batches.append(batch)
        self._pushed_batches += 1
        self._pushed_cost += batch.cost
        return self._prepay() if self._catching_up else 0

    def conflate(self, by: str) -> None:
        """From now on only the newest message of each key waits here. Raises `UsageError`."""
        conflation = StreamConflation(by)
        came, self._batches = self._batches, deque()
        self._conflation = conflation
        due, paid_cost, at = 0, self._prepaid_cost, self._taken[1]
        for item in came:
            if isinstance(item, WaitingMessage) and not item.left:
                self._batches.append(item)  # nothing of it is left, but it is counted
                continue
            batch = item.rest() if isinstance(item, WaitingMessage) else item
            at += batch.cost
            self._pushed_batches -= 1
            self._pushed_cost -= batch.cost
            due += self._conflate(conflation, batch, paid=at <= paid_cost)
        self.credit_early += due

    def take_superseded(self) -> Superseded | None:
        """The messages to discard in a bookmark store because newer ones took their places. Each is given
        once: whoever takes them discards them."""
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
        """The server placed it behind the message with the bookmark `after`, if that is known."""
        self.started_after, self.bookmark_found = after or None, found
        if self._done is None:
            self._done = self.started_after

    def notice(self, bookmark: str) -> None:
        """Everything up to `bookmark` was delivered: with what is here, a place to resume from."""
        self._notice = (self._pushed_batches, bookmark)
        self._apply_notice()

    def catch_up(self) -> None:
        """The replay has caught up, or reached its stop."""
        self.caught_up = True

    def restart(self) -> None:
        """Messages that were not handed on yet will be redelivered."""
        self.generation += 1

    def void(self) -> None:
        """The batches here will be redelivered: they count as taken when it is their turn."""
        self._void_batches = self._pushed_batches
        self._notice = None
        self.restart()

    def end(self, reason: str, error: TickertapeError | None) -> None:
        """Nothing more comes; what is here can still be taken. The first end counts."""
        if self.end_reason is None:
            self.end_reason, self.end_error = reason, error

    # -- what the application does ----------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether `take` need not wait."""
        return bool(self._batches) or self.end_reason is not None

    @property
    def waiting(self) -> int:
        """Batches that came and were not taken."""
        return self._pushed_batches - self._taken[0]

    @property
    def voided(self) -> bool:
        """Whether the batch that was taken last is void."""
        return self._taken[0] <= self._void_batches

    @property
    def at_hand(self) -> MessageBatch | None:
        """The batch taken last, until it is settled."""
        return self._taken[2]

    def paid(self, *, early: int, due: int) -> None:
        """So much was reported of `credit_early` and `credit_due`."""
        self.credit_early -= early
        self.credit_due -= due

    def settle(self) -> int:
        """The cost to report for the batch taken last: asking for another one says that it is done with."""
        due, self.credit_due = self.credit_due, 0
        batches, cost, batch = self._taken
        if batch is not None:
            if len(self._batches) > self._pushed_batches - batches:
                self._batches.popleft()  # an exception came when it was just counted as taken
            self.done(batch)
            self._taken = (batches, cost, None)
        self._apply_notice()
        return due

    def done(self, batch: MessageBatch) -> None:
        """The application is done with `batch` and everything before it."""
        if batch.context is not None and batch.context.with_bookmark and not self.voided:
            self._done = batch

    @property
    def recovery_point(self) -> str | None:
        """The bookmark up to which the application is done with everything; None when none is known."""
        done = self._done
        return done.bookmark(done.count - 1) if isinstance(done, MessageBatch) else done

    def take(self, *, whole: bool = False) -> MessageBatch | None:
        """The next batch, when `ready`; None when it is over. Raises what cut a limited reading short.

        Messages that came again and were discarded meanwhile are left out, unless it is to be `whole`; a
        batch that is `passed` then counts as taken, and is to be handed to nobody.
        """
        if not self._batches:
            if self.limited and self.end_error is not None:
                raise self.end_error
            return None
        batch = self._first()
        batches, begin, _ = self._taken
        end = begin + batch.cost
        # What was granted again while it lay here is not granted twice.
        self.credit_due = end - min(end, max(begin, self._prepaid_cost))
        left = batch if whole else left_of(batch)
        self.passed = left is None
        if left is not None:
            batch = left
        self._taken = (batches + 1, end, batch)
        self._batches.popleft()
        return batch

    def _first(self) -> MessageBatch:
        """Return the first batch that waits; empty ones before it count as taken."""
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
        """Drop what is here and what comes; whether the subscription was still running."""
        self.closed = True
        self._batches.clear()
        return self.end_reason is None

    # -- waiting for the replay to catch up -------------------------------------------------------------

    def begin_catch_up(self, who: object) -> None:
        """Start to wait for the replay: the batches here are granted again."""
        self._catching_up.add(who)
        self.credit_early += self._prepay()

    def end_catch_up(self, who: object) -> None:
        """End the waiting for the replay."""
        self._catching_up.discard(who)

    @property
    def settled(self) -> bool:
        """Whether it is known if the replay has caught up."""
        return self.caught_up or self.end_reason is not None

    def check_caught_up(self, timeout: float | None) -> None:
        """Say how the waiting ended. Raises `StreamEnded`, `TimedOut`."""
        if self.caught_up:
            return
        if self.end_reason is not None:
            why = self.end_error or self.end_reason
            raise StreamEnded(f"stream {self.sub_id} ended before it had caught up: {why}")
        hint = "; it holds all it may, so consume it meanwhile" if self._full else ""
        raise TimedOut(f"stream {self.sub_id} has not caught up {within(timeout)}{hint}")

    # -- errors of both fronts --------------------------------------------------------------------------

    def over(self) -> StreamEnded:
        """Return the error of `get` when there are no more messages."""
        return StreamEnded(f"stream {self.sub_id} is over: {self.end_error or self.end_reason}")

    def late(self, timeout: float | None) -> TimedOut:
        """Return the error when no message arrived in time."""
        return TimedOut(f"no message on stream {self.sub_id} {within(timeout)}")

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


def rest_of(current: Iterator[Message]) -> MessageBatch | None:
    """The messages that an iteration has begun and not given yet, as a batch; the iteration is used up."""
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
