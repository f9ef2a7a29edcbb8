"""Sparse reads of a rare topic in large commits: head and matching runs only, all checked."""

from __future__ import annotations

from functools import cache, partial
from random import Random
from typing import NamedTuple

import pytest

from tests.simulation.journal_log import JOURNAL_ID
from tickertape.base.errors import JournalCorrupt
from tickertape.base.interfaces import Buffer, Now
from tickertape.batch import BatchBuilder, MessageBatch, Stamp, select_topic
from tickertape.engine.log_reads.selection import selections
from tickertape.engine.matching.interest import Interest
from tickertape.journal.commit.jobs import DiskJobExecutor
from tickertape.journal.format.segment import CommitHeader, CommitKind, decode_commit, segment_path
from tickertape.journal.journal import Journal
from tickertape.journal.limits import commit_header_bytes
from tickertape.journal.reading.log_reader import LogReader
from tickertape.journal.reading.log_view import LogPart, ReadRequest
from tickertape.journal.recovery.recovery import recover_journal
from tickertape.testing.disk import StrictDisk

COMMITS = 6
FRAMES = 60


class Log(NamedTuple):
    """Large commits: many frames of `busy`, here and there one of `rare`, and one commit without any."""

    journal: Journal
    disk: StrictDisk
    rare: list[tuple[int, bytes]]
    """Position and body of the messages of `rare`."""


def _frame(rng: Random, topics: list[str], count: int) -> MessageBatch:
    builder = BatchBuilder()
    for _ in range(count):
        builder.add(rng.choice(topics), rng.randbytes(rng.choice((0, 100, 400))))
    return MessageBatch.parse(builder.build(0, 1, 0).encode())


def make_log(seed: int) -> Log:
    rng = Random(seed)
    disk = StrictDisk(rng)
    disk.make_directory("journal")
    journal = Journal(recover_journal(disk, JOURNAL_ID), Now(0.0, 1_000), segment_bytes=8 << 20)
    executor = DiskJobExecutor(disk, lambda: rng.getrandbits(64))
    rare: list[tuple[int, bytes]] = []
    sequences = {1: 0, 2: 0}

    def append(publisher: int, batch: MessageBatch) -> None:
        first = journal.commits.accepted_end
        rare.extend((first + i, m.data) for i, m in enumerate(batch) if m.topic == "rare")
        last = sequences[publisher] + batch.count
        journal.append(batch, Stamp(publisher, sequences[publisher] + 1, 2_000), last, Now(0.0, 2_000))
        sequences[publisher] = last

    def carry_out() -> None:
        while jobs := journal.commits.jobs():
            for job in jobs:
                journal.commits.done(job, None, executor.run(job), Now(0.0, 2_000))
        journal.take_persisted()

    carry_out()
    for commit in range(COMMITS):
        append(1, _frame(rng, ["busy"], 5))  # is committed alone: later batches accumulate during its write
        for _ in range(FRAMES):
            append(1, _frame(rng, ["busy"], 60))
            if commit != 3 and rng.random() < 0.1:
                append(
                    2,
                    _frame(rng, ["rare"] if rng.random() < 0.6 else ["rare", "other"], rng.choice((1, 1, 3))),
                )
        carry_out()
    journal.view.tail.clear()
    return Log(journal, disk, rare)


@cache
def shared_log() -> Log:
    """Return the log for tests that only read."""
    return make_log(1)


class Reading:
    """A reader carried to the end of the log."""

    def __init__(self, log: Log, topic: str | None, position: int = 0) -> None:
        self.log = log
        self.requests: list[ReadRequest] = []
        self.parts: list[LogPart] = []
        self.reader = LogReader(log.journal.view, position, topic)

    def run(self) -> Reading:
        handle = self.log.disk.open(segment_path(1), write=False)
        while (step := self.reader.poll()) is not None:
            assert isinstance(step, ReadRequest)
            self.requests.append(step)
            data: Buffer = step.read(partial(self.log.disk.read, handle))
            assert len(data) == step.size
            self.parts.extend(self.reader.answer(data))
        return self

    @property
    def size(self) -> int:
        return sum(request.size for request in self.requests)

    def found(self, topic: str) -> list[tuple[int, bytes]]:
        return [
            (one.position(i), one.batch.body(i))
            for one in selections(self.parts, Interest(topic))
            if one.batch is not None
            for i in range(one.count)
        ]


def test_sparse_read_of_a_rare_topic_skips_most_other_data() -> None:
    log = shared_log()
    everything = Reading(log, None).run()
    rare = Reading(log, "rare").run()
    assert rare.found("rare") == log.rare == everything.found("rare")
    assert rare.size * 2 < everything.size
    assert any(request.pieces for request in rare.requests)
    assert rare.parts[-1].end_position <= log.journal.commits.persisted_end == rare.reader.position


@pytest.mark.parametrize("topic", ["rare", "busy", "other", "never"])
def test_sparse_read_returns_every_topic_from_every_position(topic: str) -> None:
    log = shared_log()
    wanted = Reading(log, None).run().found(topic)
    for position in range(0, log.journal.commits.persisted_end + 1, 997):
        found = [one for one in Reading(log, topic, position).run().found(topic) if one[0] >= position]
        assert found == [one for one in wanted if one[0] >= position]


def test_sparse_read_keeps_the_publisher_checksums_of_runs() -> None:
    for part in Reading(shared_log(), "rare").run().parts:
        if part.positions is not None:
            assert not part.batch.runs["flags"].any()
            assert select_topic(part.batch, "rare") is not None


def _commits(log: Log) -> list[CommitHeader]:
    handle = log.disk.open(segment_path(1), write=False)
    found, at = [], 512
    while at < log.journal.view.segments[0].end:
        header = decode_commit(log.disk.read(handle, at, commit_header_bytes))
        assert header is not None
        found.append(header)
        at = header.end
    return found


def _sparse_commit(log: Log) -> CommitHeader:
    """A large commit whose head is read by itself: not the first large one of a reader."""
    large = [c for c in _commits(log) if c.kind is CommitKind.DATA and c.body_bytes > 300_000]
    return large[2]


def _damage(log: Log, offset: int) -> None:
    handle = log.disk.open(segment_path(1))
    byte = bytes(log.disk.read(handle, offset, 1))
    log.disk.write(handle, offset, [bytes([byte[0] ^ 0x40])])


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9])
def test_sparse_read_reports_damage_in_a_commit_head(share: float) -> None:
    log = make_log(2)
    header = _sparse_commit(log)
    _damage(log, header.offset + commit_header_bytes + int(share * header.head_bytes))
    with pytest.raises(JournalCorrupt, match=segment_path(1)) as caught:
        Reading(log, "rare").run()
    assert caught.value.offset == header.offset


def test_sparse_read_reports_damage_in_needed_runs_only() -> None:
    log = make_log(3)
    header = _sparse_commit(log)
    reading = Reading(log, "rare").run()
    (pieces,) = [r.pieces for r in reading.requests if r.pieces and header.offset < r.offset < header.end]
    offset, size = pieces[0]
    _damage(log, offset - 1)
    assert Reading(log, "rare").run().found("rare") == log.rare
    with pytest.raises(JournalCorrupt):
        Reading(log, None).run()
    _damage(log, offset - 1)
    _damage(log, offset + size // 2)
    with pytest.raises(JournalCorrupt, match="does not match its checksum") as caught:
        Reading(log, "rare").run()
    assert caught.value.offset == header.offset
