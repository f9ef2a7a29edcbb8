"""The identity file: created once, never beside other content, and safe under failures."""

from __future__ import annotations

import errno
from random import Random

import pytest

from tests.simulation.journal_log import JOURNAL_ID
from tests.simulation.journal_world import FailingDisk, PowerLost, Trace
from tickertape.base.errors import (
    JournalCorrupt,
    JournalError,
    JournalLocked,
    JournalVersion,
    NotAJournal,
    WrongJournal,
)
from tickertape.base.interfaces import Disk
from tickertape.base.limits import client_name_bytes_max
from tickertape.journal.format.identity import Identity, open_identity
from tickertape.testing.disk import StrictDisk


def opened(
    disk: Disk, *, create: bool = True, new_id: bytes = JOURNAL_ID, instance: str | None = None
) -> Identity:
    return open_identity(disk, owner="first", create=create, new_id=new_id, instance=instance)


def put(disk: StrictDisk, path: str, data: bytes) -> None:
    handle = disk.open(path, create=True)
    disk.write(handle, 0, [data])


def test_identity_is_created_once_and_read_back() -> None:
    disk = StrictDisk(Random(1))
    assert opened(disk).journal_id == JOURNAL_ID
    disk.close_all()
    assert opened(disk, new_id=bytes(16)).journal_id == JOURNAL_ID
    assert disk.contents()["identity.json"] == b'{"journal":"000102030405060708090a0b0c0d0e0f","format":0}\n'


def test_identity_keeps_the_instance_name_and_refuses_another() -> None:
    disk = StrictDisk(Random(1))
    assert opened(disk, instance='ny "1"').instance == 'ny "1"'
    disk.close_all()
    before = disk.contents()
    with pytest.raises(
        WrongJournal, match=r"""instance 'ny "1"', not 'ny-2'\. Start the server with the name"""
    ):
        opened(disk, instance="ny-2")
    assert disk.contents() == before
    disk.close_all()
    assert opened(disk, instance='ny "1"').journal_id == JOURNAL_ID


def test_identity_without_an_instance_name_is_accepted_by_any_instance() -> None:
    disk = StrictDisk(Random(1))
    opened(disk)
    for name in ("one", "two"):
        disk.close_all()
        assert opened(disk, instance=name).instance is None


def test_identity_file_holds_the_longest_instance_name() -> None:
    disk = StrictDisk(Random(1))
    name = '"' * client_name_bytes_max
    assert opened(disk, instance=name).instance == name


def test_identity_is_not_created_without_the_create_option() -> None:
    disk = StrictDisk(Random(1))
    with pytest.raises(NotAJournal, match="mounted"):
        opened(disk, create=False)
    assert disk.contents() == {}


@pytest.mark.parametrize("name", ["notes.txt", "identity.json~", "quarantine"])
def test_directory_with_other_files_is_refused(name: str) -> None:
    disk = StrictDisk(Random(1))
    put(disk, name, b"x")
    with pytest.raises(NotAJournal, match=name):
        opened(disk)
    assert disk.contents() == {name: b"x"}


def test_segments_without_an_identity_are_refused() -> None:
    disk = StrictDisk(Random(1))
    disk.make_directory("journal")
    put(disk, "journal/0000000001.segment", b"x")
    with pytest.raises(NotAJournal, match="Restore that file"):
        opened(disk)


def test_identity_locked_by_another_process_is_refused() -> None:
    disk = StrictDisk(Random(1))
    opened(disk)
    with pytest.raises(JournalLocked, match="first"):
        open_identity(disk, owner="second", create=True, new_id=JOURNAL_ID)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", JournalCorrupt),
        (b"{", JournalCorrupt),
        (b'{"journal":"00","format":0}', JournalCorrupt),
        (b'{"journal":"zz0102030405060708090a0b0c0d0e0f","format":0}', JournalCorrupt),
        (b'{"journal":"000102030405060708090a0b0c0d0e0f"}', JournalCorrupt),
        (b'{"journal":"000102030405060708090a0b0c0d0e0f","format":1}', JournalVersion),
        (b'{"journal":"000102030405060708090a0b0c0d0e0f","format":1,"more":2}', JournalVersion),
    ],
)
def test_unreadable_identity_is_refused_and_not_changed(data: bytes, error: type[JournalError]) -> None:
    disk = StrictDisk(Random(1))
    put(disk, "identity.json", data)
    with pytest.raises(error):
        opened(disk)
    assert disk.contents()["identity.json"] == data


FAULTS = [
    ("write", 1),
    ("sync", 1),
    ("truncate", 1),
    ("rename", 1),
    ("make_directory", 1),
    ("open", 1),
    ("open", 2),
]
FAULTS += [("sync_directory", nth) for nth in (1, 2, 3)]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize(("operation", "nth"), FAULTS)
def test_start_after_a_fault_and_a_crash_creates_or_reads_the_identity(
    operation: str, nth: int, number: int
) -> None:
    for seed in range(12):
        disk = StrictDisk(Random(seed))
        disk.fail(operation, nth, number)
        with pytest.raises(OSError, match="Errno"):
            opened(disk)
        assert disk.faults_left == 0
        disk = disk.crash_clone(Random(seed)) if seed % 2 else disk.kill_clone()
        assert len(opened(disk).journal_id) == 16
        assert disk.names("journal") == []


def test_identity_returned_by_a_start_survives_power_loss() -> None:
    handed_out = 0
    for operations in range(14):
        for seed in range(12):
            disk = StrictDisk(Random(seed))
            try:
                opened(FailingDisk(disk, operations, Trace()))
                kept = True
            except PowerLost:
                kept = False
            disk = disk.crash_clone(Random(seed))
            found = opened(disk, new_id=b"another one 1234")
            assert found.journal_id in (JOURNAL_ID, b"another one 1234")
            if kept:
                handed_out += 1
                assert found.journal_id == JOURNAL_ID
    assert handed_out
