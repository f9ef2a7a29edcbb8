"""System disk: implements the `Disk` interface with Linux system calls.

The root directory is opened once, and every access uses that descriptor. A directory that is renamed,
replaced or covered by a mount while in use remains the one in use. Python itself repeats interrupted calls.

Invariants:
- Errors are neither retried nor interpreted.
- Paths outside the root cannot be reached.
- Beside kernel_aio.py, no other module of this package uses the operating system.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import mmap
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from tickertape.base.interfaces import Buffer
from tickertape.journal.kernel_aio import KernelSyncs

_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_BUFFERS_MAX: Final = max(16, os.sysconf("SC_IOV_MAX"))
_PATHS_KEPT: Final = 256
_ZEROS: Final = bytes(1 << 20)
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LOCK_ABSENT: Final = frozenset(
    {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOLCK, errno.EBADF, errno.EISDIR}
)
"""Errors of file systems that cannot lock a directory, for example network file systems."""
_NOWAIT_ABSENT: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


@lru_cache(maxsize=_PATHS_KEPT)
def path_parts(path: str) -> tuple[str, ...]:
    """Return the components of a path. `""` and `"."` denote the root and have none.

    Raises `OSError(EINVAL)` for an absolute path, an empty component, `.` or `..` inside, or a NUL.
    """
    if path in ("", "."):
        return ()
    parts = tuple(path.split("/"))
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise OSError(errno.EINVAL, "a path must stay below the root, without '.', '..' or '//'", path)
    return parts


class SystemDisk:
    """The directory tree below `root`. If `root` is missing, `make_directory("")` creates it.

    The directory that `root` names at the first call is used until `close_all`. Symbolic links below the root
    are refused, so paths outside it cannot be reached. The object is thread-safe, but a handle must not be
    closed while another thread uses it. Handles are never reused: a stale handle raises `OSError(EBADF)`."""

    _root: int | None = None

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.where = str(root)
        self._files: dict[int, int] = {}
        self._locks: list[int] = []
        self._opening = threading.Lock()
        self._next_handle = itertools.count(1)
        self._nowait = True

    def descriptor(self) -> int:
        """Return the descriptor of the root, for other files below it. The caller must not close it."""
        return self._root_descriptor()

    # -- names ----------------------------------------------------------------------------------------

    def names(self, directory: str) -> list[str]:
        """Return the sorted names in `directory`. Raises `FileNotFoundError` if it does not exist."""
        with self._directory(path_parts(directory)) as fd:
            # Listing moves the offset of a descriptor, and the root descriptor is shared: open a separate
            # one.
            own = os.open(".", _OPEN_DIRECTORY, dir_fd=fd)
        try:
            return sorted(os.listdir(own))
        finally:
            os.close(own)

    def make_directory(self, path: str) -> None:
        """Create `path` with mode 0700 unless it exists.

        For the root itself, its parent is synced here, because the parent is outside the tree.
        """
        parts = path_parts(path)
        if not parts:
            return self._make_root()
        with self._directory(parts[:-1]) as parent:
            try:
                os.mkdir(parts[-1], _DIRECTORY_MODE, dir_fd=parent)
            except FileExistsError:
                if not stat.S_ISDIR(os.stat(parts[-1], dir_fd=parent, follow_symlinks=False).st_mode):
                    raise
        return None

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing `new`. The change is durable after `sync_directory` of both
        directories."""
        from_parts, to_parts = _entry(old), _entry(new)
        with self._directory(from_parts[:-1]) as source, self._directory(to_parts[:-1]) as target:
            os.rename(from_parts[-1], to_parts[-1], src_dir_fd=source, dst_dir_fd=target)

    def remove(self, path: str) -> None:
        """Remove a file. The change is durable after `sync_directory` of its directory."""
        parts = _entry(path)
        with self._directory(parts[:-1]) as parent:
            os.unlink(parts[-1], dir_fd=parent)

    def sync_directory(self, path: str) -> None:
        """Make the names in `path` durable."""
        with self._directory(path_parts(path)) as fd:
            os.fsync(fd)

    def _make_root(self) -> None:
        if self._root is not None:
            return
        try:
            self.root.mkdir(_DIRECTORY_MODE)
        except FileExistsError:
            if not self.root.is_dir():
                raise
            return
        fd = os.open(self.root.parent, _OPEN_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _directory(self, parts: Sequence[str]) -> Iterator[int]:
        """Yield a descriptor of a directory, valid inside the block. The root descriptor stays open."""
        fd = root = self._root_descriptor()
        try:
            for part in parts:
                below = os.open(part, _OPEN_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
                if fd != root:
                    os.close(fd)
                fd = below
            yield fd
        finally:
            if fd != root:
                os.close(fd)

    def _root_descriptor(self) -> int:
        if self._root is None:
            with self._opening:
                if self._root is None:
                    self._root = os.open(self.root, _OPEN_DIRECTORY)
        return self._root

    def _open_file(self, path: str, flags: int) -> int:
        parts = _entry(path)
        with self._directory(parts[:-1]) as parent:
            # O_NONBLOCK has no effect on regular files. Without it, opening a FIFO would block.
            flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            fd = os.open(parts[-1], flags, _FILE_MODE, dir_fd=parent)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise IsADirectoryError(errno.EISDIR, "not a regular file", path)
        return fd

    # -- files ----------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, write: bool = True) -> int:
        """Open a file. With `create` it gets mode 0600 and must not exist yet (`FileExistsError`)."""
        flags = os.O_RDWR if write else os.O_RDONLY
        fd = self._open_file(path, flags | (os.O_CREAT | os.O_EXCL if create else 0))
        handle = next(self._next_handle)
        self._files[handle] = fd
        return handle

    def close(self, handle: int) -> None:
        """Close `handle`. Unsynced writes stay unsynced."""
        fd = self._files.pop(handle, None)
        if fd is None:
            raise _bad_handle(handle)
        os.close(fd)

    def close_all(self) -> None:
        """Close every handle, release every lock, and close the root directory."""
        while self._files:
            os.close(self._files.popitem()[1])
        while self._locks:
            os.close(self._locks.pop())
        self._let_go()

    def __del__(self) -> None:
        self._let_go()  # readers keep only the root open

    def _let_go(self) -> None:
        root, self._root = self._root, None
        if root is not None:
            os.close(root)

    def size(self, handle: int) -> int:
        return os.fstat(self._fd(handle)).st_size

    def preallocate(self, handle: int, size: int) -> None:
        """Reserve the first `size` bytes. New bytes read as zeros, and a longer file keeps its length.

        Raises `OSError(ENOSPC)` without disk space, and then releases the space it reserved."""
        fd = self._fd(handle)
        before = os.fstat(fd).st_size
        try:
            try:
                os.posix_fallocate(fd, 0, size)
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                _write_zeros(fd, before, size)
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to report
                if os.fstat(fd).st_size > before:
                    os.ftruncate(fd, before)
            raise

    def truncate(self, handle: int, size: int) -> None:
        """Cut or extend the file to `size` bytes. Extension reads as zeros and is not reserved."""
        os.ftruncate(self._fd(handle), size)

    def write(self, handle: int, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all of `buffers` at `offset`, continuing short writes. An error may leave a partial write."""
        fd = self._fd(handle)
        if offset < 0:  # for the kernel, -1 is the current offset
            raise OSError(errno.EINVAL, f"cannot write at offset {offset}")
        if len(buffers) <= _BUFFERS_MAX:
            wanted = sum([b.nbytes if isinstance(b, memoryview) else len(b) for b in buffers])
            if not wanted:
                return
            written = os.pwritev(fd, buffers, offset)
            if written == wanted:
                return
        else:
            written = 0
        _write_rest(fd, offset, buffers, written)

    def write_nowait(self, handle: int, offset: int, buffers: Sequence[Buffer]) -> bool:
        """Write like `write`, if the page cache accepts all bytes at once. False if the disk might wait.

        Raises `OSError(EOPNOTSUPP)` or similar, before anything is written, if the kernel or file system
        does not support this, as ext4. Call `write` on another thread then."""
        fd = self._fd(handle)
        if len(buffers) > _BUFFERS_MAX:
            return False
        if offset < 0:
            raise OSError(errno.EINVAL, f"cannot write at offset {offset}")
        wanted = sum([b.nbytes if isinstance(b, memoryview) else len(b) for b in buffers])
        try:
            return not wanted or os.pwritev(fd, buffers, offset, os.RWF_NOWAIT) == wanted
        except BlockingIOError:
            return False

    def sync(self, handle: int) -> None:
        """Make the file's data and size durable (fdatasync)."""
        os.fdatasync(self._fd(handle))

    def syncs(self) -> KernelSyncs:
        """Return an executor of background syncs for the event loop. Raises `OSError` without Linux AIO."""
        return KernelSyncs(self._files)

    def read(self, handle: int, offset: int, size: int) -> bytes:
        """Return up to `size` bytes. Fewer bytes are returned only at the end of the file."""
        fd = self._fd(handle)
        data = os.pread(fd, size, offset)
        if len(data) == size or not data:
            return data
        pieces = [data]
        got = len(data)
        while got < size and (data := os.pread(fd, size - got, offset + got)):
            pieces.append(data)
            got += len(data)
        return b"".join(pieces) if len(pieces) > 1 else pieces[0]

    def map(self, handle: int) -> memoryview:
        """Return a memory mapping of the whole file. The kernel can evict unused pages."""
        return memoryview(mmap.mmap(self._fd(handle), 0, access=mmap.ACCESS_READ))

    def read_nowait(self, handle: int, offset: int, size: int) -> Buffer | None:
        """Read like `read`, but only from the page cache. Return None if the disk would have to be waited
        for.

        Also returns None if the kernel or file system does not support this. Call `read` on another thread
        then."""
        fd = self._fd(handle)
        if size < 0 or offset < 0:
            raise OSError(errno.EINVAL, f"cannot read {size} bytes at offset {offset}")
        if not self._nowait:
            return None
        window = np.empty(size, np.uint8).data  # neither cleared first nor copied afterwards
        try:
            got = os.preadv(fd, (window,), offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _NOWAIT_ABSENT:
                raise
            self._nowait = False
            return None
        if got < size and offset + got < os.fstat(fd).st_size:
            return None
        return window[:got].toreadonly()

    def _fd(self, handle: int) -> int:
        try:
            return self._files[handle]
        except KeyError:
            raise _bad_handle(handle) from None

    # -- the lock -------------------------------------------------------------------------------------

    def lock(self, path: str, owner: str) -> None:
        """Lock `path` and its directory until `close_all` or the end of the process.

        A forked child holds the locks too. A missing file is created, and `owner` and the pid are written
        into it. The directory is locked as well (except on file systems without directory locks), so removing
        the file does not let a second process in.

        Raises:
            BlockingIOError: Another process holds the lock. The text is the one it wrote."""
        parts = _entry(path)
        held = self._lock_directory(parts)
        try:
            fd = self._open_file(path, os.O_RDWR | os.O_CREAT)
        except BaseException:
            os.close(held)
            raise
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise lock_held(_written(fd)) from None
            text = f"{owner} (pid {os.getpid()})\n".encode()
            os.pwrite(fd, text, 0)
            os.ftruncate(fd, len(text))
        except BaseException:
            os.close(held)
            os.close(fd)
            raise
        self._locks += [held, fd]

    def _lock_directory(self, parts: Sequence[str]) -> int:
        """Return a descriptor that locks the directory of the lock file. Raises `BlockingIOError` like
        `lock`."""
        with self._directory(parts[:-1]) as parent:
            # A lock belongs to the open file description, not to the process: open a separate one.
            fd = os.open(".", _OPEN_DIRECTORY, dir_fd=parent)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            holder = ""
            with contextlib.suppress(FileNotFoundError):
                file = self._open_file("/".join(parts), os.O_RDONLY)
                try:
                    holder = _written(file)
                finally:
                    os.close(file)
            raise lock_held(holder) from None
        except OSError as error:
            if error.errno not in _LOCK_ABSENT:
                os.close(fd)
                raise
        return fd


def _written(fd: int) -> str:
    """Return the text that the lock holder wrote into a lock file."""
    return os.pread(fd, 4096, 0).decode("utf-8", "replace").strip()


def lock_held(holder: str) -> BlockingIOError:
    """Return the error of a lock held by `holder`: its text is exactly `holder`, its errno EWOULDBLOCK."""
    error = BlockingIOError(holder or "another process (not named in the lock file)")
    error.errno = errno.EWOULDBLOCK
    return error


def _entry(path: str) -> tuple[str, ...]:
    parts = path_parts(path)
    if not parts:
        raise IsADirectoryError(errno.EISDIR, "the root is not a file", path)
    return parts


def _bad_handle(handle: int) -> OSError:
    return OSError(errno.EBADF, f"handle {handle} is not open")


def _write_rest(fd: int, offset: int, buffers: Sequence[Buffer], done: int) -> None:
    """Write `buffers` after their first `done` bytes, in slices that the kernel accepts."""
    views = [v for b in buffers if (v := memoryview(b).cast("B")).nbytes]
    first = 0
    offset += done
    while first < len(views):
        if done >= views[first].nbytes:
            done -= views[first].nbytes
            first += 1
            continue
        if done:
            views[first] = views[first][done:]
        done = os.pwritev(fd, views[first : first + _BUFFERS_MAX], offset)
        if not done:
            raise OSError(errno.EIO, f"the file system wrote no bytes at offset {offset}")
        offset += done


def _write_zeros(fd: int, start: int, stop: int) -> None:
    with memoryview(_ZEROS) as zeros:
        while start < stop:
            start += os.pwrite(fd, zeros[: stop - start], start)
