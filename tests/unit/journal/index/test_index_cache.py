"""Memory of sealed segment indexes is bounded, and coarse indexes lose no message."""

from __future__ import annotations

import tracemalloc
from collections.abc import Generator
from random import Random
from typing import TypeVar

import pytest

from tests.simulation.journal_log import JOURNAL_ID
from tests.simulation.journal_world import drive
from tests.unit.journal.index.test_segment_index import check, grown
from tests.unit.journal.reading.test_log_view import Fixture, random_log
from tests.unit.journal.written import Written
from tickertape.base.bookmarks import Bookmark
from tickertape.base.interfaces import Buffer
from tickertape.journal.index.index_cache import IndexCache
from tickertape.journal.index.segment_index import SegmentIndex
from tickertape.journal.limits import commit_bytes_max, index_bytes_max, segment_header_bytes
from tickertape.journal.offline.snapshot import Absent, SnapshotReader, locate_bookmark, take_snapshot
from tickertape.journal.reading.log_reader import find_bookmark, find_time
from tickertape.journal.reading.log_view import ReadRequest
from tickertape.journal.recovery import survey as seen
from tickertape.journal.recovery.recovery import recover_journal
from tickertape.testing.disk import StrictDisk

T = TypeVar("T")


def stored(commits: int = 60, seed: int = 1) -> tuple[bytes, int]:
    """Return an encoded index and the end offset of its data."""
    index, _ = grown(seed, commits, 9, 30, index_bytes_max)
    return index.encode(), index.block_bounds(index.blocks - 1)[1]


def test_index_cache_of_a_thousand_segments_stays_within_the_limit() -> None:
    encoded, end = stored()
    bound = 3_200_000
    sealed, indexes = IndexCache(bound), [SegmentIndex.decode(encoded, end) for _ in range(1_000)]
    whole = indexes[0].nbytes
    assert 1_000 * whole > 4_000_000
    for index in indexes:
        sealed.add(index)
        sealed.fit()
        assert sealed.nbytes <= bound
    assert sealed.nbytes == sum(index.nbytes for index in indexes) > bound - 2 * whole
    assert indexes[-1].encode() == encoded, "the last one is whole"
    assert sum(i.nbytes for i in indexes[:500]) < sum(i.nbytes for i in indexes[500:]), (
        "old indexes shrink first"
    )
    assert indexes[0].blocks > 1, "but keep several blocks"


def test_index_cache_size_matches_the_allocated_memory() -> None:
    encoded, end = stored(400)
    tracemalloc.start()
    try:
        sealed = IndexCache(1 << 20)
        for _ in range(120):
            sealed.add(SegmentIndex.decode(encoded, end))
        whole, counted = tracemalloc.get_traced_memory()[0], sealed.nbytes
        assert counted / 2 < whole < counted * 1.2
        sealed.fit()
        assert tracemalloc.get_traced_memory()[0] < 1.2 * (1 << 20) < whole / 2
    finally:
        tracemalloc.stop()


def test_index_cache_with_an_impossible_limit_terminates() -> None:
    sealed = IndexCache(100)
    for _ in range(70):
        sealed.add(SegmentIndex.decode(*stored(10)))
    sealed.fit()
    assert not sealed.relieve()
    assert sealed.nbytes < 70 * 2_200


@pytest.mark.parametrize("seed", range(3))
def test_index_lookups_are_correct_after_each_reduction(seed: int) -> None:
    made = [grown(seed * 10 + n, 30, 9, 5, index_bytes_max) for n in range(6)]
    sealed = IndexCache(14_500)
    for index, _ in made:
        sealed.add(index)
    while sealed.relieve():
        for index, added in made[:2]:
            check(index, added)
    for index, added in made:
        check(index, added)
    assert len({index.blocks for index, _ in made}) > 1


# -- in a journal -------------------------------------------------------------------------------------


def reducing(search: Generator[ReadRequest, Buffer, T], log: Fixture) -> Generator[ReadRequest, Buffer, T]:
    """Run a search while indexes get coarser."""
    rng = Random(4)
    answer: Buffer | None = None
    try:
        while True:
            request = next(search) if answer is None else search.send(answer)
            rng.choice(log.journal.view.segments[:-1]).index.reduce()
            answer = yield request
    except StopIteration as done:
        result: T = done.value
        return result


@pytest.mark.parametrize("seed", [1, 2])
def test_bookmarks_and_times_are_found_while_indexes_get_coarser(seed: int) -> None:
    log = random_log(seed)
    log.journal.view.tail.clear()
    stamps = [message.timestamp for message in log.written]
    for position, message in list(enumerate(log.written))[::23]:
        found = drive(
            log.disk, reducing(find_bookmark(log.journal.view, message.publisher, message.sequence), log)
        )
        assert found == position
        wanted = next(at for at, stamp in enumerate(stamps) if stamp >= message.timestamp)
        search = find_time(log.journal.view, message.timestamp, inclusive=True)
        assert drive(log.disk, reducing(search, log)) == wanted
    assert drive(log.disk, find_bookmark(log.journal.view, 99, 1)) is None


