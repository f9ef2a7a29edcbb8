"""Message buffer: batches of one subscription that were delivered and not consumed.

A stream of either front guards it and reports the credit that is due. An exception that a signal handler
raises may come between any two steps: what was taken is counted in one assignment, and stays at hand until
`settle`. Its size is bounded by the credit of the subscription, and by `catch_up_bytes_max` while a caller
waits for the replay to catch up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import repeat
from operator import length_hint
from typing import Final, NamedTuple

from tickertape.base.errors import StreamEnded, TickertapeError, TimedOut
from tickertape.base.units import within
from tickertape.batch.delivery_context import DeliveryContext
from tickertape.batch.derive import slice_batch
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.client.limits import catch_up_bytes_max
from tickertape.client.subscriptions.duplicates import left_of
from tickertape.client.subscriptions.message_buffer_conflation import (
    StreamConflation,
    Superseded,
    WaitingMessage,
)

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


class MessageBuffer:
    """The batches of one subscription, in log order. Costs are those of the subscription's credit."""

    __slots__ = (
        "_batches",
        "_catching_up",
        "_conflation",
        "_done",
        "_notice",
        "_prepaid_cost",
        "_pushed_batches",
        "_pushed_cost",
        "_superseded",
        "_superseded_of",
        "_taken",
        "_void_batches",
        "bookmark_found",
        "caught_up",
        "closed",
        "credit_due",
        "credit_early",
        "end_error",
        "end_reason",
        "generation",
        "limited",
        "passed",
        "started_after",
        "sub_id",
    )  # fmt: skip

    def __init__(self, sub_id: str, *, limited: bool) -> None:
        self.sub_id = sub_id
        self.limited = limited
        """Whether its end means that everything was read, so that being cut short is an error."""
        self.end_reason: str | None = None
        self.end_error: TickertapeError | None = None
        self.started_after: str | None = None
        self.bookmark_found: bool | None = None
        self.caught_up = False
        self.closed = False
        """Whether the application wants no more; what comes then is dropped."""
        self._batches: deque[MessageBatch | WaitingMessage] = deque()
        self._conflation: StreamConflation | None = None
        self._superseded: list[tuple[int, int]] = []
        self._superseded_of: DeliveryContext | None = None
        self._pushed_batches = 0
        self._pushed_cost = 0
        self._taken: Taken = (0, 0, None)
        self._prepaid_cost = 0
        """Up to where what came was granted again before it was taken."""
        self.credit_due = 0
        """The cost to report for the batch at hand once it is done with; who reports it sets it to 0."""
        self.passed = False
        """Whether all messages of the batch taken last came again and were discarded meanwhile."""
        self.credit_early = 0
        """Credit to report for batches that were granted again before they were taken."""
        self._catching_up: set[object] = set()
        self._done: MessageBatch | str | None = None
        self._notice: tuple[int, str] | None = None
        self._void_batches = -1
        self.generation = 0
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

    def conflate(self, by: str) -> int:
        """From now on only the newest message of each key waits here; the cost to report at once. Raises
        `UsageError`."""
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
        return due

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

    def begin_catch_up(self, who: object) -> int:
        """Start to wait for the replay; returns the cost to report, of batches that are granted again."""
        self._catching_up.add(who)
        return self._prepay()

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
