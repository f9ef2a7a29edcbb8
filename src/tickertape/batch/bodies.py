"""Owns giving the messages of a batch other bodies, for what is sent of them only in part.

Must never change anything else of a message, or leave the checksum of bodies that are not there any more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tickertape.base.errors import UsageError
from tickertape.batch.assemble import assemble, check_body_bytes
from tickertape.batch.format import (
    I4,
    RUN_BY_SERVER,
    Columns,
    offsets_from,
    run_crc,
)
from tickertape.batch.layout import MessageBatch


def with_bodies(batch: MessageBatch, bodies: Sequence[bytes]) -> MessageBatch:
    """The messages of `batch` with other bodies, one for each; every run is flagged as the server's.

    Raises `UsageError` when there are not as many, `MessageTooLarge` when all have 2 GiB or more.
    """
    if len(bodies) != batch.count:
        raise UsageError(f"{len(bodies)} bodies for a batch of {batch.count} messages")
    lengths = np.fromiter(map(len, bodies), np.int64, len(bodies))
    check_body_bytes(int(lengths.sum()))
    offsets = offsets_from(lengths)
    joined = b"".join(bodies)
    runs = batch.runs.copy()
    runs["flags"] |= RUN_BY_SERVER
    edges = batch.run_starts.tolist()
    at = offsets[batch.run_starts].tolist()
    view, encoded = memoryview(joined), lengths.astype(I4).tobytes()
    runs["crc"] = [
        run_crc(encoded[4 * a : 4 * b], view[c:d])
        for a, b, c, d in zip(edges[:-1], edges[1:], at[:-1], at[1:], strict=True)
    ]
    optional = None
    if batch.columns or batch.topic_index is not None:
        optional = Columns(
            batch.topic_index,
            batch.sequences if batch.has_sequences else None,
            batch.expirations,
            batch.correlation_ids,
            batch.keys,
            batch.kinds,
        )
    made = assemble(
        runs=runs.tobytes(),
        offsets=offsets.tobytes(),
        bodies=joined,
        topics=batch.topics,
        optional=optional,
    )
    made.context = batch.context
    return made
