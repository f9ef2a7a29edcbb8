"""Adds to an archive: exactly once, without gaps, by one writer at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from tests.helpers.archive_rows import JOURNAL, SCHEMA, archived, batch_of, rows_of
from tickertape.archive.archive_writer import ArchiveWriter
from tickertape.archive.location import ArchiveLocation, location_of
from tickertape.archive.parquet_writer import Added, write_files
from tickertape.archive.schema import COLUMNS, Coverage, app_id
from tickertape.base.errors import ArchiveFailed, WrongJournal


@pytest.fixture
def place(tmp_path: Path) -> ArchiveLocation:
    return location_of(str(tmp_path / "archive"))


def files_of(place: ArchiveLocation, begin: int, end: int) -> list[Added]:
    return write_files(place, [batch_of(range(begin, end))])


def test_new_archive_has_the_journal_identity_and_no_coverage(place: ArchiveLocation) -> None:
    assert not ArchiveWriter.exists(place)
    archive = ArchiveWriter.create(place, JOURNAL, 7, "flights")
    assert ArchiveWriter.exists(place)
    assert archive.coverage == Coverage(JOURNAL, 7, 7, "flights")
    table = DeltaTable(place.location)
    assert tuple(table.schema().to_arrow().names) == COLUMNS
    assert table.metadata().partition_columns == ["date", "topic"]


def test_added_files_are_stored_with_the_end_position(place: ArchiveLocation) -> None:
    archive = ArchiveWriter.create(place, JOURNAL, 0, "")
    assert archive.add(0, 12, files_of(place, 0, 10))  # control records have the positions 10 and 11
    assert archive.coverage.end == 12
    assert archive.add(12, 20, files_of(place, 12, 20))
    assert DeltaTable(place.location).transaction_version(app_id(JOURNAL)) == 20
    assert archived(place.location) == rows_of([batch_of([*range(10), *range(12, 20)])])
    assert ArchiveWriter(place, JOURNAL).coverage == Coverage(JOURNAL, 0, 20, "")


def test_range_of_control_records_only_moves_the_end(place: ArchiveLocation) -> None:
    archive = ArchiveWriter.create(place, JOURNAL, 0, "")
    assert archive.add(0, 3, [])
    assert archive.add(3, 9, [])
    assert ArchiveWriter(place).coverage.end == 9
    assert archived(place.location) == []


def test_retried_batch_is_stored_once(place: ArchiveLocation) -> None:
    first = ArchiveWriter.create(place, JOURNAL, 0, "")
    assert first.add(0, 10, files_of(place, 0, 10))
    assert not first.add(0, 10, files_of(place, 0, 10))
    assert not first.add(0, 4, files_of(place, 0, 4))
    assert archived(place.location) == rows_of([batch_of(range(10))])


@pytest.mark.parametrize("size", [None, 10])
def test_missing_or_truncated_file_is_not_added(place: ArchiveLocation, size: int | None) -> None:
    archive = ArchiveWriter.create(place, JOURNAL, 0, "")
    files = files_of(place, 0, 10)
    path = Path(place.path(files[0].path))
    if size is None:
        path.unlink()
    else:
        os.truncate(path, size)
    found = "is missing" if size is None else "has 10 bytes instead of"
    with pytest.raises(ArchiveFailed, match=f"'{files[0].path}' {found}") as caught:
        archive.add(0, 10, files)
    assert caught.value.missing is (size is None)
    assert ArchiveWriter(place, JOURNAL).coverage.end == 0
    assert archive.add(0, 10, files_of(place, 0, 10)), "the next attempt writes the files again"


def test_same_range_added_by_two_writers_is_stored_once(place: ArchiveLocation) -> None:
    one = ArchiveWriter.create(place, JOURNAL, 0, "")
    two = ArchiveWriter(place, JOURNAL)
    assert one.add(0, 10, files_of(place, 0, 10))
    assert not two.add(0, 10, files_of(place, 0, 10))  # this writer has read an empty archive
    assert two.coverage.end == 10
    assert archived(place.location) == rows_of([batch_of(range(10))])


def test_commit_concurrent_with_a_property_change_succeeds(place: ArchiveLocation) -> None:
    one = ArchiveWriter.create(place, JOURNAL, 0, "")
    two = ArchiveWriter(place, JOURNAL)
    two.table.alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})
    version = DeltaTable(place.location).version()
    assert one.add(0, 10, files_of(place, 0, 10))
    assert DeltaTable(place.location).version() == version + 1


def test_gap_is_refused_with_the_missing_positions(place: ArchiveLocation) -> None:
    archive = ArchiveWriter.create(place, JOURNAL, 5, "")
    with pytest.raises(ArchiveFailed, match="positions 5 to 6 would be missing"):
        archive.add(6, 10, files_of(place, 6, 10))
    archive.add(5, 10, files_of(place, 5, 10))
    with pytest.raises(ArchiveFailed, match="positions 10 to 12 would be missing"):
        archive.add(12, 20, files_of(place, 12, 20))
    assert archived(place.location) == rows_of([batch_of(range(5, 10))])


def test_overlapping_range_is_refused(place: ArchiveLocation) -> None:
    archive = ArchiveWriter.create(place, JOURNAL, 0, "")
    archive.add(0, 10, files_of(place, 0, 10))
    with pytest.raises(ArchiveFailed, match="another process archives this journal"):
        archive.add(5, 15, files_of(place, 5, 15))


def test_archive_of_another_journal_is_refused(place: ArchiveLocation) -> None:
    ArchiveWriter.create(place, JOURNAL, 0, "")
    other = "f" * 32
    with pytest.raises(WrongJournal):
        ArchiveWriter(place, other)
    with pytest.raises(WrongJournal):
        ArchiveWriter.create(place, other, 0, "")


def test_location_with_other_content_is_refused_and_unchanged(place: ArchiveLocation, tmp_path: Path) -> None:
    with pytest.raises(ArchiveFailed, match="has no Delta table"):
        ArchiveWriter(place)
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "notes").write_text("mine")
    with pytest.raises(ArchiveFailed, match=r"neither empty nor a Delta table \(found notes\)"):
        ArchiveWriter.create(place, JOURNAL, 0, "")
    foreign = tmp_path / "foreign"
    write_deltalake(foreign, batch_of(range(3)))
    with pytest.raises(ArchiveFailed, match="is not an archive"):
        ArchiveWriter.create(location_of(str(foreign)), JOURNAL, 0, "")
    assert DeltaTable(foreign).version() == 0


def test_interrupted_table_creation_is_completed_by_the_next_writer(
    place: ArchiveLocation, tmp_path: Path
) -> None:
    log = tmp_path / "archive" / "_delta_log"
    log.mkdir(parents=True)
    (log / "_commit_4f0c.json.tmp").write_text("{")
    archive = ArchiveWriter.create(place, JOURNAL, 3, "")
    assert archive.coverage == Coverage(JOURNAL, 3, 3, "")
    assert archive.add(3, 10, files_of(place, 3, 10))
    assert ArchiveWriter(place, JOURNAL).coverage.end == 10


def test_archive_end_survives_a_checkpoint_of_the_table(place: ArchiveLocation) -> None:
    archive = ArchiveWriter.create(place, JOURNAL, 0, "")
    archive.table.alter.set_table_properties({"delta.checkpointInterval": "3"})
    for at in range(0, 50, 5):
        assert archive.add(at, at + 5, files_of(place, at, at + 5))
    log = Path(place.location) / "_delta_log"
    assert len(list(log.glob("*.checkpoint.parquet"))) >= 3
    for version in range(9):  # entries before a checkpoint are removed
        (log / f"{version:020}.json").unlink()
    assert ArchiveWriter(place, JOURNAL).coverage == Coverage(JOURNAL, 0, 50, "")
    assert archived(place.location) == rows_of([batch_of(range(50))])
    assert ArchiveWriter(place).add(50, 55, files_of(place, 50, 55))


def test_archive_table_refuses_deletes(place: ArchiveLocation) -> None:
    archive = ArchiveWriter.create(place, JOURNAL, 0, "")
    archive.add(0, 10, files_of(place, 0, 10))
    with pytest.raises(Exception, match=r"(?i)append"):
        DeltaTable(place.location).delete("position = 3")
    assert len(archived(place.location)) == 10
    assert SCHEMA.names[0] == "position"
