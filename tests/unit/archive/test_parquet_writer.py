"""Files of the archive: by day and topic, in order, with bounded row groups and pages."""

from __future__ import annotations

import gc
import io
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.archive_rows import JOURNAL, archived, batch_of, check_files, rows_of
from tickertape.archive import parquet_writer
from tickertape.archive.archive_writer import ArchiveWriter
from tickertape.archive.delta_table import local_path
from tickertape.archive.limits import archive_page_bytes, archive_page_messages_max
from tickertape.archive.location import ArchiveLocation, location_of, new_file
from tickertape.archive.parquet_writer import Added, FileWriter, write_files
from tickertape.base.errors import ArchiveFailed, BadOption

DAY = 86_400_000_000


def written(tmp_path: Path, batches: list[pa.RecordBatch], end: int) -> list[Added]:
    place = location_of(str(tmp_path / "archive"))
    archive = ArchiveWriter.create(place, JOURNAL, 0, "")
    files = write_files(place, batches)
    assert archive.add(0, end, files)
    return files


def test_written_rows_are_read_back_unchanged(tmp_path: Path) -> None:
    batches = [batch_of(range(start, start + 100), ("a", "b/c d%", "ü")) for start in range(0, 500, 100)]
    files = written(tmp_path, batches, 500)
    assert archived(tmp_path / "archive") == rows_of(batches)
    assert sorted(file.topic for file in files) == ["a", "b/c d%", "ü"]
    assert sum(file.rows for file in files) == 500
    check_files(tmp_path / "archive")


def test_each_day_has_separate_files(tmp_path: Path) -> None:
    batches = [batch_of(range(10), micros_each=DAY // 4)]
    files = written(tmp_path, batches, 10)
    assert len({file.day for file in files}) == len(files) == 3
    assert archived(tmp_path / "archive") == rows_of(batches)
    check_files(tmp_path / "archive")


def test_row_groups_are_bounded_by_rows_and_by_bodies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_writer, "row_group_rows_max", 64)
    monkeypatch.setattr(parquet_writer, "archive_row_group_bytes_max", 20_000)
    batches = [
        batch_of(range(100)),
        batch_of(range(100, 150), body=b"x" * 1000),
        batch_of(range(150, 152), body=b"y" * 30_000),
    ]
    written(tmp_path, batches, 152)
    (found,) = check_files(tmp_path / "archive")
    rows = [found.row_group(at).num_rows for at in range(found.num_row_groups)]
    assert sum(rows) == 152
    assert max(rows) == 64
    assert rows[-2:] == [1, 1]  # larger than a group may be, so alone
    sizes = [found.row_group(at).column(4).total_uncompressed_size for at in range(found.num_row_groups)]
    assert max(sizes[:-2]) < 21_000
    assert archived(tmp_path / "archive") == rows_of(batches)


def test_pages_are_bounded_with_large_bodies(tmp_path: Path) -> None:
    """A reader holds a page in memory, so a page must not contain a thousand large messages."""
    batches = [batch_of([at], body=os.urandom(100_000)) for at in range(100)]
    (file,) = written(tmp_path, [pa.concat_batches(batches)], 100)
    read: list[int] = []

    class RecordingFile(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            read.append(len(data))
            return data

    source = RecordingFile((tmp_path / "archive" / file.path).read_bytes())
    found = pq.ParquetFile(source, pre_buffer=False, buffer_size=4096)
    assert sum(batch.num_rows for batch in found.iter_batches(10)) == 100
    assert max(read) < archive_page_bytes + (archive_page_messages_max + 1) * 100_000


def test_row_groups_can_be_pruned_and_bodies_have_no_statistics(tmp_path: Path) -> None:
    files = written(tmp_path, [batch_of(range(10))], 10)
    group = pq.ParquetFile(tmp_path / "archive" / files[0].path).metadata.row_group(0)
    columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    assert {name for name, column in columns.items() if column.is_stats_set} == {
        "position", "publisher", "sequence", "timestamp",
    }  # fmt: skip
    assert (columns["position"].statistics.min, columns["position"].statistics.max) == (0, 9)
    assert {column.compression for column in columns.values()} == {"ZSTD"}


def test_write_buffers_are_bounded_with_many_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_writer, "buffer_bytes_max", 30_000)
    monkeypatch.setattr(parquet_writer, "files_open_max", 3)
    topics = [f"t{n}" for n in range(20)]
    batches = [batch_of(range(start, start + 100), topics, body=b"x" * 200) for start in range(0, 2000, 100)]
    place = location_of(str(tmp_path / "archive"))
    archive = ArchiveWriter.create(place, JOURNAL, 0, "")
    writer = FileWriter(place)
    for batch in batches:
        writer.write(batch)
        assert writer._cost <= 30_000
        assert writer._cost == sum(waiting.cost for waiting in writer._waiting.values())
        assert len(writer._open) <= 3
    files = writer.finish()
    assert len(files) > len(topics)
    archive.add(0, 2000, files)
    assert archived(tmp_path / "archive") == rows_of(batches)
    check_files(tmp_path / "archive")


def test_file_at_the_target_size_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_writer, "row_group_rows_max", 50)
    monkeypatch.setattr(parquet_writer, "file_bytes_target", 4000)
    batches = [batch_of(range(1000))]
    files = written(tmp_path, batches, 1000)
    assert len(files) > 2
    assert min(file.bytes for file in files[:-1]) >= 4000
    assert archived(tmp_path / "archive") == rows_of(batches)
    check_files(tmp_path / "archive")


