"""What every disk must do when its directory is renamed, or its lock file removed; see test_disk.py."""

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
    """A disk of the same directory."""
    if isinstance(disk, StrictDisk):
        return disk.second_process()
    if isinstance(disk, SystemDisk):
        return SystemDisk(disk.root)
    pytest.skip("how another process gets at this disk is not known here")


def _moved_away(disk: Disk) -> ClosableDisk:
    """A disk of the empty directory that has taken the place of the one that `disk` has in use."""
    if isinstance(disk, StrictDisk):
        return disk.move_away()
    if isinstance(disk, SystemDisk):
        disk.root.rename(disk.root.with_name("moved"))
        disk.root.mkdir()
        return SystemDisk(disk.root)
    pytest.skip("how this disk is renamed is not known here")


def _removed(disk: Disk, path: str) -> None:
    """Somebody removes a file, by other means."""
    if isinstance(disk, StrictDisk):
        disk.lose(path)
    elif isinstance(disk, SystemDisk):
        (disk.root / path).unlink()


def test_another_process_sees_what_is_there_and_is_kept_out(disk: ClosableDisk) -> None:
    create(disk, "a", b"abc")
    other = _another_process(disk)
    assert contents(other, "a") == b"abc"
    disk.lock("lock", "first")
    with pytest.raises(BlockingIOError, match=r"^first \(pid \d+\)$"):
        other.lock("lock", "second")
    disk.close_all()
    other.lock("lock", "second")
    other.close_all()


def test_a_lock_whose_file_is_removed_still_keeps_others_out(disk: ClosableDisk) -> None:
    disk.lock("lock", "first")
    other = _another_process(disk)
    _removed(disk, "lock")
    with pytest.raises(BlockingIOError, match="another process"):
        other.lock("lock", "second")
    assert other.names(".") == []
    create(other, "lock", b"what somebody wrote\n")
    with pytest.raises(BlockingIOError, match=r"^what somebody wrote$"):
        other.lock("lock", "second")
    disk.close_all()
    other.lock("lock", "second")
    other.close_all()


def test_a_directory_that_is_renamed_is_used_on_and_no_other(disk: ClosableDisk) -> None:
    disk.make_directory("d")
    handle = create(disk, "d/a", b"abc")
    disk.lock("lock", "first")
    there = _moved_away(disk)
    there.make_directory("d")
    create(there, "d/a", b"of the other")
    there.lock("lock", "second")
    disk.write(handle, 3, [b"d"])
    create(disk, "d/b", b"new")
    disk.rename("d/b", "c")
    disk.sync_directory("d")
    disk.sync_directory(".")
    disk.remove("d/a")
    assert (disk.names("."), disk.names("d")) == (["c", "d", "lock"], [])
    assert (there.names("."), there.names("d")) == (["d", "lock"], ["a"])
    assert contents(there, "d/a") == b"of the other"
    there.close_all()
