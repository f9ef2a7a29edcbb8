"""The strict disk: what happens to a data directory from outside. Crashes and faults are in test_disk.py."""

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
def test_a_file_that_is_lost_is_lost_whatever_was_synced(
    disk: StrictDisk, how: str, seen: bytes, counted: str
) -> None:
    handle = durable_file(disk, "a", OLD + NEW)
    durable_file(disk, "b", NEW)
    disk.harm("a", how)
    assert disk.counts[counted] == 0, "nobody has met it"
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
    assert disk.contents()["a"] == b"x" * 9000, "what is written over stays"


def test_bytes_that_cannot_be_read_fail_each_read_of_them_until_they_are_written(disk: StrictDisk) -> None:
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


def test_only_what_is_there_and_known_can_be_harmed(disk: StrictDisk) -> None:
    durable_file(disk, "a", OLD)
    with pytest.raises(ValueError, match=r"Unknown damage 'burned'\. Use one of zeros, empty, unreadable"):
        disk.harm("a", "burned")
    with pytest.raises(FileNotFoundError):
        disk.harm("b", "zeros")
    with pytest.raises(KeyError):
        disk.lose("b")


def test_a_move_and_a_lost_lock_are_counted_when_they_strike(disk: StrictDisk) -> None:
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
