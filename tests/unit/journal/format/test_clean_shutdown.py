"""The clean-shutdown record: complete or absent after any failure or power loss."""

from __future__ import annotations

import errno
from random import Random

import pytest

from tests.simulation.journal_log import Driver, disk_with, small_log
from tests.simulation.journal_world import FailingDisk, PowerLost, Trace
from tickertape.journal.format.log_end import (
    CLEAN_SHUTDOWN_FILE,
    CleanShutdown,
    read_clean_shutdown,
    write_clean_shutdown,
)
from tickertape.journal.offline.verify import verify
from tickertape.testing.disk import StrictDisk

EARLIER = CleanShutdown(segment=1, commit=7, position=30)
LATER = CleanShutdown(segment=2, commit=19, position=1000)
LOG = small_log(3, marks=True)


def test_clean_shutdown_record_reads_back_and_the_later_one_wins() -> None:
    disk = StrictDisk(Random(1))
    assert read_clean_shutdown(disk) is None
    for reached in (EARLIER, LATER):
        write_clean_shutdown(disk, reached)
        assert read_clean_shutdown(disk) == reached


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[1]", b'{"segment":1}', b'{"segment":"1","commit":1,"position":1}']
)
def test_invalid_clean_shutdown_record_raises_with_the_file_name(data: bytes) -> None:
    with pytest.raises(ValueError, match=CLEAN_SHUTDOWN_FILE):
        read_clean_shutdown(disk_with({CLEAN_SHUTDOWN_FILE: data}))


def test_power_loss_at_each_operation_leaves_the_old_or_the_new_record() -> None:
    found = set()
    for operations in range(10):
        for seed in range(12):
            disk = StrictDisk(Random(seed))
            write_clean_shutdown(disk, EARLIER)
            try:
                write_clean_shutdown(FailingDisk(disk, operations, Trace()), LATER)
                done = True
            except PowerLost:
                done = False
            kept = read_clean_shutdown(disk.crash_clone(Random(seed)))
            assert kept == LATER if done else kept in (EARLIER, LATER)
            found.add((done, kept))
    assert found == {(False, EARLIER), (False, LATER), (True, LATER)}


@pytest.mark.parametrize("operation", ["open", "truncate", "write", "sync", "rename"])
def test_failed_write_keeps_the_earlier_record_and_the_next_write_succeeds(operation: str) -> None:
    disk = StrictDisk(Random(1))
    write_clean_shutdown(disk, EARLIER)
    disk.fail(operation, 1, errno.ENOSPC)
    with pytest.raises(OSError, match="Errno"):
        write_clean_shutdown(disk, LATER)
    assert read_clean_shutdown(disk) == EARLIER
    write_clean_shutdown(disk, LATER)
    assert read_clean_shutdown(disk) == LATER


def reached_by(driver: Driver) -> CleanShutdown | None:
    return driver.journal.commits.clean_shutdown


def test_journal_reports_the_clean_end_only_after_a_durable_seal() -> None:
    disk = disk_with(LOG.files)
    driver = Driver(disk)
    assert reached_by(driver) is None
    driver.journal.commits.close(driver.now())
    assert reached_by(driver) is None, "the seal is not durable yet"
    driver.run()
    reached = reached_by(driver)
    assert reached is not None
    disk.close_all()
    write_clean_shutdown(disk, reached)
    again = Driver(disk)
    assert again.recovered.report == []
    last = again.recovered.segments[-1]
    assert reached == CleanShutdown(segment=last.number, commit=last.seal.number, position=last.end_position)


@pytest.mark.parametrize("lost", [True, False])
def test_verify_reports_a_log_shorter_than_the_clean_shutdown_record(lost: bool) -> None:
    disk = disk_with(LOG.files)
    driver = Driver(disk)
    driver.journal.commits.close(driver.now())
    driver.run()
    reached = reached_by(driver)
    assert reached is not None
    write_clean_shutdown(disk, reached)
    handle = disk.open(f"journal/{reached.segment:010d}.segment")
    if lost:
        disk.truncate(handle, disk.size(handle) // 2)
    damage = [str(finding) for finding in verify(disk).damage]
    assert ("a clean stop sealed it" in "".join(damage)) is lost
    assert not damage or lost
