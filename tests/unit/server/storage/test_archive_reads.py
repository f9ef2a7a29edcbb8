"""Archive reads for the engine: readers of scans, read-ahead, coverage and failures."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.archive_reader import END, JOURNAL, LOG, Driver, answered, reads_of, started
from tests.helpers.archives import ArchiveWriter
from tests.helpers.logs import Told, messages_of, told
from tickertape.archive.reader import ArchiveExtent, ArchiveReader
from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import ArchiveFailed, JournalCorrupt, TickertapeError, WrongJournal
from tickertape.engine.runtime.effects import ArchiveRead
from tickertape.journal.reading.archive_reader import (
    ArchiveAnswer,
    ArchivedLast,
    ArchivedParts,
    ArchivedPlace,
    FindArchived,
    LastArchived,
    ProbeArchive,
    ReadArchive,
    TimeArchived,
)
from tickertape.journal.reading.archive_tier import ArchiveCoverage
from tickertape.server.storage.archive_reads import ArchiveReads

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("archives") / "one"
    ArchiveWriter(found, JOURNAL).add(LOG, END, rows_per_file=20, rows_per_group=5)
    return found


def parts(answer: ArchiveAnswer) -> list[Told]:
    assert isinstance(answer, ArchivedParts)
    return [
        m for part in answer.parts if part.positions is not None for m in told(part.positions, part.batch)
    ]


def test_requests_of_one_scan_share_a_reader(location: Path) -> None:
    reads = reads_of(location)
    found, at, answers = [], 0, 0
    while at < END:
        request = ReadArchive(7, at, END, None, size=200)
        answer = reads._answer(request)
        reads._read_ahead(request)
        assert isinstance(answer, ArchivedParts)
        assert answer.end > at
        found += parts(answer)
        at, answers = answer.end, answers + 1
    assert found == messages_of(LOG)
    assert answers > 20
    opened = reads._opened().store.files_opened
    assert opened == len(list(location.rglob("*.parquet"))), "each file once"
    assert not reads._readers


def test_reader_that_reached_the_old_log_start_is_replaced(location: Path) -> None:
    reads = reads_of(location)
    first = reads._answer(ReadArchive(7, 0, 50, None, size=1 << 20))
    assert isinstance(first, ArchivedParts)
    assert first.end == 50
    reads._answer(ReadArchive(7, 0, 50, None, size=1))
    at = 0
    found: list[Told] = []
    while at < END:  # the log starts later than at the creation of the reader
        answer = reads._answer(ReadArchive(7, at, 50 if at < 20 else END, None, size=150))
        assert isinstance(answer, ArchivedParts)
        assert answer.end > at
        found += parts(answer)
        at = answer.end
    assert found == messages_of(LOG)


def test_request_at_another_position_opens_another_reader(location: Path) -> None:
    reads = reads_of(location)
    reads._answer(ReadArchive(7, 0, END, None, size=1))
    answer = reads._answer(ReadArchive(7, 60, END, None, size=1 << 20))
    assert parts(answer) == [m for m in messages_of(LOG) if m[0] >= 60]


def test_request_for_another_topic_opens_another_reader(location: Path) -> None:
    reads = reads_of(location)
    everything = messages_of(LOG)
    answer = reads._answer(ReadArchive(0, 0, END, "a", size=1))
    assert isinstance(answer, ArchivedParts)
    rest = reads._answer(ReadArchive(0, answer.end, END, "b", size=1 << 20))
    assert parts(rest) == [m for m in everything if m[0] >= answer.end and m[4] == "b"]


def test_readers_are_bounded_and_closed_when_unused(location: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickertape.server.storage.archive_reads.archive_scans_max", 2)
    reads = reads_of(location)
    for scan in range(5):
        reads._answer(ReadArchive(scan, 0, END, None, size=1))
    assert list(reads._readers) == [3, 4]
    reads._drop_unused()
    reads._answer(ReadArchive(9, 0, END, None, size=1))
    reads._drop_unused()
    assert list(reads._readers) == [9]
    reads._drop_unused()
    assert not reads._readers


def test_read_ahead_failure_is_raised_in_the_next_request(
    location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = reads_of(location)
    failing = threading.Event()
    messages = ArchiveReader.messages

    def fails(
        self: ArchiveReader, begin: int, end: int, topic: str | None, *, bytes_max: int
    ) -> Iterator[ArchiveExtent]:
        for archived in messages(self, begin, end, topic, bytes_max=bytes_max):
            if failing.is_set():
                raise ArchiveFailed("gone")
            yield archived

    monkeypatch.setattr(ArchiveReader, "messages", fails)
    request = ReadArchive(7, 0, END, None, size=1)
    first = reads._answer(request)
    assert isinstance(first, ArchivedParts)
    failing.set()
    reads._read_ahead(request)
    request = request._replace(begin=first.end)
    with pytest.raises(ArchiveFailed, match="gone"):
        reads._answer(request)
    failing.clear()
    assert parts(reads._answer(request._replace(size=1 << 20))) == [
        m for m in messages_of(LOG) if m[0] >= first.end
    ]


def test_read_ahead_failure_during_a_request_reopens_the_reader(
    location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual case with a slow store: the next request arrives before the read-ahead is done."""
    reads = reads_of(location)
    started_read, fail = threading.Event(), threading.Event()
    messages = ArchiveReader.messages

    def fails(
        self: ArchiveReader, begin: int, end: int, topic: str | None, *, bytes_max: int
    ) -> Iterator[ArchiveExtent]:
        for number, archived in enumerate(messages(self, begin, end, topic, bytes_max=bytes_max)):
            if number == 1:
                started_read.set()
                assert fail.wait(30)
                raise ArchiveFailed("gone")
            yield archived

    monkeypatch.setattr(ArchiveReader, "messages", fails)
    request = ReadArchive(7, 0, END, None, size=1)
    first = reads._answer(request)
    assert isinstance(first, ArchivedParts)
    reading = reads._readers[7]
    ahead = threading.Thread(target=reads._read_ahead, args=(request,))
    ahead.start()
    assert started_read.wait(30)
    results: list[ArchiveAnswer | TickertapeError] = []

    def ask() -> None:
        try:
            results.append(reads._answer(request._replace(begin=first.end)))
        except TickertapeError as error:
            results.append(error)

    asking = threading.Thread(target=ask)
    reading.used = False
    asking.start()
    while not reading.used:  # until the request has started
        time.sleep(0.001)
    fail.set()
    ahead.join()
    asking.join()
    [answer] = results
    assert isinstance(answer, ArchivedParts)  # from a new reader, whose first part can be read
    assert parts(answer) == [m for m in messages_of(LOG) if first.end <= m[0] < answer.end]
    assert answer.end > first.end


