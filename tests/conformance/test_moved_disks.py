"""Every disk after a rename of the directory or removal of the lock file (see `test_disk.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.test_disk import FACTORIES, ClosableDisk, contents, create
from tickertape.base.interfaces import Disk
from tickertape.journal.disk import SystemDisk
from tickertape.testing.disk import StrictDisk


@pytest.fixture(params=list(FACTORIES))
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClosableDisk]:
    made = FACTORIES[request.param](tmp_path)
    yield made
    made.close_all()


def _another_process(disk: Disk) -> ClosableDisk:
    """Return a second disk of the same directory."""
    if isinstance(disk, StrictDisk):
        return disk.second_process()
    if isinstance(disk, SystemDisk):
        return SystemDisk(disk.root)
    pytest.skip("no second process for this kind of disk")


def _moved_away(disk: Disk) -> ClosableDisk:
    """Replace the directory of `disk` by an empty one and return a disk of the new directory."""
    if isinstance(disk, StrictDisk):
        return disk.move_away()
    if isinstance(disk, SystemDisk):
        disk.root.rename(disk.root.with_name("moved"))
        disk.root.mkdir()
        return SystemDisk(disk.root)
    pytest.skip("no rename for this kind of disk")


def _removed(disk: Disk, path: str) -> None:
    """Remove a file by external means."""
    if isinstance(disk, StrictDisk):
        disk.lose(path)
    elif isinstance(disk, SystemDisk):
        (disk.root / path).unlink()


def test_second_process_reads_files_and_cannot_take_the_lock(disk: ClosableDisk) -> None:
    create(disk, "a", b"abc")
    other = _another_process(disk)
    assert contents(other, "a") == b"abc"
    disk.lock("lock", "first")
    with pytest.raises(BlockingIOError, match=r"^first \(pid \d+\)$"):
        other.lock("lock", "second")
    disk.close_all()
    other.lock("lock", "second")
    other.close_all()


def test_lock_with_removed_file_still_excludes_other_processes(disk: ClosableDisk) -> None:
    disk.lock("lock", "first")
    other = _another_process(disk)
    _removed(disk, "lock")
    with pytest.raises(BlockingIOError, match="another process"):
        other.lock("lock", "second")
    assert other.names(".") == []
    create(other, "lock", b"external text\n")
    with pytest.raises(BlockingIOError, match=r"^external text$"):
        other.lock("lock", "second")
    disk.close_all()
    other.lock("lock", "second")
    other.close_all()


def test_disk_with_renamed_directory_continues_in_the_renamed_directory(disk: ClosableDisk) -> None:
    disk.make_directory("d")
    handle = create(disk, "d/a", b"abc")
    disk.lock("lock", "first")
    replacement = _moved_away(disk)
    replacement.make_directory("d")
    create(replacement, "d/a", b"of the other")
    replacement.lock("lock", "second")
    disk.write(handle, 3, [b"d"])
    create(disk, "d/b", b"new")
    disk.rename("d/b", "c")
    disk.sync_directory("d")
    disk.sync_directory(".")
    disk.remove("d/a")
    assert (disk.names("."), disk.names("d")) == (["c", "d", "lock"], [])
    assert (replacement.names("."), replacement.names("d")) == (["d", "lock"], ["a"])
    assert contents(replacement, "d/a") == b"of the other"
    replacement.close_all()
