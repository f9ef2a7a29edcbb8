"""Background syncs on an event loop: the kernel syncs, and callbacks receive the results."""

from __future__ import annotations

import asyncio

from tickertape.base.interfaces import BackgroundSyncs, Disk, SyncDone
from tickertape.journal.disk import SystemDisk
from tickertape.server.events import event


class LoopSyncs:
    """Background syncs whose callbacks run on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, syncs: BackgroundSyncs) -> None:
        self._loop = loop
        self._syncs = syncs
        self._waiting: dict[int, SyncDone] = {}
        loop.add_reader(syncs.descriptor, self._completed)

    def begin(self, handle: int, done: SyncDone) -> None:
        """Start a sync of an open file. Raises `OSError` if nothing was started."""
        self._waiting[self._syncs.begin(handle)] = done

    def stop(self) -> None:
        """Wait for the syncs in flight. No callback is called afterwards."""
        self._loop.remove_reader(self._syncs.descriptor)
        self._syncs.close()
        self._waiting.clear()

    def _completed(self) -> None:
        for token, error in self._syncs.completed():
            self._waiting.pop(token)(error)


def loop_syncs(loop: asyncio.AbstractEventLoop, disk: Disk) -> LoopSyncs | None:
    """Return the background syncs of a disk, or None where the kernel or a sandbox refuses them."""
    if not isinstance(disk, SystemDisk):
        return None
    try:
        return LoopSyncs(loop, disk.syncs())
    except OSError as error:
        log_absent(error)
        return None


def log_absent(error: OSError) -> None:
    """Log that a thread writes and syncs the log, because the system cannot do it in the background."""
    reason = error.strerror or error
    text = f"A thread writes and syncs the log. The kernel cannot do it in the background: {reason}."
    event("sync_thread", text=text)
