"""Archive reader: messages as published, in order, from as few files as possible."""

from __future__ import annotations

import os
import shutil
from multiprocessing import get_context
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.transaction import RemoveAction

from tests.helpers.archives import ArchiveWriter
from tests.helpers.logs import DAY, Commit, Told, end_of, messages_of, random_log, told
from tickertape.archive.limits import archive_looks_max
from tickertape.archive.reader import ArchiveReader, fits
from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import ArchiveFailed, WrongJournal
from tickertape.batch import batch_from_bodies
from tickertape.filter import compile_filter
from tickertape.payload import message_type

pytestmark = pytest.mark.slow

JOURNAL = "0123456789abcdef" * 2


def archived(location: Path, log: list[Commit], splits: int = 3, rows_per_group: int = 20) -> ArchiveReader:
    """Return the archive of a log that was written in `splits` batches."""
    writer = ArchiveWriter(location, JOURNAL, begin=int(log[0].positions[0]))
    for part in np.array_split(np.arange(len(log)), splits):
        some = [log[i] for i in part.tolist()]
        writer.add(some, end_of(some), rows_per_group=rows_per_group, rows_per_file=50)
    archive = ArchiveReader(str(location), JOURNAL)
    archive.refresh()
    return archive


def read(
    archive: ArchiveReader, begin: int, end: int, topic: str | None = None, bytes_max: int = 1 << 20
) -> list[Told]:
    found: list[Told] = []
    reached = begin
    for piece in archive.messages(begin, end, topic, bytes_max=bytes_max):
        assert piece.end >= reached
        if piece.batch is not None:
            piece.batch.verify()
            assert reached <= piece.positions[0] <= piece.positions[-1] < piece.end
            found += told(piece.positions, piece.batch)
        reached = piece.end
    assert reached == end
    return found


@pytest.mark.parametrize("seed", range(3))
def test_archived_messages_are_read_back_as_published(tmp_path: Path, seed: int) -> None:
    log = random_log(Random(seed), 60)
    archive = archived(tmp_path, log)
    end, everything = end_of(log), messages_of(log)
    assert read(archive, 0, end) == everything
    assert read(archive, 0, end, bytes_max=1) == everything
    for topic in ("a", "c/d", "^[ab]$", "none"):
        wanted = [m for m in everything if fits(topic)(m[4])]
        assert read(archive, 0, end, topic) == wanted
    random = Random(seed)
    for _ in range(10):
        low, high = sorted((random.randint(0, end), random.randint(0, end)))
        assert read(archive, low, high) == [m for m in everything if low <= m[0] < high]


def test_unused_columns_are_absent_from_the_batch(tmp_path: Path) -> None:
    batch = batch_from_bodies("t", [b"1", b"", b"333"], publisher=5, first_sequence=9, timestamp=DAY)
    archive = archived(tmp_path, [Commit(np.arange(3), batch)], 1)
    (piece, last) = list(archive.messages(0, 3))
    assert piece.batch is not None
    assert last.batch is None
    assert (piece.batch.columns, piece.batch.run_count, piece.batch.topics) == (0, 1, ("t",))
    assert bytes(piece.batch.bodies) == bytes(batch.bodies)


def test_read_with_a_filter_returns_matching_messages(tmp_path: Path) -> None:
    log = random_log(Random(7), 40)
    archive = archived(tmp_path, log)
    passing = compile_filter("/n % 10 = 3", message_type("json"))
    found: list[Told] = []
    for piece in archive.messages(0, end_of(log), filter=passing):
        if piece.batch is not None:
            piece.batch.verify()
            found += told(piece.positions, piece.batch)
    assert found == [m for m in messages_of(log) if passing.matches(m[5])]
    assert found


def test_reader_opens_only_files_and_row_groups_in_range(tmp_path: Path) -> None:
    bodies = [b"%d" % i for i in range(1000)]
    log = [
        Commit(
            np.arange(n * 1000, (n + 1) * 1000),
            batch_from_bodies(
                "t1" if n % 2 else "t0", bodies, publisher=1, first_sequence=n * 1000 + 1, timestamp=n
            ),
        )
        for n in range(10)
    ]
    writer = ArchiveWriter(tmp_path, JOURNAL)
    for commit in log:
        writer.add([commit], end_of([commit]), rows_per_group=100)
    archive = ArchiveReader(str(tmp_path))
    store = archive.store
    assert len(read(archive, 4150, 4250)) == 100
    assert (store.files_opened, store.groups_read) == (1, 2)
    assert read(archive, 4150, 4250, "t1") == []
    assert (store.files_opened, store.groups_read) == (1, 2)
    assert archive.find_bookmark(Bookmark(1, 7500), 10_000) == 7499
    assert (store.files_opened, store.groups_read) == (2, 3)
    assert archive.find_time(7, 0, 10_000) == 7000
    assert store.files_opened <= 10  # timestamps in the statistics are whole milliseconds
    before = store.groups_read
    last = archive.last_before(7000)
    assert last is not None
    assert last[:2] == (6999, Bookmark(1, 7000))
    assert store.groups_read == before + 1


