"""Batches with parts of the format that the product does not write yet.

Must never fill a part that the caller did not name.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tickertape.batch import MessageBatch
from tickertape.batch.encode import assemble
from tickertape.batch.format import I1, I4, I8, Columns, Labels, offsets_from


def with_reserved(
    batch: MessageBatch,
    *,
    run_flags: Sequence[int] | None = None,
    origins: Sequence[int] | None = None,
    kinds: Sequence[int] | None = None,
    message_flags: Sequence[int] | None = None,
    order_stamps: Sequence[int] | None = None,
    headers: Sequence[bytes] | None = None,
) -> MessageBatch:
    """Return a batch with these values. `run_flags`, `origins` and `order_stamps` have one per run."""
    runs = batch.runs.copy()
    if run_flags is not None:
        runs["flags"] = run_flags
    if origins is not None:
        runs["origin"] = origins
    columns = Columns(
        topic_index=batch.topic_index,
        sequences=batch.sequences if batch.has_sequences else None,
        expirations=batch.expirations,
        correlation_ids=batch.correlation_ids,
        keys=batch.keys,
        kinds=batch.kinds if kinds is None else np.array(kinds, I1),
        message_flags=batch.message_flags if message_flags is None else np.array(message_flags, I1),
        order_stamps=batch.order_stamps if order_stamps is None else np.array(order_stamps, I8),
        headers=batch.headers if headers is None else column_of(headers),
    )
    return assemble(
        runs=runs.tobytes(),
        offsets=batch.offsets.tobytes(),
        bodies=batch.bodies,
        topics=batch.topics,
        optional=columns,
    )


def column_of(entries: Sequence[bytes]) -> Labels:
    """Return the column of these entries."""
    return Labels(offsets_from(np.array([len(entry) for entry in entries], I4)), b"".join(entries))


def header_entries(batch: MessageBatch) -> list[bytes]:
    """Return the encoded headers of each message."""
    headers = batch.headers
    if headers is None:
        return [b""] * batch.count
    edges = headers.offsets.tolist()
    return [bytes(headers.text[begin:end]) for begin, end in pairwise(edges)]
