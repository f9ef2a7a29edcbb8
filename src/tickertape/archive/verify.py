"""Checksums of an archived range, computed from its files, for a comparison with the log.

Statistics in the table's log are not used.
"""

from __future__ import annotations

from operator import add
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

import numpy as np

from tickertape.archive.archive_writer import ArchiveWriter
from tickertape.archive.compact import batches_of, stored_files
from tickertape.archive.rows_to_batches import numbers, rows_of
from tickertape.base.errors import ArchiveFailed
from tickertape.base.text_format import said
from tickertape.batch import Labels, MessageBatch
from tickertape.batch.format import U8, Int64s, UInt64s, lengths_of

if TYPE_CHECKING:
    import pyarrow as pa

_MASK: Final = (1 << 64) - 1
_NUMBERS: Final = 8
_TEXTS: Final = 3


class Sums(NamedTuple):
    """Checksums of messages.

    Two ranges that differ in a message have different sums, unless bytes of bodies or labels swapped places.
    Checksums of pages and frames detect that."""

    messages: int = 0
    numbers: tuple[int, ...] = (0,) * _NUMBERS
    """Per column the sum of its values, each multiplied by its position, modulo 2**64."""
    texts: tuple[int, ...] = (0,) * _TEXTS
    """Sums of all bytes of the bodies, the correlation ids and the keys."""

    def plus(self, positions: Int64s, batch: MessageBatch) -> Sums:
        """Return these sums plus the messages of `batch` at `positions`."""
        places = positions.astype(U8) * U8.type(2) + U8.type(1)
        found = [int((places * column).sum(dtype=U8)) for column in _columns(batch)]
        labels = [b"" if one is None else one.text for one in (batch.correlation_ids, batch.keys)]
        texts = [int(np.frombuffer(text, np.uint8).sum(dtype=U8)) for text in (batch.bodies, *labels)]
        return Sums(
            self.messages + batch.count,
            tuple([total & _MASK for total in map(add, self.numbers, found)]),
            tuple(map(add, self.texts, texts)),
        )


def _columns(batch: MessageBatch) -> list[UInt64s]:
    """Return the numbers of messages as `_NUMBERS` columns."""
    topics = np.array([crc32(topic.encode()) for topic in batch.topics], U8)
    expirations = batch.expirations
    return [
        batch.publishers,
        batch.sequences,
        batch.timestamps.view(U8),
        np.repeat(topics, batch.count) if batch.topic_index is None else topics[batch.topic_index],
        np.zeros(batch.count, U8) if expirations is None else expirations.view(U8),
        lengths_of(batch.offsets).astype(U8),
        _lengths(batch.correlation_ids, batch.count),
        _lengths(batch.keys, batch.count),
    ]


def _lengths(labels: Labels | None, count: int) -> UInt64s:
    return np.zeros(count, U8) if labels is None else lengths_of(labels.offsets).astype(U8)


def sums_of(archive: ArchiveWriter, begin: int, end: int) -> Sums:
    """Return the sums of the archived messages at the positions in `[begin, end)`, reading all columns.

    Raises `ArchiveFailed` for a missing or damaged file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sums = Sums()
    files = archive.place.file_system()
    for stored in stored_files(archive):
        if stored.last < begin or stored.first >= end:
            continue
        try:
            with files.open_input_file(stored.path) as opened:
                if opened.size() != stored.bytes:
                    raise ArchiveFailed(
                        f"Cannot read {stored.path!r} of archive {archive.place.location!r}: it has "
                        f"{opened.size():,} bytes instead of {stored.bytes:,}. Restore the file."
                    )
                file = pq.ParquetFile(opened, page_checksum_verification=True)
                for batch in batches_of(file):
                    sums = _with(sums, batch, stored.topic, begin, end)
        except (OSError, pa.ArrowException) as error:
            raise ArchiveFailed(
                f"Cannot read {stored.path!r} of archive {archive.place.location!r}: "
                f"{said(error).rstrip('.')}. Restore the file."
            ) from error
    return sums


def _with(sums: Sums, batch: pa.RecordBatch, topic: str, begin: int, end: int) -> Sums:
    """Return `sums` plus the rows of `batch`, of a topic, that are in the range."""
    import pyarrow as pa

    positions = numbers(batch.column("position"))
    inside = (positions >= begin) & (positions < end)
    if not inside.all():
        batch = batch.filter(pa.array(inside))
    if not batch.num_rows:
        return sums
    rows = rows_of(batch, topic)
    return sums.plus(rows.positions, rows.batch())
