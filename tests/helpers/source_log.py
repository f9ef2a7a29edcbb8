"""A log on a strict disk, as the source of a link reads it.

Must never answer a read by itself: a test calls `read`.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from random import Random
from typing import Final

from tests.helpers.engine_parts import make_outbox
from tests.simulation.journal_world import drive
from tickertape.base.errors import TickertapeError
from tickertape.base.interfaces import Now
from tickertape.batch import BatchBuilder, MessageBatch, Stamp
from tickertape.engine.log_reads.log_reads import LogReads
from tickertape.engine.log_reads.log_scan import PersistedReader
from tickertape.engine.replication.origins import Origin, Origins
from tickertape.engine.replication.places import LogStart, LogStarts
from tickertape.engine.replication.source.routed_log import SourceLog
from tickertape.engine.runtime.effects import ReadLog
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER
from tickertape.journal.commit.jobs import DiskJobExecutor, JournalJob, RetireSegments
from tickertape.journal.format.identity import open_identity
from tickertape.journal.format.replication_records import encode_record
from tickertape.journal.format.segment import segment_path
from tickertape.journal.journal import Journal
from tickertape.journal.recovery.recovery import recover_journal
from tickertape.journal.retention import gather, removable, unneeded
from tickertape.testing.disk import StrictDisk

LOG: Final = bytes(range(16))
START: Final = 77


class JournalOfSource:
    """A journal with its facts, and its disk."""

    def __init__(self, rng: Random, *, segment_bytes: int = 8_192, tail_bytes: int = 1) -> None:
        """`tail_bytes`: size of the end of the log in memory. By default only the last commit."""
        self.rng = rng
        self.disk = StrictDisk(rng)
        self._mono, self._wall = 100.0, 1_760_000_000_000_000
        identity = open_identity(self.disk, owner="engine", create=True, new_id=LOG)
        recovered = recover_journal(self.disk, identity.journal_id)
        self.journal = Journal(recovered, self.now(), segment_bytes=segment_bytes)
        self.view = self.journal.view
        self.view.tail_bytes_max = tail_bytes
        self._executor = DiskJobExecutor(self.disk, lambda: self.rng.getrandbits(64))
        self._jobs: deque[JournalJob] = deque()
        self._outbox = make_outbox()
        self.reads = LogReads(self._outbox)
        self.origins = Origins()
        self.numbers: dict[int, Origin] = {}
        """Origins by number."""
        self._records = 0
        self.starts = LogStarts(LOG, [LogStart(START, 0)])
        self.facts = SourceLog(self.view, self.reads, self.starts, self.origins)
        self.settle()

    def now(self) -> Now:
        self._mono += self.rng.random() * 0.001
        self._wall += self.rng.randrange(0, 1_500)
        return Now(self._mono, self._wall)

    @property
    def end(self) -> int:
        """The persisted end."""
        return self.view.end_position

    @property
    def reads_outstanding(self) -> int:
        return len(self._outbox.effects)

    def next_record(self) -> int:
        """Return the next sequence of control records."""
        self._records += 1
        return self._records

    def append(self, batch: MessageBatch, stamp: int | None = None) -> int:
        """Append a batch of one run, and return its position. `stamp`: its timestamp."""
        now, run = self.now(), batch.first_run
        stamped = Stamp(run.publisher, run.first_sequence, stamp or self.journal.next_stamp(now))
        return self.journal.append(batch, stamped, batch.sequence(batch.count - 1), now)

    def add_origin(self, origin: Origin) -> MessageBatch | None:
        """Append the record of an origin, as a log does before the first run with its number.

        Return it, or None for a known origin."""
        if origin in self.numbers.values():
            return None
        number, record = self.origins.add(origin)
        self.numbers[number] = origin
        builder = BatchBuilder()
        builder.add("$control", encode_record(record), kind=1)
        batch = builder.build(CONTROL_PUBLISHER, self.next_record())
        self.append(batch)
        return batch

    def run_job(self) -> None:
        """The disk completes its oldest job."""
        self._jobs += self.journal.commits.jobs()
        if self._jobs:
            job = self._jobs.popleft()
            self.journal.commits.done(job, None, self._executor.run(job), self.now())
            self.journal.take_persisted()
            self.journal.take_accepted()

    def settle(self) -> None:
        """The disk completes all jobs."""
        self.run_job()
        while self._jobs or self.journal.commits.queued:
            self.run_job()

    def prune(self, oldest: int | None) -> bool:
        """Remove some segments below `oldest`, or with None any segments. Return whether it found some."""
        count = unneeded(removable(self.view, self.journal.commits.sealed_through), oldest)
        if not count:
            return False
        facts = drive(self.disk, gather(self.view, LOG, self.rng.randint(1, count)))
        gone = [s.number for s in self.view.segments if s.number <= facts.retired.through]
        self.view.retire(facts.retired, facts.first, first_unknown=facts.first_unknown)
        self._executor.run(RetireSegments(retired=facts.retired, numbers=tuple(gone)))
        return True

    def read(self, *, damage: bool = False) -> int:
        """The disk answers all reads, with `damage` wrongly. Return their number."""
        effects = self._outbox.take()
        for effect in effects:
            assert isinstance(effect, ReadLog)
            handle = self.disk.open(segment_path(effect.request.segment), write=False)
            data = bytes(effect.request.read(partial(self.disk.read, handle)))
            self.disk.close(handle)
            self._answer(effect.token, bytes(len(data)) if damage else data)
        return len(effects)

    def fail_reads(self, error: TickertapeError) -> None:
        """All reads fail."""
        for effect in self._outbox.take():
            assert isinstance(effect, ReadLog)
            self._answer(effect.token, error)

    def _answer(self, token: int, data: bytes | TickertapeError) -> None:
        for owner, result in self.reads.answered(token, data):
            assert isinstance(owner, PersistedReader)
            owner.read_done(result)