@pytest.mark.parametrize("seed", range(2))
def test_reader_finds_positions_by_bookmark_and_time(tmp_path: Path, seed: int) -> None:
    log = random_log(Random(seed), 60, first=100)
    archive = archived(tmp_path, log)
    everything, end = messages_of(log), end_of(log)
    for position, publisher, sequence, stamp, *_ in everything[::19]:
        assert archive.find_bookmark(Bookmark(publisher, sequence), end) == position
        assert archive.find_bookmark(Bookmark(publisher, sequence), position) is None
        assert archive.find_time(stamp, 0, end) == next(m[0] for m in everything if m[3] >= stamp)
        later = [m[0] for m in everything if m[3] >= stamp and 150 <= m[0] < 200]
        assert archive.find_time(stamp, 150, 200) == (later[0] if later else None)
        before = [m for m in everything if m[0] < position]
        expected = (before[-1][0], Bookmark(before[-1][1], before[-1][2]), before[-1][3]) if before else None
        assert archive.last_before(position) == expected
    assert archive.find_bookmark(Bookmark(9, 1), end) is None
    assert archive.find_time(everything[-1][3] + 1, 0, end) is None
    assert archive.last_before(0) is None


def test_files_without_statistics_are_always_read(tmp_path: Path) -> None:
    log = random_log(Random(8), 12)
    writer = ArchiveWriter(tmp_path, JOURNAL)
    for commit in log:
        writer.add([commit], end_of([commit]), statistics=False)
    archive = ArchiveReader(str(tmp_path))
    everything = messages_of(log)
    assert read(archive, 0, end_of(log)) == everything
    position, publisher, sequence, stamp, *_ = everything[30]
    assert archive.find_bookmark(Bookmark(publisher, sequence), end_of(log)) == position
    assert archive.find_time(stamp, 0, end_of(log)) == next(m[0] for m in everything if m[3] >= stamp)
    last = everything[29]
    assert archive.last_before(position) == (last[0], Bookmark(last[1], last[2]), last[3])


# -- damage and changes -------------------------------------------------------------------------------


def test_range_outside_the_coverage_is_refused(tmp_path: Path) -> None:
    log = random_log(Random(1), 10, first=50)
    archive = archived(tmp_path, log)
    for begin, end in ((0, 60), (50, end_of(log) + 1)):
        with pytest.raises(ArchiveFailed, match=f"has positions 50 to {end_of(log)} "):
            archive.scan(begin, end)


def test_reader_without_a_table_waits_for_creation(tmp_path: Path) -> None:
    archive = ArchiveReader(str(tmp_path / "none"))
    assert archive.refresh() is None
    with pytest.raises(ArchiveFailed, match="it has no table yet"):
        archive.scan(0, 1)
    log = random_log(Random(1), 10)
    archived(tmp_path / "none", log)
    assert read(archive, 0, end_of(log)) == messages_of(log)


def test_reader_refuses_the_archive_of_another_journal(tmp_path: Path) -> None:
    archived(tmp_path, random_log(Random(1), 10))
    with pytest.raises(WrongJournal):
        ArchiveReader(str(tmp_path), "f" * 32).refresh()


def test_missing_file_raises_archive_failed(tmp_path: Path) -> None:
    log = random_log(Random(2), 30)
    archive = archived(tmp_path, log)
    removed = min(tmp_path.rglob("*.parquet"))
    removed.unlink()
    with pytest.raises(ArchiveFailed, match=removed.name) as error:
        read(archive, 0, end_of(log))
    assert error.value.missing


