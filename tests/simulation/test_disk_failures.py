"""Every sync, write and reserve of a life of the engine fails once, in every way: nothing is acknowledged on
hope.
"""

from __future__ import annotations

import errno
from collections import Counter
from random import Random

import pytest

from tests.simulation.engine_world import EngineWorld
from tests.simulation.stores import Store, everything_once

SEED = 5
TORN_SEED = 0
"""Power loss with this chance leaves an unfinished write, so that a start has something to set aside."""
ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
ENDS_THE_RUN = ("sync", "write", "truncate", "sync_directory")
"""Failed calls that are never retried. A failed reservation is retried after a full disk."""
EVERYTHING = (*ENDS_THE_RUN, "preallocate", "open", "rename", "make_directory")


class FailureRun:
    """An engine that was killed at work, starts again, works, and stops: with a disk that fails once.

    `torn`: it lost power instead, in the middle of a write.
    """

    def __init__(self, counts: Counter[str], *, torn: bool, segment_bytes: int = 8_192) -> None:
        self.world = EngineWorld(SEED, counts=counts, segment_bytes=segment_bytes)
        self.stores = [Store(f"p{i}") for i in range(2)]
        self.counts = counts
        self.acknowledged_at_failure: list[int] | None = None
        """Acknowledged sequences at the time of the failure."""
        self._connect()
        self._work(12)
        if torn:
            self._settle()
            self.world.disk.fail("sync", 1, errno.EIO)
            self.stores[0].publish("t", [bytes([7]) * 1_200])
            self._settle()
        self._restart(power=torn)

    def _restart(self, *, power: bool) -> None:
        world = self.world
        rng = Random(TORN_SEED)
        world.disk = world.disk.crash_clone(rng) if power else world.disk.kill_clone(rng)
        world.peers, world.fatal, self.acknowledged_at_failure = {}, None, None

    def _connect(self) -> None:
        for store in self.stores:
            store.connect(self.world)

    def go(self) -> None:
        """Start, work, idle, stop, until an operation fails."""
        try:
            self.world.open()
        except OSError:
            self.counts["start refused"] += 1
            return
        self._connect()
        self._work(20)
        self._settle()
        self.world.wake(0.05)  # a mark is due
        self._settle()
        self.world.broker.close(self.world.now())
        self.world.collect()
        self._settle()
        self._note()

    def _work(self, rounds: int) -> None:
        world, rng = self.world, self.world.rng
        for _ in range(rounds):
            store = rng.choice(self.stores)
            bodies = [rng.randbytes(rng.choice((0, 40, 600))) for _ in range(rng.choice((1, 4)))]
            store.publish("t", bodies)
            self._note()
            for _ in range(rng.randrange(4)):
                world.step()
                self._note()

    def _settle(self) -> None:
        self.world.settle()
        self._note()

    def _note(self) -> None:
        """Check after each step that a failure ends the acknowledgements."""
        for store in self.stores:
            store.hear()
        acknowledged = [store.acknowledged for store in self.stores]
        if self.acknowledged_at_failure is not None:
            assert acknowledged == self.acknowledged_at_failure, "acknowledged after the failure"
        elif self.world.fatal is not None:
            self.acknowledged_at_failure = acknowledged
            assert self.world.fatal.code == "journal_failed"
            for peer in self.world.peers.values():
                assert peer.goodbye is not None, "connected clients receive a goodbye"
                assert peer.goodbye.code == "journal_failed"

    def recover(self, *, power: bool) -> None:
        """Restart on the remaining disk, which works now, and check that all messages are in the log."""
        self._restart(power=power)
        self.world.open()
        self._connect()  # compares the server's sequences with the acknowledged ones
        self.world.settle()
        everything_once(self.world, self.stores, "after the failure")


def points(operation: str, *, torn: bool) -> int:
    """Return the number of calls of an operation."""
    life = FailureRun(Counter(), torn=torn)
    life.go()
    assert life.world.fatal is None
    return life.world.disk.calls[operation]


def fail_each(
    operation: str, errors: tuple[int, ...], counts: Counter[str], *, torn: bool, full: bool
) -> int:
    """Let each call fail with one error (--full: with each), and recover after power loss or a mere kill."""
    total = points(operation, torn=torn)
    for nth in range(1, total + 1):
        for error in errors if full else (errors[nth % len(errors)],):
            life = FailureRun(counts, torn=torn)
            written = (None, 0, 1, 511)[nth % 4] if operation == "write" else None
            life.world.disk.fail(operation, nth, error, written=written)
            label = f"{operation} {nth} of {total} fails with {errno.errorcode[error]}"
            refused = counts["start refused"]
            try:
                life.go()
                assert life.world.disk.faults_left == 0, "it happened"
                if operation in ENDS_THE_RUN and counts["start refused"] == refused:
                    assert life.acknowledged_at_failure is not None, "a failure ends the run"
                counts["ended the run"] += life.acknowledged_at_failure is not None
                life.recover(power=nth % 2 == 0)
            except BaseException as failed:
                failed.add_note(label)
                raise
    return total


@pytest.mark.slow
@pytest.mark.parametrize("operation", EVERYTHING)
def test_disk_after_any_failed_operation_no_unsynced_message_is_acknowledged(
    operation: str, full: bool
) -> None:
    counts: Counter[str] = Counter()
    total = sum(fail_each(operation, ERRORS, counts, torn=torn, full=full) for torn in (False, True))
    assert total, "the run makes this call"
    if operation in ("sync", "write"):
        assert total > 40
        assert counts["ended the run"] > 25
        assert counts["start refused"] > 3
