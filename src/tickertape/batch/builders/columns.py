"""Build batches to publish from Arrow columns: bodies, topics and labels.

Python code handles no message individually, and no body is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tickertape.base.errors import BadMessage, BadTopic
from tickertape.base.limits import label_bytes_max, publish_topics_max
from tickertape.batch.arrow import array_pieces, encode_array
from tickertape.batch.encode import assemble, new_run
from tickertape.batch.format import I4, I8, Columns, Int32s, Int64s, Labels, lengths_of
from tickertape.batch.message_batch import MessageBatch

if TYPE_CHECKING:
    import pyarrow as pa


class OutColumns(NamedTuple):
    """Columns of messages to publish, all of the same length."""

    data: pa.Array
    """Bodies: binary or string, no nulls."""
    topic: str | pa.Array
    """One topic for all messages, or one string each, no nulls."""
    key: pa.Array | None = None
    """Strings. Null or empty means none."""
    correlation_id: pa.Array | None = None
    expiration_ms: pa.Array | None = None
    """Integers. Null or 0 means none."""


def batches_from_columns(columns: OutColumns, cost_max: int, messages_max: int) -> Iterator[MessageBatch]:
    """Yield batches of one run without sequences.

    Each has about `cost_max` bytes of bodies and labels, and at most `messages_max` messages to
    `publish_topics_max` topics. Raises `BadMessage` for other types, invalid nulls, and invalid labels and
    lifetimes. Raises `BadTopic`, `MessageTooLarge`.
    """
    at = 0
    for piece in array_pieces(columns.data, cost_max, _label_bytes(columns)):
        end = at + len(piece)
        while at < end:
            batch = _batch(columns, piece.slice(len(piece) - (end - at), messages_max), at)
            yield batch
            at += batch.count


def _batch(columns: OutColumns, data: pa.Array, at: int) -> MessageBatch:
    """Return a batch of as many messages as allowed. `data` are their bodies, from row `at`."""
    topics, index = _topics(columns.topic, at, len(data))
    if index is not None and len(topics) > publish_topics_max:
        # Topics are numbered by first appearance. The first message with one too many starts the next batch.
        fitting = int((index == publish_topics_max).argmax())
        data, topics, index = data.slice(0, fitting), topics[:publish_topics_max], index[:fitting]
    bodies = encode_array(data)
    count = bodies.messages
    optional = Columns(
        topic_index=index,
        expirations=_expirations(columns.expiration_ms, at, count),
        correlation_ids=_labels("correlation_id", columns.correlation_id, at, count),
        keys=_labels("key", columns.key, at, count),
    )
    run = new_run(0, 0, 0, count, bodies.crc)
    return assemble(
        runs=run,
        offsets=bodies.offsets,
        bodies=bodies.joined,
        topics=topics,
        optional=optional,
    )


def _label_bytes(columns: OutColumns) -> Int64s | None:
    """Return the bytes of labels of each message, or None without labels."""
    import pyarrow as pa
    import pyarrow.compute as pc

    given = [column for column in (columns.key, columns.correlation_id) if column is not None]
    if not given:
        return None
    lengths = [pc.binary_length(column.cast(pa.string())).fill_null(0) for column in given]
    total: Int64s = np.sum([some.to_numpy(zero_copy_only=False) for some in lengths], axis=0, dtype=I8)
    return total


def _topics(topic: str | pa.Array, at: int, count: int) -> tuple[tuple[str, ...], Int32s | None]:
    if isinstance(topic, str):
        return (topic,), None
    import pyarrow as pa

    some = topic.slice(at, count)
    if some.null_count:
        raise BadTopic(
            f"Cannot publish Arrow columns: {some.null_count} of {count} topics are null. "
            "Give these rows a topic, or remove them."
        )
    coded = some.cast(pa.string()).dictionary_encode()
    names = tuple(coded.dictionary.to_pylist())
    if len(names) == 1:
        return names, None
    return names, coded.indices.to_numpy(zero_copy_only=False).astype(I4)


def _expirations(column: pa.Array | None, at: int, count: int) -> Int64s | None:
    if column is None:
        return None
    import pyarrow as pa

    lives: Int64s = column.slice(at, count).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if int(lives.min()) < 0:
        raise BadMessage(f"Invalid expiration_ms {int(lives.min())}. Use a positive number, or 0 for none.")
    return np.ascontiguousarray(lives, I8) if lives.any() else None


def _labels(name: str, column: pa.Array | None, at: int, count: int) -> Labels | None:
    if column is None:
        return None
    import pyarrow as pa

    texts = column.slice(at, count).cast(pa.string()).fill_null("")
    _, places, text = texts.buffers()
    offsets = np.frombuffer(places, I4)[texts.offset : texts.offset + count + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return None
    longest = int(lengths_of(offsets).max())
    if longest > label_bytes_max:
        raise BadMessage(f"Invalid {name} of {longest} bytes. Use at most {label_bytes_max} bytes.")
    return Labels(offsets - offsets[0], memoryview(text)[first:last].tobytes())
