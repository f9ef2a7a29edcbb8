"""Background syncs of the kernel, on real files."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from tickertape.journal import kernel_aio
from tickertape.journal.disk import SystemDisk
from tickertape.journal.kernel_aio import KernelSyncs

WAIT_SECONDS = 30


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SystemDisk]:
    made = SystemDisk(tmp_path)
    yield made
    made.close_all()


@pytest.fixture
def syncs(disk: SystemDisk) -> Iterator[KernelSyncs]:
    try:
        made = disk.syncs()
    except OSError as error:
        pytest.skip(f"the kernel or a sandbox refuses Linux AIO: {error}")
    yield made
    made.close()


def completion(syncs: KernelSyncs) -> tuple[int, OSError | None]:
    """Wait for one completed sync."""
    poll = select.poll()
    poll.register(syncs.descriptor, select.POLLIN)
    assert poll.poll(WAIT_SECONDS * 1000), "the descriptor is readable after a completion"
    (done,) = syncs.completed()
    return done


def test_sync_of_written_file_completes_with_the_token_of_the_call(
    disk: SystemDisk, syncs: KernelSyncs
) -> None:
    handle = disk.open("file", create=True)
    for number in range(50):
        disk.write(handle, number, [b"x"])
        token = syncs.begin(handle)
        assert syncs.in_flight == 1
        assert completion(syncs) == (token, None)
        assert syncs.in_flight == 0
    assert syncs.completed() == []


def test_failed_sync_reports_the_error_of_the_kernel(
    disk: SystemDisk, syncs: KernelSyncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()  # a pipe cannot be synced
    monkeypatch.setattr(syncs, "_files", {1: writing})
    try:
        with pytest.raises(OSError, match="Invalid argument") as caught:
            syncs.begin(1)
    finally:
        os.close(reading)
        os.close(writing)
    assert caught.value.errno == errno.EINVAL
    assert syncs.in_flight == 0


def test_sync_of_closed_handle_starts_nothing(disk: SystemDisk, syncs: KernelSyncs) -> None:
    with pytest.raises(OSError, match="not open"):
        syncs.begin(99)
    assert syncs.in_flight == 0
    assert syncs.completed() == []


def test_syncs_above_the_limit_are_refused_and_close_waits_for_the_others(
    disk: SystemDisk, syncs: KernelSyncs
) -> None:
    handle = disk.open("file", create=True)
    disk.write(handle, 0, [bytes(1 << 20)])
    tokens = [syncs.begin(handle) for _ in range(8)]
    with pytest.raises(OSError, match="in flight") as caught:
        syncs.begin(handle)
    assert caught.value.errno == errno.EAGAIN
    assert sorted(token for token, error in syncs.close() if error is None) == tokens
    assert syncs.close() == []


def test_unknown_machine_has_no_background_syncs(monkeypatch: pytest.MonkeyPatch, disk: SystemDisk) -> None:
    monkeypatch.setattr(kernel_aio, "_CALLS", {})
    with pytest.raises(OSError, match="no Linux AIO") as caught:
        disk.syncs()
    assert caught.value.errno == errno.ENOSYS
