"""Search of the newest places from the end of the log, against a fold over all link records."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from random import Random
from typing import TypeVar

import pytest

from tests.simulation.journal_world import drive
from tests.unit.journal.format.test_link_records import naive
from tests.unit.journal.written import Written
from tickertape.base.errors import JournalCorrupt
from tickertape.base.interfaces import Buffer
from tickertape.base.names import LINK_TOPIC
from tickertape.batch import BatchBuilder, Stamp
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER
from tickertape.journal.format.link_records import LinkRecord, encode_link
from tickertape.journal.format.replication_records import LogPlace
from tickertape.journal.format.segment import segment_path
from tickertape.journal.limits import link_snapshot_records, read_bytes_target
from tickertape.journal.reading.log_view import ReadRequest
from tickertape.journal.reading.place_search import FoundPlaces, find_places
from tickertape.journal.retention import gather

A, B, C = (bytes([number]) * 16 for number in (1, 2, 3))
T = TypeVar("T")


def append(written: Written, bodies: Sequence[bytes], messages: Sequence[bytes] = ()) -> None:
    """Append one commit with a run of messages and a run of link records."""
    if messages:
        put(written, 7, [("orders", message, 0) for message in messages], more=bool(bodies))
    if bodies:
        put(written, CONTROL_PUBLISHER, [(LINK_TOPIC, body, 1) for body in bodies])
    written.work()


def put(written: Written, publisher: int, rows: list[tuple[str, bytes, int]], *, more: bool = False) -> None:
    builder = BatchBuilder()
    for topic, body, kind in rows:
        builder.add(topic, body, kind=kind)
    batch, journal, now = builder.build(), written.journal, written._now()
    first = journal.highest.get(publisher, 0) + 1
    stamp = Stamp(publisher, first, journal.next_stamp(now))
    journal.append(batch, stamp, first + batch.count - 1, now, more=more)


def counted(written: Written, search: Generator[ReadRequest | None, Buffer, T]) -> tuple[T, int, int]:
    """Run a search. Return the result, the number of reads and their bytes."""
    reads: list[int] = []

    def noting() -> Generator[ReadRequest | None, Buffer, T]:
        data: Buffer = b""
        step = next(search)
        while True:
            if step is not None:
                reads.append(step.size)
            data = yield step
            try:
                step = search.send(data)
            except StopIteration as done:
                result: T = done.value
                return result

    return drive(written.disk, noting()), len(reads), sum(reads)


def restarted(written: Written) -> Written:
    written.stop()
    written.start()
    return written


def search(written: Written) -> FoundPlaces:
    view = written.journal.view
    return drive(written.disk, find_places(view, view.end_position))


class Source:
    """Rows of links in a log, with a record of all places from time to time."""

    def __init__(self, written: Written, seed: int = 1, *, snapshots: bool = True) -> None:
        self.written = written
        self.rng = Random(seed)
        self.newest: list[LogPlace] = []
        """The newest places, by a fold in the order of the log."""
        self.records = 0
        self._snapshots = snapshots
        self._positions: dict[tuple[bytes, int], int] = {}

    def move(self, log: bytes, start: int) -> bytes:
        """Return the record of a place that moves."""
        position = self._positions.get((log, start), 0) + self.rng.randint(1, 2**32)
        self._positions[log, start] = position
        self.newest = naive([*self.newest, LogPlace(log, start, position)])
        self.records += 1
        if self._snapshots and self.records % link_snapshot_records == 1:
            return encode_link(LinkRecord(log, start, position, self.newest))
        return encode_link(LinkRecord(log, start, position))


@pytest.mark.parametrize("snapshots", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_search_equals_a_fold_over_all_records(seed: int, snapshots: bool) -> None:
    rng = Random(seed)
    written = Written(seed, segment_bytes=rng.choice([8_192, 65_536]))
    source = Source(written, seed, snapshots=snapshots)
    removals = 0
    for _ in range(200):
        bodies = [
            source.move(rng.choice([A, B, C]), rng.randint(0, 90)) for _ in range(rng.choice((0, 1, 1, 3)))
        ]
        sizes = rng.choice(((), (20,), (20,) * 30, (6_000,), (30_000,)))
        if bodies or sizes:
            append(written, bodies, [rng.randbytes(size) for size in sizes])
        if rng.random() < 0.03:
            restarted(written)
        if rng.random() < 0.05 and len(written.journal.view.segments) > 3:
            written.retire(rng.randint(1, len(written.journal.view.segments) - 2))
            removals += 1
        if rng.random() < 0.2:
            found = search(written)
            assert found.places == source.newest
            assert found.damage == []
    assert removals
    assert search(restarted(written)).places == source.newest


def test_removal_keeps_the_newest_place_of_each_removed_start() -> None:
    written = Written()
    source = Source(written, snapshots=False)
    newest = {}
    for start in (1, 2, 1, 7, 7, 7):
        append(written, [source.move(A, start)], [bytes(9_000)])
        newest[written.journal.commits.accepted_end] = source.newest
    retired = written.retire(3)
    assert retired.links == tuple(encode_link(LinkRecord(*place)) for place in newest[retired.first_position])
    assert len(retired.links) == 2
    assert search(restarted(written)).places == source.newest


def log_of(records: int) -> tuple[Written, Source]:
    """Return a log with link records in small commits between messages."""
    written = Written(segment_bytes=1 << 20)
    source = Source(written)
    append(written, [source.move(C, 1)], [b"a"])
    each = 20 if records > 1_000 else 1
    for _ in range(0, records - 1 - 200, each):
        append(written, [source.move(source.rng.choice([A, B]), 1) for _ in range(each)], [bytes(50)])
    while source.records < records:
        append(written, [source.move(source.rng.choice([A, B]), 1)], [bytes(50)])
    return restarted(written), source


def test_start_reads_equally_many_blocks_with_1_000_and_20_000_records() -> None:
    reads = []
    for records in (1_000, 20_000):
        written, source = log_of(records)
        view = written.journal.view
        assert not view.tail
        found, count, size = counted(written, find_places(view, view.end_position))
        assert found.places == source.newest
        reads.append((count, size // 10_000))
        assert size < link_snapshot_records * 1_000
    assert reads[0] == reads[1]


def test_removal_reads_equally_many_blocks_of_places_with_more_records() -> None:
    reads = []
    for records in (1_000, 20_000):
        written, _ = log_of(records)
        for _ in range(3):
            append(written, (), [bytes(1 << 20)])
        view = written.journal.view
        segments = len(view.segments) - 1
        _, count, _ = counted(written, find_places(view, view.segments[segments].first_position))
        drive(written.disk, gather(view, written.journal.journal_id, segments))
        reads.append(count)
    assert abs(reads[0] - reads[1]) <= 1


def test_search_without_an_index_of_topics_reads_many_blocks_at_once() -> None:
    written = Written(segment_bytes=4 << 20)
    source = Source(written, snapshots=False)
    for number in range(60):
        append(written, [source.move(A, number % 7)] if number % 20 == 3 else [], [b"x" * 30_000])
    append(written, [], [b"x" * (4 << 20)])
    view = restarted(written).journal.view
    first = view.segments[0]
    while first.index.previous_block_with("no topic", 0) is None:  # too many topics for the index
        first.index._topics.reduce(1)
    found, reads, size = counted(written, find_places(view, first.end_position))
    assert found.places == source.newest
    assert reads <= first.file_bytes // read_bytes_target + 2
    assert size <= first.file_bytes + 2 * read_bytes_target


def test_search_reads_only_heads_of_large_commits() -> None:
    written = Written(segment_bytes=16 << 20)
    source = Source(written)
    for _ in range(20):
        append(written, [source.move(A, 1)], [bytes(4_000)] * 200)
    view = restarted(written).journal.view
    found, count, size = counted(written, find_places(view, view.end_position))
    assert found.places == source.newest
    assert size < 20 * 40_000
    assert count <= 20 * 4


def test_damaged_commit_is_listed_and_older_records_are_found() -> None:
    written = Written(segment_bytes=1 << 20)
    source = Source(written, snapshots=False)
    for start in (1, 2, 3):
        append(written, [source.move(A, start)], [b"%d" % start * 6_000])
    restarted(written)
    path = segment_path(1)
    handle = written.disk.open(path)
    data = bytearray(written.disk.read(handle, 0, written.disk.size(handle)))
    at = data.index(b"3" * 6_000)
    written.disk.write(handle, at, [b"x"])
    written.disk.close(handle)
    found = search(written)
    assert found.places == source.newest[:2]
    assert [error.file for error in found.damage] == [path]
    view = written.journal.view
    with pytest.raises(JournalCorrupt):
        drive(written.disk, find_places(view, view.end_position, strict=True))


@pytest.mark.parametrize("strict", [False, True])
def test_unreadable_record_is_listed_and_other_records_count(strict: bool) -> None:
    written = Written()
    append(written, [encode_link(LinkRecord(A, 1, 5)), b"\x93", encode_link(LinkRecord(B, 1, 6))], [b"a"])
    view = restarted(written).journal.view
    found = drive(written.disk, find_places(view, view.end_position, strict=strict))
    assert found.places == [LogPlace(A, 1, 5), LogPlace(B, 1, 6)]
    (error,) = found.damage
    assert str(error).startswith(f"Cannot read position 2 of {segment_path(1)!r}: invalid link record")


def test_message_of_a_client_on_the_topic_is_not_a_place() -> None:
    written = Written()
    append(written, [encode_link(LinkRecord(A, 1, 5))], [b"a"])
    put(written, 9, [(LINK_TOPIC, encode_link(LinkRecord(A, 1, 99)), 0), (LINK_TOPIC, b"x", 0)])
    put(written, 9, [("orders", b"x", 0), (LINK_TOPIC, encode_link(LinkRecord(B, 1, 99)), 0)], more=True)
    append(written, [encode_link(LinkRecord(C, 1, 7))])
    found = search(restarted(written))
    assert found.places == [LogPlace(A, 1, 5), LogPlace(C, 1, 7)]
    assert found.damage == []


def test_unreadable_place_of_removed_rows_is_listed() -> None:
    written = Written()
    for _ in range(3):
        append(written, (), [bytes(9_000)])
    retired = written.retire(1)
    view = written.journal.view
    view.retired = retired._replace(links=(encode_link(LinkRecord(A, 1, 5)), b"link"))
    found = search(written)
    assert found.places == [LogPlace(A, 1, 5)]
    assert "retired.bin" in str(found.damage[0])
