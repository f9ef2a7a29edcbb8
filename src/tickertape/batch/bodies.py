"""Replace the bodies or topics of a batch.

Other columns stay as they are. Runs with new bodies get new checksums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tickertape.base.errors import UsageError
from tickertape.batch.encode import assemble, check_body_bytes
from tickertape.batch.format import (
    I4,
    RUN_BY_SERVER,
    Bytes8,
    Columns,
    Int32s,
    offsets_from,
    run_crc,
)
from tickertape.batch.message_batch import MessageBatch


def with_bodies(batch: MessageBatch, bodies: Sequence[bytes], kinds: Bytes8 | None = None) -> MessageBatch:
    """Return the messages of `batch` with other bodies, one for each; every run is flagged as the server's.
    With `kinds` they have these instead of their own.

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
    made = assemble(
        runs=runs.tobytes(),
        offsets=offsets.tobytes(),
        bodies=joined,
        topics=batch.topics,
        optional=_columns(batch, batch.topic_index, batch.kinds if kinds is None else kinds),
    )
    made.context = batch.context
    return made


def with_topics(batch: MessageBatch, names: Mapping[str, str]) -> MessageBatch:
    """Return the messages of `batch`, those to a topic in `names` to the one that it gives."""
    renamed = [names.get(topic, topic) for topic in batch.topics]
    topics = tuple(dict.fromkeys(renamed))
    index = batch.topic_index
    if index is not None:
        places = np.array([topics.index(topic) for topic in renamed], I4)
        index = places[index] if len(topics) > 1 else None
    made = assemble(
        runs=batch.runs.tobytes(),
        offsets=batch.offsets.tobytes(),
        bodies=batch.bodies,
        topics=topics,
        optional=_columns(batch, index, batch.kinds),
    )
    made.context = batch.context
    return made


def _columns(batch: MessageBatch, index: Int32s | None, kinds: Bytes8 | None) -> Columns | None:
    if not batch.columns and index is None and kinds is None:
        return None
    return Columns(
        index,
        batch.sequences if batch.has_sequences else None,
        batch.expirations,
        batch.correlation_ids,
        batch.keys,
        kinds,
    )
