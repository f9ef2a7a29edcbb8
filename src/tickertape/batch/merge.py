"""Merge batches into one that has all runs in order, as a commit writes them.

Bodies are copied once, and the checksums of runs stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from tickertape.base.errors import UsageError
from tickertape.batch.encode import assemble, check_body_bytes
from tickertape.batch.format import (
    CORRELATION_IDS,
    EXPIRATIONS,
    HEADER_BYTES,
    I1,
    I4,
    I8,
    KEYS,
    KINDS,
    RUN_BYTES,
    RUN_DTYPE,
    SEQUENCES,
    Bytes8,
    Columns,
    Int32s,
    Int64s,
    Labels,
    UInt64s,
    lengths_of,
    numbered,
    offsets_from,
)
from tickertape.batch.message_batch import MessageBatch

_FIRST_RUN_END: Final = HEADER_BYTES + RUN_BYTES
_STAMP: Final = Struct("<QQq")
"""Publisher, first sequence and timestamp, as a run begins."""
_STAMP_END: Final = HEADER_BYTES + _STAMP.size


class Stamp(NamedTuple):
    """Values that the server sets when it accepts a run. `timestamp` is in microseconds since 1970 UTC."""

    publisher: int
    first_sequence: int
    timestamp: int


def merge(batches: Sequence[MessageBatch], stamps: Sequence[Stamp] | None = None) -> MessageBatch:
    """Merge all runs of `batches`, in order; a single batch without stamps is returned as it is.

    With `stamps`, one for each batch, every batch has exactly one run, whose row gets the stamp. Its sequence
    column, if it has one, is kept when the stamp says the publisher and first sequence that the run has;
    else messages are numbered from the stamp without gaps. Checksums of runs are kept. Raises `UsageError`
    when there is no batch or stamps do not fit, `MessageTooLarge` when all bodies have 2 GiB or more.
    """
    if not batches:
        raise UsageError("merge needs at least one batch")
    if stamps is None and len(batches) == 1:
        return batches[0]
    if stamps is not None and len(batches) == len(stamps) == 1:
        stamped = _stamped(batches[0], stamps[0])
        if stamped is not None:
            return stamped
    columns = 0
    for batch in batches:
        columns |= batch.columns
    check_body_bytes(sum([batch.body_bytes for batch in batches]))
    counts = [batch.count for batch in batches]
    runs = _runs(batches, stamps)
    topics, topic_index = _topics(batches, counts)
    offsets = _offsets(batches, counts)
    bodies = batches[0].bodies if len(batches) == 1 else b"".join([batch.bodies for batch in batches])
    optional = None
    if columns or topic_index is not None:
        optional = Columns(
            topic_index,
            _sequences(batches, counts, runs, stamps) if columns & SEQUENCES else None,
            _expirations(batches, counts) if columns & EXPIRATIONS else None,
            _labels([b.correlation_ids for b in batches], counts) if columns & CORRELATION_IDS else None,
            _labels([b.keys for b in batches], counts) if columns & KEYS else None,
            _kinds(batches, counts) if columns & KINDS else None,
        )
    return assemble(runs=runs, offsets=offsets, bodies=bodies, topics=topics, optional=optional)


def _stamped(batch: MessageBatch, stamp: Stamp) -> MessageBatch | None:
    """Return the batch with `stamp` in its one run and all else as it is; None when its sequences cannot
    stay."""
    if batch.run_count != 1:
        return None
    if batch.has_sequences and batch.run(0)[:2] != stamp[:2]:
        return None
    head = batch.head
    stamped = MessageBatch(
        batch.count, 1, batch.head_bytes, batch.body_bytes, batch.columns, batch.topics, batch._places
    )
    stamped._table = b"".join((head[:HEADER_BYTES], _STAMP.pack(*stamp), head[_STAMP_END:]))
    stamped.bodies = batch.bodies
    return stamped


def _runs(batches: Sequence[MessageBatch], stamps: Sequence[Stamp] | None) -> bytes:
    """Return the encoded run table, stamped."""
    if stamps is None:
        return b"".join([b._table[HEADER_BYTES : HEADER_BYTES + RUN_BYTES * b.run_count] for b in batches])
    if len(stamps) != len(batches):
        raise UsageError(f"merge has {len(batches)} batches and {len(stamps)} stamps")
    if any(b.run_count != 1 for b in batches):
        raise UsageError("merge with stamps takes batches of one run each")
    runs = bytearray().join([b._table[HEADER_BYTES:_FIRST_RUN_END] for b in batches])
    table = np.frombuffer(runs, RUN_DTYPE)
    publishers, firsts, timestamps = zip(*stamps, strict=True)
    table["publisher"] = publishers
    table["first_sequence"] = firsts
    table["timestamp"] = timestamps
    return bytes(runs)


def _offsets(batches: Sequence[MessageBatch], counts: list[int]) -> bytes:
    """Return the encoded offsets of all messages."""
    if len(batches) == 1:
        return batches[0].offsets.tobytes()
    if len(batches) == sum(counts):
        return offsets_from(np.array([b.body_bytes for b in batches], I4)).tobytes()
    tables = []
    for batch in batches:
        begin = HEADER_BYTES + RUN_BYTES * batch.run_count
        tables.append(batch._table[begin : begin + 4 * (batch.count + 1)])
    return _continued(np.frombuffer(b"".join(tables), I4), counts).tobytes()


def _continued(offsets: Int32s, counts: list[int]) -> Int32s:
    """Tables of `counts` + 1 offsets one after the other, made one table that goes on where each ended."""
    lengths = lengths_of(offsets)
    inside = np.ones(len(lengths), np.bool_)
    inside[(np.array(counts[:-1], I8) + 1).cumsum() - 1] = (
        False  # from the end of a table to the 0 of the next
    )
    return offsets_from(lengths[inside])


def _topics(batches: Sequence[MessageBatch], counts: list[int]) -> tuple[tuple[str, ...], Int32s | None]:
    """Return all topics, in order of first appearance, and the topic index unless there is one topic."""
    tables = dict.fromkeys([batch.topics for batch in batches])
    numbers: dict[str, int] = {}
    for names in tables:
        for name in names:
            numbers.setdefault(name, len(numbers))
    topics = tuple(numbers)
    if len(topics) == 1:
        return topics, None
    if all(len(names) == 1 for names in tables):
        return topics, np.repeat(np.array([numbers[b.topics[0]] for b in batches], I4), counts)
    new_numbers = {names: np.array([numbers[name] for name in names], I4) for names in tables}
    parts = []
    for batch in batches:
        new, old = new_numbers[batch.topics], batch.topic_index
        parts.append(np.repeat(new, batch.count) if old is None else new[old])
    return topics, np.concatenate(parts)


def _sequences(
    batches: Sequence[MessageBatch], counts: list[int], runs: bytes, stamps: Sequence[Stamp] | None
) -> UInt64s | None:
    """Return the sequence column, None when no batch keeps one."""
    column: UInt64s | None = None
    end = 0
    for i, batch in enumerate(batches):
        begin, end = end, end + counts[i]
        if batch.columns & SEQUENCES and (stamps is None or stamps[i][:2] == batch.run(0)[:2]):
            if column is None:
                column = numbered(np.frombuffer(runs, RUN_DTYPE))
            column[begin:end] = batch.sequences
    return column


def _expirations(batches: Sequence[MessageBatch], counts: list[int]) -> Int64s:
    return np.concatenate(
        [
            np.zeros(n, I8) if b.expirations is None else b.expirations
            for b, n in zip(batches, counts, strict=True)
        ]
    )


def _kinds(batches: Sequence[MessageBatch], counts: list[int]) -> Bytes8:
    return np.concatenate(
        [np.zeros(n, I1) if b.kinds is None else b.kinds for b, n in zip(batches, counts, strict=True)]
    )


def _labels(columns: list[Labels | None], counts: list[int]) -> Labels:
    offsets = [np.zeros(n + 1, I4) if c is None else c.offsets for c, n in zip(columns, counts, strict=True)]
    return Labels(
        _continued(np.concatenate(offsets), counts), b"".join([c.text for c in columns if c is not None])
    )
