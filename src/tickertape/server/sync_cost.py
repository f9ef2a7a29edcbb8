"""Measurement of synced writes in a directory. The journal writes in the same way."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from tickertape.base.limits import KIB, MIB

_BLOCK: Final = b"\xa5" * (4 * KIB)
_FILE_BYTES: Final = 16 * MIB
_WRITES_MAX: Final = 1_000_000
_WITHOUT_TMPFILE: Final = (errno.EOPNOTSUPP, errno.EINVAL)


class SyncCost(NamedTuple):
    """Durations of synced writes of 4 KiB, in seconds."""

    writes: int
    p50: float
    p99: float
    longest: float


def measure(directory: str, seconds: float, advance: Callable[[float], object]) -> SyncCost:
    """Write and sync 4 KiB repeatedly for `seconds`, at least once.

    The file has no name, so it disappears when the process ends. `advance` is called with the duration of
    each write in seconds. Raises `OSError`.
    """
    took: list[float] = []
    descriptor = _unnamed_file(directory)
    try:
        with contextlib.suppress(OSError):  # a file system without preallocation allocates on write
            os.posix_fallocate(descriptor, 0, _FILE_BYTES)
        os.fsync(descriptor)
        ends = time.perf_counter() + seconds
        while len(took) < _WRITES_MAX:
            begun = time.perf_counter()
            os.pwrite(descriptor, _BLOCK, len(took) * len(_BLOCK) % _FILE_BYTES)
            os.fdatasync(descriptor)
            done = time.perf_counter()
            took.append(done - begun)
            advance(done - begun)
            if done >= ends:
                break
    finally:
        os.close(descriptor)
    took.sort()
    return SyncCost(len(took), took[len(took) // 2], took[len(took) * 99 // 100], took[-1])


def _unnamed_file(directory: str) -> int:
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except IsADirectoryError:
        pass
    except OSError as error:
        if error.errno not in _WITHOUT_TMPFILE:
            raise
    descriptor, path = tempfile.mkstemp(prefix="tickertape-doctor-", dir=directory)
    os.unlink(path)
    return descriptor
