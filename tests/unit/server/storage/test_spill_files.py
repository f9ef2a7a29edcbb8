"""Spill files of slow clients: written, read and deleted on threads."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from tickertape.base.errors import SpillFailed
from tickertape.base.interfaces import Buffer
from tickertape.engine.runtime.effects import SpillRead, SpillTrim, SpillWrite
from tickertape.server.storage.spill_files import SpillFiles

Answers = SimpleQueue[tuple[int, Buffer | OSError | None]]


@pytest.fixture
def answers() -> Answers:
    return SimpleQueue()


@pytest.fixture
def files(tmp_path: Path, answers: Answers) -> Iterator[SpillFiles]:
    spill = SpillFiles(tmp_path / "spill", "instance a")
    spill.start(lambda token, data: answers.put((token, data)))
    yield spill
    spill.stop()


def test_spilled_bytes_are_read_back_and_removed_with_the_file(files: SpillFiles, answers: Answers) -> None:
    files.submit(SpillWrite(1, 7, 0, [b"abc", b"", memoryview(b"defgh")]))
    files.submit(SpillWrite(2, 7, 8, [bytes([n]) for n in range(3_000 % 256)]))
    assert [answers.get(timeout=10), answers.get(timeout=10)] == [(1, None), (2, None)]
    files.submit(SpillRead(3, 7, 2, 6))
    assert answers.get(timeout=10) == (3, b"cdefgh")
    (path,) = files.directory.glob("*.spill")
    assert path.stat().st_mode & 0o777 == 0o600
    files.submit(SpillTrim(7))
    files.submit(SpillTrim(8))  # never written
    files.submit(SpillWrite(4, 9, 0, [b"x"]))
    assert answers.get(timeout=10) == (4, None)
    assert not path.exists()


def test_failed_spill_job_is_answered_and_the_next_one_runs(files: SpillFiles, answers: Answers) -> None:
    (files.directory / f"{7:020d}.spill").write_text("made by another process")
    files.submit(SpillWrite(1, 7, 0, [b"abc"]))
    token, error = answers.get(timeout=10)
    assert token == 1
    assert isinstance(error, OSError)
    assert error.errno == errno.EEXIST
    files.submit(SpillRead(2, 99, 0, 1))
    token, error = answers.get(timeout=10)
    assert isinstance(error, OSError), "an internal error is an answer too"
    files.submit(SpillWrite(3, 8, 0, [b"abc"]))
    assert answers.get(timeout=10) == (3, None)


def test_truncated_spill_file_returns_the_remaining_bytes(files: SpillFiles, answers: Answers) -> None:
    files.submit(SpillWrite(1, 1, 0, [bytes(100)]))
    answers.get(timeout=10)
    os.truncate(files.directory / f"{1:020d}.spill", 40)
    files.submit(SpillRead(2, 1, 10, 90))
    assert answers.get(timeout=10) == (2, bytes(30))


def test_start_deletes_only_spill_files(tmp_path: Path) -> None:
    (tmp_path / f"{3:020d}.spill").write_bytes(b"left by a run that was killed")
    others = ["3.spill", f"{3:020d}.spill.txt", "0000000001.segment"]
    for name in others:
        (tmp_path / name).touch()
    SpillFiles(tmp_path).stop()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_symbolic_link_as_spill_directory_is_refused(tmp_path: Path) -> None:
    data, outside = tmp_path / "data", tmp_path / "outside"
    data.mkdir()
    outside.mkdir()
    (outside / f"{3:020d}.spill").write_bytes(b"of another program")
    (data / "spill").symlink_to(outside)
    within = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(
            SpillFailed, match=r"Cannot use spill directory '.*/spill': Not a directory.*\[slow_clients\]"
        ):
            SpillFiles(data / "spill", within=within)
    finally:
        os.close(within)
    assert [path.name for path in outside.iterdir()] == [f"{3:020d}.spill"]


def test_renamed_data_directory_keeps_the_spill_files(tmp_path: Path, answers: Answers) -> None:
    data, moved = tmp_path / "data", tmp_path / "moved"
    data.mkdir()
    within = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
    spill = SpillFiles(data / "spill", within=within)
    os.close(within)
    spill.start(lambda token, answer: answers.put((token, answer)))
    data.rename(moved)
    (data / "spill").mkdir(parents=True)
    spill.submit(SpillWrite(1, 7, 0, [b"abc"]))
    assert answers.get(timeout=10) == (1, None)
    assert [path.name for path in (moved / "spill").iterdir()] == [f"{7:020d}.spill"]
    spill.stop()
    assert list((moved / "spill").iterdir()) == list((data / "spill").iterdir()) == []


def test_spill_directory_in_use_or_unusable_is_refused(tmp_path: Path, files: SpillFiles) -> None:
    with pytest.raises(
        SpillFailed,
        match=r"spill': in use by instance a \(pid \d+\)\. Set another directory in ",
    ):
        SpillFiles(files.directory, "instance b")
    (tmp_path / "file").touch()
    for unusable in (tmp_path / "file", tmp_path / "absent" / "below"):
        with pytest.raises(SpillFailed, match="Cannot use spill directory"):
            SpillFiles(unusable, "instance b")


def test_stop_removes_spill_files_and_unlocks_the_directory(tmp_path: Path, answers: Answers) -> None:
    for _ in range(2):
        files = SpillFiles(tmp_path / "spill", "instance a")
        files.start(lambda token, data: answers.put((token, data)))
        files.submit(SpillWrite(1, 1, 0, [bytes(100)]))
        files.stop()
        assert answers.get(timeout=10) == (1, None)
        assert [path.name for path in files.directory.iterdir()] == ["lock"]
