"""Staging files: every job is answered, in order per file, and none after the stop."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from random import Random

import pytest

from tests.helpers.staged_files import LABEL, batches
from tickertape.base.errors import StagingFailed, StagingFull
from tickertape.engine.runtime.effects import StagingJob
from tickertape.journal.format.staging_file import (
    StageDrop,
    StageOpen,
    StagePrepare,
    StageWrite,
    block_bytes,
    label_bytes,
)
from tickertape.server.storage.staging_files import Result, StagingFiles
from tickertape.testing.disk import StrictDisk

SECONDS = 20.0


class Files:
    """Staging files on a simulated disk, and their answers."""

    def __init__(self) -> None:
        self.disk = StrictDisk(Random(1))
        self.answers: SimpleQueue[tuple[int, Result]] = SimpleQueue()
        self.files = StagingFiles(self.disk, lambda token, result: self.answers.put((token, result)))

    def run(self, *tasks: StageWrite | StagePrepare | StageOpen | StageDrop) -> list[Result]:
        """Run jobs, and return their answers in order."""
        for token, task in enumerate(tasks):
            self.files.submit(StagingJob(token, task))
        found = [self.answers.get(timeout=SECONDS) for _ in tasks]
        assert [token for token, _ in found] == list(range(len(tasks)))
        return [result for _, result in found]


@pytest.fixture
def files() -> Iterator[Files]:
    made = Files()
    yield made
    made.files.stop()


def written() -> tuple[StageWrite, StagePrepare]:
    batch = batches()[0]
    write = StageWrite(1, 0, LABEL, batch.count, list(batch.buffers()))
    return write, StagePrepare(1, label_bytes(LABEL) + block_bytes(batch.nbytes), batch.count, 1)


def test_staged_part_is_written_prepared_opened_and_dropped(files: Files) -> None:
    assert files.run(*written()) == [[], []]
    (opened,) = files.run(StageOpen(1))
    assert isinstance(opened, list)
    assert [bytes(block) for block in opened] == [batches()[0].encode()]
    assert files.run(StageDrop(1)) == [[]]


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, StagingFull), (errno.EDQUOT, StagingFull), (errno.EIO, StagingFailed)],
)
def test_disk_error_becomes_the_matching_staging_error(
    files: Files, number: int, kind: type[Exception]
) -> None:
    files.disk.fail("write", 1, number)
    (result,) = files.run(written()[0])
    assert type(result) is kind


def test_missing_file_damaged_file_and_exception_become_answers(files: Files) -> None:
    write, _ = written()
    (missing,) = files.run(StageOpen(1))
    assert isinstance(missing, StagingFailed)
    files.run(write, StagePrepare(1, 5, 0, 0))
    *_, damaged = files.run(StageOpen(1))
    assert isinstance(damaged, StagingFailed)
    assert "it does not end like a prepared file" in str(damaged)
    (never,) = files.run(StagePrepare(7, 0, 0, 0))
    assert isinstance(never, StagingFailed)
    assert "No such file" in str(never)
    (defect,) = files.run(StageWrite(1, 0, None, 1, [None]))  # type: ignore[list-item]
    assert isinstance(defect, StagingFailed)
    assert "internal error" in str(defect)


def test_job_after_the_stop_is_not_started(files: Files) -> None:
    files.run(written()[0])
    files.files.stop()
    files.files.submit(StagingJob(9, StageDrop(1)))
    assert files.answers.empty()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("staging")]
