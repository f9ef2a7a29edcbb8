"""Position limits: finds the range of the log that contains a number of messages or bytes.

The result is exact for the part of the log that is read. If reading would take too long, whole blocks are
taken from the index. The index counts messages of other topics too, so the range is then slightly too short.

Invariants:
- A range never exceeds the request. It contains at least one message, if one is available.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple

import numpy as np

from tickertape.base.errors import TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.batch.format import I8, lengths_of
from tickertape.engine.limits import reach_read_bytes_max
from tickertape.engine.matching.interest import Interest
from tickertape.engine.subscriptions.start_position import Asked, ExtentSearch, ReplayRange
from tickertape.journal.journal import Journal
from tickertape.journal.limits import index_block_bytes
from tickertape.journal.reading.archive_reader import (
    ArchiveAnswer,
    ArchivedLogReader,
    ArchivedParts,
    expired_error,
    look,
    oldest,
)
from tickertape.journal.reading.archive_tier import ArchiveCoverage
from tickertape.journal.reading.log_reader import LogReader, next_block_with
from tickertape.journal.reading.log_view import LogPart, LogView, ReadRequest

Steps = Generator[Asked, Buffer | ArchiveAnswer, int]
"""Like `ExtentSearch`, but returns a position."""

_BLOCKS_AT_A_TIME: Final = 256
"""Number of blocks to skip before other work may run."""
_NO_SCAN: Final = 0
"""Scan number that no other archive reader continues."""
_BYTES_ANY: Final = 1 << 60
"""No limit of bytes."""


class ScanLimits(NamedTuple):
    """Maximum size of a read. One message is permitted in any case."""

    messages: int
    body_bytes: int


class _Left:
    """The remaining limits."""

    def __init__(self, bounds: ScanLimits) -> None:
        self.messages, self.body_bytes = bounds
        self.took = False

    def take(self, part: LogPart, interest: Interest, start: int, end: int) -> int | None:
        """Count the messages of a part in `[start, end)`. Return the position of the first message beyond the
        limits, or None."""
        mask = interest.mask(part.batch)
        if mask is None:
            return None
        own = mask.nonzero()[0]
        places = part.positions_of(own)
        inside = (places >= start) & (places < end)
        own, places = own[inside], places[inside]
        if not len(own):
            return None
        sizes = lengths_of(part.batch.offsets)[own].cumsum(dtype=I8)
        fitting = min(self.messages, int(sizes.searchsorted(self.body_bytes, "right")))
        if not (fitting or self.took):
            fitting = 1
        self.took = True
        if fitting < len(own):
            return int(places[fitting])
        self.messages -= fitting
        self.body_bytes -= int(sizes[-1])
        return None


def range_of_limit(
    journal: Journal, interest: Interest, topic: str, positions: tuple[int, int], bounds: ScanLimits
) -> ExtentSearch:
    """Return the part of `positions` (start, end) whose messages covered by `interest` (of `topic`) fit into
    `bounds`.

    Raises `BookmarkExpired` when retention deletes the start meanwhile and the archive does not have it."""
    start, view = positions[0], journal.view
    end = min(positions[1], journal.commits.persisted_end)
    if start >= end:
        return ReplayRange(end, stop=end)
    if start < view.first_position:
        return ReplayRange(start, stop=(yield from _reach_older(view, interest, topic, start, end, bounds)))
    try:
        stop = yield from _reach(view, interest, start, end, _Left(bounds))
    except TickertapeError:
        if start >= view.first_position:
            raise
    if start < view.first_position:
        raise expired_error(f"position {start}", view)
    return ReplayRange(start, stop=stop)


def _reach_older(
    view: LogView, interest: Interest, topic: str, start: int, end: int, bounds: ScanLimits
) -> Steps:
    """Return the result of `_reach` for a start position in the archive. It stops at the start of the log if
    the limits permit more."""
    older = yield from look(view, topic)
    if older is None or start < oldest(view, topic):
        raise expired_error(f"position {start}", view)
    if end - start <= bounds.messages and bounds.body_bytes >= _BYTES_ANY:
        return end
    reader = ArchivedLogReader(view, older, start, topic, _NO_SCAN)
    left, at, read = _Left(bounds), start, 0
    while at < end and read < reach_read_bytes_max and (request := reader.poll()) is not None:
        answer = yield request
        assert isinstance(answer, ArchivedParts | ArchiveCoverage)
        for part in reader.answer(answer):
            read += part.batch.nbytes
            stop = left.take(part, interest, start, end)
            if stop is not None:
                return stop
        at = min(max(at, reader.position), end)
    return at


def _reach(view: LogView, interest: Interest, start: int, end: int, left: _Left) -> Steps:
    reader = LogReader(view, start, interest.topic_name)
    at, read = start, 0
    while at == start or (at < end and read < reach_read_bytes_max):
        step = reader.poll()
        if step is None:
            return end
        if isinstance(step, ReadRequest):
            read += step.size
            data = yield step
            assert isinstance(data, Buffer)
            parts = reader.answer(data)
        else:
            read += sum([part.batch.nbytes for part in step])
            parts = step
            yield None
        for part in parts:
            stop = left.take(part, interest, start, end)
            if stop is not None:
                return stop
        at = min(max(at, reader.position), end)
    while at < end:
        stop, full = _by_index(view, interest, at, end, left)
        if full:
            return stop
        at = stop
        yield None
    return end


def _by_index(view: LogView, interest: Interest, at: int, end: int, left: _Left) -> tuple[int, bool]:
    """Take whole blocks from position `at` on, a limited number at a time. Return the position reached, and
    whether the next block may exceed the limits."""
    if interest.topic_name is not None:
        at = next_block_with(view, interest.topic_name, at)
    segment = view.segment_of(at)
    if at >= end or segment is None:
        return end, False
    index = segment.index
    block = index.block_of_position(at)
    stop = min(block + _BLOCKS_AT_A_TIME, index.blocks)
    if interest.topic_name is not None:
        reached = index.reach_with(
            interest.topic_name, index.offsets[block], _BLOCKS_AT_A_TIME * index_block_bytes
        )
        stop = min(stop, index.block_of_offset(reached - 1) + 1)
    # Copies, because the index grows while other work runs.
    places = [*index.positions[block + 1 : stop + 1].tolist(), segment.end_position][: stop - block]
    after = [*index.offsets[block + 1 : stop].tolist(), index.block_bounds(stop - 1)[1]]
    edges = np.minimum(np.array(places, I8), end)
    messages, sizes = edges - at, np.array(after, I8) - index.offsets[block]
    fitting = min(
        int(messages.searchsorted(left.messages, "right")), int(sizes.searchsorted(left.body_bytes, "right"))
    )
    if fitting < len(edges):
        return int(edges[fitting - 1]) if fitting else at, True
    left.messages -= int(messages[-1])
    left.body_bytes -= int(sizes[-1])
    return int(edges[-1]), False
