"""Table format of the archive: columns, partitions, properties, statistics and coverage.

Writers and readers share this module (docs/formats/archive.md). A table without properties for its journal
and range is not an archive.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from tickertape.base.errors import ArchiveFailed, WrongJournal
from tickertape.base.names import is_pattern

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

FORMAT: Final = "0"
PARTITION_COLUMNS: Final = ("date", "topic")
COLUMNS: Final = (
    "position", "topic", "date", "publisher", "sequence", "timestamp", "data", "expiration_ms",
    "correlation_id", "key",
)  # fmt: skip
"""In table order."""
FILE_COLUMNS: Final = tuple(name for name in COLUMNS if name not in PARTITION_COLUMNS)
"""Columns of a Parquet file. Delta keeps partition columns in its log."""

JOURNAL_PROPERTY: Final = "tickertape.journal"
FORMAT_PROPERTY: Final = "tickertape.format"
BEGIN_PROPERTY: Final = "tickertape.begin"
TOPICS_PROPERTY: Final = "tickertape.topics"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLI: Final = 1000
_DAY: Final = 86_400_000_000


class Coverage(NamedTuple):
    """The part of a journal that is archived."""

    journal: str
    """Journal id, 32 hexadecimal digits."""
    begin: int
    """First archived position."""
    end: int
    """Position after the last one. All messages of `topics` in `[begin, end)` are archived."""
    topics: str
    """Archived topics: a name, a pattern, or empty for all persistent topics."""

    def __str__(self) -> str:
        which = f" of the topics {self.topics!r}" if self.topics else ""
        return f"positions {self.begin} to {self.end} (exclusive){which}"


def arrow_schema() -> pa.Schema:
    """Return the columns of the table as Arrow types, in order."""
    import pyarrow as pa

    types = {
        "position": pa.int64(),
        "topic": pa.string(),
        "date": pa.date32(),
        "publisher": pa.string(),
        "sequence": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "data": pa.binary(),
        "expiration_ms": pa.int64(),
        "correlation_id": pa.string(),
        "key": pa.string(),
    }
    return pa.schema([(name, types[name]) for name in COLUMNS])


def file_schema() -> pa.Schema:
    """Return the columns of a Parquet file of the table."""
    import pyarrow as pa

    return pa.schema([field for field in arrow_schema() if field.name not in PARTITION_COLUMNS])


def app_id(journal: str) -> str:
    """Return the id of the Delta transactions whose version is the end of the coverage of `journal`."""
    return f"tickertape/{journal}"


def table_properties(journal: str, begin: int, topics: str = "") -> dict[str, str]:
    """Return the properties of a new table, which starts at the position `begin`.

    Create the table with `raise_if_key_not_exists=False`. Its coverage is empty until the first
    transaction."""
    return {
        JOURNAL_PROPERTY: journal,
        FORMAT_PROPERTY: FORMAT,
        BEGIN_PROPERTY: str(begin),
        TOPICS_PROPERTY: topics,
    }


def coverage_of(table: DeltaTable, journal: str | None = None) -> Coverage:
    """Return the coverage of the loaded version of `table`.

    Raises:
        ArchiveFailed: It is not an archive, or has a newer format.
        WrongJournal: It belongs to another journal than `journal`.
    """
    properties: Mapping[str, str | None] = table.metadata().configuration
    found, form = properties.get(JOURNAL_PROPERTY), properties.get(FORMAT_PROPERTY)
    begin = properties.get(BEGIN_PROPERTY)
    where = table.table_uri
    if not found or form is None or begin is None or not begin.isdecimal():
        raise ArchiveFailed(
            f"Cannot use {where!r}: the Delta table is not an archive of Tickertape. "
            "Use a table that `tickertape pipeline archive` writes."
        )
    if form != FORMAT:
        raise ArchiveFailed(
            f"Cannot use archive {where!r}: it has format {form}, but this version supports only format "
            f"{FORMAT}. Use a newer version of Tickertape."
        )
    if journal is not None and found != journal:
        raise WrongJournal(
            f"Cannot use {where!r}: it is the archive of the journal {found!r}, not of {journal!r}. Nothing "
            "was read. Use a separate archive for each journal."
        )
    ours = table.schema().to_arrow()
    missing = [name for name in COLUMNS if name not in ours.names]
    if missing:
        raise ArchiveFailed(
            f"Cannot use archive {where!r}: it has no column {missing[0]!r}. Use a table that `tickertape "
            "pipeline archive` writes."
        )
    end = table.transaction_version(app_id(found))
    return Coverage(
        found, int(begin), int(begin) if end is None else end, properties.get(TOPICS_PROPERTY) or ""
    )


def sequence_bits(sequence: int) -> int:
    """Return a sequence (0 to 2**64 - 1) as stored in the table, a signed 64-bit integer."""
    return sequence - (1 << 64) if sequence >= 1 << 63 else sequence


def holds_topic(topics: str, wanted: str) -> bool:
    """Return whether all messages to `wanted`, a name or a pattern, are in an archive of `topics`."""
    if not topics or topics == wanted:
        return True
    if not is_pattern(topics) or is_pattern(wanted):
        return False  # the intersection of two patterns is not computed
    from tickertape.filter import compile_topic_pattern

    return bool(compile_topic_pattern(topics).search(wanted))


# -- files --------------------------------------------------------------------------------------------


def file_path(day: date, name: str) -> str:
    """Return the path of a file below the table.

    `name` is unique, without slash, space and percent sign. The topic is not part of it, because it may be
    too long for a file system and contain any character."""
    return f"date={day.isoformat()}/{name}.parquet"


def day_of(timestamp: int) -> date:
    """Return the UTC day of a timestamp in microseconds."""
    return (_EPOCH + timedelta(days=timestamp // _DAY)).date()


def file_statistics(
    rows: int,
    positions: tuple[int, int],
    timestamps: tuple[int, int],
    sequences: tuple[int, int],
) -> str:
    """Return the Delta statistics of a file: lowest and highest position, timestamp and sequence.

    Timestamps are microseconds. Sequences are signed numbers, as in the table."""
    low = {"position": positions[0], "sequence": sequences[0], "timestamp": _text(timestamps[0])}
    # Whole milliseconds, which every reader supports, rounded up so that no row is excluded.
    high = {
        "position": positions[1],
        "sequence": sequences[1],
        "timestamp": _text(timestamps[1] + _MILLI - 1),
    }
    return json.dumps(
        {"numRecords": rows, "minValues": low, "maxValues": high, "nullCount": dict.fromkeys(low, 0)}
    )


def _text(timestamp: int) -> str:
    whole = _EPOCH + timedelta(milliseconds=timestamp // _MILLI)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{whole.microsecond // _MILLI:03}Z"
