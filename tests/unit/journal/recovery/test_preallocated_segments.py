"""A reserve that an earlier start was giving its name anew when it was cut short."""

from __future__ import annotations

import contextlib

import pytest

from tests.simulation.journal_log import Driver, disk_with, messages_in
from tests.simulation.journal_world import FailingDisk, PowerLost
from tests.unit.journal.recovery.test_recovery import ACTIVE, EVERYTHING, LOG, RESERVED, files


def test_a_start_cut_short_between_two_renames_of_a_reserve_leaves_nothing_behind() -> None:
    """Before every operation of a start that takes over a reserve, and again."""
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
    raise AssertionError("the start did not come to its end")


@pytest.mark.parametrize("data", [b"of somebody", bytes(100) + LOG.files[ACTIVE]])
def test_a_name_like_a_reserves_with_anything_in_it_is_left(data: bytes) -> None:
    name = f"{RESERVED}.again"
    disk = disk_with({**files(reserved=None), name: data})
    driver = Driver(disk)
    assert driver.recovered.unknown == [name.removeprefix("journal/")]
    assert disk.contents()[name] == data
