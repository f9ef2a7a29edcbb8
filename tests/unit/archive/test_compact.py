"""Compaction: the same rows in the same order in fewer files, during adds and reads."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.helpers.archive_rows import JOURNAL, archived, batch_of, check_files
from tickertape.archive import compact as compact_module
from tickertape.archive.archive_writer import ArchiveWriter
from tickertape.archive.compact import StoredFile, compact, plan, stored_files, vacuum
from tickertape.archive.limits import archive_row_group_bytes_max
from tickertape.archive.location import ArchiveLocation, location_of
from tickertape.archive.parquet_writer import Added, write_files
from tickertape.base.errors import ArchiveFailed, BadOption

TOPICS = ("a", "b", "rare topic/%")


@pytest.fixture
def place(tmp_path: Path) -> ArchiveLocation:
    return location_of(str(tmp_path / "archive"))


def filled(place: ArchiveLocation, batches: int = 6, rows: int = 50) -> ArchiveWriter:
    archive = ArchiveWriter.create(place, JOURNAL, 0, "")
    for n in range(batches):
        add(archive, n * rows, (n + 1) * rows)
    return archive


def add(archive: ArchiveWriter, begin: int, end: int) -> None:
    files = write_files(archive.place, [batch_of(range(begin, end), TOPICS)])
    assert archive.add(begin, end, files)


def file_of(first: int, last: int, size: int, topic: str = "a", day: str = "2026-01-01") -> StoredFile:
    return StoredFile(day, topic, first, last, f"{topic}{first}", size, last - first + 1)


def test_compaction_keeps_rows_and_order_in_fewer_files(place: ArchiveLocation) -> None:
    archive = filled(place)
    before = archived(place.location)
    end = archive.coverage
    seen: list[int] = []
    done = compact(archive, wrote=seen.append)
    assert (done.files_before, done.files_after, done.rows) == (18, 3, 300)
    assert sum(seen) == 300
    assert archived(place.location) == before
    assert len(check_files(place.location)) == 3
    assert ArchiveWriter(place, JOURNAL).coverage == end
    assert compact(archive).files_before == 0  # nothing to compact
    add(archive, 300, 310)
    assert archive.coverage.end == 310


def test_compaction_of_large_bodies_holds_one_row_group(place: ArchiveLocation) -> None:
    archive = ArchiveWriter.create(place, JOURNAL, 0, "")
    for at in range(0, 120, 60):
        files = write_files(place, [batch_of(range(at, at + 60), body=b"x" * 1_000_000)])
        assert archive.add(at, at + 60, files)
    sizes = [batch.nbytes for batch in compact_module._rows_of(place, stored_files(archive))]
    assert max(sizes) < archive_row_group_bytes_max + 1_000_000


def test_plan_merges_neighbours_up_to_the_target_size() -> None:
    small = [file_of(at, at + 9, 30) for at in range(0, 100, 10)]
    assert [len(run) for run in plan(small, target=100)] == [3, 3, 3]
    large = [file_of(0, 9, 10), file_of(10, 19, 95), file_of(20, 29, 10), file_of(30, 39, 10)]
    assert [[f.first for f in run] for run in plan(large, target=100)] == [[20, 30]]
    apart = [file_of(0, 9, 1), file_of(10, 19, 1, topic="b"), file_of(20, 29, 1, day="2026-01-02")]
    assert plan(apart, target=100) == []
    assert [[f.first for f in run] for run in plan(reversed(small), target=60)] == [
        [at, at + 10] for at in range(0, 100, 20)
    ]


def test_plan_during_writes_merges_files_of_similar_size() -> None:
    small = [file_of(at, at + 9, 30) for at in range(100, 180, 10)]
    assert plan(small[1:], meanwhile=True) == []  # too few files
    assert plan(small, meanwhile=True) == [small]
    assert plan([file_of(0, 9, 240), *small], meanwhile=True) == [[file_of(0, 9, 240), *small]]
    assert plan([file_of(0, 9, 241), *small], meanwhile=True) == [small]
    assert plan([file_of(0, 9, 30), file_of(10, 19, 999), *small], meanwhile=True) == [small]


def test_plan_during_writes_rewrites_each_row_a_few_times() -> None:
    files: list[StoredFile] = []
    rewritten = 0
    for at in range(2000):
        files.append(file_of(at, at, 1))
        for run in plan(files, meanwhile=True, target=10_000):
            rewritten += sum(file.bytes for file in run)
            whole = file_of(run[0].first, run[-1].last, sum(file.bytes for file in run))
            files = sorted([file for file in files if file not in run] + [whole])
    assert len(files) < 40
    assert rewritten < 6 * 2000


def test_plan_ignores_overlapping_files() -> None:
    assert plan([file_of(0, 9, 1), file_of(9, 19, 1)]) == []


def test_rows_added_during_compaction_are_kept(
    place: ArchiveLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = filled(place)
    other = ArchiveWriter(place, JOURNAL)
    real = write_files

    def beside(*given: object) -> object:
        add(other, other.coverage.end, other.coverage.end + 7)
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(compact_module, "write_files", beside)
    done = compact(archive)
    assert done.files_before == 18
    assert [row["position"] for row in archived(place.location)] == list(range(321))
    check_files(place.location)


def test_concurrent_compactions_do_not_duplicate_rows(
    place: ArchiveLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = filled(place)
    real = write_files

    def beside(*given: object) -> object:
        with monkeypatch.context() as undone:
            undone.setattr(compact_module, "write_files", real)
            compact(ArchiveWriter(place, JOURNAL))
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(compact_module, "write_files", beside)
    done = compact(archive)
    assert done.files_before == 0
    assert [row["position"] for row in archived(place.location)] == list(range(300))


def test_compaction_refuses_a_file_with_other_rows_than_recorded(place: ArchiveLocation) -> None:
    archive = filled(place, batches=2)
    version = archive.table.version()
    victim = stored_files(archive)[1]
    write_files(place, [batch_of(range(1000, 1002), ("a",))])  # replaces the file below
    other = max(Path(place.location).rglob("*.parquet"), key=os.path.getctime)
    os.replace(other, place.path(victim.path))
    with pytest.raises(ArchiveFailed, match="should contain 34 rows"):
        compact(archive)
    assert DeltaTable(place.location).version() == version


def test_reader_of_the_previous_version_continues_after_compaction(place: ArchiveLocation) -> None:
    archive = filled(place)
    reader = DeltaTable(place.location)
    data = reader.to_pyarrow_dataset()
    compact(archive)
    vacuum(archive, 7 * 86400.0)
    assert sorted(data.to_table(["position"]).column(0).to_pylist()) == list(range(300))


def test_vacuum_removes_old_unreferenced_files(place: ArchiveLocation) -> None:
    archive = filled(place)
    write_files(place, [batch_of(range(5))])  # of an attempt that failed
    compact(archive)
    assert vacuum(archive, 3600.0) == 0  # all files are too new
    with pytest.raises(BadOption, match="at least one hour"):
        vacuum(archive, 3599.0)
    stored = {file.path for file in stored_files(archive)}
    for path in Path(place.location).rglob("*.parquet"):
        os.utime(path, (1, 1))
    kept = {str(path.relative_to(place.location)) for path in Path(place.location).rglob("*.parquet")}
    assert len(kept) == 18 + 1 + 3
    assert vacuum(archive, 3600.0) == 1  # replaced files were recently part of the archive
    kept = {str(path.relative_to(place.location)) for path in Path(place.location).rglob("*.parquet")}
    assert stored <= kept
    assert len(kept) == 18 + 3
    assert [row["position"] for row in archived(place.location)] == list(range(300))


def test_compaction_during_writes_merges_only_many_small_files(place: ArchiveLocation) -> None:
    archive = filled(place, batches=7)
    assert compact(archive, meanwhile=True).files_before == 0
    add(archive, 350, 400)
    assert compact(archive, meanwhile=True).files_before == 24
    assert len(check_files(place.location)) == 3


def test_vacuum_keeps_files_of_a_batch_under_way_for_a_day(place: ArchiveLocation) -> None:
    archive = filled(place, batches=1)
    (written,) = write_files(place, [batch_of(range(50, 55), ("a",))])  # not committed yet
    path = Path(place.path(written.path))
    day = 86_400
    for age in (3_700, day - 60):  # a slow store or a suspended machine
        aged(path, age)
        assert vacuum(archive, 3600.0) == 0
    assert archive.add(50, 55, [written])
    assert archived(place.location)[-1]["position"] == 54
    (left,) = write_files(place, [batch_of(range(5), ("a",))])  # of an attempt that failed
    aged(Path(place.path(left.path)), 2 * day)
    assert vacuum(archive, 3 * day) == 0
    assert vacuum(archive, 3600.0) == 1


def test_vacuum_removes_replaced_files_after_the_hours_to_keep(
    place: ArchiveLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = filled(place)
    hours_ago = time.time() - 3 * 3600
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: hours_ago)
        compact(archive)
    assert vacuum(archive, 4 * 3600.0) == 0
    assert vacuum(archive, 2 * 3600.0) == 18
    assert len(check_files(place.location)) == 3


def test_compaction_with_a_lost_file_does_not_commit(
    place: ArchiveLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = filled(place)

    def lost(*arguments: Any) -> list[Added]:
        added = write_files(*arguments)
        Path(place.path(added[0].path)).unlink()
        return added

    monkeypatch.setattr(compact_module, "write_files", lost)
    version = archive.table.version()
    with pytest.raises(ArchiveFailed, match="is missing"):
        compact(archive)
    assert ArchiveWriter(place).table.version() == version


def aged(path: Path, seconds: float) -> None:
    """Set the modification time back."""
    moment = time.time() - seconds
    os.utime(path, (moment, moment))
