"""Owns a look at what an archive really holds of a range: sums that must be those of the log.

Must never take the word of the table's log for it: the files are opened, and all that is in them is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tickertape.archive.committing import Archive
from tickertape.archive.compacting import stored_files
from tickertape.archive.writing import numbers
from tickertape.base.errors import ArchiveFailed
from tickertape.base.ports import Buffer

if TYPE_CHECKING:
    import pyarrow as pa

_READ_ROWS: Final = 64 * 1024

Wide = npt.NDArray[np.int64] | npt.NDArray[np.uint64]


class Sums(NamedTuple):
    """What messages add up to. Two ranges that differ in a message have other sums, but for rare chance."""

    messages: int = 0
    positions: int = 0
    sequences: int = 0
    """Modulo 2**64."""
    body_bytes: int = 0
    content: int = 0
    """All bytes of the bodies, added."""

    def plus(self, positions: Wide, sequences: Wide, bodies: Buffer) -> Sums:
        """These and some more messages."""
        body = np.frombuffer(bodies, np.uint8)
        with np.errstate(over="ignore"):
            more = int(sequences.astype(np.uint64).sum(dtype=np.uint64))
        return Sums(
            self.messages + len(positions),
            self.positions + int(positions.sum()),
            (self.sequences + more) & (1 << 64) - 1,
            self.body_bytes + len(body),
            self.content + int(body.sum(dtype=np.uint64)),
        )


def sums_of(archive: Archive, begin: int, end: int) -> Sums:
    """The sums of what the archive holds at the positions `begin` to `end` (not included), all columns read.
    Raises `ArchiveFailed` for a file that is missing or damaged."""
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
                    what = f"{opened.size():,} bytes, not {stored.bytes:,}"
                    raise ArchiveFailed(f"{archive.place.location}: {stored.path} has {what}")
                file = pq.ParquetFile(opened, page_checksum_verification=True)
                for batch in file.iter_batches(_READ_ROWS):
                    sums = _with(sums, batch, begin, end)
        except (OSError, pa.ArrowException) as error:
            raise ArchiveFailed(f"{archive.place.location}: {stored.path}: {error}") from error
    return sums


def _with(sums: Sums, batch: pa.RecordBatch, begin: int, end: int) -> Sums:
    """`sums` and the rows of `batch` between the positions."""
    import pyarrow as pa

    positions = numbers(batch.column("position"))
    inside = (positions >= begin) & (positions < end)
    if not inside.all():
        batch = batch.filter(pa.array(inside))
    if not batch.num_rows:
        return sums
    data = batch.column("data")
    _, places, content = data.buffers()
    offsets = np.frombuffer(places, np.int32)[data.offset : data.offset + len(data) + 1]
    bodies = memoryview(content or b"").cast("B")[int(offsets[0]) : int(offsets[-1])]
    return sums.plus(numbers(batch.column("position")), numbers(batch.column("sequence")), bodies)
