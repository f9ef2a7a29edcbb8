"""Columns of the Spark source: names, types, and construction from batches.

Only columns of the requested schema are built, from whole batches. `json_columns.py` handles fields of
bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from tickertape.base.errors import UsageError
from tickertape.batch import RUN_LATE
from tickertape.batch.format import I4, I8, Labels, lengths_of
from tickertape.spark.common.column_block import ColumnBlock, ColumnBlocks
from tickertape.spark.common.json_columns import JsonColumns, json_field

DEFAULT_SCHEMA: Final = (
    "topic string, bookmark string, publisher string, sequence long, timestamp timestamp, data binary"
)
"""Columns if the user gives no schema."""
FURTHER_SCHEMA: Final = (
    "position long, date date, key string, correlation_id string, expiration_ms long, stored_late boolean"
)
"""Columns that are only available if the schema names them."""
ALL_SCHEMA: Final = f"{DEFAULT_SCHEMA}, {FURTHER_SCHEMA}"
POSITION: Final = "position"
LATE: Final = "stored_late"
"""Whether a message filled a hole in the sequences of its publisher, below its highest one."""
NULLABLE: Final = ("key", "correlation_id", "expiration_ms")


ROWS_TARGET: Final = 65_536
TEXT_BYTES_TARGET: Final = 4 * 1024 * 1024
"""Target rows of a record batch, and target bytes of bodies and labels."""

_SEQUENCE_END: Final = 1 << 63
_TEN_THOUSAND: Final = np.uint64(10_000)
_DAY_MICROS: Final = 86_400_000_000

Array = Any
"""An Arrow array. pyarrow has no type hints."""


class ColumnSelection(NamedTuple):
    """Columns that a query reads."""

    schema: Any
    """Arrow schema of the record batches."""
    of_bodies: JsonColumns | None = None
    """Columns that are fields of JSON bodies."""

    @property
    def numbered(self) -> bool:
        """Whether positions of messages are needed."""
        return POSITION in self.schema.names


def columns_of(schema: StructType, *, strict: bool = False) -> ColumnSelection:
    """Return the columns of a schema: source columns in any order, and fields of JSON bodies.

    For `strict` see `JsonColumns`. Raises `UsageError` for a repeated column or a wrong type.
    """
    names = schema.fieldNames()
    if len(set(names)) < len(names) or not names:
        raise UsageError(
            f"Invalid schema {names}. Use one or more columns, each once, of {ALL_SCHEMA}, or fields of JSON "
            "bodies."
        )
    fields = []
    of_bodies = []
    for field in schema.fields:
        column = _COLUMNS.get(field.name)
        if column is None:
            of_bodies.append(json_field(field))
            fields.append(pa.field(field.name, of_bodies[-1].arrow))
            continue
        kind, arrow, _ = column
        if not isinstance(field.dataType, kind):
            raise UsageError(
                f"Invalid column {field.name!r} of type {field.dataType.simpleString()}. "
                f"Use {kind().simpleString()}, and cast it after reading."
            )
        if field.name in NULLABLE and not field.nullable:
            raise UsageError(
                f"Invalid column {field.name!r}: it is NOT NULL, but null for messages without one. "
                "Declare it nullable."
            )
        fields.append(pa.field(field.name, arrow, nullable=field.nullable))
    return ColumnSelection(pa.schema(fields), JsonColumns(of_bodies, strict=strict) if of_bodies else None)


def record_batches(pieces: Iterable[ColumnBlock], columns: ColumnSelection) -> Iterator[Any]:
    """Yield record batches of `columns`, each from as many blocks as `gathered` combines."""
    # Not a loop: its variable would keep the blocks of a batch in memory while the next ones are read.
    yield from map(partial(record_batch, columns=columns), gathered(pieces))


def gathered(pieces: Iterable[ColumnBlock]) -> Iterator[list[ColumnBlock]]:
    """Yield groups of whole blocks that reach one of the targets above.

    Each record batch has a fixed cost in Spark, so few large ones are cheaper than many small ones.
    """
    some: list[ColumnBlock] = []
    rows = text_bytes = 0
    for piece in pieces:
        some.append(piece)
        rows += piece.messages
        text_bytes += piece.text_bytes
        if rows >= ROWS_TARGET or text_bytes >= TEXT_BYTES_TARGET:
            yield some
            some, rows, text_bytes = [], 0, 0
    if some:
        yield some


def record_batch(pieces: Sequence[ColumnBlock], columns: ColumnSelection) -> Any:
    """Return one record batch of `columns` with the messages of `pieces`, in order.

    Bodies of a single block are not copied. Bodies of several blocks are copied once.

    Raises:
        UsageError: A sequence exceeds the range of a Spark long.
        BadBatch: A block is inconsistent.
        BadMessage: A body is unreadable and the columns are strict.
    """
    rows = ColumnBlocks(pieces)
    found = {} if columns.of_bodies is None else columns.of_bodies.columns(rows)
    names = columns.schema.names
    arrays = [found[name] if name in found else _COLUMNS[name][2](rows) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=columns.schema)


# -- columns ------------------------------------------------------------------------------------------


def _topic(rows: ColumnBlocks) -> Array:
    topics, numbers, counts = rows.topics
    return _repeated(pa.concat_arrays([_one(topic, 1) for topic in topics]), numbers, counts)


def _publisher(rows: ColumnBlocks) -> Array:
    runs = rows.runs
    publishers, indexes = np.unique(runs["publisher"], return_inverse=True)
    return _repeated(_plain(pa.uint64(), publishers).cast(pa.string()), indexes, runs["count"])


def _repeated(texts: Array, indexes: npt.NDArray[Any], counts: npt.NDArray[Any]) -> Array:
    """Return a string array with the string number `indexes[i]` repeated `counts[i]` times."""
    if len(texts) > 1:
        return texts.take(_plain(pa.int32(), np.repeat(indexes.astype(np.int32), counts)))
    return _one(texts[0].as_py(), int(counts.sum()))


def _one(text: str, count: int) -> Array:
    """Return a string array with `text` repeated `count` times."""
    encoded = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(encoded))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(encoded * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def _plain(kind: Any, values: npt.NDArray[Any]) -> Array:
    """Return an array of fixed-width values without copying. `pa.array` would import pandas, 0.3 s per
    worker."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _sequence(rows: ColumnBlocks) -> Array:
    highest = rows.sequences.max()
    if int(highest) >= _SEQUENCE_END:
        raise UsageError(
            f"Cannot read sequence {highest} as a Spark long: it is too large. Omit column sequence from the "
            "schema, and use column bookmark, which has the sequence as text."
        )
    return _plain(pa.int64(), rows.sequences)


