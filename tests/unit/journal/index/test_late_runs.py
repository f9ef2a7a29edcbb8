"""Late runs: the index and all lookups find messages that fill a hole in the sequences of a publisher."""

from __future__ import annotations

import struct
from random import Random

import msgspec
import pytest

from tests.simulation.journal_world import drive
from tests.unit.journal.written import Written
from tickertape.batch import RUN_LATE, MessageBatch, Stamp, batch_from_bodies, merge
from tickertape.batch.format import HEADER_BYTES, RUN_BYTES
from tickertape.journal.index.publisher_index import PublisherIndex, StoredPublishers
from tickertape.journal.index.segment_index import SegmentIndex, late_spans, publisher_spans
from tickertape.journal.limits import index_bytes_max, index_zone_bytes, segment_header_bytes
from tickertape.journal.offline.verify import verify
from tickertape.journal.reading.log_reader import find_bookmark

Message = tuple[int, int]
"""Publisher and sequence."""


def marked(batch: MessageBatch, late: list[bool]) -> MessageBatch:
    """Return a batch with some runs marked as late."""
    data = bytearray(batch.encode())
    for run, is_late in enumerate(late):
        at = HEADER_BYTES + RUN_BYTES * run + 32
        struct.pack_into("<I", data, at, struct.unpack_from("<I", data, at)[0] | RUN_LATE * is_late)
    return MessageBatch.parse(bytes(data))


