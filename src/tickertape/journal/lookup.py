"""Owns finding a position in the log by bookmark or by time.

Each search is a generator: it yields `ReadRequest`s, is sent the bytes, and returns the position. Must never
guess: a bookmark that no persisted message has is None.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from tickertape.batch import MessageBatch
from tickertape.journal.reading import (
    LogReader,
    LogSegment,
    LogView,
    Part,
    ReadRequest,
    commit_parts,
    decode_commits,
)

Search = Generator[ReadRequest, bytes, int]
MaybeSearch = Generator[ReadRequest, bytes, int | None]


def find_bookmark(view: LogView, publisher: int, sequence: int) -> MaybeSearch:
    """Position of the persisted message with this publisher and sequence; None when the log has none."""
    for segment in reversed(view.segments):
        for block in segment.index.blocks_of_publisher(publisher, sequence):
            position = yield from _in_block(view, segment, block, publisher, sequence)
            if position is not None:
                return position
    return None


def _in_block(view: LogView, segment: LogSegment, block: int, publisher: int, sequence: int) -> MaybeSearch:
    start, stop = segment.index.position_bounds(block)
    at = view.tail_at(start)
    if at is None:
        parts = yield from _read_block(segment, block)
    else:
        parts = _of_tail(view, at, stop)
    for part in parts:
        found = _in_batch(part.batch, publisher, sequence)
        if found is not None:
            return part.first_position + found
    return None


def _of_tail(view: LogView, at: int, stop: int | None) -> list[Part]:
    """The parts of a block that lies in memory; what is not persisted yet is not among them."""
    end = view.tail_at(stop) if stop is not None else len(view.tail)
    return view.tail[at:end]


def _read_block(segment: LogSegment, block: int) -> Generator[ReadRequest, bytes, list[Part]]:
    start, end = segment.index.block_bounds(block)
    end = min(end, segment.end)
    if start >= end:
        return []
    data = yield ReadRequest(segment.number, start, end - start)
    commits, _ = decode_commits(segment, start, data)
    return commit_parts(segment, commits)


def _in_batch(batch: MessageBatch, publisher: int, sequence: int) -> int | None:
    """Index of a message in a batch by publisher and sequence."""
    if batch.run_count == 1:
        if batch.run(0).publisher != publisher:
            return None
        return _in_run(batch, 0, batch.count, sequence)
    runs = batch.runs
    mine = np.flatnonzero(runs["publisher"] == publisher)
    if not len(mine):
        return None
    at = int(np.searchsorted(runs["first_sequence"][mine], np.uint64(sequence), side="right")) - 1
    if at < 0:
        return None
    row = int(mine[at])
    start = int(runs["count"][:row].sum())
    return _in_run(batch, start, start + int(runs["count"][row]), sequence)


def _in_run(batch: MessageBatch, start: int, stop: int, sequence: int) -> int | None:
    sequences = batch.sequences[start:stop]
    at = int(np.searchsorted(sequences, np.uint64(sequence)))
    return start + at if at < len(sequences) and int(sequences[at]) == sequence else None


def find_time(view: LogView, micros: int, *, inclusive: bool) -> Search:
    """Position of the first persisted message later than `micros` (not earlier, when `inclusive`).

    The persisted end when there is none. Log time never goes back, so this is a search."""
    after = micros if inclusive else micros + 1
    segment = next((s for s in view.segments if s.index.blocks and s.timestamp >= after), None)
    if segment is None:
        return view.end_position
    block = segment.index.block_of_time(after)
    reader = LogReader(view, max(segment.index.positions[block], segment.first_position))
    while True:
        step = reader.poll()
        if step is None:
            return view.end_position
        parts = reader.answer((yield step)) if isinstance(step, ReadRequest) else step
        for part in parts:
            stamps = part.batch.timestamps
            if int(stamps[-1]) >= after:
                return part.first_position + int(np.searchsorted(stamps, after))
