"""Directory of a publish store: its lock, and its segments as mapped files.

It is the only module of the publish stores that touches the operating system. Every `OSError` becomes a
`StoreError` that names the path.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tickertape.base.errors import NotAStore, StoreCorrupt, StoreFailed, StoreLocked
from tickertape.client.common.directories import make_parents
from tickertape.client.publish_store.format import HEADER_BYTES

_SEGMENT: Final = re.compile(r"([0-9]{10})\.segment")
_LOCK: Final = "lock"
_PIECE_BYTES: Final = 1 << 20
_NEW: Final = ".new"
_HOLDER_BYTES_MAX: Final = 4096


class SegmentDirectory:
    """A store's directory, held by this process until `close`. Made when missing, its parent is not.

    Raises `StoreFailed`, `StoreLocked`, `NotAStore` for a directory with something else in it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = -1
        self.last_client = ""
        """Who held it last; empty where nobody did."""
        self._durable = False
        """Whether its own name is known to be."""
        with self._told("open"):
            make_parents(self.path)
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path, 0o700)
            foreign = sorted(
                name
                for name in os.listdir(self.path)
                if name != _LOCK and not _SEGMENT.fullmatch(name.removesuffix(_NEW))
            )
            if foreign:
                raise NotAStore(
                    f"{self.path} holds {foreign[0]!r}, which is no part of a publish store: give the "
                    "store a directory of its own"
                )
            self._take_lock()

    def _take_lock(self) -> None:
        lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, _HOLDER_BYTES_MAX, 0).decode("utf-8", "replace").strip()
            os.close(lock)
            raise StoreLocked(
                f"the publish store {self.path} is held by {holder or 'a process without a name'}: "
                "stop it, or give each process a store of its own"
            ) from None
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock
        said = os.pread(lock, _HOLDER_BYTES_MAX, 0).decode("utf-8", "replace")
        self.last_client = said.rpartition(" (pid ")[0]

    def say(self, client: str) -> None:
        """Let the lock name its holder."""
        text = f"{client} (pid {os.getpid()})\n".encode()
        with self._told("lock"):
            os.pwrite(self._lock, text, 0)
            os.ftruncate(self._lock, len(text))

    def file(self, number: int) -> str:
        """Path of a segment, for texts."""
        return str(self.path / _name(number))

    def chance(self) -> int:
        """A random number of 64 bits, by which a new store is known."""
        return int.from_bytes(os.urandom(8), "little")

    def numbers(self) -> list[int]:
        """The segments that are there, rising. What a creation left unfinished is removed."""
        found = []
        with self._told("read"):
            for name in os.listdir(self.path):
                if name.endswith(_NEW):
                    os.unlink(self.path / name)
                elif match := _SEGMENT.fullmatch(name):
                    found.append(int(match[1]))
        return sorted(found)

    def create(self, number: int, size: int, header: bytes, *, durable: bool) -> mmap.mmap:
        """A segment of `size` bytes that are reserved on disk, beginning with `header`.

        One of that number is replaced.
        """
        final = self.path / _name(number)
        fresh = final.with_name(final.name + _NEW)
        with self._told("make a segment in"):
            fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(fd, 0, size)
                os.pwrite(fd, header, 0)
                if durable:
                    os.fsync(fd)
                memory = mmap.mmap(fd, size)
                os.rename(fresh, final)
            except OSError:
                with contextlib.suppress(OSError):  # the first error is the one to report
                    os.unlink(fresh)
                raise
            finally:
                os.close(fd)
            if durable:
                self.sync()
        return memory

    def open(self, number: int) -> mmap.mmap:
        """A segment that is there.

        Every byte is read first: what cannot be read is an error then, and under a mapping it would end the
        process."""
        file = self.file(number)
        with self._told("read"):
            fd = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise NotAStore(f"{file} is no file")
                if status.st_size < HEADER_BYTES:
                    raise StoreCorrupt(
                        f"{file} has {status.st_size} bytes, a header has {HEADER_BYTES}: it was cut off",
                        file=file,
                        offset=status.st_size,
                    )
                for offset in range(0, status.st_size, _PIECE_BYTES):
                    os.pread(fd, _PIECE_BYTES, offset)
                return mmap.mmap(fd, status.st_size)
            finally:
                os.close(fd)

    def remove(self, number: int) -> None:
        """Take a segment away; who still looks at its bytes may go on."""
        with self._told("remove a segment of"), contextlib.suppress(FileNotFoundError):
            os.unlink(self.path / _name(number))

    def sync(self) -> None:
        """Make the names durable, and the first time its own."""
        with self._told("sync"):
            for path in (self.path,) if self._durable else (self.path, self.path.parent):
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
            self._durable = True

    def flush(self, memory: mmap.mmap, begin: int, end: int) -> None:
        """Make these bytes of a segment durable."""
        begin -= begin % mmap.PAGESIZE
        with self._told("sync"):
            memory.flush(begin, end - begin)

    def close(self) -> None:
        """Let go of the lock, in this process only."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def __del__(self) -> None:
        self.close()

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            advice = (
                "free space on that disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "look there"
            )
            raise StoreFailed(
                f"could not {what} the publish store {self.path}: {os.strerror(error.errno or 0)}; {advice}"
            ) from error


def _name(number: int) -> str:
    return f"{number:010}.segment"
