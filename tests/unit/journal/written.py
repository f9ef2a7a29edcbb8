"""A journal on a simulated disk, written only through the code of the product."""

from __future__ import annotations

from random import Random

from tests.helpers.staged_files import stage
from tests.simulation.journal_world import drive
from tickertape.base.interfaces import Now
from tickertape.batch import MessageBatch, Stamp, batch_from_bodies
from tickertape.journal.commit.active_segment import commit_bytes_of
from tickertape.journal.commit.jobs import DiskJobExecutor, RetireSegments, WriteCommit
from tickertape.journal.format.identity import open_identity
from tickertape.journal.format.retired_state import RetiredState
from tickertape.journal.format.staging_file import StagedFiles, StagedPartLabel
from tickertape.journal.journal import Journal
from tickertape.journal.recovery.recovery import recover_journal
from tickertape.journal.retention import gather
from tickertape.testing.disk import StrictDisk

START_MICROS = 1_700_000_000_000_000


class Written:
    """A journal and its disk. `publish` makes a commit, `stop` seals, `start` reopens."""

    def __init__(self, seed: int = 1, *, segment_bytes: int = 8192, new_id: bytes = bytes(range(16))) -> None:
        self.rng = Random(seed)
        self.disk = StrictDisk(self.rng)
        self.messages = 0
        self.staged = 0
        """Files of transactions that are staged."""
        self._segment_bytes = segment_bytes
        self._new_id = new_id
        self._mono = 0.0
        self._wall = START_MICROS
        self.start()

    def start(self) -> None:
        """Open the journal in a new process: locks and handles of the previous one are released."""
        self.disk = self.disk.kill_clone()
        identity = open_identity(self.disk, owner="test", create=True, new_id=self._new_id)
        recovered = recover_journal(self.disk, identity.journal_id)
        self.journal = Journal(recovered, self._now(), segment_bytes=self._segment_bytes)
        self._executor = DiskJobExecutor(self.disk, lambda: self.rng.getrandbits(64))
        self.work()

    def publish(self, count: int = 3, size: int = 100, publisher: int = 7) -> None:
        """One commit of `count` messages."""
        journal = self.journal
        first = journal.highest.get(publisher, 0) + 1
        batch = batch_from_bodies(
            "orders", [self.rng.randbytes(size) for _ in range(count)], first_sequence=first
        )
        now = self._now()
        journal.append(batch, Stamp(publisher, first, journal.next_stamp(now)), first + count - 1, now)
        self.messages += count
        self.work()

    def transact(self, *counts: int, size: int = 100, jobs: int | None = None, staged: bool = True) -> int:
        """Append a chain with one commit for each count.

        With `jobs`, only that number of disk jobs is done, and with `staged` the chain is staged as well.
        Return the number of messages of an incomplete chain.
        """
        journal = self.journal
        parts: list[tuple[MessageBatch, Stamp]] = []
        first = journal.highest.get(9, 0) + 1
        batches = [batch_from_bodies("orders", [self.rng.randbytes(size) for _ in range(n)]) for n in counts]
        if jobs is not None and staged:
            self.staged += 1
            label = StagedPartLabel(
                journal=self._new_id, publisher="p", space="", name=str(self.staged), part="0"
            )
            stage(StagedFiles(self.disk), self.staged, label, batches)
        for batch, count in zip(batches, counts, strict=True):
            parts.append((batch, Stamp(9, first, journal.next_stamp(self._now()))))
            first += count
        room = sum([commit_bytes_of(batch) for batch, _ in parts])
        journal.commits.reserve_segment(room, self._now())
        self.work()
        assert journal.commits.has_room(room)
        journal.append_chain(parts, self._now())
        if jobs is None:
            self.messages += sum(counts)
            self.work()
            return 0
        for _ in range(jobs):
            (job,) = [job for job in journal.commits.jobs() if isinstance(job, WriteCommit)]
            journal.commits.done(job, None, self._executor.run(job), self._now())
        return sum(counts)

    def rest(self) -> None:
        """Let the idle time pass after which a mark is written."""
        self._mono += 1
        self.journal.commits.wake(self._now())
        self.work()

    def stop(self) -> None:
        """A clean stop."""
        self.journal.commits.close(self._now())
        self.work()
        assert self.journal.commits.closed
        self._executor.close()

    def retire(self, count: int) -> RetiredState:
        """Remove the oldest segments as retention does, without asking anybody."""
        view = self.journal.view
        steps = gather(view, self.journal.journal_id, count)
        gathered = drive(self.disk, steps)
        view.retire(gathered.retired, gathered.first, first_unknown=gathered.first_unknown)
        numbers = range(1, gathered.retired.through + 1)
        self._executor.run(RetireSegments(retired=gathered.retired, numbers=tuple(numbers)))
        return gathered.retired

    def work(self) -> None:
        """Carry out all jobs."""
        while jobs := self.journal.commits.jobs():
            for job in jobs:
                self.journal.commits.done(job, None, self._executor.run(job), self._now())
        self.journal.take_persisted()

    def _now(self) -> Now:
        self._mono += 0.001
        self._wall += 1000
        return Now(self._mono, self._wall)


def next_offset(written: Written) -> int:
    """Return the end of the active segment, without a write in flight."""
    flight, active = written.journal.commits._in_flight, written.journal.commits.active
    assert active is not None
    return flight.job.offset if flight is not None and isinstance(flight.job, WriteCommit) else active.offset
