"""Scan of many Parquet files: order and memory."""

from __future__ import annotations

import io
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.helpers.archives import ArchiveWriter
from tests.helpers.logs import DAY, Commit, Told, end_of, messages_of, random_log, told
from tests.unit.archive.test_reader import JOURNAL, archived, read
from tickertape.archive.parquet_scan import ParquetScan
from tickertape.archive.reader import ArchiveReader, fits
from tickertape.batch import batch_from_bodies

pytestmark = pytest.mark.slow


class Counted(io.BytesIO):
    """A file of an object store, which records the size of each read."""

    def __init__(self, data: bytes, read: list[int]) -> None:
        super().__init__(data)
        self._read = read

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self._read.append(len(data))
        return data


def test_scan_with_little_memory_returns_the_same_rows(tmp_path: Path) -> None:
    log = random_log(Random(5), 30)
    archive = archived(tmp_path, log)
    manifest = archive._covering(0, end_of(log))
    files = manifest.overlapping(0, end_of(log))
    scan = ParquetScan(archive.store, files, 0, end_of(log), memory_bytes=1)
    pieces = [piece for piece in scan if piece.rows is not None]
    assert [m for p in pieces if p.rows for m in told(p.rows.positions, p.rows.batch())] == messages_of(log)
    assert max(len(p.rows.positions) for p in pieces if p.rows) <= 3  # a row of each topic


def test_scan_memory_is_bounded_by_bytes_with_many_topics(tmp_path: Path) -> None:
    """Bound the buffers by bytes, because a row of each file and the last rows can be large."""
    size, topics, memory = 1 << 18, 40, 1 << 20
    log = []
    for at in range(3 * topics):
        body = (b"%d " % at).ljust(size, b"x")
        batch = batch_from_bodies(
            f"t{at * 7 % topics}", [body], publisher=5, first_sequence=at + 1, timestamp=DAY + at
        )
        log.append(Commit(np.arange(1) + at, batch))
    writer = ArchiveWriter(tmp_path, JOURNAL)
    writer.add(log, end_of(log), rows_per_group=1)
    archive = ArchiveReader(str(tmp_path))
    archive.refresh()
    manifest = archive._covering(0, end_of(log))
    files = manifest.overlapping(0, end_of(log))
    assert len(files) == topics
    before = pa.total_allocated_bytes()
    scan = ParquetScan(archive.store, files, 0, end_of(log), memory_bytes=memory)
    found: list[Told] = []
    most = 0
    for piece in scan:
        most = max(most, pa.total_allocated_bytes() - before)
        if piece.rows is not None:
            found += told(piece.rows.positions, piece.rows.batch())
    assert found == messages_of(log)
    # waiting rows, a chunk, and the same for the returned rows: 40 files held 10 MB
    assert most < 3 * memory


def test_scan_opens_each_file_of_many_topics_once(tmp_path: Path) -> None:
    """Small messages are read once, regardless of the compression of their columns."""
    topics, each = 20, 2000
    log = []
    for at in range(topics):
        bodies = [b'{"n":1}'] * each
        batch = batch_from_bodies(f"t{at}", bodies, publisher=5, first_sequence=1 + at * each, timestamp=DAY)
        log.append(Commit(np.arange(at, topics * each, topics), batch))
    writer = ArchiveWriter(tmp_path, JOURNAL)
    writer.add(log, topics * each)
    archive = ArchiveReader(str(tmp_path))
    archive.refresh()
    files = archive._covering(0, topics * each).overlapping(0, topics * each)
    scan = ParquetScan(archive.store, files, 0, topics * each, memory_bytes=1 << 19)
    assert sum(len(piece.rows.positions) for piece in scan if piece.rows is not None) == topics * each
    assert archive.store.files_opened == topics


def test_scan_reads_more_files_than_the_open_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickertape.archive.parquet_scan.archive_files_open_max", 1)
    monkeypatch.setattr("tickertape.archive.parquet_scan.archive_chunk_bytes_max", 100)
    log = random_log(Random(6), 30)
    archive = archived(tmp_path, log, 1)
    assert read(archive, 0, end_of(log)) == messages_of(log)
    assert archive.store.files_opened > len(archive._covering(0, 1))


def test_scan_of_an_object_store_bounds_the_fetched_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scans of many files fetch a page of each, and scans of few files fetch whole row groups."""
    topics, each, size, bound = 8, 128, 1 << 15, 5 << 20
    random = Random(1)
    log = []
    for at in range(topics):
        bodies = [random.randbytes(size) for _ in range(each)]
        batch = batch_from_bodies(f"t{at}", bodies, publisher=5, first_sequence=1 + at * each, timestamp=DAY)
        log.append(Commit(np.arange(at, topics * each, topics), batch))
    end = topics * each
    ArchiveWriter(tmp_path, JOURNAL).add(log, end)
    archive = ArchiveReader(str(tmp_path))
    archive.refresh()
    store = archive.store
    store.root = None
    fetched: list[int] = []

    def opens(path: str) -> Any:
        return Counted((tmp_path / path).read_bytes(), fetched)

    monkeypatch.setattr(store, "_open_remote", opens)
    for count in (topics, 1):
        fits_topic = f"^t({'|'.join(map(str, range(count)))})$"
        files = archive._covering(0, end).overlapping(0, end, fits(fits_topic))
        scan = ParquetScan(store, files, 0, end, memory_bytes=1 << 20, fetched_bytes=bound)
        rows = 0
        fetched.clear()
        for piece in scan:
            rows += 0 if piece.rows is None else len(piece.rows.positions)
            assert sum(stream.fetched_bytes for stream in scan._open) <= bound
        assert rows == count * each
        assert sum(read >= each * size for read in fetched) == 1  # the first one, before other files are open
        assert sum(fetched) < 3 * count * each * size
