"""File of a bookmark store: lock, memory mapping and atomic replacement.

It is the only module of the bookmark stores that uses the operating system. Data in a mapped file survives a
killed process. Space is preallocated before the mapping, so that a full disk is an error and not a signal.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import ClassVar, Final, Literal

from tickertape.base.checksum import crc32c
from tickertape.base.errors import BadOption, StoreCorrupt, StoreFailed, StoreLocked, StoreOwnerMismatch
from tickertape.base.text_format import not_one_of
from tickertape.client.bookmark_store.base import ProgressStore
from tickertape.client.bookmark_store.protocol import RecoveryPointAdapter
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.directories import make_parents

_MAGIC_BYTES: Final = 8
_VERSION_END: Final = 10


def check_owner(content: bytes, magic: bytes, version: int, kind: str) -> str | None:
    """Return the reason why a file must not be overwritten, or None.

    A part of `magic`, or only zeros, may be overwritten: other programs lose nothing. The version is checked
    before any checksum, because a newer format may have a different checksum.
    """
    if not magic.startswith(content[:_MAGIC_BYTES]) and content.strip(b"\0"):
        return f"it is not {kind}"
    found = int.from_bytes(content[_MAGIC_BYTES:_VERSION_END], "little")
    if found > version:
        return f"it has format version {found}, and this program reads versions up to {version}"
    return None


# -- owner: a digest of the client name in spare bytes of the header, zeros in files of earlier versions

_OWNER: Final = struct.Struct("<8sI")
"""The digest, and the checksum of salt and digest."""
OWNER_AT: Final = 48
OWNER_END: Final = OWNER_AT + _OWNER.size


def owner_named(name: str) -> bytes:
    """Return the digest of a client name."""
    return blake2b(name.encode(), digest_size=8).digest()


def mark(owner: bytes, salt: int) -> bytes:
    """Return the bytes at `OWNER_AT` in the header of a file with this salt, zeros for no owner."""
    if not owner:
        return bytes(_OWNER.size)
    return _OWNER.pack(owner, crc32c(struct.pack("<I", salt) + owner))


def owner_of(content: bytes, salt: int) -> bytes:
    """Return the owner digest of a file. It is empty for an unbound file or an incomplete write."""
    owner, crc = _OWNER.unpack_from(content, OWNER_AT)
    return owner if crc == crc32c(struct.pack("<I", salt) + owner) else b""


# -- the file -----------------------------------------------------------------------------------------

_MODE: Final = 0o600
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_PAGE: Final = mmap.PAGESIZE


def boot_id() -> bytes:
    """Return the boot id of the machine (16 bytes), or zeros if the system has none."""
    try:
        return bytes.fromhex(_BOOT.read_text(encoding="ascii").strip().replace("-", ""))[:16].ljust(16, b"\0")
    except (OSError, ValueError):
        return bytes(16)


def random_salt() -> int:
    """Return a random number below 2**32."""
    return int.from_bytes(os.urandom(4), "little")


class StoreFile:
    """Locked file of one store, until `close`. `map` is its mapping, which is replaced when the file grows.

    A forked child releases the file at once. Raises `StoreLocked`, and `StoreFailed` for errors of the
    operating system.
    """

    map: mmap.mmap

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._fd = self._lock = -1
        self.replaced = 0
        """Number of replacements of the file since it was opened."""
        forks.register(self, type(self).forked)
        with self._errors("lock"):
            make_parents(self.path)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._lock = os.open(f"{self.path}.lock", flags, _MODE)
        try:
            self._take_lock()
            with self._errors("open"):
                self._open()
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
            raise StoreLocked(
                f"Cannot open the bookmark store {str(self.path)!r}: it is in use by process {owner}. Close "
                "the store there, or use a separate file for each store."
            ) from None
        with self._errors("lock"):
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _open(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise StoreCorrupt(
                    f"Cannot open the bookmark store {str(self.path)!r}: it is not a regular file. Use "
                    "another path."
                )
            self._fd = fd

    def read(self) -> bytes:
        """Return the contents of the file, empty if it does not exist."""
        if self._fd < 0:
            return b""
        with self._errors("read"):
            size = os.fstat(self._fd).st_size
            content = b""
            while part := os.pread(self._fd, size - len(content), len(content)):
                content += part
            return content

    def reserve(self, keep: int, size: int) -> None:
        """Map the file with `size` bytes. All bytes behind the first `keep` are zeros."""
        with self._errors("reserve space for"):
            self._unmap()
            os.ftruncate(self._fd, keep)
            os.posix_fallocate(self._fd, 0, size)
            self.map = mmap.mmap(self._fd, size)

    def grow(self, size: int) -> None:
        """Extend the file with zeros. After an error its size is unchanged."""
        with self._errors("reserve space for"):
            before = len(self.map)
            try:
                os.posix_fallocate(self._fd, before, size - before)
            except OSError:
                os.ftruncate(self._fd, before)
                raise
            self._unmap()
            self.map = mmap.mmap(self._fd, size)

    def replace(self, content: bytes, size: int) -> None:
        """Replace the file atomically and durably by `content`. Map it with `size` bytes, zero-padded."""
        new = self.path.with_name(f"{self.path.name}.new")
        with self._errors("replace"):
            fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
            try:
                os.posix_fallocate(fd, 0, max(size, len(content)))
                view = memoryview(content)
                at = 0
                while at < len(view):
                    at += os.pwrite(fd, view[at:], at)
                os.fsync(fd)
                fresh = mmap.mmap(fd, max(size, len(content)))
                os.rename(new, self.path)
            except BaseException:
                os.close(fd)
                raise
            self._unmap()
            before, self._fd, self.map = self._fd, fd, fresh
            self.replaced += 1
            if before >= 0:
                os.close(before)
            self._sync_directory()

    def _sync_directory(self) -> None:
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def sync(self, low: int, high: int) -> None:
        """Sync the bytes `[low, high)`."""
        begin = low // _PAGE * _PAGE
        with self._errors("sync"):
            self.map.flush(begin, high - begin)

    def close(self, keep: int | None = None) -> None:
        """Release file and lock. With `keep`, truncate the file to its first `keep` bytes."""
        self._unmap()
        try:
            if self._fd >= 0 and keep is not None:
                with self._errors("shorten"):
                    os.ftruncate(self._fd, keep)
        finally:
            if self._lock >= 0:
                fcntl.flock(self._lock, fcntl.LOCK_UN)  # a recently forked child still has it open
            self._let_go()

    def forked(self) -> None:
        """Release the file in a forked child without truncation.

        An open descriptor here would keep the lock after the end of the parent.
        """
        with contextlib.suppress(BufferError):
            self._unmap()
        self._let_go()

    def _let_go(self) -> None:
        # Reset first: a fork in between must not close a descriptor number that was reused.
        file, self._fd = self._fd, -1
        lock, self._lock = self._lock, -1
        for descriptor in (file, lock):
            if descriptor >= 0:
                os.close(descriptor)

    def _unmap(self) -> None:
        mapped = getattr(self, "map", None)
        if mapped is not None:
            mapped.close()

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreFailed(
                f"Cannot {what} the bookmark store {str(self.path)!r}: {error.strerror or error}. Check the "
                "path, its permissions and the free space."
            ) from error


Sync = Literal["never", "always"]


class FileBackedStore(ProgressStore, ABC):
    """Bookmark store in one file. The constructor of a subclass ends with `_take`."""

    _kind: ClassVar[str]
    """Kind of store, for error texts."""
    _again: ClassVar[str]
    """Effect of moving the file away, for error texts."""

    def __init__(self, adapter: RecoveryPointAdapter | None, sync: Sync) -> None:
        super().__init__(adapter)
        if sync not in ("never", "always"):
            raise BadOption(not_one_of("Invalid sync", sync, ("never", "always")))
        self._always = sync == "always"
        self._owner = b""
        self._salt = 0

    @property
    def path(self) -> str:
        """Path of the file."""
        return str(self._file.path)

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Used bytes of the file."""

    def bind_client_name(self, name: str) -> None:
        """Bind the store to the client `name`. Clients call it when they use the store.

        A store without subscriptions can be bound to another name. Raises `StoreOwnerMismatch`,
        `StoreFailed`, `Closed`.
        """
        owner = owner_named(name)
        with self._lock:
            self._check()
            if owner == self._owner:
                return
            if self._owner and self._progress:
                raise StoreOwnerMismatch(
                    f"Cannot use {self._kind} {self.path!r} for client {name!r}: it belongs to another "
                    "client name. Use a separate file for each client name, or empty this one with purge()."
                )
            self._owner = owner
            self._file.map[OWNER_AT:OWNER_END] = mark(owner, self._salt)
            self._file.sync(OWNER_AT, OWNER_END)

    def sync(self) -> None:
        """Sync all recorded changes to the disk. Not needed with `sync="always"`.

        Raises `StoreFailed`, `Closed`.

        Example:
            >>> with tt.LoggedBookmarkStore("orders.bookmarks") as store:
            ...     store.sync()
        """
        with self._lock:
            self._check()
            self._file.sync(0, self.size_bytes)

    @abstractmethod
    def _open(self) -> None:
        """Load the contents of the file."""

    def _take(self, path: str | os.PathLike[str]) -> None:
        self._file = StoreFile(path)
        try:
            self._open()
        except BaseException:
            self._file.close()
            raise

    def _content(self, magic: bytes, version: int, kind: str) -> bytes:
        """Return the contents of the file. Raises `StoreCorrupt` if the store must not overwrite it."""
        content = self._file.read()
        foreign = check_owner(content, magic, version, kind)
        if foreign is not None:
            newer = "use a newer version of Tickertape, " if content.startswith(magic) else ""
            raise self._unusable(foreign, newer)
        return content

    def _marked(self, content: bytes, salt: int) -> bytes:
        """Return `content` with the owner mark for this salt."""
        return content[:OWNER_AT] + mark(self._owner, salt) + content[OWNER_END:]

    def _unusable(self, why: str, remedy: str) -> StoreCorrupt:
        return StoreCorrupt(
            f"Cannot use {self.path!r} as {self._kind}: {why}. Use another path, {remedy}or move the file "
            f"away. {self._again}"
        )
