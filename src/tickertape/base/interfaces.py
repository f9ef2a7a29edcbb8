"""Interfaces between the pure parts and the outside: time and disk.

`journal/disk.py` is the real disk, `testing/disk.py` the simulated one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview


class Now(NamedTuple):
    """A moment, handed to every machine: `mono` for leases, rates, idleness; `wall` for stamps and ranges."""

    mono: float
    """Seconds of a monotonic clock."""
    wall: int
    """Microseconds since 1970 UTC; may step either way."""


class Disk(Protocol):
    """One directory tree. Paths are relative to its root (itself `"."`), with `/`; handles are integers.

    Every method raises `OSError` as the system does, and `OSError(EINVAL)` for a path that leaves the tree.
    Nothing is retried here: the caller decides. `tests/conformance/test_disk.py` says what a disk must do.
    """

    @property
    def where(self) -> str:
        """How people call this tree: the path of its root."""

    def names(self, directory: str) -> list[str]:
        """Names in `directory`, sorted; `FileNotFoundError` when it does not exist."""

    def make_directory(self, path: str) -> None:
        """Create `path` (its parent exists); no error when it exists.

        Not durable before `sync_directory` of the parent.
        """

    def open(self, path: str, *, create: bool = False, write: bool = True) -> int:
        """Open a file. With `create` it must not exist yet (`FileExistsError`)."""

    def close(self, handle: int) -> None: ...

    def size(self, handle: int) -> int: ...

    def preallocate(self, handle: int, size: int) -> None:
        """Reserve the first `size` bytes; new ones read as zeros. Never shortens the file.

        `OSError(ENOSPC)` when there is no room.
        """

    def truncate(self, handle: int, size: int) -> None: ...

    def write(self, handle: int, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all of `buffers` at `offset`; short writes are continued inside."""

    def sync(self, handle: int) -> None:
        """Make the file's data and size durable."""

    def read(self, handle: int, offset: int, size: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file."""

    def map(self, handle: int) -> memoryview:
        """Return the whole file, not empty, to be read in place for as long as the view is kept, whatever
        becomes of its name and handle; the file is neither written nor cut meanwhile."""

    def rename(self, old: str, new: str) -> None:
        """Rename, replacing a file called `new`; durable after `sync_directory` of both directories."""

    def remove(self, path: str) -> None:
        """Take away the name of a file (`FileNotFoundError` when it has none); open handles go on.

        Durable after `sync_directory` of its directory."""

    def sync_directory(self, path: str) -> None:
        """Make the names in `path` durable."""

    def lock(self, path: str, owner: str) -> None:
        """Hold `path` for this process until it ends (created when missing).

        Raises `BlockingIOError` whose text is the owner that holds it."""