@pytest.mark.parametrize("topic", [None, "rare", "t0", "never"])
def test_readers_miss_nothing_while_indexes_get_coarser(topic: str | None) -> None:
    log, rng = random_log(2), Random(5)
    log.journal.view.tail.clear()
    for start in (0, 311, 700):
        found: dict[int, bytes] = {}
        reader = log.journal.reader(start, topic)
        while (step := reader.poll()) is not None:
            rng.choice(log.journal.view.segments[:-1]).index.reduce()
            for part in reader.answer(answered(log.disk, step)) if isinstance(step, ReadRequest) else step:
                for i in range(part.batch.count):
                    at = part.first_position + i if part.positions is None else int(part.positions[i])
                    if at >= start and topic in (None, part.batch.topic(i)):
                        assert at not in found
                        found[at] = bytes(part.batch.body(i))
        wanted = {at: m.body for at, m in enumerate(log.written) if at >= start and topic in (None, m.topic)}
        assert found == wanted


def answered(disk: StrictDisk, request: ReadRequest) -> Buffer:
    handle = disk.open(f"journal/{request.segment:010d}.segment", write=False)
    try:
        return request.read(lambda offset, size: disk.read(handle, offset, size))
    finally:
        disk.close(handle)


def test_reads_of_coarse_blocks_are_bounded() -> None:
    """A coarse block may be half a segment, so it is read in pieces."""
    written = Written(segment_bytes=16 << 20)
    for _ in range(14):
        written.publish(1, 700_000)
    written.publish(1, 100, publisher=8)
    written.stop()
    written.start()
    view = written.journal.view
    while view.segments[0].index.reduce():
        pass
    assert view.segments[0].index.blocks == 1
    sizes: list[int] = []
    reader = written.journal.reader(0, "orders")
    parts = 0
    while (step := reader.poll()) is not None:
        assert isinstance(step, ReadRequest)
        sizes.append(step.size)
        parts += len(reader.answer(answered(written.disk, step)))
    assert parts == 15
    assert drive(written.disk, measured(find_bookmark(view, 8, 1), sizes)) == 14
    assert len(sizes) > 4
    assert max(sizes) <= commit_bytes_max


def measured(
    search: Generator[ReadRequest, Buffer, T], sizes: list[int]
) -> Generator[ReadRequest, Buffer, T]:
    """Run a search and record the size of its reads."""
    answer: Buffer | None = None
    try:
        while True:
            request = next(search) if answer is None else search.send(answer)
            sizes.append(request.size)
            answer = yield request
    except StopIteration as done:
        result: T = done.value
        return result


def test_running_journal_keeps_the_index_cache_limit() -> None:
    written = Written(segment_bytes=64 * 1024)
    bound = 76_000
    written.journal.view.indexes = sealed = IndexCache(bound)
    for number in range(400):
        written.publish(4, 1_200, publisher=number % 40 + 1)
    assert len(written.journal.view.segments) > 30
    indexes = [segment.index for segment in written.journal.view.segments[:-1]]
    assert bound - 5_000 < sealed.nbytes == sum(index.nbytes for index in indexes)
    assert sealed.nbytes <= bound + indexes[-1].nbytes, "space for the newest index is freed commit by commit"
    assert indexes[0].nbytes < indexes[-1].nbytes
    view = written.journal.view
    view.tail.clear()
    assert drive(written.disk, find_bookmark(view, 5, 1)) == 16
    assert drive(written.disk, find_bookmark(view, 5, 40)) == 4 * 364 + 3


def test_start_with_coarse_indexes_knows_every_publisher_without_reading_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A start reads publishers from the indexes before they become coarse."""
    written = Written(segment_bytes=64 * 1024)
    for number in range(200):
        written.publish(2, 1_500, publisher=number % 40 + 1)
    expected = dict(written.journal.highest)
    written.stop()
    monkeypatch.setattr(seen, "IndexCache", lambda: IndexCache(100))
    disk, read = written.disk.kill_clone(), []
    original = disk.read

    def counted(handle: int, offset: int, size: int) -> bytes:
        read.append(range(offset, offset + size))
        return original(handle, offset, size)

    disk.read = counted  # type: ignore[method-assign]
    recovered = recover_journal(disk, JOURNAL_ID)
    assert recovered.publishers == expected
    assert all(segment.blocks.blocks <= 1 for segment in recovered.segments)
    assert not any(segment.blocks.knows_publishers for segment in recovered.segments)
    assert not any(segment_header_bytes in part for part in read)


def test_find_reports_unknown_publisher_sequences_after_index_reduction() -> None:
    written = Written(segment_bytes=64 * 1024)
    for _ in range(40):
        written.publish(4, 1_200)
    written.stop()
    snapshot = take_snapshot(written.disk)
    reader = SnapshotReader(written.disk, snapshot.view)
    located = locate_bookmark(reader, Bookmark(9, 1))
    assert isinstance(located, Absent)
    assert "the log has no message of publisher 9" in located.reason
    second = snapshot.view.segments[1]
    while second.index.reduce():
        pass
    for bookmark in (Bookmark(9, 1), Bookmark(7, 9_999)):
        located = locate_bookmark(reader, bookmark)
        assert isinstance(located, Absent)
        assert "are unknown" in located.reason
        assert f"the first is segment {second.number}" in located.reason
    assert not isinstance(locate_bookmark(reader, Bookmark(7, 80)), Absent)
    reader.close()
