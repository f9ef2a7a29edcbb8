"""Simulations of one journal: publishers append, the disk fails at times, power fails, the journal reopens.

Must never share its expectations with the journal: plain lists here hold the acknowledged messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import partial
from hashlib import sha256
from random import Random
from typing import Any, TypeVar

from tickertape.base.interfaces import Buffer, Disk, Now
from tickertape.batch import MessageBatch, Stamp, batch_from_bodies
from tickertape.journal.commit.accumulator import encoded_size
from tickertape.journal.commit.active_segment import commit_bytes_of
from tickertape.journal.commit.group_commit import SyncPolicy
from tickertape.journal.commit.jobs import (
    DiskFull,
    DiskJobExecutor,
    JournalJob,
    PrepareSegment,
    RollSegment,
    StartSegment,
    SyncSegment,
    WriteCommit,
)
from tickertape.journal.format.identity import open_identity
from tickertape.journal.format.segment import segment_path
from tickertape.journal.journal import Journal
from tickertape.journal.reading.log_reader import find_bookmark
from tickertape.journal.reading.log_view import ReadRequest
from tickertape.journal.recovery.recovery import recover_journal
from tickertape.testing.disk import StrictDisk

T = TypeVar("T")
Key = tuple[int, int]
"""(publisher, sequence)"""


class PowerLost(BaseException):
    """The machine stopped in the middle of an operation: nothing that catches errors is to catch it."""


class FailingDisk:
    """A disk that stops the machine before its n-th operation that changes anything (None: it does not), and
    keeps a trace of them."""

    def __init__(self, disk: StrictDisk, operations: int | None = None, trace: Trace | None = None) -> None:
        self.disk = self._disk = disk
        self.left = operations
        self._trace = trace

    def _tick(self, *call: object) -> None:
        if self._trace is not None:
            self._trace.note(*call)
        if self.left is not None:
            self.left -= 1
            if self.left < 0:  # and stays stopped: nothing is tidied up on the way out
                raise PowerLost(self)

    def write(self, handle: int, offset: int, buffers: Sequence[Buffer]) -> None:
        self._tick("write", handle, offset, b"".join(buffers))
        self._disk.write(handle, offset, buffers)

    def write_nowait(self, handle: int, offset: int, buffers: Sequence[Buffer]) -> bool:
        self._tick("write_nowait", handle, offset, b"".join(buffers))
        return self._disk.write_nowait(handle, offset, buffers)

    def sync(self, handle: int) -> None:
        self._tick("sync", handle)
        self._disk.sync(handle)

    def truncate(self, handle: int, size: int) -> None:
        self._tick("truncate", handle, size)
        self._disk.truncate(handle, size)

    def preallocate(self, handle: int, size: int) -> None:
        self._tick("preallocate", handle, size)
        self._disk.preallocate(handle, size)

    def sync_directory(self, path: str) -> None:
        self._tick("sync_directory", path)
        self._disk.sync_directory(path)

    def rename(self, old: str, new: str) -> None:
        self._tick("rename", old, new)
        self._disk.rename(old, new)

    def remove(self, path: str) -> None:
        self._tick("remove", path)
        self._disk.remove(path)

    def make_directory(self, path: str) -> None:
        self._tick("make_directory", path)
        self._disk.make_directory(path)

    def open(self, path: str, *, create: bool = False, write: bool = True) -> int:
        if create:
            self._tick("create", path)
        return self._disk.open(path, create=create, write=write)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


class Trace:
    """A digest of every call, so that two runs can be compared."""

    def __init__(self) -> None:
        self._hash = sha256()

    def note(self, *call: object) -> None:
        self._hash.update(repr(call).encode())

    def digest(self) -> str:
        return self._hash.hexdigest()


def drive(disk: Disk, search: Generator[ReadRequest | None, Buffer, T]) -> T:
    """Run a search to its end."""
    data: Buffer | None = None
    while True:
        try:
            request = next(search) if data is None else search.send(data)
        except StopIteration as done:
            result: T = done.value
            return result
        if request is None:
            data = b""
            continue
        handle = disk.open(segment_path(request.segment), write=False)
        data = request.read(partial(disk.read, handle))
        disk.close(handle)


def read_log(
    journal: Journal, disk: Disk, start: int = 0, topic: str | None = None
) -> list[tuple[int, MessageBatch]]:
    """Return everything persisted, through the readers that subscriptions use."""
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
    """One journal through many runs. Each opening compares the log with the expected messages.

    The log must be the log of the last opening, followed by a prefix of the messages accepted since, in that
    order. It contains at least every message that was reported persisted. For the policies `interval` and
    `never`, after power loss, it contains at least every synced message. Messages that an opening has shown
    must never disappear.
    """

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
        self.trace = Trace()
        self.journal: Journal | None = None
        self.log: list[Key] = []
        """The messages that the last opening showed."""
        self.accepted: list[Key] = []
        """The messages accepted since, in order."""
        self.written = 0
        """How much of `accepted` was reported persisted."""
        self.synced = 0
        """How much of it was followed by a sync that succeeded."""
        self.sent: dict[int, int] = {1001: 0, 1002: 0, 1003: 0}
        """Highest sequence each publisher ever used."""
        self.mono = 0.0
        self.wall = 1_700_000_000_000_000
        self._bodies: dict[Key, tuple[str, bytes]] = {}
        self._chains: list[set[Key]] = []
        """Groups of messages accepted in this run that the log has all or none of."""
        self._ends: list[int] = []
        self._power_failed = False
        self._queue: list[JournalJob] = []
        self._run_job: Callable[[JournalJob], int] | None = None

    def now(self) -> Now:
        self.mono += self.rng.random() * 0.01
        self.wall += self.rng.randrange(-2_000, 10_000)
        if self.rng.random() < 0.01:
            self.wall -= 3_600_000_000
        return Now(self.mono, self.wall)

    # -- one life -------------------------------------------------------------------------------------

    def live(self, steps: int, operations: int = 10**9) -> bool:
        """Open the journal and work for some steps.

        Return False when the power failed after `operations` operations of the disk.
        """
        disk = FailingDisk(self.disk, operations, self.trace)
        opened = False
        try:
            self._open(disk)
            opened = True
            for _ in range(steps):
                self._step()
            return True
        except PowerLost:
            self.counts["power lost at work" if opened else "power lost while opening"] += 1
            return False
        except OSError:
            if opened:
                raise
            self.counts["start ended by a disk error"] += 1
            return False

    def check(self) -> None:
        """Open the remaining log without faults and check it."""
        self.disk = self.disk.kill_clone(self.rng)  # without the faults that have not happened
        self.disk.space_bytes = None
        self._open(FailingDisk(self.disk, 10**9, self.trace))
        self.drain()

    def _open(self, disk: FailingDisk) -> None:
        self.disk.close_all()
        identity = open_identity(disk, owner="world", create=True, new_id=bytes(range(16)))
        recovered = recover_journal(disk, identity.journal_id)
        self.counts["torn tails"] += sum("unfinished write" in line for line in recovered.report)
        self.counts["chains cut off"] += sum("has no end" in line for line in recovered.report)
        journal = Journal(
            recovered,
            self.now(),
            policy=self.policy,
            interval_seconds=0.05,
            segment_bytes=self.segment_bytes,
        )
        journal.view.tail_bytes_max = self.rng.choice((1, 2_000, 1 << 20))
        self._look(journal)
        executor = DiskJobExecutor(disk, lambda: self.rng.getrandbits(64))
        self.journal, self._run_job = journal, executor.run
        self._queue, self._ends = [], []
        self._pump()

    def _step(self) -> None:
        journal = self.journal
        assert journal is not None
        choice = self.rng.random()
        if choice < 0.04:
            self._publish_chain(journal)
        elif choice < 0.45:
            self._publish(journal)
        elif choice < 0.9 and self._queue:
            self._answer()
        elif choice < 0.992:
            self.mono += 0.03
            journal.commits.wake(self.now())
        elif choice < 0.996:
            self._fill_or_empty()
        else:
            journal.commits.close(self.now())
            self._pump()
            self.drain()
            assert journal.commits.closed or journal.commits.failure is not None
            self.counts["clean stops"] += journal.commits.closed
        self._pump()

    def _fill_or_empty(self) -> None:
        """Let another process fill the disk, or free the space again."""
        if self.disk.space_bytes is None:
            self.disk.space_bytes = self.disk.used_bytes + self.rng.randrange(20_000)
        else:
            self.disk.space_bytes = None
            self.mono += 1.5
            assert self.journal is not None
            self.journal.commits.wake(self.now())

    def _publish(self, journal: Journal) -> None:
        if journal.commits.failure is not None or journal.commits.closed:
            return
        publisher = self.rng.choice(sorted(self.sent))
        count = self.rng.choice((1, 1, 2, 7))
        first = max(self.sent[publisher], journal.highest.get(publisher, 0)) + 1
        keys = [(publisher, first + i) for i in range(count)]
        sizes = (0, 3, 40, 900, 900, 4_000) if self.rng.random() < 0.98 else (20_000,)
        bodies = [self.rng.randbytes(self.rng.choice(sizes)) for _ in keys]
        topic = f"topic{publisher % 3}"
        batch = batch_from_bodies(topic, bodies, first_sequence=first)
        if not journal.commits.can_accept(encoded_size(batch)):
            self.counts["refused while full"] += 1
            return
        now = self.now()
        journal.append(batch, Stamp(publisher, first, journal.next_stamp(now)), first + count - 1, now)
        self._bodies.update((key, (topic, body)) for key, body in zip(keys, bodies, strict=True))
        self.sent[publisher] = first + count - 1
        self.accepted += keys

    def _publish_chain(self, journal: Journal) -> None:
        """Several batches of one run each, that are there all at once or not at all."""
        if journal.commits.failure is not None or journal.commits.closed or journal.commits.closing:
            return
        batches = []
        for _ in range(self.rng.choice((1, 2, 3, 9))):
            bodies = [self.rng.randbytes(self.rng.choice((3, 900))) for _ in range(self.rng.choice((1, 4)))]
            batches.append((f"topic{self.rng.randrange(3)}", bodies))
        now = self.now()
        parts, keys = [], []
        sent = {publisher: max(s, journal.highest.get(publisher, 0)) for publisher, s in self.sent.items()}
        for topic, bodies in batches:
            publisher = self.rng.choice([p for p in sorted(sent) if topic == f"topic{p % 3}"])
            first = sent[publisher] + 1
            sent[publisher] += len(bodies)
            stamp = Stamp(publisher, first, journal.next_stamp(now))
            parts.append((batch_from_bodies(topic, bodies, first_sequence=first), stamp))
            keys += [(publisher, first + i) for i in range(len(bodies))]
            self._bodies.update({(publisher, first + i): (topic, body) for i, body in enumerate(bodies)})
        needed = sum(commit_bytes_of(batch) for batch, _ in parts)
        if not journal.commits.has_room(needed):
            journal.commits.reserve_segment(needed if self.rng.random() < 0.9 else 0, now)
            self._pump()
            if self.rng.random() < 0.8:
                self.drain()
            if not journal.commits.has_room(needed):
                self.counts["no space for a chain"] += 1
                return
            self.counts["a segment begun for a chain"] += 1
        journal.append_chain(parts, now)
        self.sent = sent
        self.accepted += keys
        self._chains.append(set(keys))
        self.counts["chains"] += 1

    def _answer(self) -> None:
        """Carry out the oldest job, or a reserve, which has a thread of its own in the server."""
        assert self.journal is not None
        assert self._run_job is not None
        reserves = [job for job in self._queue if isinstance(job, PrepareSegment)]
        job = self.rng.choice(reserves) if reserves and self.rng.random() < 0.3 else self._queue[0]
        self._queue.remove(job)
        error: OSError | None = None
        salt = 0
        try:
            salt = self._run_job(job)
        except OSError as failed:
            error = failed
            self.counts["no space" if isinstance(failed, DiskFull) else "disk error"] += 1
        # Data written before the sync of this job is durable now, even if it was never acknowledged.
        syncs = not isinstance(job, PrepareSegment) and (not isinstance(job, WriteCommit) or job.sync)
        self._count(job)
        self.journal.commits.done(job, error, salt, self.now())
        self._pump()
        if syncs and error is None:
            self.synced = self.written

    def _count(self, job: JournalJob) -> None:
        if isinstance(job, WriteCommit) and len(job.buffers) == 1:
            self.counts["marks"] += 1
        elif isinstance(job, SyncSegment):
            self.counts["syncs by interval"] += 1
        elif isinstance(job, RollSegment):
            self.counts["rolls"] += 1

    def _pump(self) -> None:
        journal = self.journal
        assert journal is not None
        before = self.written
        for commit in journal.take_persisted():
            self.written += commit.batch.count
        assert journal.commits.failure is None or self.written == before, (
            "nothing is persisted after a failure"
        )
        self.counts["failures latched"] += journal.commits.failure is not None
        jobs = journal.commits.jobs()
        assert not (jobs and journal.commits.failure is not None), "no job after a failure"
        begins = {
            job.number if isinstance(job, StartSegment) else job.new
            for job in self._queue + jobs
            if isinstance(job, StartSegment | RollSegment)
        }
        for job in jobs:
            if isinstance(job, PrepareSegment):
                assert job.number - 1 not in begins, (
                    "no segment is reserved after a segment that has not started"
                )
        self._queue.extend(jobs)

    def drain(self) -> None:
        """Carry out everything that is queued."""
        while self._queue:
            self._answer()

    def fail(self, operation: str, nth: int, error: int) -> None:
        """Fail the n-th call of an operation. A failed sync drops the data that it should have written."""
        self.disk.fail(operation, nth, error)

    # -- between runs ---------------------------------------------------------------------------------

    def crash(self) -> None:
        """Lose power: unsynced data may be lost."""
        self.disk = self.disk.crash_clone(self.rng)
        self._power_failed = True
        self.counts["power losses"] += 1

    def kill(self) -> None:
        """SIGKILL: everything written is there, nothing more is synced."""
        self.disk = self.disk.kill_clone(self.rng)
        self.counts["kills"] += 1

    # -- invariants -----------------------------------------------------------------------------------

    def _look(self, journal: Journal) -> None:
        seen = self._seen(journal)
        known = len(self.log)
        assert seen[:known] == self.log, "messages that an opening has shown stay"
        fresh = seen[known:]
        assert fresh == self.accepted[: len(fresh)], (
            "new messages are a prefix of the accepted ones, in order"
        )
        for chain in self._chains:
            there = chain.intersection(fresh)
            assert there in (set(), chain), f"{len(there)} of {len(chain)} messages of a chain are there"
            self.counts["chains lost as a whole"] += not there
            self.counts["chains kept as a whole"] += bool(there)
        self._chains = []
        promised = self.synced if self._power_failed else self.written
        assert len(fresh) >= promised, f"promised {promised}, found {len(fresh)} of {len(self.accepted)}"
        self.counts["unacknowledged messages kept"] += len(fresh) - self.written > 0
        for publisher in self.sent:
            mine = [sequence for p, sequence in seen if p == publisher]
            assert mine == sorted(set(mine)), "a publisher's order, nothing twice"
            assert journal.highest.get(publisher, 0) == max(mine, default=0)
        self._look_up(journal, seen)
        self.counts["messages checked"] += len(seen)
        self.log, self.accepted, self.written, self.synced = seen, [], 0, 0
        self._power_failed = False

    def _seen(self, journal: Journal) -> list[Key]:
        seen: list[Key] = []
        last_time = 0
        for first_position, batch in read_log(journal, self.disk):
            assert first_position == len(seen), "positions have no gaps"
            batch.verify()
            stamps = batch.runs["timestamp"].tolist()
            assert stamps == sorted(set(stamps))
            assert stamps[0] > last_time, "log time rises with each run"
            last_time = stamps[-1]
            for i, key in enumerate(zip(batch.publishers.tolist(), batch.sequences.tolist(), strict=True)):
                seen.append(key)
                assert (batch.topic(i), batch.body(i)) == self._bodies[key]
        assert journal.commits.persisted_end == len(seen)
        return seen

    def _look_up(self, journal: Journal, seen: list[Key]) -> None:
        for _ in range(min(2, len(seen))):
            position = self.rng.randrange(len(seen))
            assert drive(self.disk, find_bookmark(journal.view, *seen[position])) == position
        topic = f"topic{self.rng.randrange(3)}"
        mine = [
            (batch.publishers[i], batch.sequences[i])
            for _, batch in read_log(journal, self.disk, topic=topic)
            for i in range(batch.count)
            if batch.topic(i) == topic
        ]
        assert mine == [key for key in seen if self._bodies[key][0] == topic]
