"""The archive as a table: its coverage, and tables that are refused."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.helpers.archives import ArchiveWriter
from tickertape.archive import schema
from tickertape.base.errors import ArchiveFailed, WrongJournal

JOURNAL = "0123456789abcdef" * 2
OTHER = "f" * 32


def test_new_table_covers_an_empty_range_at_the_start_position(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path, JOURNAL, begin=7, topics="^a")
    covered = schema.coverage_of(DeltaTable(tmp_path), JOURNAL)
    assert covered == schema.Coverage(JOURNAL, 7, 7, "^a")


def test_coverage_ends_with_the_version_of_the_last_transaction(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path, JOURNAL)
    writer.commit([], 12)
    writer.commit([], None)  # like a compaction: the end is unchanged
    assert schema.coverage_of(DeltaTable(tmp_path)) == schema.Coverage(JOURNAL, 0, 12, "")


def test_table_of_another_journal_is_refused(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path, JOURNAL)
    with pytest.raises(WrongJournal, match=f"journal {JOURNAL!r}, not of {OTHER!r}"):
        schema.coverage_of(DeltaTable(tmp_path), OTHER)


def test_table_without_archive_properties_is_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"position": [1]}))
    with pytest.raises(ArchiveFailed, match="is not an archive"):
        schema.coverage_of(DeltaTable(tmp_path))


@pytest.mark.parametrize(
    ("change", "expected"),
    [({schema.FORMAT_PROPERTY: "1"}, "has format 1"), ({schema.BEGIN_PROPERTY: "-1"}, "is not an archive")],
)
def test_newer_format_and_invalid_start_position_are_refused(
    tmp_path: Path, change: dict[str, str], expected: str
) -> None:
    DeltaTable.create(
        tmp_path,
        schema.arrow_schema(),
        configuration=schema.table_properties(JOURNAL, 0) | change,
        raise_if_key_not_exists=False,
    )
    with pytest.raises(ArchiveFailed, match=expected):
        schema.coverage_of(DeltaTable(tmp_path))


def test_table_with_a_missing_column_is_refused(tmp_path: Path) -> None:
    DeltaTable.create(
        tmp_path,
        pa.schema([("position", pa.int64())]),
        configuration=schema.table_properties(JOURNAL, 0),
        raise_if_key_not_exists=False,
    )
    with pytest.raises(ArchiveFailed, match="has no column 'topic'"):
        schema.coverage_of(DeltaTable(tmp_path))


@pytest.mark.parametrize(
    ("archived", "wanted", "held"),
    [
        ("", "a", True),
        ("", "^a", True),
        ("a", "a", True),
        ("a", "b", False),
        ("a", "^a", False),
        ("^a", "ab", True),
        ("^a", "ba", False),
        ("^a", "^a", True),
        ("^a", "^ab", False),
    ],
)
def test_archive_topics_decide_the_held_topics(archived: str, wanted: str, held: bool) -> None:
    assert schema.holds_topic(archived, wanted) is held


def test_statistics_are_whole_milliseconds_rounded_outwards() -> None:
    text = schema.file_statistics(3, (1, 9), (1_999, 2_001), (-5, 6))
    assert json.loads(text) == {
        "numRecords": 3,
        "minValues": {"position": 1, "sequence": -5, "timestamp": "1970-01-01T00:00:00.001Z"},
        "maxValues": {"position": 9, "sequence": 6, "timestamp": "1970-01-01T00:00:00.003Z"},
        "nullCount": {"position": 0, "sequence": 0, "timestamp": 0},
    }


def test_day_and_path_of_a_file_follow_the_timestamp() -> None:
    assert schema.day_of(86_400_000_000 - 1) == date(1970, 1, 1)
    assert schema.day_of(86_400_000_000) == date(1970, 1, 2)
    assert schema.file_path(date(2013, 1, 2), "x") == "date=2013-01-02/x.parquet"
