"""Spill files: backlogs of slow clients on disk, written, read and deleted on threads.

The files are not part of the log and are valid for one run only. A start deletes the files of earlier runs.

Invariants:
- The event loop never waits for these files.
- Only spill files are deleted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tickertape.base.errors import SpillFailed
from tickertape.base.interfaces import Buffer
from tickertape.engine.runtime.effects import SpillRead, SpillTrim, SpillWrite
from tickertape.server.events import event
from tickertape.server.storage.worker_thread import ThreadWorker

Job = SpillWrite | SpillRead | SpillTrim
Answer = Callable[[int, Buffer | OSError | None], None]

_LOCK: Final = "lock"
_NAME: Final = re.compile(r"[0-9]{20}\.spill")
_FILE_MODE: Final = 0o600


class SpillFiles:
    """The spill files of one directory. Answers are given on a thread and must be passed to the event loop.

    The constructor creates a missing directory, locks it for `owner` (None: the parent directory is locked),
    and deletes the files of an earlier run. With `within`, a directory descriptor, the directory is opened
    relative to it, without following links. Otherwise the path is resolved once. Raises `SpillFailed`."""

    def __init__(self, directory: str | Path, owner: str | None = None, *, within: int | None = None) -> None:
        self.directory = Path(directory)
        self._within = within
        self._directory = -1
        self._answer: Answer | None = None
        self._files: dict[int, int] = {}
        self._threads: tuple[ThreadWorker[Job], ...] = ()
        """One thread for writes and deletions, one for reads. Created with the first job."""
        self._stopped = False
        try:
            self._directory = self._open_directory()
            self._lock = None if owner is None else self._hold(owner)
            self._clear()
        except OSError as error:
            if self._directory >= 0:
                os.close(self._directory)
            raise SpillFailed(
                f"Cannot use spill directory {str(self.directory)!r}: {error.strerror or error}. "
                "Set another directory in [slow_clients], or set disk_limit = 0 there."
            ) from None

    def _open_directory(self) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        if self._within is None:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            return os.open(self.directory, flags)
        name = self.directory.name
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self._within)
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=self._within)

    def _hold(self, owner: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        lock = os.open(_LOCK, flags, _FILE_MODE, dir_fd=self._directory)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(lock, 4096, 0).decode("utf-8", "replace").strip()
            os.close(lock)
            raise BlockingIOError(errno.EWOULDBLOCK, f"in use by {holder or 'another process'}") from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{owner} (pid {os.getpid()})\n".encode(), 0)
        return lock

    def _clear(self) -> None:
        for name in os.listdir(self._directory):
            if _NAME.fullmatch(name):
                os.unlink(name, dir_fd=self._directory)

    def start(self, answer: Answer) -> None:
        """Set the receiver of answers, before the first job."""
        self._answer = answer

    def submit(self, job: Job) -> None:
        """Queue a job. Read or delete a file only after its writes were answered."""
        if self._stopped:
            return  # no answer is awaited
        if not self._threads:
            self._threads = ThreadWorker(self._do, "spill-write"), ThreadWorker(self._do, "spill-read")
        self._threads[isinstance(job, SpillRead)].submit(job)

    def stop(self) -> None:
        """Finish the queued jobs, end the threads, delete the files and unlock the directory."""
        self._stopped = True
        for thread in self._threads:
            thread.stop()
        self._threads = ()
        for number in list(self._files):
            self._trim(number)
        if self._lock is not None:
            os.close(self._lock)
        os.close(self._directory)

    def _do(self, job: Job) -> None:
        if isinstance(job, SpillTrim):
            self._trim(job.file)
            return
        data: Buffer | OSError | None = None
        try:
            if isinstance(job, SpillRead):
                data = self._read(job)
            else:
                self._write(job)
        except OSError as error:
            data = error
        except Exception as defect:  # noqa: BLE001 - every job needs an answer
            data = OSError(errno.EIO, f"Internal error: {defect!r}")
        if isinstance(data, OSError):
            self._log_failure("read" if isinstance(job, SpillRead) else "write", job.file, data)
        assert self._answer is not None
        self._answer(job.token, data)

    def _write(self, job: SpillWrite) -> None:
        fd = self._files.get(job.file)
        if fd is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(_name(job.file), flags, _FILE_MODE, dir_fd=self._directory)
            self._files[job.file] = fd
        views = [memoryview(buffer).cast("B") for buffer in job.buffers]
        offset = job.offset
        while views:
            written = os.pwritev(fd, views, offset)
            if not written:
                raise OSError(errno.EIO, "the file system wrote 0 bytes")
            offset += written
            while views and written >= views[0].nbytes:
                written -= views.pop(0).nbytes
            if written:
                views[0] = views[0][written:]

    def _read(self, job: SpillRead) -> bytes:
        fd = self._files[job.file]
        parts = []
        offset, left = job.offset, job.size
        while left and (part := os.pread(fd, left, offset)):
            parts.append(part)
            offset += len(part)
            left -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _trim(self, number: int) -> None:
        fd = self._files.pop(number, None)
        if fd is None:
            return  # its first write failed
        try:
            os.unlink(_name(number), dir_fd=self._directory)
        except OSError as error:
            self._log_failure("delete", number, error)
        os.close(fd)

    def _log_failure(self, action: str, number: int, error: OSError) -> None:
        path = self.directory / _name(number)
        event(
            "spill_failed", logging.WARNING, action=action, file=str(path), text=error.strerror or str(error)
        )


def _name(number: int) -> str:
    return f"{number:020d}.spill"
