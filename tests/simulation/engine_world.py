"""Simulation of one engine: clients publish and subscribe, and disk and sockets answer at random times.

Must never compute the expected messages of a subscriber from the engine: the oracle is the list of published
messages in the order in which the log accepted them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from tests.helpers.deadlines import check_deadlines
from tests.simulation.engine_peer import Heard, Peer
from tests.simulation.journal_world import drive, read_log
from tests.simulation.spilled_files import SpilledFiles
from tickertape.base.errors import JournalError, StagingFailed, TickertapeError
from tickertape.base.interfaces import Buffer, Now
from tickertape.base.limits import message_cost_bytes
from tickertape.engine.broker import Broker
from tickertape.engine.runtime.effects import (
    ArchiveRead,
    CloseConnection,
    DiskJob,
    Effect,
    Fatal,
    LogEvent,
    OfflineStart,
    OfflineStop,
    PauseReading,
    ReadLog,
    ResumeReading,
    Send,
    SpillRead,
    SpillTrim,
    SpillWrite,
    StagingJob,
)
from tickertape.engine.runtime.publisher_ids import CONTROL_TOPIC, PublisherDirectory, load_publishers
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.engine.subscriptions.log_feed import LogFeed
from tickertape.engine.transient.slow_consumers import SlowConsumerLimits
from tickertape.journal.commit.group_commit import SyncPolicy
from tickertape.journal.commit.jobs import DiskJobExecutor, JournalJob, WriteCommit
from tickertape.journal.format.identity import open_identity
from tickertape.journal.format.segment import segment_path
from tickertape.journal.format.staging_file import StagedFileDamaged, StagedFiles, StageOpen, find_staged
from tickertape.journal.journal import Journal
from tickertape.journal.reading.archive_reader import ArchiveAnswer, ArchiveRequest
from tickertape.journal.reading.archive_tier import ArchiveTier
from tickertape.journal.reading.log_view import ReadRequest
from tickertape.journal.recovery.recovery import recover_journal
from tickertape.journal.retention import RetentionPolicy, first_message
from tickertape.testing.disk import StrictDisk
from tickertape.wire.commands import (
    Logon,
)


class EngineWorld:
    """One engine on a strict disk. Nothing happens by itself: `step` lets one thing happen."""

    sow: Sequence[SowDefinition] = ()
    """SOW topics of the engine."""
    instance = "test"
    log_id = bytes(range(16))

    def __init__(
        self,
        seed: int,
        *,
        counts: Counter[str] | None = None,
        recorded: frozenset[str] | None = None,
        validated: dict[str, str] | None = None,
        topic_types: dict[str, str] | None = None,
        policy: SyncPolicy = SyncPolicy.ALWAYS,
        segment_bytes: int = 32_768,
        retention: RetentionPolicy | None = None,
        slow_clients: SlowConsumerLimits | None = None,
        archive: ArchiveTier | None = None,
    ) -> None:
        self.rng = Random(seed)
        self._turns = Random(seed)
        """Decides whether a commit is written and synced in two turns."""
        self.counts: Counter[str] = Counter() if counts is None else counts
        self.mono = 100.0
        self.wall = 1_760_000_000_000_000
        self.disk = StrictDisk(self.rng, counts=self.counts)
        self.recorded = recorded
        self.validated = validated
        self.topic_types = topic_types
        self.policy = policy
        self.segment_bytes = segment_bytes
        self.retention = retention
        self.archive_tier = archive
        self.told: list[LogEvent] = []
        self.slow_clients = slow_clients
        self.spilled = SpilledFiles()
        self.peers: dict[int, Peer] = {}
        self.promised: set[tuple[int, int]] = set()
        self.fatal: TickertapeError | None = None
        self._conn = 0
        self.open()

    def open(self) -> None:
        """Start the engine on the contents of the disk."""
        identity = open_identity(self.disk, owner="engine", create=True, new_id=self.log_id)
        recovered = recover_journal(self.disk, identity.journal_id)
        journal = Journal(
            recovered,
            self.now(),
            policy=self.policy,
            segment_bytes=self.segment_bytes,
            archive=self.archive_tier,
        )
        self._executor = DiskJobExecutor(self.disk, lambda: self.rng.getrandbits(64))
        while jobs := journal.commits.jobs():
            for job in jobs:
                journal.commits.done(job, None, self._executor.run(job), self.now())
        journal.take_persisted()
        self.broker = self.make_broker(journal, drive(self.disk, load_publishers(journal)))
        view = journal.view
        view.set_first(drive(self.disk, first_message(view, view.first_position)))
        self.offline: list[OfflineStart | OfflineStop] = []
        self.jobs: deque[JournalJob] = deque()
        self._written: WriteCommit | None = None
        """The oldest job, if its commit is written and not synced yet."""
        self._staging = StagedFiles(self.disk)
        self.staging_jobs: list[StagingJob] = []
        found, _ = find_staged(self.disk, identity.journal_id)
        self.broker.begin_staged(found, self.now())
        self.reads: list[ReadLog] = []
        self.archive_reads: list[ArchiveRead] = []
        self.pauses: list[PauseReading | ResumeReading] = []
        self.peers = {}

    def make_broker(
        self,
        journal: Journal,
        registry: PublisherDirectory,
        queues: Sequence[QueueDefinition] = (),
        **more: Any,
    ) -> Broker:
        """Return the engine of a journal, with `more` as further arguments."""
        return Broker(
            journal,
            registry,
            instance=self.instance,
            software="test",
            catalog=TopicCatalog(self.recorded, self.validated, self.topic_types, queues, self.sow),
            retention=self.retention,
            slow_clients=self.slow_clients,
            **more,
        )

    def now(self) -> Now:
        self.mono += self.rng.random() * 0.001
        self.wall += self.rng.randrange(0, 1_500)
        return Now(self.mono, self.wall)

    def connect(self, name: str, **logon: object) -> Peer:
        """Return a client after its logon, which may have been refused."""
        self._conn += 1
        peer = self.make_peer(self._conn, name)
        self.peers[self._conn] = peer
        self.broker.connected(self._conn)
        peer.send(Logon(name=name, **logon))  # type: ignore[arg-type]
        return peer

    def make_peer(self, conn: int, name: str) -> Peer:
        """Return the other end of a connection."""
        return Peer(self, conn, name)

    def acknowledged(self, peer: Peer) -> None:
        """Record the acknowledgement of a publisher's sequences."""
        assert peer.logged_on is not None
        publisher = peer.logged_on.publisher
        known = max((s for p, s in self.promised if p == publisher), default=0)
        self.promised.update((publisher, s) for s in range(known + 1, peer.acked_sequence + 1))

    # -- effects --------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Take the engine's effects: bytes arrive at once, jobs and reads wait for their turn."""
        check_deadlines(self.broker, self.mono)
        for effect in self.broker.effects():
            self.perform(effect)

    def perform(self, effect: Effect) -> None:
        """Execute an effect."""
        if isinstance(effect, Send):
            if effect.conn in self.peers:
                self.peers[effect.conn].take(b"".join(effect.buffers))
        elif isinstance(effect, DiskJob):
            self.jobs.append(effect.job)
        elif isinstance(effect, ReadLog):
            self.reads.append(effect)
        elif isinstance(effect, ArchiveRead):
            self.archive_reads.append(effect)
        elif isinstance(effect, PauseReading | ResumeReading):
            self.pauses.append(effect)
        elif isinstance(effect, LogEvent):
            self.counts[effect.name] += 1
            self.told.append(effect)
        elif isinstance(effect, SpillWrite | SpillRead | SpillTrim):
            self.spilled.take(effect)
        elif isinstance(effect, StagingJob):
            self.staging_jobs.append(effect)
        elif isinstance(effect, OfflineStart | OfflineStop):
            self.offline.append(effect)
        elif isinstance(effect, CloseConnection):
            self.counts["closed"] += 1
            if effect.conn in self.peers:
                self.peers[effect.conn].closed = True
        elif isinstance(effect, Fatal):
            self.fatal = effect.error

    def run_job(self) -> None:
        """The disk completes its oldest job, or writes its commit and syncs it in another turn."""
        job = self.jobs[0]
        error: OSError | None = None
        salt = 0
        try:
            if self._written is not None:
                self._executor.sync(self._written)
            elif isinstance(job, WriteCommit) and job.sync and self._turns.random() < 0.5:
                self._executor.write(job)
                self._written = job
                self.counts["written before synced"] += 1
                return
            else:
                salt = self._executor.run(job)
        except OSError as failed:
            error = failed
        self.jobs.popleft()
        self._written = None
        self.broker.disk_done(job, error, salt, self.now())
        self.collect()

    def run_staging(self) -> None:
        """Run one staging job: any open, or the first of the others, which run in order."""
        opens = [job for job in self.staging_jobs if isinstance(job.task, StageOpen)]
        others = [job for job in self.staging_jobs if not isinstance(job.task, StageOpen)][:1]
        job = self.rng.choice(opens + others)
        self.staging_jobs.remove(job)
        self.counts[f"staging: {type(job.task).__name__}"] += 1
        result: list[memoryview] | TickertapeError
        try:
            result = self._staging.run(job.task)
        except (OSError, StagedFileDamaged) as error:
            result = StagingFailed(str(error))
        self.broker.staging_done(job.token, result, self.now())
        self.collect()

    def small_tail(self) -> None:
        """Keep so little of the log in memory that readers have to go to the disk."""
        self.broker.journal.view.tail_bytes_max = self.rng.choice((1, 4_000, 64_000))

    def small_bounds(self) -> None:
        """Choose small bounds for steps, reads and backlogs, so that the engine reaches each of them."""
        delivery = self.broker._delivery
        delivery.step_bytes_max = self.rng.choice((1, 20_000, 1 << 20))
        delivery.fanout.backlog_bytes_max = self.rng.choice((1, 2_000, 1 << 20))
        bytes_max = self.rng.choice((9_000, 40_000, 1 << 20))
        for budget in self.broker.reads.budgets:
            budget.bytes_max = bytes_max
        unrecorded = self.broker.services.transient
        unrecorded.step_bytes_max = self.rng.choice((1, 20_000, 1 << 20))
        unrecorded.written()

    def log_feeds(self, conn: int) -> dict[str, LogFeed]:
        """Return the feeds of recorded topics of a connection, by subscription id."""
        found = {sub_id: sub.feed(LogFeed) for sub_id, sub in self.broker.subscriptions.of(conn).items()}
        return {sub_id: feed for sub_id, feed in found.items() if feed is not None}

    def positions(self) -> dict[int, Heard]:
        """Return every persisted message by position, without control records."""
        found: dict[int, Heard] = {}
        for first, batch in read_log(self.broker.journal, self.disk):
            for i in range(batch.count):
                if batch.topic(i) != CONTROL_TOPIC:
                    found[first + i] = Heard(
                        batch.publisher(i), batch.sequence(i), batch.topic(i), batch.body(i)
                    )
        return found

    def run_read(self) -> None:
        """Answer one outstanding read, any of them."""
        self.counts["reads"] += 1
        read = self.reads.pop(self.rng.randrange(len(self.reads)))
        self.broker.read_done(read.token, self._bytes(read.request), self.now())
        self.collect()

    def _bytes(self, request: ReadRequest) -> Buffer | TickertapeError:
        try:
            handle = self.disk.open(segment_path(request.segment), write=False)
        except OSError as error:  # retention has removed it
            return JournalError(f"a segment could not be read: {error}")
        try:
            return request.read(partial(self.disk.read, handle))
        finally:
            self.disk.close(handle)

    def run_archive_read(self) -> None:
        """Answer one outstanding request to the archive, any of them."""
        self.counts["archive reads"] += 1
        effect = self.archive_reads.pop(self.rng.randrange(len(self.archive_reads)))
        self.broker.read_done(effect.token, self.archive(effect.request), self.now())
        self.collect()

    def archive(self, request: ArchiveRequest) -> ArchiveAnswer | TickertapeError:
        """Answer a request to the archive (see `archive_world.py`)."""
        raise AssertionError(f"{request}: this simulation has no archive")

    def run_spill(self) -> None:
        """Answer the oldest write or read of a spilled block."""
        self.counts["spill jobs"] += 1
        token, answer = self.spilled.run()
        self.broker.spill_done(token, answer, self.now())
        self.collect()

    def work(self) -> None:
        self.broker.work(self.now())
        self.collect()

    def wake(self, seconds: float = 0.0) -> None:
        """Time passes on both clocks."""
        self.mono += seconds
        self.wall += int(seconds * 1e6)
        self.broker.wake(self.now())
        check_deadlines(self.broker, self.mono, woken=True)
        self.collect()

    def step(self) -> None:
        """Take one random step."""
        choices: list[Callable[[], None]] = [self.wake]
        if self.jobs:
            choices += [self.run_job] * 4
        if self.reads:
            choices += [self.run_read] * 4
        if self.archive_reads:
            choices += [self.run_archive_read] * 4
        if self.spilled.jobs:
            choices += [self.run_spill] * 4
        if self.staging_jobs:
            choices += [self.run_staging] * 4
        if self.broker.has_work:
            choices += [self.work] * 4
        self.rng.choice(choices)()

    def settle(self) -> None:
        """Take all steps that need no new input."""
        for _ in range(100_000):
            if self.jobs:
                self.run_job()
            elif self.staging_jobs:
                self.run_staging()
            elif self.reads:
                self.run_read()
            elif self.archive_reads:
                self.run_archive_read()
            elif self.spilled.jobs:
                self.run_spill()
            elif self.broker.has_work:
                self.work()
            elif any(p.owed_credit.get(s) for p in self.peers.values() for s in list(p.owed_credit)):
                for peer in self.peers.values():
                    for sub_id in list(peer.owed_credit):
                        peer.give_credit(sub_id)
            else:
                return
        raise AssertionError("the engine does not come to rest")

    # -- the oracle -----------------------------------------------------------------------------------

    def log(self, topic: str | None = None) -> list[Heard]:
        """Return the messages of the log as the disk has them, without control records."""
        found: list[Heard] = []
        for _, batch in read_log(self.broker.journal, self.disk):
            for i in range(batch.count):
                name = batch.topic(i)
                if name != CONTROL_TOPIC and topic in (None, name):
                    found.append(Heard(batch.publisher(i), batch.sequence(i), name, batch.body(i)))
        return found


def cost(bodies: list[bytes]) -> int:
    """Return the credit that messages cost."""
    return sum(len(body) + message_cost_bytes for body in bodies)
