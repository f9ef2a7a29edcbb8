"""Directory of a publish store: its lock, and its segments as memory-mapped files.

It is the only module of the publish stores that uses the operating system. Every `OSError` becomes a
`StoreFailed` that names the path.
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
    """Directory of a store, locked by this process until `close`. Created if missing, but not its parent.

    Raises `StoreFailed`, `StoreLocked`, and `NotAStore` for a directory with other files.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = -1
        self.last_client = ""
        """Name of the last client, or empty."""
        self._durable = False
        """Whether the name of the directory is synced in its parent."""
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
                    f"Cannot open the publish store {str(self.path)!r}: the directory contains the foreign "
                    f"file {foreign[0]!r}. Use a separate directory for the store."
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
                f"Cannot open the publish store {str(self.path)!r}: it is in use by "
                f"{holder or 'an unnamed process'}. Use a separate store for each "
                "process, or close the store in that process."
            ) from None
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock
        said = os.pread(lock, _HOLDER_BYTES_MAX, 0).decode("utf-8", "replace")
        self.last_client = said.rpartition(" (pid ")[0]

    def say(self, client: str) -> None:
        """Write the name of the holder into the lock file."""
        text = f"{client} (pid {os.getpid()})\n".encode()
        with self._told("lock"):
            os.pwrite(self._lock, text, 0)
            os.ftruncate(self._lock, len(text))

    def file(self, number: int) -> str:
        """Return the path of a segment."""
        return str(self.path / _name(number))

    def chance(self) -> int:
        """Return a random 64-bit number, the id of a new store."""
        return int.from_bytes(os.urandom(8), "little")

    def numbers(self) -> list[int]:
        """Return the numbers of the existing segments in ascending order. Remove incomplete new segments."""
        found = []
        with self._told("read"):
            for name in os.listdir(self.path):
                if name.endswith(_NEW):
                    os.unlink(self.path / name)
                elif match := _SEGMENT.fullmatch(name):
                    found.append(int(match[1]))
        return sorted(found)

    def create(self, number: int, size: int, header: bytes, *, durable: bool) -> mmap.mmap:
        """Create a segment of `size` bytes, preallocated on disk, that starts with `header`.

        An existing segment with that number is replaced.
        """
        final = self.path / _name(number)
        fresh = final.with_name(final.name + _NEW)
        with self._told("create a segment in"):
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
        """Map an existing segment.

        Every byte is read first: an unreadable byte is then an error, while in a mapping it would kill the
        process."""
        file = self.file(number)
        with self._told("read"):
            fd = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise NotAStore(
                        f"Cannot read {file!r}: it is not a regular file. Use a "
                        "separate directory for the store."
                    )
                if status.st_size < HEADER_BYTES:
                    raise StoreCorrupt(
                        f"Cannot read {file!r}: it has {status.st_size} bytes, less than its header of "
                        f"{HEADER_BYTES} bytes. Restore it from a copy.",
                        file=file,
                        offset=status.st_size,
                    )
                for offset in range(0, status.st_size, _PIECE_BYTES):
                    os.pread(fd, _PIECE_BYTES, offset)
                return mmap.mmap(fd, status.st_size)
            finally:
                os.close(fd)

    def remove(self, number: int) -> None:
        """Remove a segment. Existing mappings stay valid."""
        with self._told("remove a segment of"), contextlib.suppress(FileNotFoundError):
            os.unlink(self.path / _name(number))

    def sync(self) -> None:
        """Sync the names in the directory, and the first time its own name."""
        with self._told("sync"):
            for path in (self.path,) if self._durable else (self.path, self.path.parent):
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
            self._durable = True

    def flush(self, memory: mmap.mmap, begin: int, end: int) -> None:
        """Sync these bytes of a segment."""
        begin -= begin % mmap.PAGESIZE
        with self._told("sync"):
            memory.flush(begin, end - begin)

    def close(self) -> None:
        """Release the lock in this process."""
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
            advice = _ADVICE.get(error.errno or 0, "Check the path and its permissions.")
            reason = os.strerror(error.errno or 0)
            raise StoreFailed(
                f"Cannot {what} the publish store {str(self.path)!r}: {reason}. {advice}"
            ) from error


_ADVICE: Final = {
    errno.ENOSPC: "Free space on that disk.",
    errno.EDQUOT: "Free space on that disk.",
    errno.EIO: "Check the disk.",
    errno.EMFILE: "Raise the limit of open files.",
    errno.ENFILE: "Raise the limit of open files.",
}


def _name(number: int) -> str:
    return f"{number:010}.segment"