def test_damaged_page_raises_archive_failed(tmp_path: Path) -> None:
    log = random_log(Random(2), 60)
    archive = archived(tmp_path, log, 1)
    victim = max(tmp_path.rglob("*.parquet"), key=lambda path: path.stat().st_size)
    data = bytearray(victim.read_bytes())
    about = pq.ParquetFile(victim).metadata.row_group(0).column(4)
    data[about.data_page_offset + about.total_compressed_size // 2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(ArchiveFailed, match=victim.name):
        read(archive, 0, end_of(log))


def _read_what_is_cut_short(location: Path) -> None:
    """Run in a separate process: access to a mapped page beyond the file raises a signal."""
    archive = ArchiveReader(str(location), JOURNAL)
    pieces = archive.messages(0, 8000, bytes_max=4096)
    next(pieces)
    for path in location.rglob("*.parquet"):
        os.truncate(path, 4096)
    with pytest.raises(ArchiveFailed, match=r"\.parquet"):
        list(pieces)


def test_file_truncated_during_a_read_raises_archive_failed(tmp_path: Path) -> None:
    noise = Random(1)
    bodies = [noise.randbytes(100) for _ in range(8000)]
    log = [Commit(np.arange(8000), batch_from_bodies("t", bodies, publisher=1, first_sequence=1))]
    ArchiveWriter(tmp_path, JOURNAL).add(log, 8000, rows_per_group=500)
    reader = get_context("spawn").Process(target=_read_what_is_cut_short, args=(tmp_path,))
    reader.start()
    reader.join(120)
    assert reader.exitcode == 0


def rewritten(path: Path, rows: pa.Table) -> None:
    pq.write_table(rows, path, row_group_size=1 << 20)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda rows: rows.slice(0, rows.num_rows - 1), "the table records"),
        (lambda rows: rows.take(np.arange(rows.num_rows)[::-1]), "not in position order"),
        (
            lambda rows: rows.set_column(0, "position", pa.nulls(rows.num_rows, pa.int64())),
            "column position is null",
        ),
        (lambda rows: rows.set_column(1, "publisher", pa.array(["x"] * rows.num_rows)), "Cannot read '"),
        (lambda rows: rows.drop_columns(["data"]), "no column 'data'"),
    ],
)
def test_rows_that_contradict_the_table_raise_archive_failed(
    tmp_path: Path, damage: object, expected: str
) -> None:
    log = random_log(Random(3), 20)
    archive = archived(tmp_path, log, 1)
    victim = max(tmp_path.rglob("*.parquet"), key=lambda path: path.stat().st_size)
    assert callable(damage)
    rewritten(victim, damage(pq.read_table(victim, partitioning=None)))
    with pytest.raises(ArchiveFailed, match=expected) as error:
        read(archive, 0, end_of(log))
    assert victim.name in str(error.value)


def test_row_groups_out_of_order_raise_archive_failed(tmp_path: Path) -> None:
    log = random_log(Random(3), 40)
    archive = archived(tmp_path, log, 1, rows_per_group=1 << 20)
    victim = max(tmp_path.rglob("*.parquet"), key=lambda path: path.stat().st_size)
    rows = pq.read_table(victim, partitioning=None)
    half = rows.num_rows // 2
    pq.write_table(pa.concat_tables([rows.slice(half), rows.slice(0, half)]), victim, row_group_size=half)
    with pytest.raises(ArchiveFailed, match="not in position order"):
        read(archive, 0, end_of(log))


def test_duplicate_position_raises_archive_failed(tmp_path: Path) -> None:
    log = random_log(Random(4), 20)
    writer = ArchiveWriter(tmp_path, JOURNAL)
    writer.add(log, 1)
    writer.add(log, end_of(log))
    with pytest.raises(ArchiveFailed, match="is in two files"):
        read(ArchiveReader(str(tmp_path)), 0, end_of(log))


def test_compaction_during_a_read_does_not_change_the_rows(tmp_path: Path) -> None:
    log = random_log(Random(9), 10)
    writer = ArchiveWriter(tmp_path, JOURNAL)
    for commit in log:
        writer.add([commit], end_of([commit]))
    archive = ArchiveReader(str(tmp_path))
    reading = archive.messages(0, end_of(log))
    first = next(reading)
    old = writer.table.get_add_actions(flatten=True)
    paths = pa.table(old).column("path").to_pylist()
    writer.add(log, end_of(log))  # the same rows in fewer files
    removed = [RemoveAction(path=path, data_change=False, deletion_timestamp=0) for path in paths]
    writer.commit(removed, None)
    for path in paths:
        (tmp_path / path).unlink()
    rest = [piece for piece in reading if piece.batch is not None]
    assert first.batch is not None
    found = told(first.positions, first.batch)
    for piece in rest:
        assert piece.batch is not None
        found += told(piece.positions, piece.batch)
    assert found == messages_of(log)


