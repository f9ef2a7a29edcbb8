"""Convert between batches and Arrow arrays without copying columns or bodies.

pyarrow is imported at the first conversion, so that servers start without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from tickertape.base.errors import BadMessage, MessageTooLarge, UsageError
from tickertape.base.limits import message_bytes_max, message_cost_bytes
from tickertape.base.text_format import did_you_mean, listed, not_one_of, wrong_type
from tickertape.batch.encode import EncodedBodies, check_body_bytes, topic_bytes
from tickertape.batch.format import I1, I4, I8, AnyArray, Int32s, Int64s, Labels, lengths_of, run_crc
from tickertape.batch.message_batch import sow_key_of

if TYPE_CHECKING:
    import pyarrow as pa

    from tickertape.batch.message_batch import MessageBatch

COLUMNS_DEFAULT: Final = ("topic", "publisher", "sequence", "timestamp", "data")
"""Columns of `to_arrow` by default."""
_TOPICS_CACHED: Final = 1024
_SCHEMAS_CACHED: Final = 64
_INVALID_ARRAY_CURE: Final = "Check the array at its source with validate(full=True)."


def to_arrow(batch: MessageBatch, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """Return `batch` as an Arrow record batch (see `MessageBatch.to_arrow`)."""
    names = COLUMNS_DEFAULT if columns is None else tuple(columns)
    kit = _kit()
    schema = _schema(names)
    return kit.record_batch([_COLUMNS[name][1](kit, batch) for name in names], schema=schema)


class _Kit:
    """Functions and types of pyarrow."""

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
        """Return an array that references `values`."""
        return self.from_buffers(kind, len(values), [None, self.buffer(values)], 0)


@lru_cache(1)
def _kit() -> _Kit:
    return _Kit()


@lru_cache(_SCHEMAS_CACHED)
def _schema(names: tuple[str, ...]) -> pa.Schema:
    unknown = [name for name in names if name not in _COLUMNS]
    if unknown:
        raise UsageError(not_one_of("Unknown column", unknown[0], _COLUMNS))
    kit = _kit()
    return kit.schema([(name, getattr(kit, _COLUMNS[name][0])) for name in names])


def _topic(kit: _Kit, batch: MessageBatch) -> pa.Array:
    index = batch.topic_index
    if index is None:
        names, index = _one_name(batch.topics[0]), np.zeros(batch.count, I4)
    else:
        names = kit.array(batch.topics, kit.string)
    # safe=False: the index is already validated
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


def _sow_keys(kit: _Kit, batch: MessageBatch) -> pa.Array:
    context = batch.context
    if batch.keys is not None or context is None or context.sow_keys is None:
        return _labels(kit, batch.keys, batch.count)
    return kit.array([sow_key_of(batch, row) for row in range(batch.count)], kit.string)


def _kind(kit: _Kit, batch: MessageBatch) -> pa.Array:
    return kit.fixed(kit.uint8, np.zeros(batch.count, I1) if batch.kinds is None else batch.kinds)


_COLUMNS: Final[dict[str, tuple[str, Callable[[_Kit, MessageBatch], pa.Array]]]] = {
    "topic": ("topic", _topic),
    "publisher": ("uint64", lambda kit, batch: kit.fixed(kit.uint64, batch.publishers)),
    "sequence": ("uint64", lambda kit, batch: kit.fixed(kit.uint64, batch.sequences)),
    "timestamp": ("timestamp", lambda kit, batch: kit.fixed(kit.timestamp, batch.timestamps)),
    "data": ("binary", _data),
    "expiration_ms": ("int64", _expiration),
    "correlation_id": ("string", lambda kit, batch: _labels(kit, batch.correlation_ids, batch.count)),
    "sow_key": ("string", _sow_keys),
    "kind": ("uint8", _kind),
}
"""Name of the type in a `_Kit`, and conversion function, per column."""


def check_columns(columns: Sequence[str] | None) -> None:
    """Raise `UsageError` for a column that `to_arrow` does not support."""
    _schema(COLUMNS_DEFAULT if columns is None else tuple(columns))


def table_of(batches: Iterable[MessageBatch], columns: Sequence[str] | None = None) -> pa.Table:
    """Return `batches` as one Arrow table that references their memory. `columns` is as in `to_arrow`.

    Each batch is a chunk with its own dictionary of topics. `unify_dictionaries()` merges the dictionaries.
    """
    import pyarrow as pa

    names = COLUMNS_DEFAULT if columns is None else tuple(columns)
    schema = _schema(names)
    return pa.Table.from_batches([to_arrow(batch, names) for batch in batches], schema)


def body_arrays(source: object, column: str | None = None) -> Iterator[pa.Array]:
    """Yield the arrays of bodies of `source`: an array, a chunked array, a table, or an Arrow stream.

    `column` selects a column of a table, a record batch, a reader or any other Arrow stream. The default is
    `data`, or the only column. Raises `UsageError` for other sources.
    """
    import pyarrow as pa

    if isinstance(source, pa.Array):
        yield source
    elif isinstance(source, pa.ChunkedArray):
        yield from source.chunks
    elif isinstance(source, pa.RecordBatch):
        yield source.column(_column_name(source.schema, column))
    elif hasattr(source, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(source)
        name = _column_name(reader.schema, column)
        for batch in reader:
            yield batch.column(name)
    else:
        raise UsageError(wrong_type("messages", source, "an Arrow array or table"))


def _column_name(schema: pa.Schema, column: str | None) -> str:
    names: list[str] = schema.names
    if column is None and len(names) == 1:
        return names[0]
    wanted = "data" if column is None else column
    if names.count(wanted) != 1:
        usable = [name for name in names if names.count(name) == 1]
        cure = listed(usable) if usable else "a table with one column of bodies"
        raise UsageError(
            f"Cannot publish column {wanted!r}: the table has {names.count(wanted)} columns of this name."
            f"{did_you_mean(wanted, usable)} Use {cure}."
        )
    return wanted


def array_pieces(array: pa.Array, cost_max: int, beside: Int64s | None = None) -> Iterator[pa.Array]:
    """Yield slices of a binary or string `array`, each with a cost of about `cost_max`, or one value.

    `beside` has the additional bytes of each value. Raises `BadMessage` for other types, nulls and invalid
    offsets.
    """
    array, offsets = _checked(array)
    lengths = lengths_of(offsets)
    ends = np.cumsum(lengths + message_cost_bytes + (0 if beside is None else beside))
    start = begin = 0
    while start < len(lengths):
        stop = max(start + 1, int(np.searchsorted(ends, begin + cost_max, side="right")))
        yield array.slice(start, stop - start)
        start, begin = stop, int(ends[stop - 1])


def _check_bodies(array: pa.Array) -> None:
    import pyarrow as pa

    kinds = (
        pa.BinaryArray, pa.StringArray, pa.LargeBinaryArray, pa.LargeStringArray, pa.BinaryViewArray,
        pa.StringViewArray,
    )  # fmt: skip
    if not isinstance(array, kinds):
        given = getattr(array, "type", type(array).__name__)
        raise BadMessage(f"Cannot publish an Arrow array of type {given}. Use a binary or string array.")
    if array.null_count:
        raise BadMessage(
            f"Cannot publish an Arrow array: {array.null_count} of {len(array)} values are null. "
            "Remove them, or replace them with bodies, which may be empty."
        )


def _checked(array: pa.Array) -> tuple[pa.Array, Int64s]:
    """Return a binary or string `array`, with views cast, and its offsets (one more than values).

    Arrow validates offsets only on request. An array from a file, another library or another process may have
    offsets that decrease, or that exceed its data.
    """
    import pyarrow as pa

    _check_bodies(array)
    if isinstance(array, (pa.BinaryViewArray, pa.StringViewArray)):
        try:
            array.view(pa.binary_view()).validate(full=True)
        except pa.ArrowException as error:
            raise BadMessage(f"Cannot publish an Arrow array: {error}. {_INVALID_ARRAY_CURE}") from error
        array = array.cast(pa.large_binary())  # the code below does not support views
    if not len(array):
        return array, np.zeros(1, I8)
    _, places, data = array.buffers()
    large = isinstance(array, (pa.LargeBinaryArray, pa.LargeStringArray))
    stored = np.frombuffer(places, I8 if large else I4)
    offsets: Int64s = stored[array.offset : array.offset + len(array) + 1].astype(I8)
    falls = offsets[1:] < offsets[:-1]  # comparison instead of subtraction, which could overflow
    at = int(falls.argmax())
    if falls[at]:
        raise BadMessage(
            f"Cannot publish an Arrow array: offset {at + 1} ({offsets[at + 1]}) is below the previous "
            f"offset ({offsets[at]}). {_INVALID_ARRAY_CURE}"
        )
    size = 0 if data is None else data.size
    if offsets[0] < 0 or offsets[-1] > size:
        raise BadMessage(
            f"Cannot publish an Arrow array: its offsets go from {offsets[0]} to {offsets[-1]}, but its "
            f"values have {size} bytes. {_INVALID_ARRAY_CURE}"
        )
    return array, offsets


def batch_from_arrow(
    topic: str, array: pa.Array, *, publisher: int = 0, first_sequence: int = 0, timestamp: int = 0
) -> MessageBatch:
    """Return a batch of one run. Its bodies are the values of a binary or string `array`, not copies of them.

    View types (`binary_view`, `string_view`) are cast. `timestamp` is in microseconds since 1970 UTC. Raises
    `BadTopic`, `MessageTooLarge`, `UsageError` for an empty array or numbers out of range, and `BadMessage`
    for an array of another type, with nulls or with invalid offsets.
    """
    topic_bytes(topic)
    return encode_array(array).batch(
        topic, publisher=publisher, first_sequence=first_sequence, timestamp=timestamp
    )


def encode_array(array: pa.Array) -> EncodedBodies:
    """Return the values of a binary or string `array` as the bodies of one run, with its checksum.

    The values are not copied. View types are cast. Raises `MessageTooLarge`, `UsageError` for an empty array,
    and `BadMessage` for an array of another type, with nulls or with invalid offsets.
    """
    offsets, bodies = _offsets_and_bodies(array)
    lengths = lengths_of(offsets)
    longest = int(lengths.max(initial=0))
    if longest > message_bytes_max:
        raise MessageTooLarge(
            f"Invalid message: {longest} bytes is too large. Use at most {message_bytes_max} bytes."
        )
    return EncodedBodies(len(lengths), bodies, offsets.tobytes(), run_crc(lengths.data, bodies))


def _offsets_and_bodies(array: pa.Array) -> tuple[Int32s, memoryview]:
    """Return offsets from 0 and the bytes they reference."""
    array, offsets = _checked(array)
    if not len(array):
        raise UsageError("Cannot encode an empty batch. Pass at least one message.")
    first, last = int(offsets[0]), int(offsets[-1])
    check_body_bytes(last - first)
    data = array.buffers()[2]
    bodies = memoryview(b"") if data is None else memoryview(data)[first:last]
    return (offsets - first).astype(I4), bodies.cast("B")
