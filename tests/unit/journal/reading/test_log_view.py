"""Readers and lookups against brute force, on logs made at random: every position, bookmark and time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from itertools import pairwise
from random import Random
from typing import NamedTuple

import pytest

from tests.helpers.tiers import parts
from tests.simulation.journal_log import JOURNAL_ID
from tests.simulation.journal_world import drive, read_log
from tickertape.base.errors import JournalCorrupt
from tickertape.base.interfaces import Now
from tickertape.batch import Stamp, batch_from_bodies
from tickertape.journal.commit.jobs import DiskJobExecutor
from tickertape.journal.format.segment import decode_commit, segment_path
from tickertape.journal.journal import Journal
from tickertape.journal.limits import (
    batch_memory_bytes,
    commit_header_bytes,
    index_zone_bytes,
    read_bytes_target,
    segment_header_bytes,
    tail_cache_bytes,
)
from tickertape.journal.reading.log_reader import (
    LogReader,
    find_bookmark,
    find_time,
    fold_topic,
    next_block_with,
)
from tickertape.journal.reading.log_view import LogPart, LogSegment, ReadRequest
from tickertape.journal.reading.sequence_search import find_sequences
from tickertape.journal.recovery.recovery import recover_journal
from tickertape.testing.disk import StrictDisk


class Written(NamedTuple):
    """A message as it was appended."""

    publisher: int
    sequence: int
    timestamp: int
    topic: str
    body: bytes


class Fixture(NamedTuple):
    """A log and its messages."""

    journal: Journal
    disk: StrictDisk
    written: list[Written]


@cache
def shared_log() -> Fixture:
    """Return the log for tests that only read. Tests that change a log create their own."""
    return random_log(1)


def random_log(seed: int, *, messages: int = 400, sizes: tuple[int, ...] = (0, 40, 3000)) -> Fixture:
    """Several segments, several blocks in each, the last ones of an earlier run."""
    rng = Random(seed)
    disk = StrictDisk(rng)
    disk.make_directory("journal")
    written: list[Written] = []
    sequences = dict.fromkeys(range(1, 6), 0)
    time = 5_000
    for _ in range(2):
        moment = Now(0.0, 0)
        journal = Journal(recover_journal(disk, JOURNAL_ID), moment, segment_bytes=256 * 1024)
        executor = DiskJobExecutor(disk, lambda: rng.getrandbits(64))
        target = len(written) + messages
        while len(written) < target:
            time += rng.choice((0, 0, 3, 100))
            publisher = rng.choice((1, 1, 1, 2, 3, 4, 5))
            first = sequences[publisher] + rng.choice((1, 1, 1, 4))
            bodies = [rng.randbytes(rng.choice(sizes)) for _ in range(rng.choice((1, 1, 5)))]
            # A topic that is rare, and only for a while, so that blocks can be passed over.
            topic = "rare" if len(written) % 500 < 15 else f"t{publisher % 2}"
            batch = batch_from_bodies(topic, bodies, first_sequence=first)
            sequences[publisher] = first + len(bodies) - 1
            journal.append(batch, Stamp(publisher, first, time), sequences[publisher], moment)
            written += [Written(publisher, first + i, time, topic, body) for i, body in enumerate(bodies)]
            if rng.random() < 0.7:
                _run(journal, executor, moment)
        _run(journal, executor, moment)
        disk.close_all()
    return Fixture(journal, disk, written)


def _run(journal: Journal, executor: DiskJobExecutor, moment: Now) -> None:
    while jobs := journal.commits.jobs():
        for job in jobs:
            journal.commits.done(job, None, executor.run(job), moment)
    journal.take_persisted()


def read(log: Fixture, start: int = 0, topic: str | None = None) -> list[tuple[int, Written]]:
    found = []
    for first, batch in read_log(log.journal, log.disk, start, topic):
        stamps = batch.timestamps.tolist()
        for i in range(batch.count):
            key = int(batch.publishers[i]), int(batch.sequences[i])
            found.append((first + i, Written(*key, stamps[i], batch.topic(i), bytes(batch.body(i)))))
    return found


@pytest.fixture(params=[1, 100_000, tail_cache_bytes], ids=["no tail", "half a tail", "all in memory"])
def log(request: pytest.FixtureRequest) -> Iterator[Fixture]:
    """The same log with less or more of its end in memory."""
    made = shared_log()
    view = made.journal.view
    everything = list(view.tail)
    while len(view.tail) > 1 and sum(part.batch.nbytes for part in view.tail) > request.param:
        del view.tail[0]
    yield made
    view.tail[:] = everything


def test_random_log_has_several_segments_blocks_and_a_large_tail() -> None:
    log = shared_log()
    view = log.journal.view
    assert len(view.segments) > 3
    assert max(segment.index.blocks for segment in view.segments) > 2
    assert sum(part.batch.nbytes for part in view.tail) > 200_000


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_topic_skip_never_passes_a_message_of_the_topic(seed: int) -> None:
    log = random_log(seed)
    view, rng = log.journal.view, Random(seed)
    passed = 0
    for topic in ("rare", "t0", "t1", "never"):
        having = [at for at, message in enumerate(log.written) if message.topic == topic]
        for position in [0, len(log.written), *(rng.randrange(len(log.written)) for _ in range(60))]:
            found = next_block_with(log.journal.view, topic, position)
            match = next((at for at in having if at >= position), None)
            assert position <= found <= view.end_position
            assert found <= (len(log.written) if match is None else match)
            passed += found > position
            if topic == "never":
                assert found == len(log.written), "whole segments are passed"
    assert passed > 30


def test_reader_returns_all_messages_from_every_position(log: Fixture) -> None:
    for start in range(0, len(log.written) + 1, 97):
        found = [(at, message) for at, message in read(log, start) if at >= start]
        assert found == list(enumerate(log.written))[start:]


@pytest.mark.parametrize("topic", ["rare", "t0", "t1", "none"])
def test_topic_skipping_equals_filtering(log: Fixture, topic: str) -> None:
    wanted = [(at, message) for at, message in enumerate(log.written) if message.topic == topic]
    for start in (0, 300, 900):
        found = [(at, message) for at, message in read(log, start, topic) if message.topic == topic]
        assert [pair for pair in found if pair[0] >= start] == [pair for pair in wanted if pair[0] >= start]


def test_blocks_without_the_topic_are_not_read() -> None:
    log = shared_log()
    log.journal.view.tail, tail = [], log.journal.view.tail
    try:
        everything = sum(len(batch.bodies) for _, batch in read_log(log.journal, log.disk))
        some = sum(len(batch.bodies) for _, batch in read_log(log.journal, log.disk, topic="rare"))
    finally:
        log.journal.view.tail = tail
    assert 0 < some < everything / 3


@pytest.mark.slow
def test_find_bookmark_returns_the_position_of_every_message(log: Fixture) -> None:
    for position, message in list(enumerate(log.written))[::2]:
        assert (
            drive(log.disk, find_bookmark(log.journal.view, message.publisher, message.sequence)) == position
        )


def test_find_bookmark_returns_none_for_unknown_bookmarks(log: Fixture) -> None:
    known = {(message.publisher, message.sequence) for message in log.written}
    for publisher in range(7):
        for sequence in (*range(0, 400, 7), 2**64 - 1):
            if (publisher, sequence) not in known:
                assert drive(log.disk, find_bookmark(log.journal.view, publisher, sequence)) is None


@pytest.mark.slow
def test_find_time_returns_the_correct_position_for_every_time(log: Fixture) -> None:
    stamps = [message.timestamp for message in log.written]
    for micros in sorted({s + d for s in stamps[::5] for d in (-1, 0, 1)} | {0, stamps[-1], 2**62}):
        for inclusive in (True, False):
            wanted = next(
                (at for at, stamp in enumerate(stamps) if (stamp >= micros if inclusive else stamp > micros)),
                len(stamps),
            )
            assert drive(log.disk, find_time(log.journal.view, micros, inclusive=inclusive)) == wanted


def test_find_bookmark_needs_at_most_one_small_read() -> None:
    log = shared_log()
    for message in log.written[:: len(log.written) // 50]:
        search = find_bookmark(log.journal.view, message.publisher, message.sequence)
        requests, data = 0, None
        try:
            while True:
                request = next(search) if data is None else search.send(data)
                requests += 1
                handle = log.disk.open(segment_path(request.segment), write=False)
                data = request.read(partial(log.disk.read, handle))
                assert request.size < 2 * index_zone_bytes
        except StopIteration:
            assert requests <= 1


def test_a_commit_larger_than_a_read_is_read_whole() -> None:
    log = random_log(2, messages=20, sizes=(3 * read_bytes_target,))
    log.journal.view.tail.clear()
    assert read(log) == list(enumerate(log.written))


def test_reader_that_falls_behind_the_tail_reads_each_message_once() -> None:
    made = random_log(3, messages=150)
    journal, disk = made.journal, made.disk
    executor = DiskJobExecutor(disk, lambda: 77)
    moment = Now(0.0, 0)
    reader = journal.reader(0)
    positions: list[int] = []

    def poll() -> bool:
        step = reader.poll()
        if step is None:
            return False
        if isinstance(step, ReadRequest):
            handle = disk.open(segment_path(step.segment), write=False)
            step = reader.answer(disk.read(handle, step.offset, step.size))
        for part in step:
            positions.extend(range(part.first_position, part.end_position))
        return True

    while poll():
        pass
    journal.view.tail_bytes_max = 1
    for sequence in range(10_001, 10_061):
        batch = batch_from_bodies("t", [bytes(100)], first_sequence=sequence)
        journal.append(batch, Stamp(1, sequence, 10**9), sequence, moment)
        _run(journal, executor, moment)
        if sequence % 7 == 0:
            while poll():
                pass
    while poll():
        pass
    assert positions == list(range(journal.commits.persisted_end))


def test_log_tail_is_bounded_and_trimmed_in_large_steps() -> None:
    made = random_log(4, messages=30)
    view, moment = made.journal.view, Now(0.0, 0)
    view.tail_bytes_max = 100_000
    executor = DiskJobExecutor(made.disk, lambda: 78)
    sizes = []
    for sequence in range(20_001, 20_301):
        batch = batch_from_bodies("t", [bytes(500)], first_sequence=sequence)
        made.journal.append(batch, Stamp(1, sequence, 10**9), sequence, moment)
        _run(made.journal, executor, moment)
        sizes.append(sum(part.batch.nbytes + batch_memory_bytes for part in view.tail))
        assert view.tail[-1].end_position == made.journal.commits.persisted_end
    assert 80_000 < max(sizes) <= 100_000
    cuts = sum(after < before for before, after in pairwise(sizes))
    assert 0 < cuts < 80


def test_reader_serves_commits_before_a_damaged_one_and_then_raises() -> None:
    made = random_log(5, messages=60)
    made.journal.view.tail.clear()
    path = segment_path(1)
    handle = made.disk.open(path)
    reader = made.journal.reader(0)
    request = reader.poll()
    assert isinstance(request, ReadRequest)
    whole = reader.answer(made.disk.read(handle, request.offset, request.size))
    header = decode_commit(made.disk.read(handle, request.offset, request.size))
    assert header is not None
    damaged = header.end + commit_header_bytes + 40  # in the body of the second commit
    made.disk.write(handle, damaged, [b"\xff\xff\xff"])
    reader = made.journal.reader(0)
    request = reader.poll()
    assert isinstance(request, ReadRequest)
    served = reader.answer(made.disk.read(handle, request.offset, request.size))
    assert [part.first_position for part in served] == [whole[0].first_position]
    again = reader.poll()
    assert isinstance(again, ReadRequest)
    with pytest.raises(JournalCorrupt, match=path) as caught:
        reader.answer(made.disk.read(handle, again.offset, again.size))
    assert again.offset == caught.value.offset == header.end


def test_reader_raises_for_damage_in_the_first_commit_of_a_read() -> None:
    made = random_log(5, messages=60)
    made.journal.view.tail.clear()
    path = segment_path(1)
    handle = made.disk.open(path)
    made.disk.write(handle, 2000, [b"\xff\xff\xff"])
    reader = made.journal.reader(0)
    request = reader.poll()
    assert isinstance(request, ReadRequest)
    with pytest.raises(JournalCorrupt, match=path) as caught:
        reader.answer(made.disk.read(handle, request.offset, request.size))
    assert caught.value.file == path
    assert caught.value.offset <= 2000


@pytest.mark.parametrize("seed", parts(8, 3))
def test_damaged_body_affects_only_reads_of_that_commit(seed: int) -> None:
    log = random_log(seed, messages=150, sizes=(20, 200))
    view, rng = log.journal.view, Random(seed)
    parts = list(view.tail)
    view.tail.clear()
    damaged = rng.choice(parts[:-1])
    segment = view.segment_of(damaged.first_position)
    assert segment is not None
    at = _body_offset(log, segment, damaged.first_position) + damaged.batch.head_bytes
    handle = log.disk.open(segment_path(segment.number))
    byte = log.disk.read(handle, at, 1)[0]
    log.disk.write(handle, at, [bytes([byte ^ 4])])
    everything = list(enumerate(log.written))
    inside = range(damaged.first_position, damaged.end_position)

    after = rng.randrange(damaged.end_position, len(everything))
    for start in (damaged.end_position, after):
        assert [found for found in read(log, start) if found[0] >= start] == everything[start:]
    with pytest.raises(JournalCorrupt, match=rf"{segment_path(segment.number)!r} at"):
        read(log, inside[-1])
    for topic in ("t0", "t1", "rare"):
        wanted = [(i, message) for i, message in everything if message.topic == topic]
        if topic in damaged.batch.topics:
            with pytest.raises(JournalCorrupt):
                read(log, 0, topic)
        else:
            assert [found for found in read(log, 0, topic) if found[1].topic == topic] == wanted
    for position, message in rng.sample(everything, 40) + everything[inside.start : inside.stop]:
        search = find_bookmark(view, message.publisher, message.sequence)
        if position in inside:
            with pytest.raises(JournalCorrupt):
                drive(log.disk, search)
        else:
            assert drive(log.disk, search) == position


def _body_offset(log: Fixture, segment: LogSegment, position: int) -> int:
    """Return the file offset of the body of the commit that starts at `position`."""
    handle = log.disk.open(segment_path(segment.number))
    offset = segment_header_bytes
    while True:
        header = decode_commit(log.disk.read(handle, offset, commit_header_bytes))
        assert header is not None
        if header.messages and header.first_position == position:
            return offset + commit_header_bytes
        offset = header.end


def test_reader_of_a_truncated_segment_file_raises() -> None:
    made = random_log(6, messages=60)
    made.journal.view.tail.clear()
    reader: LogReader = made.journal.reader(0)
    request = reader.poll()
    assert isinstance(request, ReadRequest)
    with pytest.raises(JournalCorrupt, match="the file ends before the persisted end"):
        reader.answer(bytes(10))


def test_lookups_and_readers_find_nothing_above_the_persisted_end() -> None:
    made = random_log(7, messages=30)
    journal, moment = made.journal, Now(0.0, 0)
    end = journal.commits.persisted_end
    batch = batch_from_bodies("t0", [b"new"], first_sequence=50_000)
    journal.append(batch, Stamp(1, 50_000, 10**12), 50_000, moment)
    assert journal.commits.jobs(), "it is being written"
    journal.take_persisted()
    assert drive(made.disk, find_bookmark(journal.view, 1, 50_000)) is None
    assert drive(made.disk, find_time(journal.view, 10**12, inclusive=True)) == end
    assert journal.reader(end).poll() is None


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_find_sequences_passes_over_a_damaged_block(seed: int) -> None:
    log = random_log(seed)
    view, rng = log.journal.view, Random(seed)
    sequences = [message.sequence for message in log.written if message.publisher == 1]
    low, high = sequences[5], sequences[-5]
    assert drive(log.disk, find_sequences(view, 1, low, high)).tolist() == sequences[5:-4]
    assert drive(log.disk, find_sequences(view, 9, low, high)).tolist() == []
    view.tail.clear()
    segment = view.segments[rng.randrange(len(view.segments) - 1)]
    block = rng.randrange(segment.index.blocks)
    begin, end = segment.index.block_bounds(block)
    handle = log.disk.open(segment_path(segment.number))
    byte = log.disk.read(handle, begin + 40, 1)[0]
    log.disk.write(handle, begin + 40, [bytes([byte ^ 4])])
    found = drive(log.disk, find_sequences(view, 1, low, high)).tolist()
    first, last = segment.index.position_bounds(block)
    last = segment.end_position if last is None else last
    lost = {*sequences[5:-4]} - {*found}
    own = {one.sequence for one in log.written[first:last] if one.publisher == 1}
    assert {*found} <= {*sequences}
    assert lost <= own, "only its own block is lost"
    assert end > begin + 40


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_fold_topic_continues_after_damage_and_reports_the_damage(seed: int) -> None:
    log = random_log(seed)
    view, rng = log.journal.view, Random(seed)
    view.tail.clear()
    segment = view.segments[rng.randrange(len(view.segments) - 1)]
    block = rng.randrange(segment.index.blocks)
    begin, end = segment.index.block_bounds(block)
    handle = log.disk.open(segment_path(segment.number))
    at = rng.randrange(begin, end)
    byte = log.disk.read(handle, at, 1)[0]
    log.disk.write(handle, at, [bytes([byte ^ 4])])
    for topic in ("t0", "t1", "rare"):
        taken: list[int] = []

        def take(part: LogPart, taken: list[int] = taken, topic: str = topic) -> None:
            names = [part.batch.topic(i) for i in range(part.batch.count)]
            taken.extend(part.first_position + i for i, name in enumerate(names) if name == topic)

        damage = drive(log.disk, fold_topic(view, topic, take))
        low, high = segment.index.position_bounds(block)
        high = segment.end_position if high is None else high
        expected = [at for at, message in enumerate(log.written) if message.topic == topic]
        lost = set(expected) - set(taken)
        assert taken == sorted(set(taken)), "in order, and none twice"
        assert set(taken) <= set(expected)
        assert all(low <= position < high for position in lost), "only its own block is lost"
        if lost:
            assert [(error.file, begin <= error.offset <= at) for error in damage] == [
                (segment_path(segment.number), True)
            ]
