"""The strict disk: external damage to a data directory. `test_disk.py` has crashes and faults."""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.testing.test_disk import NEW, OLD, durable_file, futures
from tickertape.testing.disk import BusError, StrictDisk


@pytest.fixture
def disk() -> StrictDisk:
    return StrictDisk(Random(1))


@pytest.mark.parametrize(
    ("how", "seen", "counted"), [("zeros", bytes(8192), "read_as_zeros"), ("empty", b"", "read_as_empty")]
)
def test_damaged_file_loses_synced_data_until_repaired(
    disk: StrictDisk, how: str, seen: bytes, counted: str
) -> None:
    handle = durable_file(disk, "a", OLD + NEW)
    durable_file(disk, "b", NEW)
    disk.harm("a", how)
    assert disk.counts[counted] == 0, "no read met the damage yet"
    assert disk.size(handle) == len(seen)
    assert disk.read(handle, 0, 10_000) == seen
    assert disk.counts[counted] > 0
    for after in (disk.kill_clone(), disk.crash_clone(Random(2))):
        assert after.contents() == {"a": seen, "b": NEW}
        after.mend()
        assert after.contents() == {"a": OLD + NEW, "b": NEW}, "a copy is brought back"
        assert after.crash_clone(Random(3)).contents() == {"a": OLD + NEW, "b": NEW}
    disk.write(handle, 0, [b"x" * 9000])
    disk.mend()
    assert disk.contents()["a"] == b"x" * 9000, "data written after the damage stays"


def test_unreadable_bytes_fail_each_read_until_rewritten(disk: StrictDisk) -> None:
    handle = durable_file(disk, "a", OLD + NEW)
    disk.harm("a", "unreadable", 4096, 4608)
    assert disk.read(handle, 0, 4096) == OLD
    assert disk.read(handle, 4608, 5000) == NEW[512:]
    for reader in (disk, disk.kill_clone(), disk.crash_clone(Random(2))):
        again = reader.open("a")
        for offset, size in ((0, 8192), (4607, 1), (4000, 97)):
            for read in (reader.read, reader.read_nowait):
                with pytest.raises(OSError, match="Input/output"):
                    read(again, offset, size)
        with pytest.raises(BusError):
            reader.map(again)
    assert disk.counts["unreadable"] == 3 * 7
    disk.write(handle, 4100, [b"x"])
    with pytest.raises(OSError, match="Input/output"):
        disk.read(handle, 4096, 1)
    disk.write(handle, 4096, [b"y" * 512])
    assert disk.read(handle, 4000, 700) == b"o" * 96 + b"y" * 512 + b"n" * 92
    assert len(disk.map(handle)) == 8192


def test_damage_of_unknown_kind_or_to_missing_file_is_rejected(disk: StrictDisk) -> None:
    durable_file(disk, "a", OLD)
    with pytest.raises(ValueError, match=r"Unknown damage 'burned'\. Use zeros, empty or unreadable"):
        disk.harm("a", "burned")
    with pytest.raises(FileNotFoundError):
        disk.harm("b", "zeros")
    with pytest.raises(FileNotFoundError):
        disk.lose("b")


def test_lost_file_frees_disk_space(disk: StrictDisk) -> None:
    durable_file(disk, "a", OLD)
    durable_file(disk, "b", NEW)
    disk.lose("a")
    assert disk.used_bytes == disk.kill_clone().used_bytes == len(NEW)


def test_moved_directory_and_lost_lock_are_counted_when_first_noticed(disk: StrictDisk) -> None:
    disk.lock("lock", "first")
    disk.move_away()
    assert disk.counts["directory_moved"] == 0
    disk.names(".")
    disk.names(".")
    assert disk.counts["directory_moved"] == 1
    other = disk.second_process()
    with pytest.raises(BlockingIOError):
        other.lock("lock", "second")
    assert disk.counts["lock_lost"] == 0
    disk.lose("lock")
    assert all("lock" not in future for future in futures(disk, 20))
    with pytest.raises(BlockingIOError):
        other.lock("lock", "second")
    assert disk.counts["lock_lost"] == 1
