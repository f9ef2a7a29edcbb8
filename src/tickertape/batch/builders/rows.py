"""Build a batch from rows or columns in which each message has its own publisher, sequence and time.

Consecutive messages of one publisher with equal time and increasing sequences share a run. The order is kept,
and a body is copied at most once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from tickertape.base.errors import UsageError
from tickertape.base.interfaces import Buffer
from tickertape.batch.encode import assemble, check_body_bytes, lengths_in
from tickertape.batch.format import (
    I4,
    I8,
    PAIR,
    RUN,
    RUN_BY_SERVER,
    RUN_DTYPE,
    U8,
    Columns,
    Int32s,
    Int64s,
    Labels,
    Runs,
    UInt64s,
    numbered,
    offsets_from,
    run_crc,
    run_crcs,
)
from tickertape.batch.message_batch import MessageBatch

_PLAIN: Final = (0, b"", b"", b"")
"""End of a row without expiration, labels and headers."""


class Row(NamedTuple):
    """One message."""

    publisher: int
    sequence: int
    timestamp: int
    """Microseconds since 1970 UTC."""
    topic: str
    body: Buffer
    expiration_ms: int = 0
    """0 = none."""
    correlation_id: bytes = b""
    key: bytes = b""
    headers: bytes = b""
    """Encoded."""


PlainRow: TypeAlias = tuple[int, int, int, str, Buffer, int, bytes, bytes, bytes]
"""A `Row`, or an equivalent plain tuple, which is faster to create."""


def batch_from_rows(rows: Sequence[PlainRow]) -> MessageBatch:
    """Return a batch of `rows` in their order. Its runs have new checksums, marked as computed by the server.

    Raises `UsageError` without rows, `MessageTooLarge` for 2 GiB or more in a body or in total.
    """
    if not rows:
        raise UsageError("Cannot encode an empty batch. Pass at least one message.")
    if len(rows) == 1 and rows[0][5:] == _PLAIN:
        return _one_row(*rows[0][:5])
    publishers, sequences, timestamps, topics, bodies, expirations, correlation_ids, keys, headers = zip(
        *rows, strict=True
    )
    lengths = lengths_in(bodies)
    check_body_bytes(int(lengths.sum(dtype=I8)))
    names = tuple(dict.fromkeys(topics))
    return batch_from_columns(
        np.array(publishers, U8),
        np.array(sequences, U8),
        np.array(timestamps, I8),
        names,
        _topic_index(names, topics),
        offsets_from(lengths),
        b"".join(bodies),
        np.array(expirations, I8) if any(expirations) else None,
        _labels(correlation_ids),
        _labels(keys),
        _labels(headers),
    )


def batch_from_columns(
    publishers: UInt64s,
    sequences: UInt64s,
    timestamps: Int64s,
    topics: tuple[str, ...],
    topic_index: Int32s | None,
    offsets: Int32s,
    bodies: Buffer,
    expirations: Int64s | None = None,
    correlation_ids: Labels | None = None,
    keys: Labels | None = None,
    headers: Labels | None = None,
) -> MessageBatch:
    """Return a batch of the given columns, at least one message.

    Its runs have new checksums, marked as computed by the server. `offsets` go from 0 to the size of
    `bodies`, which is kept, not copied. Several `topics`, all of them used, need a `topic_index`. Raises
    `MessageTooLarge` if all bodies together have 2 GiB or more.
    """
    runs = _runs(publishers, sequences, timestamps)
    counts = runs["count"].astype(I8)
    runs["crc"] = run_crcs(offsets, bodies, counts.cumsum() - counts, counts)
    columns = Columns(
        topic_index=topic_index,
        sequences=None if (numbered(runs) == sequences).all() else sequences,
        expirations=expirations,
        correlation_ids=correlation_ids,
        keys=keys,
        headers=headers,
    )
    return assemble(
        runs=runs.tobytes(), offsets=offsets.tobytes(), bodies=bodies, topics=topics, optional=columns
    )


def _one_row(publisher: int, sequence: int, timestamp: int, topic: str, body: Buffer) -> MessageBatch:
    """Return a batch of one message, without a dozen small arrays (fast path for live messages)."""
    check_body_bytes(len(body))
    offsets = PAIR.pack(0, len(body))
    run = RUN.pack(publisher, sequence, timestamp, 1, run_crc(offsets[4:], body), RUN_BY_SERVER, 0)
    return assemble(runs=run, offsets=offsets, bodies=bytes(body), topics=(topic,))


def _runs(publishers: UInt64s, sequences: UInt64s, timestamps: Int64s) -> Runs:
    """Return the run table without checksums."""
    begins = np.ones(len(sequences), np.bool_)
    begins[1:] = (
        (publishers[1:] != publishers[:-1])
        | (timestamps[1:] != timestamps[:-1])
        | (sequences[1:] <= sequences[:-1])
    )
    firsts = begins.nonzero()[0]
    runs = np.zeros(len(firsts), RUN_DTYPE)
    runs["publisher"] = publishers[firsts]
    runs["first_sequence"] = sequences[firsts]
    runs["timestamp"] = timestamps[firsts]
    runs["count"] = np.diff(firsts, append=len(sequences))
    runs["flags"] = RUN_BY_SERVER
    return runs


def _topic_index(names: tuple[str, ...], topics: Sequence[str]) -> Int32s | None:
    if len(names) == 1:
        return None
    numbers = {name: number for number, name in enumerate(names)}
    return np.array([numbers[topic] for topic in topics], I4)


def _labels(texts: Sequence[bytes]) -> Labels | None:
    text = b"".join(texts)
    return Labels(offsets_from(np.array(list(map(len, texts)), I4)), text) if text else None