def _bookmark(rows: ColumnBlocks) -> Array:
    publishers, sequences = rows.runs["publisher"], rows.sequences
    lowest, highest = str(sequences.min()), str(sequences.max())
    if len(lowest) == len(highest) and (publishers == publishers[0]).all():
        return _bookmarks_of_one(f"{publishers[0]}|".encode(), sequences, len(highest))
    import pyarrow.compute as pc  # imported late: 0.1 s per worker, and rarely needed

    texts = _plain(pa.uint64(), sequences).cast(pa.string())
    return pc.binary_join_element_wise(_publisher(rows), texts, _EMPTY, _BAR)


def _bookmarks_of_one(begin: bytes, sequences: npt.NDArray[np.uint64], digits: int) -> Array:
    """Return the bookmarks of one publisher whose sequences have `digits` digits each, as fixed-width text.

    Digits are written from the right, four at a time, until the rest is equal for all: consecutive sequences
    differ only in the last few digits.
    """
    count, width = len(sequences), len(begin) + digits + 1
    text = np.empty((count, width), np.uint8)
    at, rest = width - 1, sequences
    text[:, at] = ord("|")
    while at > len(begin) and rest.min() != rest.max():
        some = min(4, at - len(begin))
        higher = rest // _TEN_THOUSAND
        lowest = (rest - higher * _TEN_THOUSAND).astype(np.int64)
        text[:, at - some : at] = _digits().take(lowest, axis=0)[:, 4 - some :]
        at, rest = at - some, higher
    same = begin + (str(rest[0]).encode() if at > len(begin) else b"")
    text[:, :at] = np.frombuffer(same, np.uint8)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)])