def test_archive_lookups_return_positions_bookmarks_and_coverage(location: Path) -> None:
    reads = reads_of(location)
    position, publisher, sequence, stamp, *_ = messages_of(LOG)[33]
    bookmark = Bookmark(publisher, sequence)
    assert reads._answer(FindArchived(bookmark, END)) == ArchivedPlace(position)
    assert reads._answer(FindArchived(Bookmark(1, 1), END)) == ArchivedPlace(None)
    assert reads._answer(LastArchived(position + 1)) == ArchivedLast(bookmark)
    first = next(m[0] for m in messages_of(LOG) if m[3] >= stamp)
    assert reads._answer(TimeArchived(stamp, 0, END)) == ArchivedPlace(first)
    covered = reads._answer(ProbeArchive())
    assert isinstance(covered, ArchiveCoverage)
    assert covered[:2] == (0, END)
    assert covered.holds("^anything")


# -- on an event loop ---------------------------------------------------------------------------------


def test_answers_arrive_on_the_event_loop(location: Path) -> None:
    async def run() -> None:
        reads = reads_of(location)
        driver = await started(reads)
        for token in range(9):
            reads.submit(ArchiveRead(token, ReadArchive(token, 0, END, None), token))
        while len(driver.broker.answers) < 9:
            driver.flushed.clear()
            await driver.flushed.wait()
        assert sorted(token for token, _ in driver.broker.answers) == list(range(9))
        for _, answer in driver.broker.answers:
            assert isinstance(answer, ArchivedParts)
            assert parts(answer) == messages_of(LOG)
        assert len(reads._threads) <= 5
        reads.stop()

    asyncio.run(run())


