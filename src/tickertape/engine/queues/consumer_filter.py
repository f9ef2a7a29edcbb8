"""Consumer filters: the messages of a queue that pass each filter of its consumers.

Filters that have seen as much share one scan of the log. The scan that is furthest leads, and the others join
it when they have caught up.

Invariants:
- No more than `queue_filter_scans_max` scans run.
- A new filter holds deliveries up for no longer than its own catching up takes.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable
from typing import Final

from pyroaring import BitMap64

from tickertape.base.errors import TickertapeError
from tickertape.batch.format import I8, Int64s
from tickertape.engine.limits import queue_filter_scans_max, queue_step_messages_max
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.matching.filter_groups import TopicFilters
from tickertape.engine.matching.interest import Interest
from tickertape.engine.queues.message_reader import LogScan, QueueAccess
from tickertape.engine.queues.queue_feed import FeedQueue, QueueFeed
from tickertape.engine.queues.state.records import array_of, bitmap_of
from tickertape.filter.batch_filter import piece_end
from tickertape.filter.limits import filter_piece_bytes_max
from tickertape.journal.reading.log_view import LogPart

_SWEEP_MIN: Final = 4_096


class ConsumerFilter:
    """One filter: the messages that pass it, for `users` consumers."""

    def __init__(self, queue: FeedQueue, content: ContentFilter, interest: Interest) -> None:
        self._queue = queue
        self.content = content
        self.interest = interest
        self.matching = BitMap64()
        """Messages that pass; messages that have left the queue may still be among them."""
        self._sweep_at = _SWEEP_MIN
        self.users = 0

    def pass_(self, positions: Int64s) -> None:
        """These messages pass."""
        self.matching |= bitmap_of(positions)
        if len(self.matching) > self._sweep_at:
            self.matching = self._queue.state.has(self.matching)
            self._sweep_at = _SWEEP_MIN + 2 * len(self.matching)


class FilterScan:
    """Reads the queue's part of the log forward for the filters that it has."""

    def __init__(
        self, queue: FeedQueue, start: int, interest: Interest, access: QueueAccess, holder: object
    ) -> None:
        self._queue = queue
        self.reached = start
        """Everything in the queue below this position was looked at."""
        self.behind = start
        """Where the last piece began that was looked at."""
        self._entered = queue.considered
        """Position up to which messages had entered when it began."""
        self._scan = LogScan(access, start, interest.topic_name, holder)
        self._parts: list[LogPart] = []
        self._low = 0
        """Of the first part, the message with which the next piece begins."""
        self._search: Generator[int, None, None] | None = None
        self._filters = TopicFilters[ConsumerFilter](interest)
        self._alone: dict[ConsumerFilter, None] = {}
        """Filters that depend on their subscriber: no index holds them."""
        self.members: dict[ConsumerFilter, None] = {}

    @property
    def failure(self) -> TickertapeError | None:
        """The log cannot be read."""
        return self._scan.failure

    @property
    def between(self) -> bool:
        """Whether it is between two pieces: filters that have seen everything below `reached` may join."""
        return self._search is None

    @property
    def catching_up(self) -> bool:
        """Whether messages are left that had entered when it began."""
        return self.reached < self._entered

    def has_work(self, limit: int) -> bool:
        """Whether `step` would do something below position `limit`."""
        if self._search is not None:
            return True
        if self._parts:
            return self.reached < limit
        return self.reached < limit and not self._scan.waiting and self.failure is None

    def add(self, consumer_filter: ConsumerFilter) -> None:
        """A filter that has seen as much takes part."""
        assert self.between
        self.members[consumer_filter] = None
        if consumer_filter.content.depends_on_subscriber:
            self._alone[consumer_filter] = None
        else:
            self._filters.add(consumer_filter, consumer_filter.content)

    def discard(self, consumer_filter: ConsumerFilter) -> None:
        """Remove a filter that no consumer has any more."""
        del self.members[consumer_filter]
        if consumer_filter in self._alone:
            del self._alone[consumer_filter]
        else:
            self._filters.discard(consumer_filter)

    def step(self, budget: int, limit: int) -> int:
        """Examine about `budget` bytes of the next pieces below position `limit`; return how many bytes that
        were."""
        if self._search is None:
            self._search = self._next_piece(limit)
        done = 0
        while done < budget and self._search is not None:
            looked = next(self._search, None)
            if looked is None:
                self._search = None
            else:
                done += looked
        return done

    def stop(self) -> None:
        """It is wanted no more."""
        self._search = None
        self._scan.stop()

    # -- inside -----------------------------------------------------------------------------------------

    def _next_piece(self, limit: int) -> Generator[int, None, None] | None:
        """Start to examine the next piece; None when there is none now."""
        if not self._parts:
            self._parts, self._low = self._scan.parts(), 0
        if not self._parts:
            if not self._scan.waiting and self.failure is None:
                self.reached = max(self.reached, min(self._scan.position, limit))
            return None
        part = self._parts[0]
        if self.reached >= limit or max(part.first_position, self.reached) >= limit:
            self.reached = limit
            return None
        self._low = max(self._low, part.index_at(self.reached))
        return self._look(part, self._high(part, limit), limit)

    def _high(self, part: LogPart, limit: int) -> int:
        """Before which message a piece ends that begins with message `_low`."""
        return min(piece_end(part.batch, self._low, queue_step_messages_max), part.index_at(limit))

    def _look(self, part: LogPart, high: int, limit: int) -> Generator[int, None, None]:
        whole = high == part.batch.count
        end = min(part.end_position if whole else _position(part, high), limit)
        span = BitMap64()
        span.add_range(max(self.reached, part.first_position), end)
        inside = self._queue.state.has(span)
        if inside:
            positions = array_of(inside)
            indices = positions - part.first_position
            if part.positions is not None:
                indices = part.positions.searchsorted(positions).astype(I8)
            yield from self._judge(part, indices)
        self.behind, self.reached = self.reached, end
        self._low = high
        if whole:
            self._parts.pop(0)
            self._low = 0

    def _judge(self, part: LogPart, indices: Int64s) -> Generator[int, None, None]:
        batch = part.batch
        if self._filters.groups:
            found = yield from self._filters.search(batch, indices)
            for number, consumer_filter in enumerate(found.groups):
                consumer_filter.pass_(part.positions_of(found.of(number)))
        for consumer_filter in [*self._alone]:
            content, at = consumer_filter.content, 0
            while at < len(indices):
                first = int(indices[at])
                stop = int(indices.searchsorted(content.piece_end(batch, first)))
                passed = content.matching_rows(batch, indices[at:stop])
                if len(passed):
                    consumer_filter.pass_(part.positions_of(passed))
                yield int(batch.offsets[int(indices[stop - 1]) + 1]) - int(batch.offsets[first])
                at = stop


