"""Place search: finds the newest places of all sources from the end of the log backwards.

The search ends at the newest link record with all places (`link_records.py`), so it needs no list of sources,
and reads a bounded number of blocks however many link records the log has. Without such a record it ends at
the first position, and adds the places of removed rows (`retired.bin`).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import numpy as np

from tickertape.base.errors import JournalCorrupt
from tickertape.base.interfaces import Buffer
from tickertape.base.names import LINK_TOPIC
from tickertape.batch import KIND_CONTROL, MessageBatch
from tickertape.batch.format import Int64s
from tickertape.journal.format.link_records import LinkRecord, NewestPlaces, decode_link
from tickertape.journal.format.replication_records import LogPlace
from tickertape.journal.format.retired_state import RETIRED_FILE
from tickertape.journal.format.segment import segment_path
from tickertape.journal.limits import read_bytes_target, sparse_read_bytes
from tickertape.journal.reading.log_reader import LogReader
from tickertape.journal.reading.log_view import LogSegment, LogView, ReadRequest


class FoundPlaces(NamedTuple):
    """Places of all sources that a part of the log has."""

    places: list[LogPlace]
    """In the order in which they moved last."""
    damage: list[JournalCorrupt]
    """Corruption that was skipped. A place may be too low, or missing: its source sends the rows again."""


PlaceSearch = Generator[ReadRequest, Buffer, FoundPlaces]


def find_places(view: LogView, end: int, *, strict: bool = False) -> PlaceSearch:
    """Find the places that the rows before the position `end` have, and those of removed rows.

    `strict`: raise `JournalCorrupt` for a damaged commit, which is skipped otherwise. Unreadable records of
    undamaged commits are always skipped."""
    return _Search(view, strict=strict).run(end)


class _Search:
    """A search, and the places that it has found."""

    def __init__(self, view: LogView, *, strict: bool) -> None:
        self._view = view
        self._strict = strict
        self._newest = NewestPlaces()
        self._damage: list[JournalCorrupt] = []

    def run(self, end: int) -> PlaceSearch:
        """Search backwards from the position `end`."""
        retired = self._view.retired
        for segment in reversed(list(self._view.segments)):
            if (yield from self._segment(segment, min(end, segment.end_position))):
                break
        else:
            for body in reversed(retired.links if retired is not None else ()):
                try:
                    self._newest.add_earlier(decode_link(body).place)
                except JournalCorrupt as error:
                    self._note(error, RETIRED_FILE)
        return FoundPlaces(self._newest.in_order(), self._damage)

    def _segment(self, segment: LogSegment, stop: int) -> Generator[ReadRequest, Buffer, bool]:
        """Add the places of a segment before the position `stop`. Return whether a record had all places."""
        index = segment.index
        while index.blocks and stop > segment.first_position:
            # By positions, not block numbers: the index may become coarser between two reads.
            block = index.previous_block_with(LINK_TOPIC, index.block_of_position(stop - 1))
            if block is None:
                return False
            after, first_bytes = index.position_bounds(block)[1], sparse_read_bytes
            if not index.knows_topics:  # each block may have it
                edge = segment.end if after is None else index.offsets[block + 1]
                block, first_bytes = index.block_of_offset(max(edge - read_bytes_target, index.offsets[0])), 0
            stop, start = stop if after is None else min(stop, after), index.positions[block]
            for record in reversed((yield from self._blocks(segment, start, stop, first_bytes))):
                self._newest.add_earlier(record.place)
                if record.places is not None:
                    self._newest.add_all_earlier(record.places)
                    return True
            stop = start
        return False

    def _blocks(
        self, segment: LogSegment, start: int, stop: int, first_bytes: int
    ) -> Generator[ReadRequest, Buffer, list[LinkRecord]]:
        """Return the records of blocks at the positions in `[start, stop)`, up to a damaged commit."""
        found: list[LinkRecord] = []
        reader = LogReader(self._view, start, LINK_TOPIC, first_bytes=first_bytes)
        while reader.position < stop:
            try:
                step = reader.poll()
                parts = reader.answer((yield step)) if isinstance(step, ReadRequest) else step
            except JournalCorrupt as error:
                if self._strict:
                    raise
                self._damage.append(error)
                break
            for part in parts or ():
                rows = _link_rows(part.batch)
                for row, at in zip(rows.tolist(), part.positions_of(rows).tolist(), strict=True):
                    if start <= at < stop:
                        try:
                            found.append(decode_link(part.batch.body(row)))
                        except JournalCorrupt as error:
                            self._note(error, segment_path(segment.number), at)
        return found

    def _note(self, error: JournalCorrupt, path: str, position: int | None = None) -> None:
        """Note an unreadable record."""
        where = f"{path!r}" if position is None else f"position {position} of {path!r}"
        self._damage.append(JournalCorrupt(f"Cannot read {where}: {error}", file=path))


def _link_rows(batch: MessageBatch) -> Int64s:
    """Return the control records of a batch on the topic `$link`. Clients may publish messages on it."""
    if LINK_TOPIC not in batch.topics or batch.kinds is None:
        return np.empty(0, np.int64)
    control = batch.kinds == KIND_CONTROL
    if batch.topic_index is not None:
        control &= batch.topic_index == batch.topics.index(LINK_TOPIC)
    return np.flatnonzero(control)
