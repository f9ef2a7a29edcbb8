"""Owns which messages of a queue pass filters of its consumers: found by reading the queue's part of the log
once for all filters that are at one position.

Must never look at more than a bounded piece between two of the counts that a search yields, or forget a
message that is still in the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

from pyroaring import BitMap64

from tickertape.base.errors import TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.base.limits import filter_piece_bytes_max
from tickertape.base.queue_limits import queue_step_messages_max
from tickertape.batch.format import I8, Int64s
from tickertape.engine.log_reads.log_reads import LogAccess
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.matching.filter_groups import TopicFilters
from tickertape.engine.matching.interest import Interest
from tickertape.engine.queues.message_reader import LogScan
from tickertape.engine.queues.state.queue import Queue
from tickertape.engine.queues.state.records import array_of, bitmap_of
from tickertape.journal.reading.log_view import LogPart

_SWEEP_MIN: Final = 4_096


class ConsumerFilter:
    """One filter: the messages that pass it, for `users` consumers."""

    def __init__(self, queue: Queue, content: ContentFilter, cover: Interest) -> None:
        self._queue = queue
        self.content = content
        self.cover = cover
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
        self, queue: Queue, start: int, cover: Interest, access: LogAccess, came: Callable[[], None]
    ) -> None:
        self._queue = queue
        self.reached = start
        """Everything in the queue below this position was looked at."""
        self.behind = start
        """Where the last piece began that was looked at."""
        self._entered = queue.considered
        """What had entered when it began."""
        self._log = LogScan(access, start, cover.literal, came)
        self._parts: list[LogPart] = []
        self._low = 0
        """Of the first part, the message with which the next piece begins."""
        self._search: Generator[int, None, None] | None = None
        self._filters = TopicFilters[ConsumerFilter](cover)
        self._alone: dict[ConsumerFilter, None] = {}
        """Filters that depend on their subscriber: no index holds them."""
        self.members: dict[ConsumerFilter, None] = {}

    @property
    def failure(self) -> TickertapeError | None:
        """The log cannot be read."""
        return self._log.failure

    @property
    def between(self) -> bool:
        """Whether it is between two pieces: filters that have seen everything below `reached` may join."""
        return self._search is None

    @property
    def catching_up(self) -> bool:
        """Whether messages are left that had entered when it began."""
        return self.reached < self._entered

    def has_work(self, limit: int) -> bool:
        """Whether `step` would do something, when it is to look at nothing from position `limit` on."""
        if self._search is not None:
            return True
        if self._parts:
            return self.reached < limit
        return self.reached < limit and not self._log.waiting and self.failure is None

    def add(self, narrowing: ConsumerFilter) -> None:
        """A filter that has seen as much takes part."""
        assert self.between
        self.members[narrowing] = None
        if narrowing.content.is_of_subscriber:
            self._alone[narrowing] = None
        else:
            self._filters.add(narrowing, narrowing.content)

    def discard(self, narrowing: ConsumerFilter) -> None:
        """Nobody has this filter any more."""
        del self.members[narrowing]
        if narrowing in self._alone:
            del self._alone[narrowing]
        else:
            self._filters.discard(narrowing)

    def step(self, budget: int, limit: int) -> int:
        """Look at the next piece, or at more of the one under way, below position `limit`: about `budget`
        bytes of it. Returns how many bytes that were."""
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

    def read_done(self, token: int, data: Buffer | TickertapeError) -> bool:
        """The answer to a read; False when it is none of ours."""
        return self._log.read_done(token, data)

    def stop(self) -> None:
        """It is wanted no more."""
        self._search = None
        self._log.stop()

    # -- inside -----------------------------------------------------------------------------------------

    def _next_piece(self, limit: int) -> Generator[int, None, None] | None:
        """A look at the next piece; None when there is none now."""
        if not self._parts:
            self._parts, self._low = self._log.parts(), 0
        if not self._parts:
            if not self._log.waiting and self.failure is None:
                self.reached = max(self.reached, min(self._log.position, limit))
            return None
        part = self._parts[0]
        if self.reached >= limit or max(part.first_position, self.reached) >= limit:
            self.reached = limit
            return None
        self._low = max(self._low, part.index_at(self.reached))
        return self._look(part, self._high(part, limit), limit)

    def _high(self, part: LogPart, limit: int) -> int:
        """Before which message a piece ends that begins with message `_low`."""
        batch, low = part.batch, self._low
        offsets = batch.offsets
        high = int(offsets.searchsorted(int(offsets[low]) + filter_piece_bytes_max, "right")) - 1
        return min(max(high, low + 1), low + queue_step_messages_max, part.index_at(limit), batch.count)

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
            for number, narrowing in enumerate(found.groups):
                narrowing.pass_(part.positions_of(found.of(number)))
        for narrowing in [*self._alone]:
            content, at = narrowing.content, 0
            while at < len(indices):
                first = int(indices[at])
                stop = int(indices.searchsorted(content.reach(batch, first)))
                passed = content.passing(batch, indices[at:stop])
                if len(passed):
                    narrowing.pass_(part.positions_of(passed))
                yield int(batch.offsets[int(indices[stop - 1]) + 1]) - int(batch.offsets[first])
                at = stop


def _position(part: LogPart, index: int) -> int:
    return part.first_position + index if part.positions is None else int(part.positions[index])
