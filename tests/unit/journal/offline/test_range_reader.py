"""Range reads of journal files while the server writes: sealed, active and changing segments."""

from __future__ import annotations

from random import Random

import pytest
from crc32c import crc32c

from tests.simulation.journal_log import JOURNAL_ID, Driver, Message
from tickertape.base.errors import JournalCorrupt, JournalVersion, NotAJournal, WrongJournal
from tickertape.base.interfaces import Disk
from tickertape.journal.format.identity import IDENTITY_FILE
from tickertape.journal.format.segment import decode_segment_header, encode_segment_header, segment_path
from tickertape.journal.limits import commit_header_bytes, segment_header_bytes
from tickertape.journal.offline import range_reader as outside
from tickertape.journal.offline.range_reader import read_range
from tickertape.journal.offline.segment_check import opened
from tickertape.testing.disk import StrictDisk

NAME = JOURNAL_ID.hex()
TOPICS = ("flights", "weather", "rare")


class Log:
    """A growing journal and its published messages by position."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self.disk = StrictDisk(self._rng)
        self.driver = Driver(self.disk)
        self.written: list[Message] = []

    def grow(self, commits: int) -> None:
        rng = self._rng
        for _ in range(commits):
            some = []
            for _ in range(rng.choice((1, 1, 3, 8))):
                topic = rng.choices(TOPICS, (50, 49, 1))[0]
                some.append(Message(7, len(self.written) + 1, topic, rng.randbytes(rng.choice((0, 50, 300)))))
                self.written.append(some[-1])
            self.driver.publish(some)
            if rng.random() < 0.2:
                self.driver.idle()

    @property
    def end(self) -> int:
        return self.driver.journal.commits.persisted_end

    @property
    def segments(self) -> int:
        return len(self.driver.journal.view.segments)


@pytest.fixture
def log() -> Log:
    made = Log(5)
    while made.segments < 4:
        made.grow(20)
    made.grow(3)
    return made


def read(disk: Disk, start: int, end: int, topic: str | None, journal: str = NAME) -> list[tuple[int, bytes]]:
    """Return position and body of the messages of `topic`, or of all topics."""
    return [
        (position, message.data)
        for commit in read_range(disk, journal, start, end, topic)
        for position, message in enumerate(commit.batch(), commit.header.first_position)
        if topic in (None, message.topic) and start <= position < end
    ]


def expected(log: Log, start: int, end: int, topic: str | None) -> list[tuple[int, bytes]]:
    some = enumerate(log.written[start:end], start)
    return [(position, message.body) for position, message in some if topic in (None, message.topic)]


@pytest.mark.parametrize("read_bytes", [outside.READ_BYTES, 700])
def test_range_reader_returns_exact_ranges_of_sealed_and_active_segments(
    log: Log, monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    monkeypatch.setattr(outside, "READ_BYTES", read_bytes)
    rng = Random(1)
    ranges = [(0, log.end), (0, 0), (log.end, log.end), (log.end - 1, log.end)]
    ranges += [(low, rng.randint(low, log.end)) for low in (rng.randrange(log.end) for _ in range(40))]
    for start, end in ranges:
        for topic in (*TOPICS, "absent", None):
            assert read(log.disk, start, end, topic) == expected(log, start, end, topic)


def test_range_reader_continues_while_segments_are_sealed_and_started(log: Log) -> None:
    end = log.end
    reading = read_range(log.disk, NAME, 0, end, "flights")
    found = []
    before = log.segments
    for commit in reading:
        found += [m.data for m in commit.batch() if m.topic == "flights"]
        log.grow(5)
    assert log.segments > before
    some = log.written[:end]
    assert found[: len(some)] == [m.body for m in some if m.topic == "flights"][: len(found)]
    assert len(found) >= sum(m.topic == "flights" for m in some)


def test_segment_sealed_during_a_range_read_ends_with_the_seal(log: Log) -> None:
    end = log.end
    number = log.driver.journal.view.segments[-1].number
    with opened(log.disk, segment_path(number)) as file:
        header = outside._header(file, number, JOURNAL_ID)
        while log.driver.journal.view.segments[-1].number == number:
            log.grow(1)
        segment, _ = outside._unsealed_segment(file, header, 0, log.end)
        assert end <= segment.end_position == log.driver.journal.view.segments[-2].end_position


def test_range_reader_does_not_read_commits_after_the_end(log: Log) -> None:
    end = log.end
    log.grow(2)
    last = log.driver.journal.view.segments[-1]
    corrupt(log, segment_path(last.number), last.end - 1)
    assert read(log.disk, 0, end, "flights") == expected(log, 0, end, "flights")
    with pytest.raises(JournalCorrupt, match=f"{segment_path(last.number)!r} at"):
        read(log.disk, 0, log.end, "flights")


def corrupt(log: Log, path: str, offset: int) -> None:
    handle = log.disk.open(path)
    byte = log.disk.read(handle, offset, 1)
    log.disk.write(handle, offset, [bytes([byte[0] ^ 0xFF])])
    log.disk.close(handle)


@pytest.mark.parametrize("at", [segment_header_bytes + 40, segment_header_bytes + commit_header_bytes + 8])
@pytest.mark.parametrize("which", [0, -1])
def test_range_reader_reports_damage_with_file_and_offset(log: Log, which: int, at: int) -> None:
    path = segment_path(log.driver.journal.view.segments[which].number)
    corrupt(log, path, at)
    with pytest.raises(JournalCorrupt, match=f"{path!r} at offset {segment_header_bytes}: "):
        read(log.disk, 0, log.end, "flights")


def test_range_reader_ignores_damage_before_the_start(log: Log) -> None:
    corrupt(log, segment_path(1), segment_header_bytes + commit_header_bytes + 8)
    first = next(iter(log.driver.journal.view.tail)).end_position
    assert read(log.disk, first, log.end, "flights") == expected(log, first, log.end, "flights")


def test_range_reader_raises_for_missing_positions(log: Log) -> None:
    with pytest.raises(JournalCorrupt, match=f"no commit that starts with position {log.end}"):
        read(log.disk, 0, log.end + 1, "flights")
    log.driver.journal.commits.close(log.driver.now())
    log.driver.run()
    assert read(log.disk, 0, log.end, "flights") == expected(log, 0, log.end, "flights")
    with pytest.raises(JournalCorrupt, match=f"positions {log.end} to {log.end + 1} are in no segment"):
        read(log.disk, 0, log.end + 1, "flights")
    log.disk.rename(segment_path(1), "journal/gone")
    with pytest.raises(JournalCorrupt, match="position 0 is in no segment before it"):
        read(log.disk, 0, log.end, "flights")
    first = log.driver.journal.view.segments[1].first_position
    assert read(log.disk, first, log.end, "flights") == expected(log, first, log.end, "flights")


def test_range_reader_refuses_foreign_newer_or_missing_journals(log: Log) -> None:
    with pytest.raises(
        WrongJournal, match=f"positions of journal '{'ab' * 16}': directory 'memory' has journal '{NAME}'"
    ):
        read(log.disk, 0, 1, "flights", "ab" * 16)
    with pytest.raises(NotAJournal, match=f"Cannot read a journal in 'memory': {IDENTITY_FILE} is missing"):
        read(StrictDisk(Random(1)), 0, 1, "flights")
    path = segment_path(1)
    handle = log.disk.open(path)
    header, _ = decode_segment_header(log.disk.read(handle, 0, segment_header_bytes))
    log.disk.write(handle, 0, [encode_segment_header(header._replace(journal_id=bytes(16)))[0]])
    with pytest.raises(WrongJournal, match=f"{path}': it belongs to another journal"):
        read(log.disk, 0, 1, "flights")
    log.disk.write(handle, 0, [encode_segment_header(header._replace(number=2))[0]])
    with pytest.raises(WrongJournal, match=f"{path}': its header has segment number 2"):
        read(log.disk, 0, 1, "flights")
    newer = bytearray(encode_segment_header(header)[0])
    newer[8] = 99
    newer[-4:] = crc32c(newer[:-4]).to_bytes(4, "little")
    log.disk.write(handle, 0, [newer])
    with pytest.raises(JournalVersion, match=path):
        read(log.disk, 0, 1, "flights")


def test_range_reader_leaves_no_files_locks_or_handles(log: Log) -> None:
    before = {name: log.disk.names(name) for name in (".", "journal")}
    read(log.disk, 0, log.end, "rare")
    reading = read_range(log.disk, NAME, 0, log.end, "flights")
    next(reading)
    held = len(log.disk._handles)
    reading.close()
    assert len(log.disk._handles) == held - 1
    assert {name: log.disk.names(name) for name in (".", "journal")} == before
