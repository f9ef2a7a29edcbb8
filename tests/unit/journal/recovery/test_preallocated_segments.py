"""Preallocated segments renamed by an interrupted start."""

from __future__ import annotations

import contextlib

import pytest

from tests.simulation.journal_log import Driver, disk_with, messages_in
from tests.simulation.journal_world import FailingDisk, PowerLost
from tests.unit.journal.recovery.test_recovery import ACTIVE, EVERYTHING, LOG, RESERVED, files


def test_start_interrupted_at_any_operation_leaves_no_renamed_preallocated_segment() -> None:
    """Interrupt the start, which adopts a preallocated segment, before each operation."""
    for operations in range(200):
        disk = disk_with({**files(), RESERVED: bytes(8192)})
        cut = FailingDisk(disk, operations)
        with contextlib.suppress(PowerLost):
            Driver(cut)
        disk = disk.kill_clone()
        driver = Driver(disk)
        assert driver.recovered.unknown == []
        assert not [path for path in disk.contents() if ".again" in path]
        assert messages_in(driver.journal, disk) == EVERYTHING
        if cut.left is not None and cut.left > 0:
            return
    raise AssertionError("the start did not complete")


@pytest.mark.parametrize("data", [b"of somebody", bytes(100) + LOG.files[ACTIVE]])
def test_nonempty_file_named_like_a_preallocated_segment_is_left_unchanged(data: bytes) -> None:
    name = f"{RESERVED}.again"
    disk = disk_with({**files(reserved=None), name: data})
    driver = Driver(disk)
    assert driver.recovered.unknown == [name.removeprefix("journal/")]
    assert disk.contents()[name] == data
