"""File of a bookmark store: its lock, its mapping, its replacement.

It is the only module of bookmark stores that touches the operating system. A mapped file keeps what was
written when the process is killed at any time; space is reserved before it is mapped, so that a full disk is
an error here and not a signal at a write.
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

from crc32c import crc32c

from tickertape.base.errors import BadOption, StoreCorrupt, StoreFailed, StoreLocked, StoreOfAnother
from tickertape.client.bookmark_store.base import ProgressStore
from tickertape.client.bookmark_store.protocol import RecoveryPointAdapter
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.directories import make_parents

_MAGIC_BYTES: Final = 8
_VERSION_END: Final = 10


def check_owner(content: bytes, magic: bytes, version: int, kind: str) -> str | None:
    """Why a file may not be written over whatever else is wrong with it; None when it is ours.

    A beginning of `magic`, and zeros alone, are taken for ours: nobody else has anything to lose there. The
    version is looked at before any checksum, because a newer format may have another one.
    """
    if not magic.startswith(content[:_MAGIC_BYTES]) and content.strip(b"\0"):
        return f"it is not {kind}"
    found = int.from_bytes(content[_MAGIC_BYTES:_VERSION_END], "little")
    if found > version:
        return f"it has version {found}, and this program knows up to {version}"
    return None


# -- the owner: a digest of the client name in spare bytes of the header, zeros in files of an earlier version

_OWNER: Final = struct.Struct("<8sI")
"""The digest, then the checksum of salt and digest."""
OWNER_AT: Final = 48
OWNER_END: Final = OWNER_AT + _OWNER.size


def owner_named(name: str) -> bytes:
    """The digest of a client name."""
    return blake2b(name.encode(), digest_size=8).digest()


def mark(owner: bytes, salt: int) -> bytes:
    """The bytes at `OWNER_AT` in the header of a file with that salt; zeros for no owner."""
    if not owner:
        return bytes(_OWNER.size)
    return _OWNER.pack(owner, crc32c(struct.pack("<I", salt) + owner))


def owner_of(content: bytes, salt: int) -> bytes:
    """The digest in a file; empty when it is bound to no name, or that was not written whole."""
    owner, crc = _OWNER.unpack_from(content, OWNER_AT)
    return owner if crc == crc32c(struct.pack("<I", salt) + owner) else b""


# -- the file -----------------------------------------------------------------------------------------

_MODE: Final = 0o600
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_PAGE: Final = mmap.PAGESIZE


def boot_id() -> bytes:
    """Names this run of the machine, 16 bytes; zeros where the system has none."""
    try:
        return bytes.fromhex(_BOOT.read_text(encoding="ascii").strip().replace("-", ""))[:16].ljust(16, b"\0")
    except (OSError, ValueError):
        return bytes(16)


def random_salt() -> int:
    """An unforeseen number below 2**32."""
    return int.from_bytes(os.urandom(4), "little")


class StoreFile:
    """A file that is this store's alone, until `close`. `map` is its content; it changes when it grows.

    A forked child lets go of it at once. Raises `StoreLocked`, and `StoreFailed` for whatever the system
    refuses.
    """

    map: mmap.mmap

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._fd = self._lock = -1
        self.replaced = 0
        """So often another file took its place since."""
        forks.register(self)
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
                f"the bookmark store {self.path} is in use by process {owner}; one store, one owner"
            ) from None
        with self._errors("lock"):
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _open(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise StoreCorrupt(f"{self.path} is not a regular file, so no bookmark store")
            self._fd = fd

    def read(self) -> bytes:
        """All of the file; nothing where there is none."""
        if self._fd < 0:
            return b""
        with self._errors("read"):
            size = os.fstat(self._fd).st_size
            content = b""
            while part := os.pread(self._fd, size - len(content), len(content)):
                content += part
            return content

    def reserve(self, keep: int, size: int) -> None:
        """Map the file with `size` bytes; behind the first `keep` they are zeros."""
        with self._errors("reserve room for"):
            self._unmap()
            os.ftruncate(self._fd, keep)
            os.posix_fallocate(self._fd, 0, size)
            self.map = mmap.mmap(self._fd, size)

    def grow(self, size: int) -> None:
        """Make the file longer, by zeros. When there is no room it stays as it was."""
        with self._errors("reserve room for"):
            before = len(self.map)
            try:
                os.posix_fallocate(self._fd, before, size - before)
            except OSError:
                os.ftruncate(self._fd, before)
                raise
            self._unmap()
            self.map = mmap.mmap(self._fd, size)

    def replace(self, content: bytes, size: int) -> None:
        """Put a new file in the place of this one, durably: whoever looks sees the old one or the new one.
        It is mapped with `size` bytes, zeros behind `content`."""
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
        """Make the bytes `[low, high)` durable."""
        begin = low // _PAGE * _PAGE
        with self._errors("sync"):
            self.map.flush(begin, high - begin)

    def close(self, keep: int | None = None) -> None:
        """Let go of file and lock; the file is cut to its first `keep` bytes."""
        self._unmap()
        try:
            if self._fd >= 0 and keep is not None:
                with self._errors("shorten"):
                    os.ftruncate(self._fd, keep)
        finally:
            if self._lock >= 0:
                fcntl.flock(self._lock, fcntl.LOCK_UN)  # a child that was forked just now has it open still
            self._let_go()

    def forked(self) -> None:
        """Internal: this is a forked child. The file and its length are the parent's. So is the lock, which a
        descriptor left open here would hold for longer than the parent lives."""
        with contextlib.suppress(BufferError):
            self._unmap()
        self._let_go()

    def _let_go(self) -> None:
        # Forgotten first: a fork in between must not close a number that is another's by then.
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
                f"cannot {what} the bookmark store {self.path}: {error.strerror or error}"
            ) from error


Sync = Literal["never", "always"]


class FileBackedStore(ProgressStore, ABC):
    """A bookmark store in one file. Its constructor ends with `_take`."""

    _kind: ClassVar[str]
    """What the store is, for error texts."""
    _again: ClassVar[str]
    """Which messages come again when the file is moved away."""

    def __init__(self, adapter: RecoveryPointAdapter | None, sync: Sync) -> None:
        super().__init__(adapter)
        if sync not in ("never", "always"):
            raise BadOption(f"sync={sync!r}: use 'never' or 'always'")
        self._always = sync == "always"
        self._owner = b""
        self._salt = 0

    @property
    def path(self) -> str:
        """The file."""
        return str(self._file.path)

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of the file in use."""

    def bind_client_name(self, name: str) -> None:
        """The client `name` uses it, and no other one from now on; one without subscriptions is free for
        each. Raises `StoreOfAnother`, `StoreFailed`, `Closed`."""
        owner = owner_named(name)
        with self._lock:
            self._check()
            if owner == self._owner:
                return
            if self._owner and self._progress:
                raise StoreOfAnother(
                    f"Cannot use {self._kind} {self.path} for client {name!r}: it has the positions of "
                    "another client name. Use a file of its own for each name, or forget these positions "
                    "with purge()."
                )
            self._owner = owner
            self._file.map[OWNER_AT:OWNER_END] = mark(owner, self._salt)
            self._file.sync(OWNER_AT, OWNER_END)

    def sync(self) -> None:
        """Make durable what was recorded."""
        with self._lock:
            self._check()
            self._file.sync(0, self.size_bytes)

    @abstractmethod
    def _open(self) -> None:
        """Begin with what the file has."""

    def _take(self, path: str | os.PathLike[str]) -> None:
        self._file = StoreFile(path)
        try:
            self._open()
        except BaseException:
            self._file.close()
            raise

    def _content(self, magic: bytes, version: int, kind: str) -> bytes:
        """What the file has. Raises `StoreCorrupt` when it is not this store's to write over."""
        content = self._file.read()
        foreign = check_owner(content, magic, version, kind)
        if foreign is not None:
            raise self._unusable(foreign, "")
        return content

    def _marked(self, content: bytes, salt: int) -> bytes:
        """The content of a file with this salt, bound to the owner."""
        return content[:OWNER_AT] + mark(self._owner, salt) + content[OWNER_END:]

    def _unusable(self, why: str, remedy: str) -> StoreCorrupt:
        return StoreCorrupt(
            f"{self.path} cannot be used as {self._kind}: {why}; take another path, {remedy}or move it "
            f"away ({self._again})"
        )