@cache
def _digits() -> npt.NDArray[np.uint8]:
    """Return the four digits of each number below 10,000."""
    powers = np.array([1000, 100, 10, 1])
    digits: npt.NDArray[np.uint8] = (np.arange(10_000)[:, None] // powers % 10 + ord("0")).astype(np.uint8)
    return digits


def _timestamp(rows: ColumnBlocks) -> Array:
    return _plain(_TIMESTAMP, np.repeat(rows.runs["timestamp"], rows.runs["count"]))


def _data(rows: ColumnBlocks) -> Array:
    buffers = [None, pa.py_buffer(rows.offsets), pa.py_buffer(rows.bodies)]
    return pa.Array.from_buffers(pa.binary(), rows.count, buffers)


def _position(rows: ColumnBlocks) -> Array:
    return _plain(pa.int64(), rows.positions)


def _date(rows: ColumnBlocks) -> Array:
    days = (rows.runs["timestamp"] // _DAY_MICROS).astype(I4)
    return _plain(pa.date32(), np.repeat(days, rows.runs["count"]))


def _late(rows: ColumnBlocks) -> Array:
    late = (rows.runs["flags"] & np.uint32(RUN_LATE)) != 0
    bits = np.packbits(np.repeat(late, rows.runs["count"]), bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), rows.count, [None, pa.py_buffer(bits)])


def _expiration(rows: ColumnBlocks) -> Array:
    values = rows.expirations
    if values is None:
        return pa.nulls(rows.count, pa.int64())
    buffers = [_present(values), pa.py_buffer(np.ascontiguousarray(values, I8))]
    return pa.Array.from_buffers(pa.int64(), rows.count, buffers, -1)


def _labels(labels: Labels | None, count: int) -> Array:
    """Return labels as strings, null for messages without one."""
    if labels is None:
        return pa.nulls(count, pa.string())
    present = _present(lengths_of(labels.offsets))
    buffers = [present, pa.py_buffer(labels.offsets), pa.py_buffer(labels.text)]
    return pa.Array.from_buffers(pa.string(), count, buffers, -1)


def _present(values: npt.NDArray[Any]) -> Any:
    """Return the validity bits of values. 0 means null."""
    return pa.py_buffer(np.packbits(values != 0, bitorder="little"))


_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_EMPTY: Final = _one("", 1)[0]
_BAR: Final = _one("|", 1)[0]
_COLUMNS: Final[dict[str, tuple[type[DataType], Any, Callable[[ColumnBlocks], Array]]]] = {
    "topic": (StringType, pa.string(), _topic),
    "bookmark": (StringType, pa.string(), _bookmark),
    "publisher": (StringType, pa.string(), _publisher),
    "sequence": (LongType, pa.int64(), _sequence),
    "timestamp": (TimestampType, _TIMESTAMP, _timestamp),
    "data": (BinaryType, pa.binary(), _data),
    POSITION: (LongType, pa.int64(), _position),
    "date": (DateType, pa.date32(), _date),
    "key": (StringType, pa.string(), lambda rows: _labels(rows.keys, rows.count)),
    "correlation_id": (StringType, pa.string(), lambda rows: _labels(rows.correlation_ids, rows.count)),
    "expiration_ms": (LongType, pa.int64(), _expiration),
    LATE: (BooleanType, pa.bool_(), _late),
}