def _position(part: LogPart, index: int) -> int:
    return part.first_position + index if part.positions is None else int(part.positions[index])


_SMALLEST_STEP_BYTES: Final = 64
"""Budget that a step counts at least, so that it ends."""


class ConsumerFilters:
    """All filters of the consumers of one queue; the queue is the holder of their reads."""

    def __init__(self, queue: FeedQueue, access: QueueAccess, interest: Interest, holder: object) -> None:
        self._queue = queue
        self._access = access
        self._cover = interest
        self._holder = holder
        self._by_key: dict[Hashable, ConsumerFilter] = {}
        self._scan_of: dict[ConsumerFilter, FilterScan] = {}
        self._scans: dict[FilterScan, int] = {}
        """Each with its number, in the order of their turns. Later ones have higher numbers."""
        self._waiting: dict[ConsumerFilter, None] = {}
        """Filters that wait for room for another scan."""
        self._number = 0
        self._awaited = 0
        """The last scan that the leading one waits for: waiting for each new one would stop it."""
        self._held_by: int | None = None
        """The last scan that may hold up deliveries: while they are held up, later ones may not."""

    def __bool__(self) -> bool:
        return bool(self._by_key)

    # -- consumers --------------------------------------------------------------------------------------

    def add(self, consumer: QueueFeed) -> None:
        """Add the filter of a consumer."""
        content = consumer.content
        if content is None or content.filter is None:
            return
        key = content.filter_key
        consumer_filter = self._by_key.get(key)
        if consumer_filter is None:
            consumer_filter = self._by_key[key] = ConsumerFilter(self._queue, content, self._cover)
            self._start(consumer_filter)
        consumer_filter.users += 1

    def discard(self, consumer: QueueFeed) -> None:
        """Remove the filter of a consumer."""
        consumer_filter = self.of(consumer)
        if consumer_filter is None or consumer.content is None:
            return
        consumer_filter.users -= 1
        if consumer_filter.users:
            return
        del self._by_key[consumer.content.filter_key]
        self._waiting.pop(consumer_filter, None)
        scan = self._scan_of.pop(consumer_filter, None)
        if scan is not None:
            scan.discard(consumer_filter)
            if not scan.members:
                self._end(scan)

    def of(self, consumer: QueueFeed) -> ConsumerFilter | None:
        """Return the filter of a consumer; None without one."""
        content = consumer.content
        return None if content is None or content.filter is None else self._by_key[content.filter_key]

    # -- scans ------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        lead = self._lead()
        return any(scan.has_work(self._limit(scan, lead)) for scan in self._scans)

    def step(self) -> bool:
        """Judge about `filter_piece_bytes_max` more; False when there was nothing to judge."""
        left, judged = filter_piece_bytes_max, False
        while left > 0:
            lead = self._lead()
            scan = next((scan for scan in self._scans if scan.has_work(self._limit(scan, lead))), None)
            if scan is None:
                break
            self._scans[scan] = self._scans.pop(scan)
            reached, judged = scan.reached, True
            left -= max(scan.step(left, self._limit(scan, lead)), _SMALLEST_STEP_BYTES)
            if scan is lead and scan.reached > reached:
                self._awaited = self._number
            self._join()
        return judged

    @property
    def judged(self) -> int | None:
        """Position below which all filters that are not far behind have seen everything: a new message is not
        delivered before it is known which others may have it. None: they have seen all. With priorities, 0
        while a new filter has not seen the messages that were there before it: the first message may be among
        them."""
        near = self._queue.considered - queue_step_messages_max
        reached = []
        for scan, number in self._scans.items():
            counts = not scan.catching_up or self._held_by is None or number <= self._held_by
            if counts and scan.reached >= near and scan.has_work(self._queue.considered):
                first = scan.catching_up and self._queue.definition.priority is not None
                reached.append(0 if first else scan.reached)
        return min(reached, default=None)

    def held_up(self, held: bool) -> None:
        """Whether `judged` kept messages from being delivered."""
        if not held:
            self._held_by = None
        elif self._held_by is None:
            self._held_by = self._number

    @property
    def failure(self) -> TickertapeError | None:
        """The log cannot be read."""
        return next((scan.failure for scan in self._scans if scan.failure is not None), None)

    # -- inside -----------------------------------------------------------------------------------------

    def _lead(self) -> FilterScan | None:
        return max(self._scans, key=lambda scan: scan.reached, default=None)

    def _limit(self, scan: FilterScan, lead: FilterScan | None) -> int:
        """Position from which a scan examines nothing for now: messages that did not enter yet, and the
        position of the leading scan. That one waits for scans that are one piece behind, so that they can
        join it."""
        if lead is None or scan is lead:
            others = (o for o, number in self._scans.items() if o is not scan and number <= self._awaited)
            if any(scan.behind <= other.reached for other in others):
                return scan.reached
            return self._queue.considered
        return lead.reached

    def _start(self, consumer_filter: ConsumerFilter) -> None:
        """Let a new filter join a scan that has seen nothing of the queue, or start one."""
        oldest, considered = self._queue.state.oldest(), self._queue.considered
        start = considered if oldest is None else min(oldest, considered)
        for scan in self._scans:
            if scan.between and scan.reached <= start:
                self._put(scan, consumer_filter)
                return
        lead = self._lead()
        if len(self._scans) >= queue_filter_scans_max:
            self._waiting[consumer_filter] = None
            return
        self._number += 1
        start = start if lead is None else min(start, lead.reached)
        scan = FilterScan(self._queue, start, self._cover, self._access, self._holder)
        self._scans[scan] = self._number
        self._put(scan, consumer_filter)

    def _put(self, scan: FilterScan, consumer_filter: ConsumerFilter) -> None:
        scan.add(consumer_filter)
        self._scan_of[consumer_filter] = scan

    def _join(self) -> None:
        """Scans that have caught up with the one that leads become one with it."""
        lead = self._lead()
        if lead is None or not lead.between:
            return
        for scan in [*self._scans]:
            if scan is not lead and scan.reached == lead.reached and scan.between:
                for consumer_filter in [*scan.members]:
                    scan.discard(consumer_filter)
                    self._put(lead, consumer_filter)
                self._end(scan)

    def _end(self, scan: FilterScan) -> None:
        del self._scans[scan]
        scan.stop()
        waiting, self._waiting = self._waiting, {}
        for consumer_filter in waiting:
            self._start(consumer_filter)
