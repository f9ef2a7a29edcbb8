"""One server of a simulation of links: a log on a strict disk, its facts, reads, publishers and retention.

Must never decide which rows a link owes: the simulation of pairs does.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final, NamedTuple

from tests.helpers.engine_parts import make_outbox
from tests.simulation.journal_world import drive, read_log
from tickertape.base.interfaces import Now
from tickertape.batch import RUN_LATE, BatchBuilder, MessageBatch
from tickertape.engine.log_reads.log_reads import LogReads
from tickertape.engine.log_reads.log_scan import PersistedReader
from tickertape.engine.replication.destination.link_places import LinkPlaces
from tickertape.engine.replication.destination.place_records import FactPlaceRecords
from tickertape.engine.replication.destination.run_intake import ReplicatedLog
from tickertape.engine.replication.destination.whole_topics import WholeTopics
from tickertape.engine.replication.log_facts import LogFacts
from tickertape.engine.replication.reports import Group, ReportWriter
from tickertape.engine.replication.source.routed_log import SourceLog
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.effects import ReadLog
from tickertape.engine.runtime.holes import PublisherConnection
from tickertape.engine.runtime.log_writer import LogWriter
from tickertape.engine.runtime.publisher_ids import CONTROL_TOPIC, load_publishers
from tickertape.journal.commit.jobs import DiskJobExecutor, JournalJob, RetireSegments
from tickertape.journal.format.identity import open_identity
from tickertape.journal.format.replication_records import ReplicationRecord, encode_record
from tickertape.journal.format.segment import segment_path
from tickertape.journal.journal import Journal
from tickertape.journal.recovery.recovery import recover_journal
from tickertape.journal.retention import gather, removable, unneeded
from tickertape.testing.disk import StrictDisk
from tickertape.wire.link import LinkSide
from tickertape.wire.link_rows import encode_pairs

TOPICS: Final = ("orders", "trades")
Key = tuple[int, int]
"""Publisher and sequence of a message."""


class Unacknowledged(NamedTuple):
    """A frame of a publisher, acknowledged when the log is persisted up to `end`."""

    end: int
    last: int
    acknowledge: Callable[[int], None]


class StoredMessageRow(NamedTuple):
    """A message in a log, as links see it."""

    position: int
    key: Key
    path: tuple[bytes, ...]
    """Logs that it passed before this log. Empty: a client stored it here."""
    order_stamp: int


class LogCopy(NamedTuple):
    """A copy of a data directory, and the facts of the simulation at that time."""

    disk: StrictDisk
    removed: list[Key]
    durable: dict[bytes, int]
    needed: dict[bytes, int]
    """Positions of the logs of the sources from which the copy needs their rows."""
    end: int

    def is_old(self, log: ReplicatingLog) -> bool:
        """Return whether the log has many later rows."""
        return log.journal.commits.persisted_end > self.end + 30


def body_of(publisher: int, sequence: int) -> bytes:
    """Return the body of a message: it has one body, wherever it is stored."""
    return f"{publisher}/{sequence}:".encode() * (1 + sequence % 9)


def batch_of(publisher: int, sequences: list[int]) -> MessageBatch:
    """Return a frame of a publisher."""
    builder = BatchBuilder()
    for sequence in sequences:
        builder.add(
            TOPICS[sequence % 2],
            body_of(publisher, sequence),
            sequence=sequence,
            key=f"k{sequence % 5}",
            correlation_id=f"c{sequence}" if sequence % 3 else "",
        )
    return builder.build(publisher)


class ReplicatingLog:
    """A log with replication. `time` returns the simulated time."""

    def __init__(
        self,
        log: bytes,
        members: frozenset[bytes],
        rng: Random,
        counts: Counter[str],
        time: Callable[[], Now],
    ) -> None:
        self.id = log
        self.name = f"server-{log[0]}"
        self.counts = counts
        self.sources: set[bytes] = set()
        """Logs with a link to this one."""
        self.removed: list[Key] = []
        """Messages that retention has removed."""
        self.durable: dict[bytes, int] = {}
        """Acknowledged position of each destination."""
        self.copy: LogCopy | None = None
        self.taken: dict[Key, set[int]] = {}
        """Order stamps of messages that clients stored here, also of those that a crash removed."""
        self._members = members
        self._rng = rng
        self._time = time
        self._skew = rng.choice((0, 0, -700_000, 900_000))
        """Deviation of its wall clock in microseconds."""
        self.disk = StrictDisk(rng, counts=counts)
        self.run = 0
        """Number of the process."""
        self.open()

    def now(self) -> Now:
        mono, wall = self._time()
        return Now(mono, wall + self._skew)

    def open(self) -> None:
        """Start the server on the contents of the disk."""
        self.run += 1
        self.unacknowledged: deque[Unacknowledged] = deque()
        self.on_persisted: list[Callable[[int], None]] = []
        """Destinations of links to this log."""
        identity = open_identity(self.disk, owner="engine", create=True, new_id=self.id)
        recovered = recover_journal(self.disk, identity.journal_id)
        self.journal = Journal(recovered, self.now(), segment_bytes=4_096)
        self.view = self.journal.view
        self.view.tail_bytes_max = self._rng.choice((1, 3_000, 1 << 20))
        self._executor = DiskJobExecutor(self.disk, lambda: self._rng.getrandbits(64))
        self._jobs: deque[JournalJob] = deque()
        commits = self.journal.commits
        while self._jobs or commits.queued or not commits.ready:
            self._run_job()
        registry = drive(self.disk, load_publishers(self.journal))
        assert registry.damage == []
        self.facts = drive(self.disk, LogFacts.recover(self.journal, registry))
        assert self.facts.damage == []
        self.clock = EngineClock()
        self.clock.set(self.now())
        self.writer = LogWriter(self.journal, registry, self.clock, replicating=True)
        assert self.writer.exact is not None
        self.exact = self.writer.exact
        records = FactPlaceRecords(self.facts)
        self.places = LinkPlaces(self.exact, records, [*self.facts.places])
        self.log = ReplicatedLog(
            self.id,
            "local",
            self.writer,
            self.exact,
            registry,
            self.facts.origins,
            self.facts.reports,
            self.places,
            WholeTopics(self.facts.origins),
        )
        self._outbox = make_outbox()
        self.source_log = SourceLog(self.view, LogReads(self._outbox), self.facts.starts, self.facts.origins)
        self.reporter = ReportWriter(self.facts.report_number)
        self._append(self.facts.begin_run(self._rng.getrandbits(63) + 1, commits.accepted_end))
        self.append_reporters()

    @property
    def side(self) -> LinkSide:
        """Facts of this server in handshakes."""
        starts = [*self.facts.starts]
        rows = encode_pairs([one.start for one in starts], [one.first for one in starts])
        return LinkSide(instance=self.name, group="g", log=self.id, starts=rows)

    @property
    def group(self) -> Group:
        """The logs of the group, as this log knows them."""
        return Group(self._members, self.sources, self.facts.places)

    @property
    def stable(self) -> int:
        """Position before which all members have all rows, by their reports."""
        end = self.journal.commits.persisted_end
        return self.facts.reports.stable(self.group, self.facts.starts, end)

    # -- inputs -----------------------------------------------------------------------------------------

    def publish(
        self,
        publisher: int,
        sequences: list[int],
        connection: PublisherConnection,
        acknowledge: Callable[[int], None],
    ) -> None:
        """Append a frame of a publisher."""
        self.clock.set(self.now())
        before = self.writer.duplicates
        last = self.writer.append_from(publisher, f"p{publisher}", batch_of(publisher, sequences), connection)
        self.counts["duplicates of publishers"] += self.writer.duplicates - before
        for part in self.writer.parts:
            assert part.accepted.stamp is not None
            for sequence in part.batch.sequences.tolist():
                self.taken.setdefault((publisher, sequence), set()).add(part.accepted.stamp.timestamp)
        end = self.journal.commits.accepted_end
        self.unacknowledged.append(Unacknowledged(end, last, acknowledge))
        self.note_accepted()

    def append_reporters(self) -> None:
        """Append records of new reporters."""
        for record in self.facts.take_reporters():
            self._append(record)
            self.counts["reporters"] += 1

    def report(self) -> None:
        """Append a report, if one is due."""
        now = self.now()
        if self.reporter.due(now.mono) == 0.0:
            self.clock.set(now)
            self.journal.commits.end_open()
            at = self.facts.starts.place(self.journal.commits.accepted_end)
            reached = self.facts.reports.reached(self.group)
            record = self.reporter.report(now, at, self.group, now.wall, reached)
            self.facts.note(record)
            self._append(record)
            self.counts["reports"] += 1

    def _append(self, record: ReplicationRecord) -> None:
        builder = BatchBuilder()
        builder.add(CONTROL_TOPIC, encode_record(record), kind=1)
        self.writer.append_control(builder.build())
        self.note_accepted()

    def note_accepted(self) -> None:
        """Take the accepted batches."""
        for accepted in self.journal.take_accepted():
            if accepted.batch is not None:
                self.reporter.appended(accepted.batch)
                run = accepted.batch.first_run
                if run.flags & RUN_LATE:
                    self.counts["late by a link" if run.origin else "late by a publisher"] += 1

    # -- the disk ---------------------------------------------------------------------------------------

    def _run_job(self) -> bool:
        commits = self.journal.commits
        self._jobs += commits.jobs()
        if not self._jobs:
            return False
        job = self._jobs.popleft()
        commits.done(job, None, self._executor.run(job), self.now())
        self.journal.take_persisted()
        return True

    def run_job(self) -> bool:
        """The disk completes its oldest job. Return False without one."""
        if not self._run_job():
            return False
        self.note_accepted()
        end = self.journal.commits.persisted_end
        self.places.log_persisted(end)
        for destination in self.on_persisted:
            destination(end)
        while self.unacknowledged and self.unacknowledged[0].end <= end:
            _, last, acknowledge = self.unacknowledged.popleft()
            acknowledge(last)
        return True

    def read(self) -> int:
        """The disk answers all reads. Return their number."""
        effects = self._outbox.take()
        for effect in effects:
            assert isinstance(effect, ReadLog)
            handle = self.disk.open(segment_path(effect.request.segment), write=False)
            data = bytes(effect.request.read(partial(self.disk.read, handle)))
            self.disk.close(handle)
            for owner, result in self.source_log.reads.answered(effect.token, data):
                assert isinstance(owner, PersistedReader)
                owner.read_done(result)
        return len(effects)

    def prune(self, oldest: int) -> None:
        """Remove old segments below `oldest`."""
        view = self.view
        count = unneeded(removable(view, self.journal.commits.sealed_through), oldest)
        if not count:
            return
        facts = drive(self.disk, gather(view, self.id, self._rng.randint(1, count)))
        first = facts.retired.first_position
        self.removed += [row.key for row in self.messages() if row.position < first]
        gone = [s.number for s in view.segments if s.number <= facts.retired.through]
        view.retire(facts.retired, facts.first, first_unknown=facts.first_unknown)
        self._executor.run(RetireSegments(retired=facts.retired, numbers=tuple(gone)))
        self.counts["removals"] += 1

    def lose_power(self) -> None:
        """Power fails, and the server starts."""
        self.disk = self.disk.crash_clone(self._rng)
        self.open()

    def kill(self) -> None:
        """The process is killed, and the server starts."""
        self.disk = self.disk.kill_clone(self._rng)
        self.open()

    def restore(self, copy: LogCopy) -> None:
        """Start the server on an old copy of its data directory."""
        self.disk, self.removed, self.durable = copy.disk, [*copy.removed], {**copy.durable}
        self.open()

    # -- contents ---------------------------------------------------------------------------------------

    def messages(self) -> list[StoredMessageRow]:
        """Return the messages on the disk, after a check of body and labels."""
        found = []
        for first, batch in read_log(self.journal, self.disk):
            for index in range(batch.count):
                if batch.topic(index) not in TOPICS:
                    continue
                key = publisher, sequence = batch.publisher(index), batch.sequence(index)
                assert batch.topic(index) == TOPICS[sequence % 2]
                assert bytes(batch.body(index)) == body_of(publisher, sequence)
                assert batch.key(index) == f"k{sequence % 5}"
                assert batch.correlation_id(index) == (f"c{sequence}" if sequence % 3 else None)
                run = int(batch.run_starts.searchsorted(index, "right")) - 1
                origin = int(batch.runs["origin"][run])
                path = self.facts.origins[origin].path if origin else ()
                stamp = 0 if batch.order_stamps is None else int(batch.order_stamps[run])
                found.append(StoredMessageRow(first + index, key, path, stamp))
        return found

    def stored(self) -> list[Key]:
        """Return all messages that are, or were before their removal, on the disk."""
        return [*self.removed, *(row.key for row in self.messages())]
