"""Owns the way between batches and Arrow: columns and bodies are handed over as they lie.

Must never import pyarrow before somebody asks for Arrow: a server starts without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from tickertape.base.errors import BadMessage, MessageTooLarge, UsageError
from tickertape.base.limits import message_bytes_max
from tickertape.batch.assemble import assemble, check_body_bytes
from tickertape.batch.builder import new_run, topic_bytes
from tickertape.batch.format import I1, I4, I8, AnyArray, Bools, Int32s, Labels, lengths_of, run_crc

if TYPE_CHECKING:
    import pyarrow as pa

    from tickertape.batch.layout import MessageBatch

COLUMNS_DEFAULT: Final = ("topic", "publisher", "sequence", "timestamp", "data")
"""What `to_arrow` gives when it is not told."""
_TOPICS_CACHED: Final = 1024
_SCHEMAS_CACHED: Final = 64


def to_arrow(batch: MessageBatch, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """The messages of `batch` as an Arrow record batch that keeps the batch's memory; bodies are not copied.

    `columns` names what is wanted, in order; by default `topic` (dictionary of strings), `publisher` and
    `sequence` (uint64), `timestamp` (microseconds, UTC) and `data` (binary). There are also `expiration_ms`
    (int64), `correlation_id` and `sow_key` (string), null where a message has none, and `kind` (uint8, 1 =
    control record). Raises `UsageError` for any other name.
    """
    import pyarrow as pa

    names = COLUMNS_DEFAULT if columns is None else tuple(columns)
    schema = _schema(names)
    arrays = [_MAKERS[name](batch) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@lru_cache(_SCHEMAS_CACHED)
def _schema(names: tuple[str, ...]) -> pa.Schema:
    import pyarrow as pa

    unknown = [name for name in names if name not in _MAKERS]
    if unknown:
        raise UsageError(f"there is no column {unknown[0]!r}; there are {', '.join(_MAKERS)}")
    types = _types()
    return pa.schema([(name, types[name]) for name in names])


@lru_cache(1)
def _types() -> dict[str, pa.DataType]:
    import pyarrow as pa

    return {
        "topic": pa.dictionary(pa.int32(), pa.string()),
        "publisher": pa.uint64(),
        "sequence": pa.uint64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "data": pa.binary(),
        "expiration_ms": pa.int64(),
        "correlation_id": pa.string(),
        "sow_key": pa.string(),
        "kind": pa.uint8(),
        "topic index": pa.int32(),
    }


def _fixed(name: str, values: AnyArray, present: Bools | None = None) -> pa.Array:
    """An array of `values` as they lie, null where `present` is false."""
    import pyarrow as pa

    nulls = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(
        _types()[name], len(values), [nulls, pa.py_buffer(values)], -1 if present is not None else 0
    )


def _topic(batch: MessageBatch) -> pa.Array:
    import pyarrow as pa

    index = batch.topic_index
    if index is None:
        index = np.zeros(batch.count, I4)
    names = _names(batch.topics) if len(batch.topics) == 1 else pa.array(batch.topics, pa.string())
    # safe=False: the index is known to be in range
    return pa.DictionaryArray.from_arrays(_fixed("topic index", index), names, safe=False)


@lru_cache(_TOPICS_CACHED)
def _names(topics: tuple[str, ...]) -> pa.Array:
    import pyarrow as pa

    return pa.array(topics, pa.string())


def _data(batch: MessageBatch) -> pa.Array:
    import pyarrow as pa

    buffers = [None, pa.py_buffer(batch.offsets), pa.py_buffer(batch.bodies)]
    return pa.Array.from_buffers(_types()["data"], batch.count, buffers, 0)


def _expiration(batch: MessageBatch) -> pa.Array:
    values = batch.expirations
    if values is None:
        values = np.zeros(batch.count, I8)
    return _fixed("expiration_ms", values, values != 0)


def _labels(name: str, labels: Labels | None, count: int) -> pa.Array:
    import pyarrow as pa

    if labels is None:
        return pa.nulls(count, _types()[name])
    present = np.packbits(lengths_of(labels.offsets) != 0, bitorder="little")
    buffers = [pa.py_buffer(present), pa.py_buffer(labels.offsets), pa.py_buffer(labels.text)]
    return pa.Array.from_buffers(_types()[name], count, buffers, -1)


def _kind(batch: MessageBatch) -> pa.Array:
    return _fixed("kind", np.zeros(batch.count, I1) if batch.kinds is None else batch.kinds)


_MAKERS: Final[dict[str, Callable[[MessageBatch], pa.Array]]] = {
    "topic": _topic,
    "publisher": lambda batch: _fixed("publisher", batch.publishers),
    "sequence": lambda batch: _fixed("sequence", batch.sequences),
    "timestamp": lambda batch: _fixed("timestamp", batch.timestamps),
    "data": _data,
    "expiration_ms": _expiration,
    "correlation_id": lambda batch: _labels("correlation_id", batch.correlation_ids, batch.count),
    "sow_key": lambda batch: _labels("sow_key", batch.keys, batch.count),
    "kind": _kind,
}


def batch_from_arrow(
    topic: str, array: pa.Array, *, publisher: int = 0, first_sequence: int = 0, timestamp: int = 0
) -> MessageBatch:
    """A batch of one run whose bodies are the values of a binary or string `array` as they lie, not copied.

    Large and view variants are cast. Raises `BadMessage` for other types and for nulls, `MessageTooLarge`,
    `BadTopic`, and `UsageError` for an empty array.
    """
    topic_bytes(topic)
    offsets, bodies = _offsets_and_bodies(array)
    check_body_bytes(len(bodies))
    lengths = lengths_of(offsets)
    longest = int(lengths.max(initial=0))
    if longest > message_bytes_max:
        raise MessageTooLarge(f"a message of {longest} bytes, the limit is {message_bytes_max}")
    runs = new_run(publisher, first_sequence, timestamp, len(lengths), run_crc(lengths.data, bodies))
    return assemble(runs=runs, offsets=offsets.tobytes(), bodies=bodies, topics=(topic,))


def _offsets_and_bodies(array: pa.Array) -> tuple[Int32s, memoryview]:
    """Offsets from 0 and the bytes they point into."""
    import pyarrow as pa

    if isinstance(array, (pa.LargeBinaryArray, pa.LargeStringArray, pa.BinaryViewArray, pa.StringViewArray)):
        try:
            array = array.cast(pa.binary())
        except pa.ArrowInvalid as error:
            raise MessageTooLarge(f"values of one array do not fit a batch: {error}; slice it") from error
    if not isinstance(array, (pa.BinaryArray, pa.StringArray)):
        given = getattr(array, "type", type(array).__name__)
        raise BadMessage(f"bodies are taken from a binary or string array, this is {given}")
    if array.null_count:
        raise BadMessage(f"{array.null_count} of {len(array)} values are null; a message has a body")
    if not len(array):
        raise UsageError("a batch has at least one message")
    _, places, data = array.buffers()
    offsets = np.frombuffer(places, I4)[array.offset : array.offset + len(array) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    bodies = memoryview(b"") if data is None else memoryview(data)[first:last]
    return offsets - offsets[0], bodies.cast("B")
