"""Atomic replacement of files, in the data directory and in directories below it."""

from __future__ import annotations

from random import Random

import pytest

from tickertape.journal.format.files import replace_file
from tickertape.testing.disk import StrictDisk

NAMES = ("retired.bin", "sow/topic/manifest")


def made_disk() -> StrictDisk:
    disk = StrictDisk(Random(1))
    for path in ("sow", "sow/topic"):
        disk.make_directory(path)
    for path in (".", "sow"):
        disk.sync_directory(path)
    return disk


@pytest.mark.parametrize("name", NAMES)
def test_replaced_file_is_durable_in_the_directory_of_the_file(name: str) -> None:
    disk = made_disk()
    for data in (b"first", b"second"):
        replace_file(disk, name, [data])
        assert disk.crash_clone(Random(1)).contents()[name] == data


@pytest.mark.parametrize("name", NAMES)
def test_temporary_file_left_by_a_crash_does_not_prevent_a_replacement(name: str) -> None:
    disk = made_disk()
    replace_file(disk, name, [b"first"])
    disk.close(disk.open(f"{name}.new", create=True))
    replace_file(disk, name, [b"second"])
    assert disk.contents()[name] == b"second"
    assert f"{name}.new" not in disk.contents()
