"""Query of few records of one SOW topic: copied at its start, and selected and sorted in one step.

Invariants:
- The result has the records at the position of the start: they are copied, and their bodies are pinned.
- It is the result of a `StateQuery` with the same terms.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tickertape.base.interfaces import Buffer
from tickertape.batch.format import I8, Int64s, UInt64s
from tickertape.engine.limits import few_records_max, query_piece_bytes_max
from tickertape.engine.sow.query.query import QuerySource
from tickertape.engine.sow.query.record_copy import FoundRecords
from tickertape.engine.sow.state.blocks import Views, lengths_in
from tickertape.engine.sow.state.fold import StateFold
from tickertape.engine.sow.state.records import RecordRows

_ALL: Final = slice(0, None)
_NONE: Final = FoundRecords(RecordRows.empty(0), [])


class FewRecords:
    """A query with the calls of `StateQuery`. Make it with `few_records`."""

    is_copied = True
    """Whether no more changes are kept for it."""
    waiting = False
    """Whether it waits for a read of the log: never, because bodies are in memory."""

    def __init__(
        self,
        source: QuerySource,
        fold: StateFold,
        slots: Int64s,
        position: int,
        top_n: int | None,
        skip_n: int,
    ) -> None:
        self._source = source
        self._records = fold.records
        self._part = slice(skip_n, None if top_n is None else skip_n + top_n)
        keys = fold.keys.keys_of(slots) if source.with_keys else []
        self._found = FoundRecords(fold.records.rows(slots), keys)
        self._pin = fold.records.blocks.pin(self._found.rows.views)
        self._taken = 0
        self.position = position
        self.topic_matches = fold.records.record_count
        """Records of the SOW topic at the position."""
        self.matches = 0
        """Selected records, without `top_n` and `skip_n`."""
        self.nbytes = self._found.nbytes
        """Memory of the result, without blocks of bodies."""
        self.over = False
        """Whether all records are selected and sorted, so that `take` returns them."""

    def step(self) -> None:
        """Select and sort the records."""
        if self.over:
            return
        source, found = self._source, self._found
        bodies: list[bytes] = []
        if source.filter is not None or source.order is not None:
            bodies = self._pin.take(found.rows.views)
        if source.filter is not None:
            at = source.filter.passing(found.rows, bodies, found.keys)
            if len(at) < len(bodies):
                found, bodies = found.some(at), [bodies[one] for one in at.tolist()]
        self.matches = count = len(found.rows.positions)
        if count > 1:
            if source.order is None:
                order = found.rows.positions.argsort()
            else:
                sort_keys = source.order.keys(found.rows, bodies, found.keys)
                order = np.array(sorted(range(count), key=sort_keys.__getitem__), I8)
            found = found.some(order[self._part])
        elif self._part != _ALL:
            found = found.part(self._part.start, self._part.stop)
        if len(found.rows.positions) < len(self._found.rows.positions):
            self._pin.narrow(found.rows.views)
        self._found = found
        self.over = True

    @property
    def exhausted(self) -> bool:
        """Whether `take` is known to return no more records."""
        return self._taken == len(self._found.rows.positions)

    def take(self, count: int) -> FoundRecords:
        """Return the next records of the result, at most `count`, and none at its end. The query is over."""
        low, end = self._taken, len(self._found.rows.positions)
        self._taken = high = min(low + count, end)
        if low == end:
            return _NONE
        return self._found if high - low == end else self._found.part(low, high)

    def by_source(self, _: FoundRecords) -> list[tuple[int, Int64s | None]]:
        """See `StateQuery.by_source`."""
        return [(0, None)]

    def bodies(self, _: int, views: Views) -> list[bytes]:
        """Return the bodies of records."""
        return self._pin.take(views)

    def gather(self, _: int, views: Views) -> tuple[Buffer, Int64s]:
        """Return the bodies of n records, joined, and their n + 1 offsets."""
        return self._pin.gather(views)

    def publisher_ids(self, found: FoundRecords) -> UInt64s:
        """Return the publisher ids of records."""
        return self._records.publishers.ids(found.rows.publishers)

    def close(self) -> list[Any]:
        """End the query and forget its result. Returns no lists to free, because they are short."""
        self.over = True
        self._pin.release()
        self._found = _NONE
        self.nbytes = 0
        return []


def few_records(
    source: QuerySource, position: int, top_n: int | None = None, skip_n: int = 0
) -> FewRecords | None:
    """Return the query of a source whose log is folded up to `position`, the end of a commit.

    None if it examines more than few records, or large ones, or messages of a queue."""
    slots, fold = source.slots, source.fold
    if not isinstance(fold, StateFold):
        return None
    if source.wanted is not None:
        if len(source.wanted) > few_records_max:
            return None
        slots = fold.keys.find(source.wanted.pieces())
        slots = slots[slots >= 0]
    elif slots is None:
        slots = np.arange(fold.records.slot_end) if fold.records.slot_end <= few_records_max else None
    if slots is None or len(slots) > few_records_max:
        return None
    slots = slots[fold.records.live(slots)]
    if int(lengths_in(fold.records.views(slots)).sum()) > query_piece_bytes_max:
        return None
    return FewRecords(source, fold, slots, position, top_n, skip_n)