def test_rows_out_of_order_are_refused_without_a_file(tmp_path: Path) -> None:
    place = location_of(str(tmp_path / "archive"))
    for batches in ([batch_of([1, 3, 2])], [batch_of([1, 1])]):
        with pytest.raises(ArchiveFailed, match="positions must ascend"):
            write_files(place, batches)
    writer = FileWriter(place)
    writer.write(batch_of([5]))
    writer._flush(next(iter(writer._waiting)))
    writer.write(batch_of([4]))
    with pytest.raises(ArchiveFailed, match="must ascend, and be above position 5"):
        writer.finish()
    writer.abandon(ArchiveFailed("over"))
    assert [path for path in (tmp_path / "archive").rglob("*") if path.is_file()] == []


def test_failing_row_source_leaves_no_file(tmp_path: Path) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield batch_of(range(70_000))  # more than a row group: a file is open
        raise OSError("the server went away")

    with pytest.raises(OSError, match="the server went away"):
        write_files(location_of(str(tmp_path / "archive")), broken())
    assert [path for path in (tmp_path / "archive").rglob("*") if path.is_file()] == []


def test_empty_input_writes_no_file(tmp_path: Path) -> None:
    assert write_files(location_of(str(tmp_path)), [batch_of([])]) == []
    assert list(tmp_path.iterdir()) == []


def test_location_is_normalized_to_an_absolute_path_or_uri(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert location_of("archive").location == str(tmp_path / "archive")
    assert location_of("file:///srv/archive").location == "/srv/archive"
    assert location_of((tmp_path / "a b%").as_uri()).location == str(local_path((tmp_path / "a b%").as_uri()))
    assert location_of("s3://bucket/archive/", {"AWS_REGION": "x"}).options == {"AWS_REGION": "x"}
    assert not location_of("s3://bucket/archive").is_directory
    for location, options in (("", {}), ("archive", {"a": "b"}), ("file://host/x", {}), ("s4://b/x", {})):
        with pytest.raises(BadOption):
            location_of(location, options)


def test_unsafe_rename_option_is_refused() -> None:
    with pytest.raises(BadOption, match="concurrent commits could replace each other"):
        location_of("s3://bucket/archive", {"aws_s3_allow_unsafe_rename": "true"})
    assert not location_of("s3://bucket/archive", {"AWS_S3_ALLOW_UNSAFE_RENAME": "false"}).is_directory


@pytest.mark.parametrize("scheme", ["s3", "S3a"])
def test_unsafe_rename_in_the_environment_is_refused_for_s3(
    monkeypatch: pytest.MonkeyPatch, scheme: str, tmp_path: Path
) -> None:
    name = "AWS_S3_ALLOW_UNSAFE_RENAME"
    uri = f"{scheme}://bucket/archive"
    monkeypatch.setenv(name, "true")
    for options in ({}, {name: "false"}):
        with pytest.raises(BadOption, match=f"Invalid environment variable {name}: concurrent commits"):
            location_of(uri, options)
    assert not location_of("gs://bucket/archive").is_directory
    assert location_of(str(tmp_path)).is_directory
    monkeypatch.setenv(name, "0")
    assert not location_of(uri).is_directory


def test_existing_file_is_never_replaced(tmp_path: Path) -> None:
    place = location_of(str(tmp_path))
    with new_file(place, "date=2026-01-01/x.parquet") as file:
        file.write(b"one")
    with pytest.raises(FileExistsError), new_file(place, "date=2026-01-01/x.parquet") as file:
        file.write(b"two")
    assert (tmp_path / "date=2026-01-01" / "x.parquet").read_bytes() == b"one"


def test_object_store_is_written_through_delta_rs(tmp_path: Path) -> None:
    """Use a directory as object store: delta-rs treats a file URI like one."""
    (tmp_path / "archive").mkdir()
    place = ArchiveLocation(f"file://{tmp_path}/archive")
    assert not place.is_directory
    archive = ArchiveWriter.create(place, JOURNAL, 0, "")
    batches = [batch_of(range(100), ("a", "b"))]
    assert archive.add(0, 100, write_files(place, batches))
    assert archived(tmp_path / "archive") == rows_of(batches)
    check_files(tmp_path / "archive")


def test_unfinished_file_does_not_appear_in_an_object_store(tmp_path: Path) -> None:
    place = ArchiveLocation(f"file://{tmp_path}")

    def broken() -> Iterator[pa.RecordBatch]:
        yield batch_of(range(70_000))
        raise OSError("over")

    with pytest.raises(OSError, match="over"):
        write_files(place, broken())
    gc.collect()
    assert list(tmp_path.rglob("*.parquet")) == []