class Publishers:
    """Publishers whose runs leave holes. A third of the runs fill one."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.highest: dict[int, int] = {}
        self._holes: list[tuple[int, int, int]] = []

    def batch(self, runs: int) -> MessageBatch:
        """Return a commit of `runs` runs."""
        batches, stamps, late = [], [], []
        for _ in range(runs):
            is_late = bool(self._holes) and self.rng.random() < 0.33
            if is_late:
                publisher, first, count = self._holes.pop(self.rng.randrange(len(self._holes)))
            else:
                publisher, count = self.rng.randint(1, 6), self.rng.choice((1, 3))
                known = self.highest.get(publisher, 0)
                first = known + self.rng.choice((1, 1, 5, 9))
                if first - known > 1:
                    self._holes.append((publisher, known + 1, first - known - 1))
                self.highest[publisher] = first + count - 1
            late.append(is_late)
            batches.append(batch_from_bodies("t", [b"x"] * count, first_sequence=first))
            stamps.append(Stamp(publisher, first, 5))
        return marked(merge(batches, stamps), late)


def messages_of(batch: MessageBatch) -> list[Message]:
    return list(zip(batch.publishers.tolist(), batch.sequences.tolist(), strict=True))


def check(index: SegmentIndex, offsets: dict[Message, int], highest: dict[int, int]) -> None:
    for (publisher, sequence), offset in offsets.items():
        places = index.places_of_publisher(publisher, sequence)
        assert any(place.offset <= offset < place.end for place in places), (publisher, sequence)
        assert [place.offset for place in places] == sorted({place.offset for place in places})
        bounds = index.publisher_bounds(publisher)
        assert bounds is None or bounds[0] <= sequence <= bounds[1]
    known = index.highest_sequences()
    assert known is None or known == highest
    columns = index.highest_columns()
    assert columns is None or dict(zip(*(column.tolist() for column in columns), strict=True)) == highest


@pytest.mark.parametrize("bytes_max", [4_000, 20_000, index_bytes_max])
@pytest.mark.parametrize("seed", range(3))
def test_index_finds_every_message_of_late_and_other_runs(seed: int, bytes_max: int) -> None:
    publishers = Publishers(seed)
    index = SegmentIndex(bytes_max=bytes_max)
    offset, position = segment_header_bytes, 0
    offsets: dict[Message, int] = {}
    for _ in range(90):
        batch = publishers.batch(publishers.rng.choice((1, 2, 12)))
        end = offset + publishers.rng.randrange(500, 40_000)
        before = index.encoded_bytes_max
        index.add(offset, end, position, 5, batch)
        assert index.encoded_bytes_max <= before + SegmentIndex.growth_bytes_max(batch)
        offsets |= dict.fromkeys(messages_of(batch), offset)
        offset, position = end, position + batch.count
    assert bytes_max < index_bytes_max or index._publishers._late_count > 20
    check(index, offsets, publishers.highest)
    data = index.encode()
    assert len(data) <= index.encoded_bytes_max
    read = SegmentIndex.decode(data, offset)
    check(read, offsets, publishers.highest)
    assert read.encode() == data
    while read.reduce():
        check(read, offsets, publishers.highest)
    assert not read.knows_publishers


def test_spans_of_a_batch_are_split_by_late_runs() -> None:
    for seed in range(40):
        publishers = Publishers(seed)
        publishers.batch(12)
        batch = publishers.batch(Random(seed).choice((1, 1, 4, 30)))
        wanted: dict[bool, dict[int, tuple[int, int]]] = {False: {}, True: {}}
        starts = batch.run_starts.tolist()
        for run in range(batch.run_count):
            row = batch.run(run)
            last = int(batch.sequences[starts[run + 1] - 1])
            spans = wanted[bool(row.flags & RUN_LATE)]
            low, high = spans.get(row.publisher, (row.first_sequence, last))
            spans[row.publisher] = min(low, row.first_sequence), max(high, last)
        assert {p: (low, high) for p, low, high in publisher_spans(batch)} == wanted[False]
        assert {p: (low, high) for p, low, high in late_spans(batch)} == wanted[True]


def row(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


@pytest.mark.parametrize(
    ("late", "expected_error"),
    [
        (row(1, 2, 3), "incomplete"),
        (row(1, 2, 3, 4)[:-1], "incomplete"),
        (row(1, 2, 4, 3), "out of order"),
        (row(1, 2, 3, 4, 1, 2, 5, 6), "out of order"),
        (row(1, 2, 3, 4, 1, 1, 5, 6), "out of order"),
        (row(2, 1, 3, 4, 1, 2, 5, 6), "out of order"),
    ],
)
def test_invalid_stored_rows_of_late_runs_are_refused(late: bytes, expected_error: str) -> None:
    with pytest.raises(ValueError, match=expected_error):
        PublisherIndex.of(StoredPublishers(index_zone_bytes, {}), index_bytes_max, late)


def test_stored_late_runs_without_publishers_are_refused() -> None:
    stored = StoredPublishers(index_zone_bytes, None)
    assert not PublisherIndex.of(stored, index_bytes_max, None).known
    with pytest.raises(ValueError, match="late runs but no publishers"):
        PublisherIndex.of(stored, index_bytes_max, row(1, 2, 3, 4))


def test_stored_late_runs_are_the_sixth_element_of_the_index() -> None:
    index = SegmentIndex()
    batch = batch_from_bodies("t", [b"x"] * 3, first_sequence=1)
    index.add(512, 900, 0, 0, merge((batch,), (Stamp(7, 10, 5),)))
    assert msgspec.msgpack.decode(index.encode())[5] is None
    late = marked(merge((batch,), (Stamp(7, 4, 5),)), [True])
    index.add(70_000, 70_400, 3, 5, late)
    index.add(70_400, 70_800, 6, 5, marked(merge((batch,), (Stamp(7, 1, 5),)), [True]))
    assert msgspec.msgpack.decode(index.encode())[5] == row(7, 1, 1, 6)


def append(written: Written, publisher: int, first: int, count: int, *, late: bool = False) -> None:
    """Append one run in a commit of its own, and let the index begin another zone."""
    journal, now = written.journal, written._now()
    batch = batch_from_bodies("orders", [b"x" * 900] * count, first_sequence=first)
    stamp = Stamp(publisher, first, journal.next_stamp(now))
    journal.append(marked(batch, [late]), stamp, first + count - 1, now)
    written.work()


def test_log_with_late_runs_is_found_verified_restarted_and_retired() -> None:
    written = Written(segment_bytes=65_536)
    runs = [(7, 1, 2, False), (7, 9, 9, False), (8, 1, 1, False), (7, 3, 4, True), (8, 5, 1, False)]
    runs += [(7, 18, 60, False), (7, 7, 2, True), (8, 2, 3, True)]
    positions: dict[Message, int] = {}
    for publisher, first, count, late in runs:
        for number in range(count):
            positions[publisher, first + number] = len(positions)
        append(written, publisher, first, count, late=late)
    view = written.journal.view

    def found() -> dict[Message, int | None]:
        return {key: drive(written.disk, find_bookmark(written.journal.view, *key)) for key in positions}

    assert written.journal.highest == written.journal.persisted_highest == {7: 77, 8: 5}
    assert found() == positions
    view.tail.clear()
    assert found() == positions
    written.stop()
    assert verify(written.disk).whole, verify(written.disk).damage
    written.start()
    assert written.journal.highest == {7: 77, 8: 5}
    assert found() == positions
    written.publish(publisher=9)
    retired = written.retire(len(written.journal.view.segments) - 1)
    assert retired.highest.as_dict() == {7: 77, 8: 5}


def test_messages_of_one_commit_with_late_runs_are_found() -> None:
    for seed in range(20):
        written = Written(segment_bytes=65_536)
        publishers = Publishers(seed)
        publishers.batch(30)
        runs = publishers.batch(30)
        journal, now = written.journal, written._now()
        starts = runs.run_starts.tolist()
        for run in range(runs.run_count):
            one = runs.run(run)
            count = starts[run + 1] - starts[run]
            batch = batch_from_bodies("t", [b"x"] * count, first_sequence=one.first_sequence)
            batch = marked(batch, [bool(one.flags & RUN_LATE)])
            stamp = Stamp(one.publisher, one.first_sequence, journal.next_stamp(now))
            journal.append(batch, stamp, one.first_sequence + count - 1, now)
        written.work()
        for position, key in enumerate(messages_of(runs)):
            assert drive(written.disk, find_bookmark(journal.view, *key)) == position


def test_verify_reports_a_late_run_above_the_sequences_of_the_publisher() -> None:
    written = Written()
    append(written, 7, 1, 2)
    append(written, 7, 3, 1, late=True)
    written.stop()
    (damage,) = verify(written.disk).damage
    assert damage.what == "commit 2: publisher 7 has late sequences 3 to 3 above 2"