def test_archive_coverage_is_refreshed_periodically(tmp_path: Path) -> None:
    async def run() -> None:
        reads = reads_of(tmp_path, refresh=0.1)
        driver = await started(reads)
        older = reads._tier
        while not older.known:
            driver.flushed.clear()
            await driver.flushed.wait()
        assert older.covered.begin is None
        writer = ArchiveWriter(tmp_path, JOURNAL)
        writer.add(LOG, END)
        while older.end != END:
            driver.flushed.clear()
            await driver.flushed.wait()
        assert driver.broker.freed_times >= 2
        reads.stop()

    asyncio.run(run())


def test_archive_state_is_logged_once_per_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        reads = reads_of(tmp_path / "later")
        driver = await started(reads)
        for token in range(4):
            if token == 2:
                ArchiveWriter(tmp_path / "later", JOURNAL)
            reads.submit(ArchiveRead(token, ProbeArchive(), token))
            await answered(driver, token + 1)
        reads.stop()
        begins = [answer.begin for _, answer in driver.broker.answers if isinstance(answer, ArchiveCoverage)]
        assert begins == [None, None, 0, 0]

    caplog.set_level(logging.INFO)
    asyncio.run(run())
    logged = [record.getMessage().split()[0] for record in caplog.records]
    assert logged == ["archive_missing", "archive_found"]


def test_archive_with_last_message_missing_in_the_log_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log was restored from a copy and has grown beyond the end of the archive."""
    writer = ArchiveWriter(tmp_path, JOURNAL)
    writer.add(LOG, END)

    async def run() -> None:
        reads = reads_of(tmp_path)
        driver = await started(reads)
        driver.broker.found = JournalCorrupt("cannot be read")
        reads.submit(ArchiveRead(0, ProbeArchive(), 0))
        await answered(driver, 1)
        assert reads._tier.end == 0, "the end is unknown"
        driver.broker.found = ""
        reads.submit(ArchiveRead(1, ProbeArchive(), 1))
        await answered(driver, 2)
        assert reads._tier.end == END
        driver.broker.found = "has no message there"
        reads.submit(ArchiveRead(2, ProbeArchive(), 2))
        await answered(driver, 3)
        assert reads._tier.end == END, "the unchanged archive is not compared twice"
        writer.commit([], END + 1)
        driver.broker.journal.commits.persisted_end = END + 9
        reads.submit(ArchiveRead(3, ProbeArchive(), 3))
        await answered(driver, 4)
        assert reads._tier.known
        assert reads._tier.end == 0, "no segment is removed because of this archive"
        reads.submit(ArchiveRead(4, ReadArchive(1, 0, END, None), 4))
        await answered(driver, 5)
        reads.stop()
        answers = [answer for _, answer in driver.broker.answers]
        assert [type(answer) for answer in answers] == [
            ArchiveFailed,
            ArchiveCoverage,
            ArchiveCoverage,
            *[ArchiveFailed] * 2,
        ]
        assert "with the log: cannot be read" in str(answers[0])
        position, publisher, sequence, *_ = messages_of(LOG)[-1]
        expected = f"has message {publisher}|{sequence}| of "
        assert expected in str(answers[3])
        assert f" at position {position}, but the log has no message there, so the log has lost" in str(
            answers[3]
        )
        assert str(answers[4]) == str(answers[3])

    caplog.set_level(logging.INFO)
    asyncio.run(run())
    logged = [record.getMessage().split()[0] for record in caplog.records]
    assert logged == ["archive_failed", "archive_found", "archive_failed"]


def test_archive_beyond_the_end_of_the_log_is_refused(
    location: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log was restored from a copy. Its new messages at these positions are not archived, and stay."""
    probe, probes = ArchiveReads._probe, threading.Semaphore(0)

    def counted(self: ArchiveReads) -> ArchiveCoverage:
        probes.release()
        return probe(self)

    monkeypatch.setattr(ArchiveReads, "_probe", counted)

    async def run() -> None:
        reads = reads_of(location, refresh=0.1)
        driver = Driver()
        driver.broker.journal.commits.persisted_end = END - 1
        reads.start(asyncio.get_running_loop(), driver)  # type: ignore[arg-type]
        for token, end in enumerate((END - 1, END + 5)):  # the log grows with other messages
            driver.broker.journal.commits.persisted_end = end
            reads.submit(ArchiveRead(token, ProbeArchive(), token))
            while len(driver.broker.answers) <= token:
                driver.flushed.clear()
                await driver.flushed.wait()
        for _ in range(5):  # two requested probes, and the periodic ones
            assert await asyncio.to_thread(probes.acquire, timeout=30)
        reads.stop()
        for _, answer in driver.broker.answers:
            assert isinstance(answer, ArchiveFailed)
            assert f"ends at position {END}, but the log ends at {END - 1}, so the log has lost" in str(
                answer
            )
        assert reads._tier.known, "the tier of a refused archive is known"
        assert reads._tier.end == 0

    caplog.set_level(logging.INFO)
    asyncio.run(run())
    logged = [record.getMessage().split()[0] for record in caplog.records]
    assert logged.count("archive_failed") == 1


