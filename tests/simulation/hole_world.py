"""Simulation of one log whose publishers fail over: claims, links, fills, removals, power losses.

Must never compute the expected holes from the records of holes: the oracle is sets of integers over the
messages and `after` records, in the order in which the log accepted them.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import pairwise
from random import Random
from typing import NamedTuple

import numpy as np

from tests.helpers.sequence_sets import SequenceSets
from tests.simulation.journal_world import drive, read_log
from tickertape.base.bookmarks import Bookmark
from tickertape.base.interfaces import Now
from tickertape.batch import RUN_LATE, BatchBuilder, MessageBatch, select
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.exact_append import LinkedRun
from tickertape.engine.runtime.holes import PublisherConnection
from tickertape.engine.runtime.log_writer import LogWriter
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER, CONTROL_TOPIC, load_publishers
from tickertape.journal.commit.group_commit import PersistedCommit
from tickertape.journal.commit.jobs import DiskJobExecutor, JournalJob, RetireSegments
from tickertape.journal.format.identity import open_identity
from tickertape.journal.format.replication_records import (
    AfterRecord,
    HolesRecord,
    after,
    as_foreign,
    decode_record,
)
from tickertape.journal.format.retired_state import is_expired
from tickertape.journal.journal import Journal
from tickertape.journal.offline.verify import verify
from tickertape.journal.reading.log_reader import find_bookmark, positions_of_run
from tickertape.journal.reading.sequence_search import find_sequences
from tickertape.journal.recovery.recovery import recover_journal
from tickertape.journal.retention import gather, removable
from tickertape.testing.disk import StrictDisk

OTHER = bytes(range(16, 32))
PUBLISHERS = (2**63 + 11, 12, 13)


class LogRow(NamedTuple):
    """A row of the log that changes known sequences. `sequence`: the message, or the end of a hole."""

    position: int
    publisher: int
    sequence: int
    opens: bool = False
    proven: bool = True


class HoleWorld:
    """One log on a strict disk, and publishers, links and retention that act on it."""

    def __init__(self, seed: int, counts: Counter[str]) -> None:
        self.rng = Random(seed)
        self.counts = counts
        self.disk = StrictDisk(self.rng, counts=counts)
        self._mono, self._wall = 100.0, 1_760_000_000_000_000
        self.rows: list[LogRow] = []
        """All accepted rows of the log, without those that a crash has removed."""
        self.next = dict.fromkeys(PUBLISHERS, 1)
        """The next sequence of each publisher, wherever it publishes."""
        self.open()

    def _now(self) -> Now:
        self._mono += self.rng.random() * 0.001
        self._wall += self.rng.randrange(0, 1_500)
        return Now(self._mono, self._wall)

    def open(self) -> None:
        """Start on the contents of the disk."""
        identity = open_identity(self.disk, owner="engine", create=True, new_id=bytes(range(16)))
        recovered = recover_journal(self.disk, identity.journal_id)
        self.journal = Journal(recovered, self._now(), segment_bytes=8_192)
        self._executor = DiskJobExecutor(self.disk, lambda: self.rng.getrandbits(64))
        self.jobs: deque[JournalJob] = deque()
        self._run_all()
        registry = drive(self.disk, load_publishers(self.journal))
        self._clock = EngineClock(self.journal.commits)
        self._clock.set(self._now())
        self.writer = LogWriter(self.journal, registry, self._clock, replicating=True)
        exact = self.writer.exact
        assert exact is not None
        self._exact = exact
        self.connections = {publisher: PublisherConnection() for publisher in PUBLISHERS}
        self._received = dict.fromkeys(PUBLISHERS, 0)
        """Highest sequence that each publisher has sent on its connection."""
        assert registry.damage == []
        end = self.journal.commits.accepted_end
        self.counts["rows lost"] += sum(row.position >= end for row in self.rows)
        self.rows = [row for row in self.rows if row.position < end]
        self._durable = self.replayed(self.rows)
        """The oracle over persisted rows."""
        self.oracle = self.replayed(self.rows)
        self.check_state()

    def replayed(self, rows: list[LogRow]) -> SequenceSets:
        """Return the oracle after rows of the log."""
        oracle = SequenceSets()
        for row in rows:
            self._enter(oracle, row)
        oracle.changed.clear()
        return oracle

    @staticmethod
    def _enter(oracle: SequenceSets, row: LogRow) -> None:
        if row.opens:
            oracle.open(row.publisher, row.sequence, row.position, proven=row.proven)
        else:
            oracle.store(row.publisher, [row.sequence])

    # -- inputs -----------------------------------------------------------------------------------------

    def connect(self, publisher: int = 0) -> None:
        """A publisher logs on, with a claim or without one."""
        publisher = publisher or self.rng.choice(PUBLISHERS)
        self._received[publisher] = 0
        highest = self.next[publisher] - 1
        claim = self.rng.choice((None, 0, highest, self.rng.randint(0, highest)))
        self.connections[publisher] = PublisherConnection(claim, self.rng.randrange(9))

    def publish(self) -> None:
        """A publisher sends some of its messages from any of them on, and may skip some."""
        publisher = self.rng.choice(PUBLISHERS)
        self._clock.set(self._now())
        connection = self.connections[publisher]
        sequences = self._sequences(publisher, len_max=60 if self.rng.random() < 0.1 else 12)
        if sequences[0] <= self._received[publisher] and self.rng.random() < 0.8:
            self.connect(publisher)
            connection = self.connections[publisher]
        before = self._expected_rows(publisher, sequences, connection)
        self._received[publisher] = max(self._received[publisher], sequences[-1])
        self._append(publisher, sequences, before, connection)

    def link(self) -> None:
        """A link brings some messages of a publisher."""
        publisher = self.rng.choice(PUBLISHERS)
        self._clock.set(self._now())
        sequences = self._sequences(publisher, len_max=12)
        wanted = [s for s in sequences if self.oracle.admits(publisher, s, from_link=True)]
        self._append(publisher, sequences, [wanted], None)

    def link_opens(self) -> None:
        """A link brings a record of another log about messages that exist elsewhere."""
        publisher = self.rng.choice(PUBLISHERS)
        self._clock.set(self._now())
        last = self.oracle.highest.get(publisher, 0) + self.rng.randint(-3, 9)
        if last > 0:
            self.next[publisher] = max(self.next[publisher], last + 1)
            proven = self.rng.random() < 0.7
            record = as_foreign(after(OTHER, publisher, 1, last, proven=proven), OTHER)
            self._exact.append_after([record])
            self._note_accepted()

    def other(self) -> None:
        """Another control record, and messages without sequences."""
        self._clock.set(self._now())
        builder = BatchBuilder()
        builder.add("t", self.rng.randbytes(100))
        self.writer.append_derived(99, "other", builder.build())
        if self.rng.random() < 0.3:
            self.writer.append_chain(99, "other", [builder.build()] * 2, builder.build())
            self.counts["chains"] += 1
        self._note_accepted()

    def _sequences(self, publisher: int, len_max: int) -> list[int]:
        new = self.next[publisher]
        low = self.rng.choice((new, new, max(1, new - 20), self.rng.randint(1, new)))
        low += self.rng.choice((0, 0, 0, 5))
        sequences = list(range(low, low + self.rng.randint(1, len_max)))
        if self.rng.random() < 0.3:
            sequences = sorted(self.rng.sample(sequences, (len(sequences) + 1) // 2))
        self.next[publisher] = max(new, sequences[-1] + 1)
        return sequences

    def _expected_rows(
        self, publisher: int, sequences: list[int], connection: PublisherConnection
    ) -> list[list[int]]:
        """Return the messages that a publisher's batch adds, by the rules for one message at a time.

        They are in groups, between which `after` records precede the rest."""
        highest, last, claim = self.oracle.highest.get(publisher, 0), connection.last, connection.claim
        late = [
            s
            for s in sequences
            if self._received[publisher] < s <= highest and self.oracle.admits(publisher, s, from_link=False)
        ]
        above = [s for s in sequences if s > highest]
        if late:
            last = late[-1]
        self._expected_afters: list[tuple[int, bool]] = []
        if above and claim is not None and claim > highest:
            self._expected_afters.append((claim, True))
        elif above and highest and last != highest:
            self._expected_afters.append((highest, True))
        if above and claim is None and last is None and above[0] - 1 > highest:
            self._expected_afters.append((above[0] - 1, False))
        return [late, above]

    def _append(
        self,
        publisher: int,
        sequences: list[int],
        groups: list[list[int]],
        connection: PublisherConnection | None,
    ) -> None:
        batch = _batch(publisher, sequences, self.rng)
        expected = [s for group in groups for s in group]
        dropped = self.writer.duplicates
        asked = connection or PublisherConnection()
        known = self.writer.known(publisher, batch, asked)
        if connection is None:
            split = self._exact.known.split(publisher, batch.sequences, from_link=True)
            self.writer.duplicates += split.duplicates
            self._exact.append_linked(batch, split, LinkedRun(7, 1_000))
            self._exact.write_soon()
        else:
            stored = [s for s, old in zip(sequences, known.tolist(), strict=True) if not old]
            assert stored == expected
            begun = None
            if self.rng.random() < 0.3:
                begun = self.writer.begin_run(publisher, "any", derived=False)
            last = self.writer.append_from(publisher, "any", batch, connection)
            self.writer.end_run()
            assert last == sequences[-1]
            if begun is not None and self.writer.parts:
                self.counts["begun runs"] += 1
                assert self.writer.parts[0].accepted.stamp == begun._replace(first_sequence=expected[0])
            if expected:
                assert connection.last == expected[-1]
        assert self.writer.duplicates - dropped == len(sequences) - len(expected)
        self.counts["duplicates"] += len(sequences) - len(expected)
        where = {row.sequence: row for row in self._note_accepted() if not row.opens}
        assert [*where] == expected
        assert all(
            self.writer.position_of(batch, sequences.index(s)) == row.position for s, row in where.items()
        )
        if connection is not None:
            opened = [(row.sequence, row.proven) for row in self._accepted if row.opens]
            assert opened == self._expected_afters
            self.counts["claims opened"] += bool(opened) and connection.claim is not None

    def _note_accepted(self) -> list[LogRow]:
        """Enter the accepted rows into the oracle, and check their flags. Return them."""
        self._accepted: list[LogRow] = []
        for position, batch, stamp in self.journal.take_accepted():
            if batch is None:
                continue
            assert stamp is not None
            for row in self._rows_of(position, batch, stamp.publisher):
                if not row.opens:
                    late = row.sequence <= self.oracle.highest.get(row.publisher, 0)
                    assert bool(batch.first_run.flags & RUN_LATE) == late
                    self.counts["late"] += late
                self._accepted.append(row)
                self._enter(self.oracle, row)
        self.rows += self._accepted
        return self._accepted

    @staticmethod
    def _rows_of(position: int, batch: MessageBatch, publisher: int) -> list[LogRow]:
        found = []
        for index in range(batch.count):
            if publisher in PUBLISHERS:
                found.append(LogRow(position + index, publisher, batch.sequence(index)))
            elif publisher == CONTROL_PUBLISHER and b"latest_of" in bytes(batch.body(index)):
                record = decode_record(bytes(batch.body(index)))
                if isinstance(record, AfterRecord):
                    found.append(
                        LogRow(position + index, record.publisher, record.after, True, not record.unproven)
                    )
        return found

    # -- the disk ---------------------------------------------------------------------------------------

    def run_job(self) -> None:
        """The disk completes its oldest job."""
        self.jobs += self.journal.commits.jobs()
        if self.jobs:
            self._clock.set(self._now()) if hasattr(self, "_clock") else None
            job = self.jobs.popleft()
            self.journal.commits.done(job, None, self._executor.run(job), self._now())
            if hasattr(self, "_durable"):
                self._note_accepted()
                for commit in self.journal.take_persisted():
                    self._check_commit(commit)

    def _run_all(self) -> None:
        self.run_job()
        while self.jobs or self.journal.commits.queued:
            self.run_job()
        self.journal.take_persisted()

    def idle(self) -> None:
        """The disk completes all jobs."""
        for _ in range(self.rng.choice((1, 3, 100))):
            self.run_job()

    def crash(self) -> None:
        """Power fails, or only the process ends."""
        lose_power = self.rng.random() < 0.7
        self.disk = self.disk.crash_clone(self.rng) if lose_power else self.disk.kill_clone(self.rng)
        self.open()

    def stop(self) -> None:
        """Stop cleanly, and start."""
        self.journal.commits.close(self._now())
        while not self.journal.commits.closed:
            self.run_job()
        self.disk.close_all()
        report = verify(self.disk)
        assert report.whole, report.damage
        self.counts["clean stops"] += 1
        self.open()

    def prune(self) -> None:
        """Remove some of the oldest segments."""
        view = self.journal.view
        free = removable(view, self.journal.commits.sealed_through)
        if not free:
            return
        facts = drive(self.disk, gather(view, self.journal.journal_id, self.rng.randint(1, len(free))))
        gone = [s.number for s in view.segments if s.number <= facts.retired.through]
        view.retire(facts.retired, facts.first, first_unknown=facts.first_unknown)
        self._executor.run(RetireSegments(retired=facts.retired, numbers=tuple(gone)))
        self.counts["removals"] += 1
        self.check_removed()

    # -- checks -----------------------------------------------------------------------------------------

    def check_state(self) -> None:
        """Compare the holes of the writer with the oracle."""
        known = self._exact.known
        ranges = self.oracle.all_ranges()
        assert {p: known.holes(p) for p in PUBLISHERS if p in known} == ranges
        assert {p: known.highest(p) for p in PUBLISHERS if known.highest(p)} == self.oracle.highest
        assert known.count == sum(map(len, ranges.values()))
        self.counts["open holes at a check"] += bool(ranges)

    def _check_commit(self, commit: PersistedCommit) -> None:
        """A commit ends with a record of each publisher whose holes it changes, and of no other."""
        batch = commit.batch
        recorded: dict[int, int] = {}
        last = 0
        for index in range(batch.count):
            publisher = batch.publisher(index)
            body = bytes(batch.body(index))
            row = self._rows_of(commit.first_position + index, select(batch, np.array([index])), publisher)
            if row:
                self._enter(self._durable, row[0])
                last = index
            elif publisher == CONTROL_PUBLISHER and b"holes" in body:
                record = decode_record(body)
                assert isinstance(record, HolesRecord)
                assert record.publisher not in recorded
                recorded[record.publisher] = index
                assert record.highest == self._durable.highest[record.publisher]
                assert record.ranges == self._durable.ranges(record.publisher)
        assert set(recorded) == self._durable.changed
        assert all(index > last for index in recorded.values())
        assert batch.topic(batch.count - 1) == CONTROL_TOPIC or not recorded
        self.counts["records of holes"] += len(recorded)
        self.counts["commits with records of several"] += len(recorded) > 1
        self.counts["commits of several batches with records"] += bool(recorded) and batch.run_count > 3
        self._durable.changed.clear()

    def check_removed(self) -> None:
        """Removed messages are expired. Messages in open holes, and those above, are not."""
        view = self.journal.view
        assert view.retired is not None
        gone = [row for row in self.rows if row.position < view.first_position]
        oracle = self.replayed(gone)
        for publisher in PUBLISHERS:
            highest = oracle.highest.get(publisher, 0)
            for sequence in range(1, highest + 3):
                missing = sequence in oracle.missing.get(publisher, {})
                expired = is_expired(view.retired, Bookmark(publisher, sequence))
                assert expired == (sequence <= highest and not missing), (publisher, sequence)
                self.counts["expired"] += expired
                self.counts["not expired in a hole"] += missing

    def check_log(self) -> None:
        """Each message is in the log once, is found by bookmark, and rows rise by time and control number."""
        self._run_all_checked()
        view = self.journal.view
        positions = {
            (row.publisher, row.sequence): row.position
            for row in self.rows
            if not row.opens and row.position >= view.first_position
        }
        assert len({(r.publisher, r.sequence) for r in self.rows if not r.opens}) == sum(
            not row.opens for row in self.rows
        )
        found, stamp, number = {}, 0, 0
        for first, batch in read_log(self.journal, self.disk):
            stamps = [stamp, *batch.runs["timestamp"].tolist()]
            assert all(earlier < later for earlier, later in pairwise(stamps))
            stamp = stamps[-1]
            for index in range(batch.count):
                if batch.publisher(index) in PUBLISHERS:
                    found[batch.publisher(index), batch.sequence(index)] = first + index
                elif batch.publisher(index) == CONTROL_PUBLISHER:
                    assert batch.sequence(index) > number
                    number = batch.sequence(index)
        assert found == positions
        for publisher, first in self.rng.sample(sorted(positions), min(9, len(found))):
            count = self.rng.choice((1, 3, 20, 200))
            wanted = [
                p for key, p in positions.items() if key[0] == publisher and 0 <= key[1] - first < count
            ]
            end = self.journal.commits.persisted_end
            run = drive(self.disk, positions_of_run(view, publisher, first, count, end))
            assert run.tolist() == sorted(wanted)
            sequences = drive(self.disk, find_sequences(view, publisher, first, first + count - 1))
            assert sequences.tolist() == sorted(
                key[1] for key in positions if key[0] == publisher and 0 <= key[1] - first < count
            )
        for (publisher, sequence), position in self.rng.sample(sorted(positions.items()), min(9, len(found))):
            assert drive(self.disk, find_bookmark(view, publisher, sequence)) == position

    def _run_all_checked(self) -> None:
        self.run_job()
        while self.jobs or self.journal.commits.queued:
            self.run_job()

    def step(self) -> None:
        """Take one random step, and check the state after it."""
        ways = [
            *[self.publish] * 6,
            *[self.link] * 3,
            *[self.connect] * 2,
            self.link_opens,
            self.other,
            *[self.idle] * 4,
            self.prune,
        ]
        self.rng.choice(ways)()
        self.check_state()


def _batch(publisher: int, sequences: list[int], rng: Random) -> MessageBatch:
    builder = BatchBuilder()
    size = rng.choice((0, 20, 200))
    for sequence in sequences:
        builder.add(rng.choice("tu"), rng.randbytes(size), sequence=sequence)
    return builder.build(publisher)
