"""Disk jobs: all disk operations of the journal as data, and their executor.

Invariants:
- No other module writes journal files.
- Errors are neither retried nor swallowed: an error is the result of the job.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from typing import Final

import msgspec

from tickertape.base.interfaces import Buffer, Disk, SyncDone, SyncStarter
from tickertape.journal.format.files import replace_file
from tickertape.journal.format.log_end import LAST_SEGMENT_FILE, reserve_last_segment, write_last_segment
from tickertape.journal.format.queue_checkpoint import write_queues
from tickertape.journal.format.retired_state import RetiredState, write_retired
from tickertape.journal.format.segment import AGAIN, JOURNAL_DIRECTORY, SOW_DIRECTORY, segment_path

NO_ROOM: Final = {
    errno.ENOSPC: "Free disk space",
    errno.EDQUOT: "Free disk space, or raise the quota",
    errno.EMFILE: "Raise the server's limit of open files",
    errno.ENFILE: "Raise the system's limit of open files",
}
"""Errors after which nothing was written and a retry may succeed, with their remedies."""


class DiskFull(OSError):
    """No disk space to reserve a segment. Nothing was written, so the job may be repeated."""

    @property
    def reason(self) -> str:
        """The missing resource and the remedy."""
        remedy = NO_ROOM.get(self.errno or 0, "Free disk space")
        return f"{self.strerror}. {remedy}"


class JournalJob(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of all jobs."""


class WriteCommit(JournalJob, frozen=True, kw_only=True):
    """Write one commit to the active segment, and sync it if `sync`."""

    segment: int
    offset: int
    buffers: list[Buffer]
    bytes: int
    """Size of `buffers`."""
    sync: bool
    number: int


class SyncSegment(JournalJob, frozen=True, kw_only=True):
    """Sync everything written to the active segment (sync policy `interval`)."""

    segment: int
    number: int


class StartSegment(JournalJob, frozen=True, kw_only=True):
    """Write the header of the prepared segment. First segment of a run: no other one is open."""

    number: int
    header: bytes


class RollSegment(JournalJob, frozen=True, kw_only=True):
    """Seal the active segment, cut it to its length, and write the header of the prepared next segment.

    The seal is durable before the header is written, so a valid header proves that the previous segment is
    sealed."""

    old: int
    seal_offset: int
    seal: list[Buffer]
    old_end: int
    new: int
    header: bytes


class SealSegment(JournalJob, frozen=True, kw_only=True):
    """Seal the active segment at a clean stop. No segment follows."""

    segment: int
    seal_offset: int
    seal: list[Buffer]
    end: int


class PrepareSegment(JournalJob, frozen=True, kw_only=True):
    """Create and reserve (or enlarge) the next segment: durable zeros, not part of the log yet. May run
    concurrently with writes."""

    number: int
    bytes: int


class RetireSegments(JournalJob, frozen=True, kw_only=True):
    """Record the facts that outlive the segments `numbers`, then remove these segments, oldest first.

    The job may run concurrently with all others and may be repeated after an error."""

    retired: RetiredState
    numbers: tuple[int, ...]


class WriteQueues(JournalJob, frozen=True, kw_only=True):
    """Replace the queue checkpoint. May run concurrently with all others and be repeated after an error.

    `encode` builds the contents. It is part of the job because it takes long for deep queues."""

    journal_id: bytes
    encode: Callable[[], bytes]


class WriteState(JournalJob, frozen=True, kw_only=True):
    """Write one piece of a base or delta file of a SOW topic. May run concurrently with all others.

    Pieces of a file run in order. The piece at offset 0 replaces a file of an earlier attempt."""

    topic: str
    """SOW name."""
    path: str
    offset: int
    buffers: list[Buffer]
    bytes: int
    """Size of `buffers`."""
    durable: bool
    """Make all pieces up to this one durable. The last piece of each file has it."""


class PublishState(JournalJob, frozen=True, kw_only=True):
    """Name a written file of a SOW topic, replace the manifest, and then remove older files.

    The names of the files are durable before the manifest. The job may run concurrently with all others."""

    topic: str
    """SOW name."""
    written: str
    """Path of the file that `WriteState` wrote, or empty for a manifest without a new file."""
    named: str
    """Path of this file in the manifest, never used before."""
    path: str
    """Path of the manifest."""
    manifest: bytes
    drop: tuple[str, ...]
    """Paths of the files that the manifest no longer names."""


# -- executor -----------------------------------------------------------------------------------------


_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)


