"""Interfaces of the pure parts to clocks and disks.

`journal/disk.py` implements the real disk, `testing/disk.py` the simulated one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview


class Now(NamedTuple):
    """Time passed to every state machine: `mono` for leases and rates, `wall` for stamps and ranges."""

    mono: float
    """Seconds of a monotonic clock."""
    wall: int
    """Microseconds since 1970 UTC. May jump in both directions."""


class BackgroundSyncs(Protocol):
    """Data syncs of files that complete in the background."""

    descriptor: int
    """File descriptor that is readable after a completion."""

    def begin(self, handle: int) -> int:
        """Start a sync of an open file and return its token. Raises `OSError` if nothing was started."""

    def completed(self) -> list[tuple[int, OSError | None]]:
        """Remove and return the completed syncs: token, and the error of a failed one. Never waits."""

    def close(self) -> list[tuple[int, OSError | None]]:
        """Wait for the syncs in flight, and return them."""


SyncDone = Callable[[OSError | None], None]
"""Callback of a background sync: None, or its error."""


class SyncStarter(Protocol):
    """Background syncs with callbacks on the event loop."""

    def begin(self, handle: int, done: SyncDone) -> None:
        """Start a sync of an open file. Raises `OSError` if nothing was started."""

    def stop(self) -> None:
        """Wait for the syncs in flight. No callback is called afterwards."""


class Disk(Protocol):
    """Directory tree. Paths are relative to its root (`"."`) and use `/`. Handles are integers.

    Every method raises `OSError` as the system does, and `OSError(EINVAL)` for a path outside the tree.
    No method retries. `tests/conformance/test_disk.py` specifies the required behaviour.
    """

    @property
    def where(self) -> str:
        """Return the path of the root, for messages."""

    def names(self, directory: str) -> list[str]:
        """Return the sorted names in `directory`. Raises `FileNotFoundError` if it does not exist."""

    def make_directory(self, path: str) -> None:
        """Create `path` unless it exists. Its parent must exist.

        It becomes durable with `sync_directory` of the parent.
        """

    def open(self, path: str, *, create: bool = False, write: bool = True) -> int:
        """Open a file. With `create` it must not exist yet (`FileExistsError`)."""

    def close(self, handle: int) -> None: ...

    def size(self, handle: int) -> int: ...

    def preallocate(self, handle: int, size: int) -> None:
        """Reserve the first `size` bytes. New bytes read as zeros. Never shortens the file.

        Raises `OSError(ENOSPC)` without enough space.
        """

    def truncate(self, handle: int, size: int) -> None: ...

    def write(self, handle: int, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all of `buffers` at `offset`. Short writes are continued internally."""

    def write_nowait(self, handle: int, offset: int, buffers: Sequence[Buffer]) -> bool:
        """Write all of `buffers` like `write`, if the disk accepts them without a wait.

        Return False if it might wait. Some of the bytes may be written then, so `write` must follow. Raises
        `OSError(EOPNOTSUPP)` or similar if the disk never accepts such writes. Nothing was written then.
        """

    def sync(self, handle: int) -> None:
        """Make the file's data and size durable."""

    def read(self, handle: int, offset: int, size: int) -> bytes:
        """Return up to `size` bytes. Fewer are returned only at the end of the file."""

    def map(self, handle: int) -> memoryview:
        """Map a non-empty file for reading.

        The view stays valid after `close`, `rename` and `remove`. The file must not be written or truncated
        while the view exists.
        """

    def rename(self, old: str, new: str) -> None:
        """Rename `old`, replacing `new`. Durable after `sync_directory` of both directories."""

    def remove(self, path: str) -> None:
        """Remove the name of a file (`FileNotFoundError` if it is missing). Open handles stay valid.

        Durable after `sync_directory` of its directory.
        """

    def sync_directory(self, path: str) -> None:
        """Make the names in `path` durable."""

    def lock(self, path: str, owner: str) -> None:
        """Lock `path` for this process until it exits. Create the file if it is missing.

        Raises `BlockingIOError` with the name of the present owner as its text.
        """
