"""File list of one table version, with the statistics that exclude files from a read.

A file without statistics may contain any row that its partition allows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from tickertape.archive.schema import Coverage

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

Int64s = npt.NDArray[np.int64]

_LEAST: Final = -(1 << 63)
_GREATEST: Final = (1 << 63) - 1
_MILLI: Final = 1000
"""Statistics of timestamps may be cut to whole milliseconds."""


class ArchiveFile(NamedTuple):
    """One Parquet file."""

    path: str
    """Below the table."""
    topic: str
    low: int
    """No position in it is below."""
    high: int
    """No position in it is above."""
    rows: int | None
    """As the table says; None when it does not."""
    bytes: int
    """The size that the table names."""


class Manifest:
    """The files of one version, by their least position."""

    def __init__(self, coverage: Coverage, version: int, table: DeltaTable, table_id: str) -> None:
        import pyarrow as pa

        self.coverage = coverage
        self.version = version
        self.table_id = table_id
        actions = pa.table(table.get_add_actions(flatten=True))
        order = np.argsort(_column(actions, "min.position", _LEAST), kind="stable")
        self._paths = [unquote(path) for path in actions.column("path").take(order).to_pylist()]
        self._rows = _column(actions, "num_records", -1)[order]
        self._bytes = _column(actions, "size_bytes", -1)[order]
        topics = actions.column("partition.topic").cast(pa.string()).combine_chunks().dictionary_encode()
        self.topics: list[str] = topics.dictionary.to_pylist()
        """All that have a file."""
        self._topic = topics.indices.to_numpy(zero_copy_only=False)[order]
        self.low = _column(actions, "min.position", _LEAST)[order]
        self.high = _column(actions, "max.position", _GREATEST)[order]
        self.since = _widened(_column(actions, "min.timestamp", _LEAST)[order], -_MILLI)
        self.until = _widened(_column(actions, "max.timestamp", _GREATEST)[order], _MILLI)
        self.first_sequence = _column(actions, "min.sequence", _LEAST)[order]
        self.last_sequence = _column(actions, "max.sequence", _GREATEST)[order]

    def __len__(self) -> int:
        return len(self._paths)

    def file(self, number: int) -> ArchiveFile:
        """File `number`, by the least position."""
        return ArchiveFile(
            self._paths[number],
            self.topics[int(self._topic[number])],
            int(self.low[number]),
            int(self.high[number]),
            rows if (rows := int(self._rows[number])) >= 0 else None,
            int(self._bytes[number]),
        )

    def overlapping(
        self, begin: int, end: int, fits: Callable[[str], bool] | None = None
    ) -> list[ArchiveFile]:
        """Return those that may hold positions of `[begin, end)` of the topics that `fits` (None: all)."""
        mask = (self.low < end) & (self.high >= begin)
        if fits is not None:
            mask &= np.array([fits(topic) for topic in self.topics], np.bool_)[self._topic]
        return self.files(mask)

    def with_sequence(self, bits: int, end: int) -> list[ArchiveFile]:
        """Return those that may hold a sequence, given as in the table, below the position `end`."""
        return self.files((self.low < end) & (self.first_sequence <= bits) & (self.last_sequence >= bits))

    def files(self, mask: npt.NDArray[np.bool_]) -> list[ArchiveFile]:
        """Return those of a mask, by their least position."""
        return [self.file(number) for number in mask.nonzero()[0].tolist()]


def _column(actions: pa.Table, name: str, missing: int) -> Int64s:
    """Return a column of numbers, `missing` where the table says nothing."""
    import pyarrow as pa

    if name not in actions.column_names:
        return np.full(len(actions), missing, np.int64)
    column = actions.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", "UTC"))
    values: Any = column.cast(pa.int64()).fill_null(missing).combine_chunks().to_numpy(zero_copy_only=False)
    return np.asarray(values, np.int64)


def _widened(stamps: Int64s, by: int) -> Int64s:
    known = (stamps != _LEAST) & (stamps != _GREATEST)
    return np.where(known, stamps + by, stamps)