class DiskJobExecutor:
    """Runs jobs on a disk and keeps the files of the active and the prepared segment open.

    `entropy` returns the salt of a prepared segment: 64 unpredictable bits. `may_wait`: `write_nowait` writes
    even if the disk might wait."""

    def __init__(self, disk: Disk, entropy: Callable[[], int], *, may_wait: bool = False) -> None:
        self._disk = disk
        self._may_wait = may_wait
        self._entropy = entropy
        self._handles: dict[int, int] = {}
        self._last_segment: int | None = None
        """Handle of the last-segment marker (`begun.bin`), open after the first reservation."""

    def run(self, job: JournalJob) -> int:
        """Run one job. Return the salt for a `PrepareSegment`, else 0. Raises `OSError`.

        Only reservations raise `DiskFull`. A sync that fails without disk space is a failed sync like any
        other: the bytes may be lost from the cache as well."""
        if isinstance(job, WriteCommit):
            self.write(job)
            if job.sync:
                self.sync(job)
        elif isinstance(job, SyncSegment):
            self.sync(job)
        elif isinstance(job, StartSegment):
            self._start(job.number, job.header)
        elif isinstance(job, RollSegment):
            self._seal(job.old, job.seal_offset, job.seal, job.old_end)
            self._start(job.new, job.header)
        elif isinstance(job, SealSegment):
            self._seal(job.segment, job.seal_offset, job.seal, job.end)
        elif isinstance(job, PrepareSegment):
            return self._prepare(job)
        elif isinstance(job, RetireSegments):
            self._retire(job)
        elif isinstance(job, WriteQueues):
            write_queues(self._disk, job.journal_id, job.encode())
        elif isinstance(job, WriteState):
            self._write_state(job)
        elif isinstance(job, PublishState):
            self._publish_state(job)
        return 0

    def write(self, job: WriteCommit) -> None:
        """Write a commit, the first part of its job. Raises `OSError`."""
        self._disk.write(self._handle(job.segment), job.offset, job.buffers)

    def write_nowait(self, job: WriteCommit) -> bool:
        """Write a commit if the disk accepts it without a wait. False: run the whole job on a thread."""
        if self._may_wait:
            self.write(job)
            return True
        return self._disk.write_nowait(self._handle(job.segment), job.offset, job.buffers)

    def sync(self, job: WriteCommit | SyncSegment) -> None:
        """Make the written commits of a segment durable, the second part of the job. Raises `OSError`."""
        self._disk.sync(self._handle(job.segment))

    def begin_sync(self, job: WriteCommit | SyncSegment, syncs: SyncStarter, done: SyncDone) -> None:
        """Start the second part of a job in the background. Raises `OSError` if nothing was started."""
        syncs.begin(self._handle(job.segment), done)

    def close(self) -> None:
        """Close the files without writing."""
        for handle in self._handles.values():
            self._disk.close(handle)
        self._handles.clear()
        if self._last_segment is not None:
            self._disk.close(self._last_segment)
            self._last_segment = None

    def _handle(self, number: int) -> int:
        handle = self._handles.get(number)
        if handle is None:
            handle = self._handles[number] = self._disk.open(segment_path(number))
        return handle

    def _start(self, number: int, header: bytes) -> None:
        handle = self._handle(number)
        self._disk.write(handle, 0, [header])
        self._disk.sync(handle)
        # Written after the header is durable, and before anything in the segment is acknowledged.
        assert self._last_segment is not None, "a segment is prepared before it is started"
        self._disk.write(self._last_segment, 0, [header])
        self._disk.sync(self._last_segment)

    def _seal(self, number: int, offset: int, seal: list[Buffer], end: int) -> None:
        handle = self._handle(number)
        self._disk.write(handle, offset, seal)
        self._disk.truncate(handle, end)
        self._disk.sync(handle)
        self._disk.close(handle)
        del self._handles[number]

    def _prepare(self, job: PrepareSegment) -> int:
        last_segment = None
        try:
            handle = self._reserve(job)
            if self._last_segment is None:
                last_segment = reserve_last_segment(self._disk)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise DiskFull(*error.args) from error
            raise
        self._disk.sync(handle)
        try:
            self._disk.sync_directory(JOURNAL_DIRECTORY)
            if last_segment is not None:
                write_last_segment(self._disk, last_segment)
            if self._last_segment is None:
                self._last_segment = self._disk.open(LAST_SEGMENT_FILE)
        except OSError as error:
            if (
                error.errno in _NO_DESCRIPTOR
            ):  # could not be opened: nothing was lost, and a retry may succeed
                raise DiskFull(*error.args) from error
            raise
        return self._entropy()

    def _retire(self, job: RetireSegments) -> None:
        write_retired(self._disk, job.retired)
        for number in job.numbers:
            with contextlib.suppress(FileNotFoundError):  # an earlier attempt removed it
                self._disk.remove(segment_path(number))
        self._disk.sync_directory(JOURNAL_DIRECTORY)

    def _write_state(self, job: WriteState) -> None:
        if job.offset == 0:
            directory = job.path.rpartition("/")[0]
            self._disk.make_directory(SOW_DIRECTORY)
            self._disk.make_directory(directory)
            with contextlib.suppress(FileNotFoundError):
                # Created again, because the name of an earlier attempt may have failed to become durable.
                self._disk.remove(job.path)
            handle = self._disk.open(job.path, create=True)
        else:
            handle = self._disk.open(job.path)
        try:
            self._disk.write(handle, job.offset, job.buffers)
            if job.durable:
                self._disk.sync(handle)
        finally:
            self._disk.close(handle)

    def _publish_state(self, job: PublishState) -> None:
        directory = job.path.rpartition("/")[0]
        if job.written:
            self._disk.rename(job.written, job.named)
        for one in (".", SOW_DIRECTORY, directory):
            self._disk.sync_directory(one)
        replace_file(self._disk, job.path, [job.manifest])
        for path in job.drop:
            with contextlib.suppress(FileNotFoundError):  # an earlier attempt removed it
                self._disk.remove(path)

    def _reserve(self, job: PrepareSegment) -> int:
        path = segment_path(job.number)
        if job.number not in self._handles:
            try:
                self._handles[job.number] = self._disk.open(path, create=True)
            except FileExistsError:
                # An earlier process may have failed to sync this name. Later syncs of the directory do not
                # repair that: only a new change of the directory makes the name durable.
                self._disk.rename(path, path + AGAIN)
                self._disk.rename(path + AGAIN, path)
                self._handles[job.number] = self._disk.open(path)
        handle = self._handles[job.number]
        self._disk.preallocate(handle, job.bytes)
        return handle
