"""What a crash leaves of names that were removed."""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.testing.test_disk import NEW, OLD, durable_file, futures
from tickertape.testing.disk import StrictDisk


@pytest.fixture
def disk() -> StrictDisk:
    return StrictDisk(Random(5))


def test_an_unsynced_removal_may_be_undone_and_a_synced_one_not(disk: StrictDisk) -> None:
    durable_file(disk, "a", OLD)
    durable_file(disk, "b", NEW)
    used = disk.used_bytes
    disk.remove("a")
    disk.remove("b")
    assert disk.used_bytes < used
    seen = futures(disk)
    left = [{"a": OLD, "b": NEW}, {"a": OLD}, {"b": NEW}, {}]
    assert all(future in left for future in seen)
    assert all(future in seen for future in left)
    assert disk.counts["removal_lost"] > 0
    assert disk.counts["removal_kept"] > 0
    disk.sync_directory("")
    assert futures(disk, 50) == [{}] * 50


def test_a_name_that_is_used_again_after_a_removal_is_the_old_file_none_or_the_new(
    disk: StrictDisk,
) -> None:
    durable_file(disk, "a", OLD)
    disk.remove("a")
    handle = disk.open("a", create=True)
    disk.write(handle, 0, [NEW])
    disk.sync(handle)
    seen = futures(disk)
    left = [{"a": OLD}, {}, {"a": NEW}]
    assert all(future in left for future in seen)
    assert all(future in seen for future in left)