def test_archive_errors_and_exceptions_become_answers(
    location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        reads = reads_of(location, journal="f" * 32)
        driver = await started(reads)
        reads.submit(ArchiveRead(1, ProbeArchive(), 1))
        while not driver.broker.answers:
            driver.flushed.clear()
            await driver.flushed.wait()
        monkeypatch.setattr(ArchiveReads, "_read", lambda *_: 1 / 0)
        reads.submit(ArchiveRead(2, ReadArchive(1, 0, END, None), 2))
        while len(driver.broker.answers) < 2:
            driver.flushed.clear()
            await driver.flushed.wait()
        (_, wrong), (_, defect) = driver.broker.answers
        assert isinstance(wrong, WrongJournal)
        assert isinstance(defect, ArchiveFailed)
        assert str(defect).startswith("Cannot read the archive: internal error ZeroDivisionError(")
        assert str(defect).endswith(". Report the defect.")
        reads.stop()

    asyncio.run(run())


def test_request_waiting_for_the_store_does_not_delay_others(
    location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    read = ArchiveReads._read

    def waits(self: ArchiveReads, request: ReadArchive) -> ArchivedParts:
        if request.scan == 1:
            release.wait(30)
        return read(self, request)

    async def run() -> None:
        reads = reads_of(location)
        driver = await started(reads)
        monkeypatch.setattr(ArchiveReads, "_read", waits)
        for token in range(1, 5):
            reads.submit(ArchiveRead(token, ReadArchive(token, 0, END, None), token))
        while len(driver.broker.answers) < 3:
            driver.flushed.clear()
            await driver.flushed.wait()
        assert {token for token, _ in driver.broker.answers} == {2, 3, 4}
        release.set()
        while len(driver.broker.answers) < 4:
            driver.flushed.clear()
            await driver.flushed.wait()
        reads.stop()

    try:
        asyncio.run(run())
    finally:
        release.set()


def test_connection_with_many_requests_leaves_threads_to_others(
    location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of a lost connection are not carried out."""
    release = threading.Event()
    started_scans: list[int] = []
    read = ArchiveReads._read

    def waits(self: ArchiveReads, request: ReadArchive) -> ArchivedParts:
        started_scans.append(request.scan)
        if request.scan < 10:
            release.wait(30)
        return read(self, request)

    async def run() -> None:
        reads = reads_of(location)
        driver = await started(reads)
        monkeypatch.setattr(ArchiveReads, "_read", waits)
        for token in range(10):
            reads.submit(ArchiveRead(token, ReadArchive(token, 0, END, None), 1))
        for token in (10, 11):
            reads.submit(ArchiveRead(token, ReadArchive(token, 0, END, None), token))
        await answered(driver, 2)
        assert {token for token, _ in driver.broker.answers} == {10, 11}
        reads.drop(1)
        assert [token for token, _ in driver.broker.answers[2:]] == list(range(2, 10))
        assert all(isinstance(answer, ArchiveFailed) for _, answer in driver.broker.answers[2:])
        release.set()
        await answered(driver, 12)
        reads.submit(ArchiveRead(12, ReadArchive(12, 0, END, None), 12))
        await answered(driver, 13)
        assert sorted(started_scans) == [0, 1, 10, 11, 12]
        reads.stop()

    try:
        asyncio.run(run())
    finally:
        release.set()


def test_unresponsive_store_does_not_delay_the_stop(location: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release, answered = threading.Event(), threading.Event()

    def read(*_: object) -> None:
        release.wait(30)
        answered.set()

    async def run() -> None:
        reads = reads_of(location)
        await started(reads)
        monkeypatch.setattr(ArchiveReads, "_read", read)
        reads.submit(ArchiveRead(1, ReadArchive(1, 0, END, None), 1))
        reads.stop()
        assert not answered.is_set()

    try:
        asyncio.run(run())
    finally:
        release.set()
