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
from tickertape.batch.format import I1, I4, AnyArray, Int32s, Labels, lengths_of, run_crc

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
    names = COLUMNS_DEFAULT if columns is None else tuple(columns)
    kit = _kit()
    schema = _schema(names)
    return kit.record_batch([_MAKERS[name](kit, batch) for name in names], schema=schema)


class _Kit:
    """What of pyarrow is needed for every batch, looked up once."""

    def __init__(self) -> None:
        import pyarrow as pa

        self.array = pa.array
        self.buffer = pa.py_buffer
        self.dictionary = pa.DictionaryArray.from_arrays
        self.from_buffers = pa.Array.from_buffers
        self.nulls = pa.nulls
        self.record_batch = pa.RecordBatch.from_arrays
        self.schema = pa.schema
        self.binary = pa.binary()
        self.int32 = pa.int32()
        self.int64 = pa.int64()
        self.string = pa.string()
        self.timestamp = pa.timestamp("us", "UTC")
        self.topic = pa.dictionary(pa.int32(), pa.string())
        self.uint64 = pa.uint64()
        self.uint8 = pa.uint8()

    def fixed(self, kind: pa.DataType, values: AnyArray) -> pa.Array:
        """An array of `values` as they lie."""
        return self.from_buffers(kind, len(values), [None, self.buffer(values)], 0)


@lru_cache(1)
def _kit() -> _Kit:
    return _Kit()


@lru_cache(_SCHEMAS_CACHED)
def _schema(names: tuple[str, ...]) -> pa.Schema:
    unknown = [name for name in names if name not in _MAKERS]
    if unknown:
        raise UsageError(f"there is no column {unknown[0]!r}; there are {', '.join(_MAKERS)}")
    kit = _kit()
    types = {
        "topic": kit.topic,
        "publisher": kit.uint64,
        "sequence": kit.uint64,
        "timestamp": kit.timestamp,
        "data": kit.binary,
        "expiration_ms": kit.int64,
        "correlation_id": kit.string,
        "sow_key": kit.string,
        "kind": kit.uint8,
    }
    return kit.schema([(name, types[name]) for name in names])


def _topic(kit: _Kit, batch: MessageBatch) -> pa.Array:
    index = batch.topic_index
    if index is None:
        names, index = _one_name(batch.topics[0]), np.zeros(batch.count, I4)
    else:
        names = kit.array(batch.topics, kit.string)
    # safe=False: the index is known to be in range
    return kit.dictionary(kit.fixed(kit.int32, index), names, safe=False)


@lru_cache(_TOPICS_CACHED)
def _one_name(topic: str) -> pa.Array:
    kit = _kit()
    return kit.array([topic], kit.string)


def _data(kit: _Kit, batch: MessageBatch) -> pa.Array:
    buffers = [None, kit.buffer(batch.offsets), kit.buffer(batch.bodies)]
    return kit.from_buffers(kit.binary, batch.count, buffers, 0)


def _expiration(kit: _Kit, batch: MessageBatch) -> pa.Array:
    values = batch.expirations
    if values is None:
        return kit.nulls(batch.count, kit.int64)
    present = np.packbits(values != 0, bitorder="little")
    return kit.from_buffers(kit.int64, batch.count, [kit.buffer(present), kit.buffer(values)], -1)


def _labels(kit: _Kit, labels: Labels | None, count: int) -> pa.Array:
    if labels is None:
        return kit.nulls(count, kit.string)
    present = np.packbits(lengths_of(labels.offsets) != 0, bitorder="little")
    buffers = [kit.buffer(present), kit.buffer(labels.offsets), kit.buffer(labels.text)]
    return kit.from_buffers(kit.string, count, buffers, -1)


def _kind(kit: _Kit, batch: MessageBatch) -> pa.Array:
    return kit.fixed(kit.uint8, np.zeros(batch.count, I1) if batch.kinds is None else batch.kinds)


_MAKERS: Final[dict[str, Callable[[_Kit, MessageBatch], pa.Array]]] = {
    "topic": _topic,
    "publisher": lambda kit, batch: kit.fixed(kit.uint64, batch.publishers),
    "sequence": lambda kit, batch: kit.fixed(kit.uint64, batch.sequences),
    "timestamp": lambda kit, batch: kit.fixed(kit.timestamp, batch.timestamps),
    "data": _data,
    "expiration_ms": _expiration,
    "correlation_id": lambda kit, batch: _labels(kit, batch.correlation_ids, batch.count),
    "sow_key": lambda kit, batch: _labels(kit, batch.keys, batch.count),
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
