"""Conversion of archive rows to message batches, column by column.

Rows that are not valid messages are rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tickertape.archive.schema import FILE_COLUMNS, arrow_schema
from tickertape.base.errors import ArchiveFailed
from tickertape.base.limits import message_bytes_max
from tickertape.batch import Labels, MessageBatch
from tickertape.batch.builders.rows import batch_from_columns
from tickertape.batch.format import I4, U8, Int32s, Int64s, lengths_of

if TYPE_CHECKING:
    import pyarrow as pa

OUT_OF_ORDER: Final = "its rows are not in position order, so it is not a valid archive file"
_NEVER_NULL: Final = ("position", "publisher", "sequence", "timestamp", "data")


class Rows(NamedTuple):
    """Rows in position order."""

    table: pa.RecordBatch
    """The columns of a file, with `publisher` as a number."""
    positions: Int64s
    topics: tuple[str, ...]
    topic_index: Int32s | None
    """Topic number per row. None if all rows have the same topic."""

    @property
    def offsets(self) -> Int32s:
        """Offsets of the bodies in their buffer, one more than rows. The first is not always 0."""
        return body_offsets(self.table)

    def bodies(self) -> list[bytes]:
        """Return all bodies."""
        bodies: list[bytes] = self.table.column("data").to_pylist()
        return bodies

    def slice(self, low: int, high: int) -> Rows:
        """Return the rows `[low, high)` without copying."""
        if high - low == len(self.positions):
            return self
        index = None if self.topic_index is None else self.topic_index[low:high]
        return Rows(self.table.slice(low, high - low), self.positions[low:high], self.topics, index)

    def take(self, indices: Int64s) -> Rows:
        """Return the rows `indices`, in this order."""
        index = None if self.topic_index is None else self.topic_index[indices]
        return Rows(self.table.take(index_array(indices)), self.positions[indices], self.topics, index)

    def batch(self) -> MessageBatch:
        """Return the messages as a batch. At least one row is required."""
        column = self.table.column
        data = column("data")
        offsets = body_offsets(self.table)
        begin = int(offsets[0])
        body_buffer = data.buffers()[2]
        bodies = memoryview(b"" if body_buffer is None else body_buffer)[begin : int(offsets[-1])].cast("B")
        topics, index = _used(self.topics, self.topic_index)
        expirations = column("expiration_ms")
        return batch_from_columns(
            numbers(column("publisher")).view(U8),
            numbers(column("sequence")).view(U8),
            numbers(column("timestamp")),
            topics,
            index,
            offsets - offsets[0],
            bodies,
            None if expirations.null_count == len(expirations) else numbers(expirations.fill_null(0)),
            _labels(column("correlation_id")),
            _labels(column("key")),
        )


def rows_of(batch: pa.RecordBatch, topic: str) -> Rows:
    """Return rows of a file of a topic, with the columns of `FILE_COLUMNS`.

    Raises `ArchiveFailed` for missing values, too large bodies and wrong order."""
    import pyarrow as pa

    missing = [name for name in FILE_COLUMNS if name not in batch.schema.names]
    if missing:
        raise ArchiveFailed(f"it has no column {missing[0]!r}")
    for name in _NEVER_NULL:
        if batch.column(name).null_count:
            raise ArchiveFailed(f"column {name} is null in some rows")
    wanted = arrow_schema()
    columns = [_typed(batch.column(name), wanted.field(name)) for name in FILE_COLUMNS]
    table = pa.RecordBatch.from_arrays(columns, list(FILE_COLUMNS))
    positions = numbers(table.column("position"))
    if (positions[1:] <= positions[:-1]).any():
        raise ArchiveFailed(OUT_OF_ORDER)
    if int(lengths_of(body_offsets(table)).max(initial=0)) > message_bytes_max:
        raise ArchiveFailed(f"a body is larger than {message_bytes_max} bytes")
    return Rows(table, positions, (topic,), None)


def merged(pieces: Sequence[Rows]) -> Rows:
    """Return all rows of `pieces` in position order."""
    import pyarrow as pa

    if len(pieces) == 1:
        return pieces[0]
    names: dict[str, int] = {}
    for piece in pieces:
        for topic in piece.topics:
            names.setdefault(topic, len(names))
    indexes = [
        np.full(len(piece.positions), names[piece.topics[0]], I4)
        if piece.topic_index is None
        else np.array([names[topic] for topic in piece.topics], I4)[piece.topic_index]
        for piece in pieces
    ]
    positions = np.concatenate([piece.positions for piece in pieces])
    order = np.argsort(positions, kind="stable")
    positions = positions[order]
    if (positions[1:] == positions[:-1]).any():
        twice = int(positions[1:][positions[1:] == positions[:-1]][0])
        raise ArchiveFailed(f"position {twice} is in two files, so the table has duplicate messages")
    table = pa.concat_batches([piece.table for piece in pieces]).take(index_array(order))
    index = np.concatenate(indexes)[order] if len(names) > 1 else None
    return Rows(table, positions, tuple(names), index)


def body_offsets(table: pa.RecordBatch) -> Int32s:
    """Return the offsets of the bodies in their buffer, one more than rows."""
    data = table.column("data")
    offsets = np.frombuffer(data.buffers()[1], I4)
    return offsets[data.offset : data.offset + len(data) + 1]


def _typed(array: pa.Array, wanted: pa.Field) -> pa.Array:
    """Return a column with the type that this module expects."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if wanted.name == "publisher":
        if isinstance(array, pa.DictionaryArray):  # convert only the distinct publishers
            return pc.take(array.dictionary.cast(pa.uint64()), array.indices)
        return array.cast(pa.uint64())
    return array if array.type == wanted.type else array.cast(wanted.type)


def index_array(values: Int64s) -> pa.Array:
    """Return indices as an Arrow array."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def numbers(column: pa.Array) -> Int64s:
    """Return a column of 64-bit values without nulls, times as microseconds, without copying if possible."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    found: Int64s = column.view(pa.int64()).to_numpy(zero_copy_only=True)
    return found


def _labels(array: pa.Array) -> Labels | None:
    if array.null_count == len(array):
        return None
    if array.null_count:
        array = array.fill_null("")
    places, text = array.buffers()[1:]
    offsets = np.frombuffer(places, I4)[array.offset : array.offset + len(array) + 1]
    begin, end = int(offsets[0]), int(offsets[-1])
    if begin == end:
        return None
    return Labels(offsets - offsets[0], memoryview(text)[begin:end].cast("B"))


def _used(topics: tuple[str, ...], index: Int32s | None) -> tuple[tuple[str, ...], Int32s | None]:
    """Return the topics in use, and the index into them."""
    if index is None:
        return topics, None
    counts = np.bincount(index, minlength=len(topics))
    used = counts.nonzero()[0]
    if len(used) == 1:
        return (topics[int(used[0])],), None
    if len(used) == len(topics):
        return topics, index
    places = np.zeros(len(topics), I4)
    places[used] = np.arange(len(used), dtype=I4)
    return tuple([topics[number] for number in used.tolist()]), places[index]
