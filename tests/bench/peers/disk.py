"""The disk alone: a write and a sync, without a server."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Final

from tests.bench.peers.loading import BODY_BYTES, Meter, Result, Task, go, run
from tests.bench.peers.serving import PeerServer

FILE_BYTES: Final = 4 << 20
WRITE_BYTES: Final = BODY_BYTES + 100
"""A body with the envelope of a log."""


class Disk(PeerServer):
    """A directory instead of a server."""

    name = "disk alone"
    counted = False

    @classmethod
    def missing(cls) -> str:
        return ""

    @classmethod
    def version(cls) -> str:
        return "a file that has its size already"

    def _start(self) -> None:
        self.address = str(self.directory)


def publish(task: Task) -> Result:
    """Write and sync, one at a time."""
    handle = os.open(Path(task.address) / "file", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(handle, 0, FILE_BYTES)
        os.fsync(handle)
        data = b"x" * WRITE_BYTES
        go()
        meter = Meter(task)
        place = 0
        while meter.running():
            started = time.perf_counter()
            os.pwrite(handle, data, place)
            os.fdatasync(handle)
            meter.done(1, started)
            place = (place + WRITE_BYTES) % (FILE_BYTES - WRITE_BYTES)
    finally:
        os.close(handle)
    return meter.result()


ACTIONS = {"publish": publish}

if __name__ == "__main__":
    run(ACTIONS, sys.argv[1:])
