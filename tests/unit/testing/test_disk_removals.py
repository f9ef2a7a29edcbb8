"""The strict disk: removed names after a crash."""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.testing.test_disk import NEW, OLD, durable_file, futures
from tickertape.testing.disk import StrictDisk


@pytest.fixture
def disk() -> StrictDisk:
    return StrictDisk(Random(5))


def test_removal_may_be_undone_by_crash_only_while_unsynced(disk: StrictDisk) -> None:
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


def test_reused_name_after_unsynced_removal_is_the_old_file_none_or_the_new(
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
