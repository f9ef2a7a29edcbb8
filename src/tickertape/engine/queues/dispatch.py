"""Queue dispatch: delivers the messages of a queue to its consumers.

Ready messages are assigned in contiguous ranges. Each consumer gets as many messages as the fairness of the
queue would assign one by one.

Invariants:
- Each message is delivered to one consumer, within its backlog limit and its credit.
- A consumer whose lease expired gets no message that another consumer accepts, until it settles a message or
  one lease period is over.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from pyroaring import BitMap64

from tickertape.base.errors import TickertapeError
from tickertape.batch import MessageBatch, select, slice_batch
from tickertape.batch.format import I8, Int64s
from tickertape.engine.limits import queue_frame_messages_max, queue_step_choices_max, queue_step_messages_max
from tickertape.engine.matching.interest import Interest
from tickertape.engine.queues.consumer_filter import ConsumerFilters
from tickertape.engine.queues.message_reader import Fetched, MessageReader, QueueAccess
from tickertape.engine.queues.queue_feed import FeedQueue, QueueFeed
from tickertape.engine.queues.state.fairness import Load, distribute, next_consumer
from tickertape.engine.queues.state.records import Outcome, OutcomeKind, bitmap_of, ranges_of
from tickertape.engine.runtime.effects import Send
from tickertape.wire.commands import Deliver
from tickertape.wire.frames import encode_frame

_MICROS: Final = 1_000_000
_NO_ROOM: Final = Load(1, 1)


class DeferredDelivery(NamedTuple):
    """A delivery that waits until the log is persisted up to `end`."""

    end: int
    consumer: QueueFeed
    """Not sent if its subscription has ended meanwhile, because another subscription may have its id."""
    send: Send
    cost: int


class QueueDispatch:
    """Deliveries of one queue."""

    def __init__(
        self,
        queue: FeedQueue,
        access: QueueAccess,
        interest: Interest,
        holder: object,
    ) -> None:
        self._queue = queue
        self._queue_log = access.log
        self._deferred: list[DeferredDelivery] = []
        self._outbox = access.outbox
        self._clock = access.clock
        self._reader = MessageReader(access, interest.topic_name, holder)
        self.filters = ConsumerFilters(queue, access, interest, holder)
        self._short_of_credit: dict[QueueFeed, int] = {}
        """Consumers with too little credit for their messages, and that credit. Other consumers are
        served."""
        self._fell_short = False
        """Whether the current round found a consumer with too little credit."""
        self._has_given = False
        """Whether the current round delivered messages."""
        self._left_to: dict[QueueFeed, BitMap64] = {}
        """Messages for the consumers whose lease expired. They may get all messages if they are not in it."""

    # -- consumers --------------------------------------------------------------------------------------

    def discard(self, consumer: QueueFeed) -> None:
        """Remove a consumer."""
        self._short_of_credit.pop(consumer, None)
        self.filters.discard(consumer)

    @property
    def failure(self) -> TickertapeError | None:
        """The error if required messages cannot be read."""
        return self._reader.failure or self.filters.failure

    # -- one delivery -----------------------------------------------------------------------------------

    def deliver(self) -> bool:
        """Deliver the next messages. Return whether more may be deliverable."""
        queue = self._queue
        wanted = self._wanted()
        if not len(wanted):
            return self._over()
        if queue.definition.at_most_once and not self._queue_log.can_write():
            return False
        fetched = self._reader.get(wanted)
        if fetched is None:
            return False
        self._fell_short = False
        given = self._by_filter(fetched) if self.filters else self._in_stretches(fetched)
        if given:
            self._give(given, fetched)
            self._has_given = True
            return bool(queue.state.ready) and (
                bool(self._short_of_credit) or any(c.room for c in queue.consumers)
            )
        # The chosen consumer lacks credit, so others may get its messages.
        return self._fell_short or self._over()

    def take_deferred(self) -> list[DeferredDelivery]:
        """Return the deliveries that wait until the log is persisted."""
        taken, self._deferred = self._deferred, []
        return taken

    def _lacks_credit(self, consumer: QueueFeed) -> None:
        self._short_of_credit[consumer] = consumer.allowance.credit
        self._fell_short = True

    def release_memory(self) -> None:
        """Allow other readers to use the memory."""
        self._reader.release_memory()

    def _over(self) -> bool:
        """End a round in which no consumer can receive a message. Return whether to retry consumers with too
        little credit, because other messages are next now."""
        again = self._has_given and bool(self._short_of_credit)
        self._short_of_credit.clear()
        self._has_given = False
        return again

    def _room(self, consumer: QueueFeed) -> int:
        if self._short_of_credit.get(consumer) == consumer.allowance.credit:
            return 0
        left = self._left_to.get(consumer)
        return consumer.room if left is None or left else 0

    def _pass_over(self) -> None:
        """Find the messages for each consumer whose lease expired: those that no other consumer accepts, even
        if it is at its limit. A consumer without others gets all messages."""
        queue = self._queue
        self._left_to = {}
        if not queue.passed_over:
            return
        others = [self.filters.of(c) for c in queue.consumers if c not in queue.passed_over]
        if not others:
            return
        matching = [n.matching for n in others if n is not None]
        accepted = BitMap64.union(BitMap64(), *matching) if len(matching) == len(others) else None
        for consumer in queue.passed_over:
            consumer_filter = self.filters.of(consumer)
            left = queue.state.ready if consumer_filter is None else consumer_filter.matching
            self._left_to[consumer] = BitMap64() if accepted is None else left - accepted

    def _matching(self, consumer: QueueFeed) -> BitMap64 | None:
        """Return the messages that the consumer may get. None: all messages."""
        if (left := self._left_to.get(consumer)) is not None:
            return left
        consumer_filter = self.filters.of(consumer)
        return None if consumer_filter is None else consumer_filter.matching

    def _wanted(self) -> Int64s:
        queue = self._queue
        self._pass_over()
        total = queue.room()
        total = queue_step_messages_max if total is None else min(total, queue_step_messages_max)
        rooms = 0
        passing: dict[int, BitMap64] | None = {}
        for consumer in queue.consumers:
            room = self._room(consumer)
            if not room:
                continue
            rooms += room
            matching = self._matching(consumer)
            if matching is None:
                passing = None
            elif passing is not None:
                passing[id(matching)] = matching
        total = min(total, rooms)
        if not total:
            return np.empty(0, I8)
        among = None if passing is None else BitMap64.union(BitMap64(), *passing.values())
        # Priorities are compared below the position that all filters have examined. Waiting for all messages
        # would block delivery while new messages arrive.
        judged = self.filters.judged
        wanted = queue.order.next(total, among, judged)
        self.filters.held_up(judged is not None and not len(wanted))
        return wanted

    def _in_stretches(self, fetched: Fetched) -> list[tuple[QueueFeed, Int64s]]:
        """Assign contiguous ranges of messages to consumers."""
        queue, batch = self._queue, fetched.batch
        counts, turn = distribute(queue.definition.sharing, self._loads(), batch.count, queue.turn)
        queue.set_turn(turn, any(counts))
        given: list[tuple[QueueFeed, Int64s]] = []
        low = 0
        for consumer, count in zip(queue.consumers, counts, strict=True):
            if count:
                fit = consumer.allowance.fitting(batch, low, min(low + count, low + queue_frame_messages_max))
                if fit:
                    given.append((consumer, np.arange(low, low + fit, dtype=I8)))
                    low += fit
                else:
                    self._lacks_credit(consumer)
        return given

    def _by_filter(self, fetched: Fetched) -> list[tuple[QueueFeed, Int64s]]:
        """Assign messages to consumers one by one, because not every consumer accepts every message."""
        queue = self._queue
        consumers, loads = queue.consumers, self._loads()
        chosen: dict[int, list[int]] = {}
        for index, eligible in enumerate(self._eligible(fetched.positions.tolist(), loads)):
            who, turn = next_consumer(queue.definition.sharing, loads, eligible, queue.turn)
            queue.set_turn(turn, who is not None)
            if who is not None:
                loads[who] = Load(loads[who].unacknowledged + 1, loads[who].limit)
                chosen.setdefault(who, []).append(index)
        given = []
        for who, indices in chosen.items():
            consumer, taken = consumers[who], np.array(indices[:queue_frame_messages_max], I8)
            fit = consumer.allowance.fitting(select(fetched.batch, taken), 0, len(taken))
            if fit:
                given.append((consumer, taken[:fit]))
            else:
                self._lacks_credit(consumer)
        return given

    def _eligible(self, places: list[int], loads: list[Load]) -> list[list[int]]:
        """Return the eligible consumers of each of the first messages: at least one message, and at most
        `queue_step_choices_max` pairs."""
        consumers = enumerate(self._queue.consumers)
        able = [(i, self._matching(c)) for i, c in consumers if loads[i].unacknowledged < loads[i].limit]
        window = BitMap64(places)
        sets = {id(matching): matching for _, matching in able if matching is not None}
        sizes = {key: matching.intersection_cardinality(window) for key, matching in sets.items()}
        pairs = sum(len(places) if matching is None else sizes[id(matching)] for _, matching in able)
        if pairs > queue_step_choices_max:
            places = places[: max(len(places) * queue_step_choices_max // pairs, 1)]
            window = BitMap64(places)
        index_of = {place: index for index, place in enumerate(places)}
        passed = {key: [index_of[place] for place in matching & window] for key, matching in sets.items()}
        eligible: list[list[int]] = [[] for _ in places]
        for i, matching in able:
            for index in range(len(places)) if matching is None else passed[id(matching)]:
                eligible[index].append(i)
        return eligible

    def _loads(self) -> list[Load]:
        return [Load(c.unacked, c.limit) if self._room(c) else _NO_ROOM for c in self._queue.consumers]

    # -- sending ----------------------------------------------------------------------------------------

    def _give(self, given: list[tuple[QueueFeed, Int64s]], fetched: Fetched) -> None:
        queue, once = self._queue, self._queue.definition.at_most_once
        positions = fetched.positions
        end = 0
        if once:
            # At-most-once messages leave the queue before they are sent.
            chosen = bitmap_of(np.sort(np.concatenate([positions[which] for _, which in given])))
            outcome = Outcome(OutcomeKind.TAKEN, ranges_of(chosen))
            queue.apply(outcome)
            end = self._queue_log.write(queue.name, [outcome])
        for consumer, which in given:
            batch = _some(fetched.batch, which)
            lease = queue.grant(consumer, batch, positions[which], self._clock.mono)
            content = consumer.content
            shown = batch if content is None else content.project(batch)
            consumer.spend(shown)
            period = None if once or lease.deadline is None else queue.definition.lease_period
            expires = 0 if period is None else self._clock.wall + int(period * _MICROS)
            command = Deliver(sub_id=consumer.sub_id, queue=queue.name, lease=expires, once=once)
            send = Send(consumer.session.conn, encode_frame(command, shown))
            if once:
                consumer.allowance.deferred += shown.cost
                self._deferred.append(DeferredDelivery(end, consumer, send, shown.cost))
            else:
                self._outbox.put(send)


def _some(batch: MessageBatch, which: Int64s) -> MessageBatch:
    low, high = int(which[0]), int(which[-1]) + 1
    if high - low != len(which):
        return select(batch, which)
    return batch if high - low == batch.count else slice_batch(batch, low, high)