def test_deleted_table_raises_archive_failed_until_restored(tmp_path: Path) -> None:
    log = random_log(Random(1), 10)
    archive = archived(tmp_path / "table", log)
    (tmp_path / "table").rename(tmp_path / "unmounted")
    with pytest.raises(ArchiveFailed, match=r"the table was deleted\. It had positions 0 to "):
        archive.refresh()
    (tmp_path / "unmounted").rename(tmp_path / "table")
    assert archive.refresh() is not None
    assert read(archive, 0, end_of(log)) == messages_of(log)


def test_table_with_removed_old_versions_is_reopened(tmp_path: Path) -> None:
    log = random_log(Random(1), 12)
    writer = ArchiveWriter(tmp_path, JOURNAL)
    writer.add(log[:6], end_of(log[:6]))
    archive = ArchiveReader(str(tmp_path), JOURNAL)
    archive.refresh()
    writer.add(log[6:], end_of(log))
    writer.table.create_checkpoint()
    for entry in (tmp_path / "_delta_log").glob("*.json"):
        entry.unlink()
    assert archive.refresh() == (JOURNAL, 0, end_of(log), "")
    assert read(archive, 0, end_of(log)) == messages_of(log)


@pytest.mark.parametrize("commits", [1, 6])
def test_recreated_table_is_detected_on_refresh(tmp_path: Path, commits: int) -> None:
    """The number of table versions does not matter."""
    location, log = tmp_path / "archive", random_log(Random(3), 20)
    archive = archived(location, log, splits=3)
    assert archive.refresh() == archive.coverage
    before = archive.table_id
    shutil.rmtree(location)
    archived(location, log[5:], splits=commits)
    for _ in range(archive_looks_max + 1):
        archive.refresh()
    coverage = archive.coverage
    assert coverage is not None
    assert coverage.begin == int(log[5].positions[0]) > 0
    assert archive.table_id != before
    wanted = [m for m in messages_of(log) if m[0] >= coverage.begin]
    assert read(archive, coverage.begin, coverage.end) == wanted


def test_recreated_table_is_reloaded_after_a_missing_file(tmp_path: Path) -> None:
    location, log = tmp_path / "archive", random_log(Random(3), 20)
    archive = archived(location, log, splits=3)
    shutil.rmtree(location)
    archived(location, log, splits=6)
    assert read(archive, 0, end_of(log)) == messages_of(log)


def test_statistics_of_another_type_do_not_prune(tmp_path: Path) -> None:
    log = random_log(Random(1), 20)
    archive = archived(tmp_path, log, 1)
    for file in tmp_path.rglob("*.parquet"):
        rows = pq.read_table(file, partitioning=None)
        names = rows.schema.names.index("publisher")
        rows = rows.set_column(names, "publisher", rows.column("publisher").cast(pa.binary()))
        rows = rows.set_column(
            rows.schema.names.index("timestamp"),
            "timestamp",
            rows.column("timestamp").cast(pa.timestamp("us")),
        )
        pq.write_table(rows, file, row_group_size=5)
    everything = messages_of(log)
    position, publisher, sequence, stamp, *_ = everything[20]
    assert read(archive, 0, end_of(log)) == everything
    assert archive.find_bookmark(Bookmark(publisher, sequence), end_of(log)) == position
    assert archive.find_time(stamp, 0, end_of(log)) == next(m[0] for m in everything if m[3] >= stamp)


def test_file_uri_is_read_as_a_path(tmp_path: Path) -> None:
    log = random_log(Random(1), 10)
    archived(tmp_path / "a b", log)
    archive = ArchiveReader((tmp_path / "a b").as_uri())
    assert archive.store.root == tmp_path / "a b"
    assert read(archive, 0, end_of(log)) == messages_of(log)


def test_object_store_is_read_like_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read through the file system of delta-rs, which accepts directories as stores."""
    log = random_log(Random(1), 30)
    archived(tmp_path, log)
    archive = ArchiveReader(tmp_path.as_uri(), options={"timeout": "5s"})
    archive.store.root = None
    assert read(archive, 0, end_of(log)) == messages_of(log)
    removed = min(tmp_path.rglob("*.parquet"))
    removed.unlink()
    with pytest.raises(ArchiveFailed, match=removed.name) as error:
        read(archive, 0, end_of(log))
    assert error.value.missing


def test_manifest_has_the_position_ranges_recorded_in_the_table(tmp_path: Path) -> None:
    log = random_log(Random(1), 10)
    manifest = archived(tmp_path, log, 1)._covering(0, end_of(log))
    files = [manifest.file(n) for n in range(len(manifest))]
    assert sum(file.rows or 0 for file in files) == len(messages_of(log))
    assert [file.low for file in files] == sorted(file.low for file in files)
    assert all(file.low <= file.high for file in files)
