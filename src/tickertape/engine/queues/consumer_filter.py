"""Consumer filters: find the messages of a queue that pass the filters of its consumers.

Filters with the same progress share one scan of the log. The scan with the highest position leads. The others
join it when they have caught up.

Invariants:
- At most `queue_filter_scans_max` scans run at a time.
- A new filter delays deliveries at most until it has caught up.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable
from typing import Final

from pyroaring import BitMap64

from tickertape.base.errors import TickertapeError
from tickertape.batch.format import I8, Int64s
from tickertape.engine.limits import queue_filter_scans_max, queue_step_messages_max
from tickertape.engine.log_reads.log_scan import LogScan
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.matching.filter_groups import TopicFilters
from tickertape.engine.matching.interest import Interest
from tickertape.engine.queues.message_reader import QueueAccess
from tickertape.engine.queues.queue_feed import FeedQueue, QueueFeed
from tickertape.engine.queues.state.records import array_of, bitmap_of
from tickertape.filter.batch_filter import piece_end
from tickertape.filter.limits import filter_piece_bytes_max
from tickertape.journal.reading.log_view import LogPart

_SWEEP_MIN: Final = 4_096


class ConsumerFilter:
    """One filter and the messages that pass it, for `users` consumers."""

    def __init__(self, queue: FeedQueue, content: ContentFilter, interest: Interest) -> None:
        self._queue = queue
        self.content = content
        self.interest = interest
        self.matching = BitMap64()
        """Messages that pass. Messages that have left the queue may remain until the next sweep."""
        self._sweep_at = _SWEEP_MIN
        self.users = 0

    def pass_(self, positions: Int64s) -> None:
        """Add messages that pass."""
        self.matching |= bitmap_of(positions)
        if len(self.matching) > self._sweep_at:
            self.matching = self._queue.state.has(self.matching)
            self._sweep_at = _SWEEP_MIN + 2 * len(self.matching)


class FilterScan:
    """Scans the log of a queue forward for its member filters."""

    def __init__(
        self, queue: FeedQueue, start: int, interest: Interest, access: QueueAccess, holder: object
    ) -> None:
        self._queue = queue
        self.reached = start
        """Everything in the queue below this position is examined."""
        self.behind = start
        """Start of the last examined piece."""
        self._entered = queue.considered
        """Position up to which messages had entered at the start of the scan."""
        self._scan = LogScan(access.journal.view, access.reads, start, interest.topic_name, holder)
        self._parts: list[LogPart] = []
        self._low = 0
        """Index of the first message of the next piece in the first part."""
        self._search: Generator[int, None, None] | None = None
        self._filters = TopicFilters[ConsumerFilter](interest)
        self._alone: dict[ConsumerFilter, None] = {}
        """Filters that depend on the subscriber and therefore are not in an index."""
        self.members: dict[ConsumerFilter, None] = {}

    @property
    def failure(self) -> TickertapeError | None:
        """The error if the log cannot be read."""
        return self._scan.failure

    @property
    def between(self) -> bool:
        """Whether no piece is in progress. Filters that have seen everything below `reached` may then
        join."""
        return self._search is None

    @property
    def catching_up(self) -> bool:
        """Whether messages remain that had entered at the start of the scan."""
        return self.reached < self._entered

    def has_work(self, limit: int) -> bool:
        """Return whether `step` can examine messages below position `limit`."""
        if self._search is not None:
            return True
        if self._parts:
            return self.reached < limit
        return self.reached < limit and not self._scan.waiting and self.failure is None

    def add(self, consumer_filter: ConsumerFilter) -> None:
        """Add a filter with the same progress."""
        assert self.between
        self.members[consumer_filter] = None
        if consumer_filter.content.depends_on_subscriber:
            self._alone[consumer_filter] = None
        else:
            self._filters.add(consumer_filter, consumer_filter.content)

    def discard(self, consumer_filter: ConsumerFilter) -> None:
        """Remove a filter without consumers."""
        del self.members[consumer_filter]
        if consumer_filter in self._alone:
            del self._alone[consumer_filter]
        else:
            self._filters.discard(consumer_filter)

    def step(self, budget: int, limit: int) -> int:
        """Examine about `budget` bytes below position `limit`. Return the number of examined bytes."""
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
        """Stop the scan."""
        self._search = None
        self._scan.stop()

    # -- internals --------------------------------------------------------------------------------------

    def _next_piece(self, limit: int) -> Generator[int, None, None] | None:
        """Start to examine the next piece. Return None if none is available now."""
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
        """Return the end of the piece that starts at message `_low`."""
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
"""Minimum budget that a step consumes, so that `step` ends."""


class ConsumerFilters:
    """All filters of the consumers of one queue. The queue is the holder of their reads."""

    def __init__(self, queue: FeedQueue, access: QueueAccess, interest: Interest, holder: object) -> None:
        self._queue = queue
        self._access = access
        self._cover = interest
        self._holder = holder
        self._by_key: dict[Hashable, ConsumerFilter] = {}
        self._scan_of: dict[ConsumerFilter, FilterScan] = {}
        self._scans: dict[FilterScan, int] = {}
        """Scans with their numbers, in round-robin order. Later scans have higher numbers."""
        self._waiting: dict[ConsumerFilter, None] = {}
        """Filters that wait until another scan may run."""
        self._number = 0
        self._awaited = 0
        """The last scan that the leading scan waits for. It does not wait for later scans."""
        self._held_by: int | None = None
        """The last scan that may delay deliveries. Later scans may not, while deliveries are delayed."""

    def __bool__(self) -> bool:
        return bool(self._by_key)

    # -- consumers --------------------------------------------------------------------------------------

    def add(self, consumer: QueueFeed) -> None:
        """Add the filter of a consumer, if it has one."""
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
        """Return the filter of a consumer, or None."""
        content = consumer.content
        return None if content is None or content.filter is None else self._by_key[content.filter_key]

    # -- scans ------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether a scan has messages to examine."""
        lead = self._lead()
        return any(scan.has_work(self._limit(scan, lead)) for scan in self._scans)

    def step(self) -> bool:
        """Examine about `filter_piece_bytes_max`. Return False if no messages could be examined."""
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
        """Position below which all filters that are nearly caught up have examined everything, or None.

        A message at or above it is not delivered yet, because the consumers that may receive it are unknown.
        None if those filters have examined everything. With priorities, 0 while a new filter is still
        catching up, because the message with the highest priority may be among the unexamined messages."""
        near = self._queue.considered - queue_step_messages_max
        reached = []
        for scan, number in self._scans.items():
            counts = not scan.catching_up or self._held_by is None or number <= self._held_by
            if counts and scan.reached >= near and scan.has_work(self._queue.considered):
                first = scan.catching_up and self._queue.definition.priority is not None
                reached.append(0 if first else scan.reached)
        return min(reached, default=None)

    def held_up(self, held: bool) -> None:
        """Record whether `judged` prevented a delivery."""
        if not held:
            self._held_by = None
        elif self._held_by is None:
            self._held_by = self._number

    @property
    def failure(self) -> TickertapeError | None:
        """The error if the log cannot be read."""
        return next((scan.failure for scan in self._scans if scan.failure is not None), None)

    # -- internals --------------------------------------------------------------------------------------

    def _lead(self) -> FilterScan | None:
        return max(self._scans, key=lambda scan: scan.reached, default=None)

    def _limit(self, scan: FilterScan, lead: FilterScan | None) -> int:
        """Return the position at which a scan pauses: the end of the queue, or the position of the leading
        scan.

        The leading scan waits for scans that are one piece behind, so that they can join it."""
        if lead is None or scan is lead:
            others = (o for o, number in self._scans.items() if o is not scan and number <= self._awaited)
            if any(scan.behind <= other.reached for other in others):
                return scan.reached
            return self._queue.considered
        return lead.reached

    def _start(self, consumer_filter: ConsumerFilter) -> None:
        """Add a new filter to a scan that is still at the start of the queue, or start a scan."""
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
        """Merge scans that have caught up into the leading scan."""
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
