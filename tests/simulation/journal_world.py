"""Owns a simulated life of one journal: publishers append, the disk obeys or not, the power fails, it is opened again.

Must never share its expectations with the journal: what was acknowledged is kept here in plain lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Any, TypeVar

from tickertape.base.ports import Buffer, Disk, Now
from tickertape.batch import MessageBatch, Stamp, batch_from_bodies
from tickertape.journal.commit import SyncPolicy
from tickertape.journal.format import segment_path
from tickertape.journal.identity import open_identity
from tickertape.journal.jobs import Executor, Job
from tickertape.journal.journal import Journal
from tickertape.journal.reading import ReadRequest
from tickertape.journal.recovery import recover
from tickertape.testing.disk import StrictDisk

T = TypeVar("T")
Key = tuple[int, int]
"""(publisher, sequence)"""


class PowerLost(Exception):
    """The machine stopped in the middle of an operation."""


class FailingDisk:
    """A disk that stops the machine before its n-th operation that changes anything."""

    def __init__(self, disk: StrictDisk, operations: int) -> None:
        self._disk = disk
        self._left = operations

    def _tick(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise PowerLost

    def write(self, handle: int, offset: int, buffers: Sequence[Buffer]) -> None:
        self._tick()
        self._disk.write(handle, offset, buffers)

    def sync(self, handle: int) -> None:
        self._tick()
        self._disk.sync(handle)

    def truncate(self, handle: int, size: int) -> None:
        self._tick()
        self._disk.truncate(handle, size)

    def preallocate(self, handle: int, size: int) -> None:
        self._tick()
        self._disk.preallocate(handle, size)

    def sync_directory(self, path: str) -> None:
        self._tick()
        self._disk.sync_directory(path)

    def rename(self, old: str, new: str) -> None:
        self._tick()
        self._disk.rename(old, new)

    def make_directory(self, path: str) -> None:
        self._tick()
        self._disk.make_directory(path)

    def open(self, path: str, *, create: bool = False, write: bool = True) -> int:
        if create:
            self._tick()
        return self._disk.open(path, create=create, write=write)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


def drive(disk: Disk, search: Generator[ReadRequest, bytes, T]) -> T:
    """Run a search to its end."""
    data: bytes | None = None
    while True:
        try:
            request = next(search) if data is None else search.send(data)
        except StopIteration as done:
            result: T = done.value
            return result
        handle = disk.open(segment_path(request.segment), write=False)
        data = disk.read(handle, request.offset, request.size)
        disk.close(handle)


def read_log(
    journal: Journal, disk: Disk, start: int = 0, topic: str | None = None
) -> list[tuple[int, MessageBatch]]:
    """Everything persisted, through the readers that subscriptions use."""
    reader = journal.reader(start, topic)
    found: list[tuple[int, MessageBatch]] = []
    while (step := reader.poll()) is not None:
        if isinstance(step, ReadRequest):
            handle = disk.open(segment_path(step.segment), write=False)
            step = reader.answer(disk.read(handle, step.offset, step.size))
            disk.close(handle)
        found.extend((part.first_position, part.batch) for part in step)
    return found


class World:
    """One journal through many lives. `check()` holds what is in the log against what was acknowledged."""

    def __init__(
        self,
        seed: int,
        *,
        policy: SyncPolicy = SyncPolicy.ALWAYS,
        segment_bytes: int = 16_384,
        counts: Counter[str] | None = None,
    ) -> None:
        self.rng = Random(seed)
        self.counts: Counter[str] = Counter() if counts is None else counts
        self.policy = policy
        self.segment_bytes = segment_bytes
        self.disk = StrictDisk(self.rng, counts=self.counts)
        self.bodies: dict[Key, bytes] = {}
        self.sent: dict[int, int] = {1001: 0, 1002: 0, 1003: 0}
        """Highest sequence each publisher ever used."""
        self.acknowledged: set[Key] = set()
        self.journal: Journal | None = None
        self.mono = 0.0
        self.wall = 1_700_000_000_000_000
        self._waiting: list[tuple[int, list[Key]]] = []
        self._queue: list[Job] = []
        self._run_job: Callable[[Job], int] | None = None

    def now(self) -> Now:
        self.mono += self.rng.random() * 0.01
        self.wall += self.rng.randrange(-2_000, 10_000)
        return Now(self.mono, self.wall)

    # -- one life -------------------------------------------------------------------------------------

    def live(self, steps: int, operations: int = 10**9) -> bool:
        """Open and work for some steps; False when the power failed after `operations` operations of the disk."""
        disk = FailingDisk(self.disk, operations)
        try:
            self._open(disk)
            for _ in range(steps):
                self._step()
            return True
        except PowerLost:
            self.counts["power lost inside an operation"] += 1
            return False

    def _open(self, disk: FailingDisk) -> None:
        identity = open_identity(disk, owner="world", create=True, new_id=bytes(range(16)))
        recovered = recover(disk, identity.journal_id)
        self.journal = Journal(recovered, self.now(), policy=self.policy, segment_bytes=self.segment_bytes)
        executor = Executor(disk, lambda: self.rng.getrandbits(64))
        self._run_job = executor.run
        self._queue, self._waiting = [], []
        self._pump()

    def _step(self) -> None:
        journal = self.journal
        assert journal is not None
        choice = self.rng.random()
        if choice < 0.45:
            self._publish(journal)
        elif choice < 0.9 and self._queue:
            self._answer(self._queue.pop(0))
        else:
            self.mono += 0.03
            journal.wake(self.now())
        self._pump()

    def _publish(self, journal: Journal) -> None:
        publisher = self.rng.choice(sorted(self.sent))
        count = self.rng.choice((1, 1, 2, 7))
        first = max(self.sent[publisher], journal.highest.get(publisher, 0)) + 1
        keys = [(publisher, first + i) for i in range(count)]
        bodies = [self.rng.randbytes(self.rng.choice((0, 3, 40, 900))) for _ in keys]
        self.bodies.update(zip(keys, bodies, strict=True))
        self.sent[publisher] = first + count - 1
        batch = batch_from_bodies(f"topic{publisher % 3}", bodies, first_sequence=first)
        now = self.now()
        journal.append(batch, Stamp(publisher, first, journal.log_time(now)), first + count - 1, now)
        self._waiting.append((journal.accepted_end, keys))

    def _answer(self, job: Job) -> None:
        assert self.journal is not None and self._run_job is not None
        error: OSError | None = None
        salt = 0
        try:
            salt = self._run_job(job)
        except OSError as failed:
            error = failed
            self.counts["disk error"] += 1
        self.journal.done(job, error, salt, self.now())

    def _pump(self) -> None:
        journal = self.journal
        assert journal is not None
        journal.take_persisted()
        self._queue.extend(journal.jobs())
        while self._waiting and self._waiting[0][0] <= journal.persisted_end:
            self.acknowledged.update(self._waiting.pop(0)[1])

    def drain(self) -> None:
        """Carry out everything that is queued."""
        while self._queue:
            self._answer(self._queue.pop(0))
            self._pump()

    # -- between lives --------------------------------------------------------------------------------

    def crash(self) -> None:
        """Power loss: what was not synced may be gone."""
        self.disk = self.disk.crash_clone(self.rng)
        self.counts["power losses"] += 1

    def kill(self) -> None:
        """SIGKILL: everything written is there, nothing more is synced."""
        self.disk = self.disk.kill_clone(self.rng)
        self.counts["kills"] += 1

    def check(self) -> None:
        """Open what is left: everything acknowledged once, in order of each publisher, with its bytes."""
        self._open(FailingDisk(self.disk, 10**9))
        self.drain()
        assert self.journal is not None
        seen: list[Key] = []
        expected_position = 0
        last_time = 0
        for first_position, batch in read_log(self.journal, self.disk):
            assert first_position == expected_position, "positions have no gaps"
            expected_position += batch.count
            batch.verify()
            stamps = batch.timestamps.tolist()
            assert stamps == sorted(stamps) and stamps[0] >= last_time, "log time never goes back"
            last_time = stamps[-1]
            for i, key in enumerate(zip(batch.publishers.tolist(), batch.sequences.tolist(), strict=True)):
                seen.append(key)
                assert batch.body(i) == self.bodies[key]
        assert len(seen) == len(set(seen)), "nothing twice"
        missing = self.acknowledged - set(seen)
        assert not missing, f"acknowledged and lost: {sorted(missing)[:5]}"
        for publisher in self.sent:
            mine = [sequence for p, sequence in seen if p == publisher]
            assert mine == sorted(mine), "a publisher's order"
            assert self.journal.highest.get(publisher, 0) == max(mine, default=0)
        self.counts["messages checked"] += len(seen)
