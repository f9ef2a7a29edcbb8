"""Strict disk: a `Disk` in memory whose crash may lose everything that was not synced.

It does not use the operating system, and all random numbers come from the caller: equal seeds and equal calls
give equal disks. `pages.py` and `names.py` decide how files and names survive. This module has handles,
paths, faults, free space and the lock.

The crash model (`crash_clone`) is stricter than any one file system:

* Each 512-byte sector of each unsynced write is kept or lost independently. A kept sector is the whole sector
  after that write. A lost sector has its old contents, or may be zeros if it was never synced.
* Unsynced file sizes survive up to some point in time. Created files, renames and removals survive or not,
  name by name, but never without an earlier change of the same name. A rename leaves the old or the new name.
* A failed sync drops the data that it should have written. The data stays readable, and no later sync makes
  it durable.

External damage to a data directory (`harm`, `move_away`, `lose`): a file reads as zeros, is empty or is
unreadable. The path names another directory. A name is removed, including the name of a lock file.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

from tickertape.base.interfaces import Buffer
from tickertape.base.text_format import not_one_of
from tickertape.journal.disk import lock_held, path_parts
from tickertape.testing.names import DiskDirectory, NameLog, Node
from tickertape.testing.pages import FileState, Harm

OPERATIONS: Final = (
    "names", "make_directory", "open", "close", "size", "preallocate", "truncate", "write", "sync", "read",
    "rename", "remove", "sync_directory", "lock",
)  # fmt: skip
"""Operations that `StrictDisk.calls` counts and `StrictDisk.fail` accepts."""


HARMS: Final = {"zeros": "read_as_zeros", "empty": "read_as_empty", "unreadable": "unreadable"}
"""Kinds of damage that `StrictDisk.harm` accepts, with the names of their counters."""
_NOT_OPENED: Final = (errno.EMFILE, errno.ENFILE)
"""Errors for which the operation did not start: no descriptor was free."""


class BusError(BaseException):
    """A mapped page is unreadable. It simulates a signal that ends the process, not an exception."""


class _Fault(NamedTuple):
    call: int
    error: int
    written: int | None


class _Handle(NamedTuple):
    file: FileState
    writable: bool


class StrictDisk:
    """Disk of a server (the interface `Disk`) in memory, with an empty root directory. Not thread-safe.

    Paths are relative to the root. Handles are integers. All operations raise `OSError` as the operating
    system does. `sync` makes the contents of a file durable, and `sync_directory` its name.

    Args:
        rng: Random source that decides how much of a failing write is written, and which calls of
            `write_nowait` write nothing.
        space_bytes: Limit of preallocated and written bytes. It may be changed at any time. Default None (no
            limit).
        counts: Counters of faults and crash outcomes, shared with every clone, so that a suite can verify its
            coverage. Default: a new counter.

    Example:
        >>> disk = StrictDisk(random.Random(1))
        >>> handle = disk.open("file", create=True)
        >>> disk.write(handle, 0, [b"data"])
        >>> disk.crash_clone(random.Random(2)).contents()
        {}
        >>> disk.sync(handle)
        >>> disk.sync_directory(".")
        >>> disk.crash_clone(random.Random(2)).contents()
        {'file': b'data'}
    """

    def __init__(
        self, rng: Random, *, space_bytes: int | None = None, counts: Counter[str] | None = None
    ) -> None:
        self.where = "memory"
        """Place of the disk for messages."""
        self.space_bytes = space_bytes
        self.counts: Counter[str] = Counter() if counts is None else counts
        self.calls: Counter[str] = Counter()
        """Calls of each operation on this disk, including failed ones. A clone starts at zero."""
        self._rng = rng
        self._names = NameLog()
        self._used = 0
        self._handles: dict[int, _Handle] = {}
        self._last_handle = 0
        self._locked: dict[Node, str] = {}
        """Files and directories locked by processes of this machine, with their owners."""
        self._mine: list[Node] = []
        self._moved = False
        self._faults: dict[str, list[_Fault]] = {}

    # -- crashes --------------------------------------------------------------------------------------

    def crash_clone(self, rng: Random) -> StrictDisk:
        """Return a copy of the disk as a power loss could leave it. This disk stays unchanged.

        `rng` decides which unsynced sectors and names survive. All contents of the returned disk are
        durable, and its own random decisions use `rng` too.
        """
        self.counts["crash"] += 1
        return self._clone(self._names.crash_clone(rng, self.counts), rng)

    def kill_clone(self, rng: Random | None = None) -> StrictDisk:
        """Return the disk for the next process after SIGKILL. It has all writes, also unsynced ones.

        `rng` is the random source of the returned disk. Default None: a new one, seeded from this disk.
        """
        self.counts["kill"] += 1
        return self._clone(self._names.kill_clone(), rng or Random(self._rng.getrandbits(64)))

    def _clone(self, names: NameLog, rng: Random) -> StrictDisk:
        clone = StrictDisk(rng, space_bytes=self.space_bytes, counts=self.counts)
        clone._names = names
        clone._used = sum(file.allocated for file in names.nodes())
        return clone

    def second_process(self) -> StrictDisk:
        """Return the disk for another process of the same machine: same names and files, separate handles.

        Its calls, faults and space are its own: `space_bytes` is None, and `used_bytes` starts at 0.
        """
        other = StrictDisk(self._rng, counts=self.counts)
        other._names, other._locked = self._names, self._locked
        return other

    def move_away(self) -> StrictDisk:
        """Simulate a rename of the root directory. Return a disk for a new directory at the old path.

        The new disk is empty and has no limit of space. This disk keeps its files and handles. Its next
        operation increases the counter `directory_moved`.
        """
        self._moved = True
        return StrictDisk(Random(self._rng.getrandbits(64)), counts=self.counts)

    def lose(self, path: str) -> None:
        """Remove a file durably, as another program or an operator would.

        A process keeps its lock even if the lock file is removed: the lock still rejects other processes.
        `lock_lost` counts the rejections by a lock whose file is lost.
        """
        self._names.sync(self._unlinked(path))

    def harm(self, path: str, how: str, start: int = 0, stop: int = 1 << 62) -> None:
        """Damage a file, synced or not. `counts` has the number of reads of damaged bytes.

        `how` is `zeros` (the file has only zeros), `empty` (the file has no bytes), or `unreadable`: reads
        of the bytes from `start` to `stop` (exclusive) fail until one write covers all these bytes. Raises
        `ValueError` for another `how`.
        """
        if how not in HARMS:
            raise ValueError(not_one_of("Unknown damage", how, HARMS))
        file = self._found(path)[2]
        if not isinstance(file, FileState):
            raise _error(errno.ENOENT, path)
        file.suffer(how, start, stop)

    def mend(self) -> None:
        """Restore damaged files, as from a copy, unless they were overwritten after the damage."""
        for file in self._names.nodes():
            if file.harm is not None:
                file.become(file.harm.before)
                file.harm = None

    def fail(self, operation: str, nth: int, error: int, *, written: int | None = None) -> None:
        """Make the `nth` call of `operation` from now (1: the next) raise `OSError(error)`, once.

        A failing write first writes `written` bytes (default: drawn from `rng`), which stay unsynced. A
        failing sync drops the data that it should have written. A directory sync that fails with `EMFILE` or
        `ENFILE` drops nothing. Any other failing call has no effect. Raises `ValueError` for an unknown
        operation, and for `nth` below 1.
        """
        if operation not in OPERATIONS:
            raise ValueError(not_one_of("Unknown operation", operation, OPERATIONS))
        if nth < 1:
            raise ValueError(f"Invalid call number {nth} of {operation!r}. Use 1 or more.")
        fault = _Fault(self.calls[operation] + nth, error, written)
        self._faults.setdefault(operation, []).append(fault)

    def forget_faults(self) -> None:
        """Cancel all pending faults."""
        self._faults.clear()

    @property
    def faults_left(self) -> int:
        """Number of pending faults."""
        return sum(map(len, self._faults.values()))

    @property
    def used_bytes(self) -> int:
        """Bytes that count towards `space_bytes`."""
        return self._used

    def contents(self) -> dict[str, bytes]:
        """Return the contents of every file by path, for assertions. `calls` does not count this call,
        and `fail` does not fail it."""
        found: dict[str, bytes] = {}
        waiting = [("", self._names.root)]
        while waiting:
            prefix, directory = waiting.pop()
            for name, node in directory.view.items():
                if isinstance(node, DiskDirectory):
                    waiting.append((f"{prefix}{name}/", node))
                else:
                    found[prefix + name] = node.view.read(0, node.view.size)
        return dict(sorted(found.items()))

    # -- names ----------------------------------------------------------------------------------------

    def names(self, directory: str) -> list[str]:
        """Return the sorted names in `directory`."""
        self._begin("names")
        return sorted(self._directory(path_parts(directory), directory).view)

    def make_directory(self, path: str) -> None:
        """Create a directory unless it exists."""
        self._begin("make_directory")
        parts = path_parts(path)
        if not parts:
            return
        parent = self._directory(parts[:-1], path)
        there = parent.view.get(parts[-1])
        if there is None:
            self._names.link(parent, parts[-1], DiskDirectory())
        elif not isinstance(there, DiskDirectory):
            raise _error(errno.EEXIST, path)

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing `new`. Durable after `sync_directory` of both directories."""
        self._begin("rename")
        from_parts, to_parts = _entry(old), _entry(new)
        source, target = self._directory(from_parts[:-1], old), self._directory(to_parts[:-1], new)
        node, there = source.view.get(from_parts[-1]), target.view.get(to_parts[-1])
        if node is None:
            raise _error(errno.ENOENT, old)
        if node is there:
            return
        if to_parts[: len(from_parts)] == from_parts:
            raise _error(errno.EINVAL, new)
        if from_parts[: len(to_parts)] == to_parts:
            raise _error(errno.ENOTEMPTY, new)
        if isinstance(node, DiskDirectory):
            if isinstance(there, FileState):
                raise _error(errno.ENOTDIR, new)
            if there is not None and there.view:
                raise _error(errno.ENOTEMPTY, new)
        elif isinstance(there, DiskDirectory):
            raise _error(errno.EISDIR, new)
        if isinstance(there, FileState):
            self._used -= there.allocated
        self._names.rename(source, from_parts[-1], target, to_parts[-1])

    def remove(self, path: str) -> None:
        """Remove a file. Durable after `sync_directory` of its directory."""
        self._begin("remove")
        self._unlinked(path)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        fault = self._fault("sync_directory")
        directory = self._directory(path_parts(path), path)
        if fault is not None and fault.error in _NOT_OPENED:
            raise _error(fault.error, path)
        if fault is not None:
            self.counts["names_dropped"] += self._names.fail_sync(directory)
            raise _error(fault.error, path)
        self._names.sync(directory)

    def lock(self, path: str, owner: str) -> None:
        """Lock the file `path` and its directory until `close_all`. Create the file if it is missing.

        The name `owner` is written into the file. Raises `BlockingIOError` with the content of the file if
        the directory is already locked, by this or by another process (`second_process`).
        """
        self._begin("lock")
        parent, name, file = self._found(path)
        if parent in self._locked:
            self.counts["lock_lost"] += file not in self._locked
            held = file.view.read(0, 4096) if isinstance(file, FileState) else b""
            raise lock_held(held.decode("utf-8", "replace").strip())
        if isinstance(file, DiskDirectory):
            raise _error(errno.EISDIR, path)
        if file is None:
            file = FileState()
            self._names.link(parent, name, file)
        text = f"{owner} (pid 1)\n".encode()
        self._store(file, 0, text, path)
        file.resize(len(text))
        for node in (parent, file):
            self._locked[node] = owner
            self._mine.append(node)

    def _unlinked(self, path: str) -> DiskDirectory:
        """Remove a file, free its space, and return its directory."""
        parent, name, file = self._found(path)
        if file is None:
            raise _error(errno.ENOENT, path)
        if isinstance(file, DiskDirectory):
            raise _error(errno.EISDIR, path)
        self._used -= file.allocated
        self._names.unlink(parent, name)
        return parent

    def _found(self, path: str) -> tuple[DiskDirectory, str, Node | None]:
        """Return the directory of a path, the name in it, and the node with that name or None."""
        parts = _entry(path)
        parent = self._directory(parts[:-1], path)
        return parent, parts[-1], parent.view.get(parts[-1])

    def _directory(self, parts: tuple[str, ...], path: str) -> DiskDirectory:
        node: Node = self._names.root
        for part in parts:
            below = node.view.get(part) if isinstance(node, DiskDirectory) else None
            if below is None:
                raise _error(errno.ENOENT if isinstance(node, DiskDirectory) else errno.ENOTDIR, path)
            node = below
        if not isinstance(node, DiskDirectory):
            raise _error(errno.ENOTDIR, path)
        return node

    # -- files ----------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, write: bool = True) -> int:
        """Open an existing file, and return a handle.

        `create=True` creates the file instead, and raises `FileExistsError` if it exists. `write=False` opens
        the file for reading only.
        """
        self._begin("open")
        parent, name, file = self._found(path)
        if create:
            if file is not None:
                raise _error(errno.EEXIST, path)
            file = FileState()
            self._names.link(parent, name, file)
        if file is None:
            raise _error(errno.ENOENT, path)
        if isinstance(file, DiskDirectory):
            raise _error(errno.EISDIR, path)
        self._last_handle += 1
        self._handles[self._last_handle] = _Handle(file, write)
        return self._last_handle

    def close(self, handle: int) -> None:
        """Close a handle. The file is not synced."""
        self._begin("close")
        self._file(handle)
        del self._handles[handle]

    def close_all(self) -> None:
        """Simulate the end of a process: close every handle and release every lock, without a sync."""
        self._handles.clear()
        while self._mine:
            del self._locked[self._mine.pop()]

    def size(self, handle: int) -> int:
        """Return the size of a file in bytes."""
        self._begin("size")
        file = self._file(handle)
        if file.harm is not None and file.harm.how == "empty":
            self.counts[HARMS["empty"]] += 1
        return file.view.size

    def preallocate(self, handle: int, size: int) -> None:
        """Reserve space for `size` bytes. Extend a shorter file with zeros."""
        self._begin("preallocate")
        file = self._file(handle, write=True)
        if size <= 0:
            raise _error(errno.EINVAL, f"size {size}")
        if size - file.allocated > self._room():
            self.counts["no_space"] += 1
            raise _error(errno.ENOSPC, f"handle {handle}")
        self._allocate(file, size)
        if size > file.view.size:
            file.resize(size)

    def truncate(self, handle: int, size: int) -> None:
        """Set the size of a file in bytes. Added bytes are zeros."""
        self._begin("truncate")
        file = self._file(handle, write=True, wrong=errno.EINVAL)
        if size < 0:
            raise _error(errno.EINVAL, f"size {size}")
        if size < file.allocated:
            self._used -= file.allocated - size
            file.allocated = size
        file.resize(size)

    def write(self, handle: int, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write buffers at `offset`. Durable after `sync`."""
        fault = self._fault("write")
        file = self._file(handle, write=True)
        data = b"".join(buffers)
        if offset < 0:
            raise _error(errno.EINVAL, f"offset {offset}")
        if fault is None:
            self._store(file, offset, data, f"handle {handle}")
            return
        written = self._rng.randint(0, len(data)) if fault.written is None else fault.written
        self.counts["short_write" if 0 < written < len(data) else "whole_or_no_write"] += 1
        self._store(file, offset, data[:written], f"handle {handle}")
        raise _error(fault.error, f"handle {handle}")

    def write_nowait(self, handle: int, offset: int, buffers: Sequence[Buffer]) -> bool:
        """Write like `write`. One call in four writes nothing and returns False, as a busy disk does."""
        if self._rng.random() < 0.25:
            self._file(handle, write=True)
            return False
        self.write(handle, offset, buffers)
        return True

    def sync(self, handle: int) -> None:
        """Make the contents and the size of a file durable."""
        fault = self._fault("sync")
        file = self._file(handle)
        if fault is not None:
            self.counts["sectors_dropped"] += file.fail_sync()
            raise _error(fault.error, f"handle {handle}")
        file.sync()

    def read(self, handle: int, offset: int, size: int) -> bytes:
        """Return `size` bytes at `offset`, or fewer at the end of the file."""
        self._begin("read")
        file = self._file(handle)
        if offset < 0 or size < 0:
            raise _error(errno.EINVAL, f"{size} bytes at {offset}")
        if file.harm is not None and self._met(file.harm, offset, size):
            raise _error(errno.EIO, f"handle {handle}")
        return file.view.read(offset, size)

    def map(self, handle: int) -> memoryview:
        """Return the whole current file. Raises `BusError` if a page is unreadable."""
        harm = self._file(handle).harm
        if harm is not None and harm.how == "unreadable":
            self.counts[HARMS["unreadable"]] += 1
            raise BusError
        return memoryview(self.read(handle, 0, self.size(handle)))

    def _met(self, harm: Harm, offset: int, size: int) -> bool:
        """Count damage in the range of a read. Return whether the read fails."""
        if harm.how != "unreadable":
            self.counts[HARMS[harm.how]] += 1
            return False
        hit = offset < harm.stop and offset + size > harm.start
        self.counts[HARMS["unreadable"]] += hit
        return hit

    def read_nowait(self, handle: int, offset: int, size: int) -> bytes | None:
        """Read bytes like `read`. A read of this disk never blocks, so it never returns None."""
        return self.read(handle, offset, size)

    def _file(self, handle: int, *, write: bool = False, wrong: int = errno.EBADF) -> FileState:
        held = self._handles.get(handle)
        if held is None:
            raise _error(errno.EBADF, f"handle {handle}")
        if write and not held.writable:
            raise _error(wrong, f"handle {handle}")
        return held.file

    # -- space and faults -----------------------------------------------------------------------------

    def _room(self) -> int:
        return (1 << 62) if self.space_bytes is None else self.space_bytes - self._used

    def _allocate(self, file: FileState, size: int) -> None:
        if size > file.allocated:
            self._used += size - file.allocated
            file.allocated = size

    def _store(self, file: FileState, offset: int, data: bytes, what: str) -> None:
        """Write `data`. Without enough space, write the part that fits and raise ENOSPC."""
        if not data:
            return
        stop = offset + len(data)
        if stop > file.allocated:
            end = file.allocated + max(0, self._room())
            if stop > end:
                fits = max(0, end - offset)
                self.counts["no_space"] += 1
                if fits:
                    self.counts["short_write"] += 1
                    self._allocate(file, end)
                    file.write(offset, data[:fits])
                raise _error(errno.ENOSPC, what)
            self._allocate(file, stop)
        file.write(offset, data)

    def _fault(self, operation: str) -> _Fault | None:
        self.calls[operation] += 1
        if self._moved:
            self._moved = False
            self.counts["directory_moved"] += 1
        waiting = self._faults.get(operation)
        if not waiting:
            return None
        for fault in waiting:
            if fault.call == self.calls[operation]:
                waiting.remove(fault)
                self.counts[f"fault_{operation}"] += 1
                return fault
        return None

    def _begin(self, operation: str) -> None:
        fault = self._fault(operation)
        if fault is not None:
            raise _error(fault.error, operation)


def _entry(path: str) -> tuple[str, ...]:
    parts = path_parts(path)
    if not parts:
        raise _error(errno.EISDIR, path)
    return parts


def _error(number: int, what: str) -> OSError:
    """Return the error that the system raises. `OSError` picks the subclass by its number."""
    return OSError(number, os.strerror(number), what)
