"""State of removed segments: its file, recovery, and the output of the tools."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.simulation.journal_world import drive, read_log
from tests.unit.journal.written import Written
from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import (
    BookmarkExpired,
    JournalCorrupt,
    JournalVersion,
    TickertapeError,
    WrongJournal,
)
from tickertape.journal.commit.jobs import RetireSegments
from tickertape.journal.format import retired_state as retired_module
from tickertape.journal.format.identity import read_identity
from tickertape.journal.format.retired_state import (
    NOTHING_HIGHEST,
    RETIRED_FILE,
    decode_retired,
    encode_retired,
    read_retired,
    with_records,
    write_retired,
)
from tickertape.journal.format.segment import segment_path
from tickertape.journal.offline.range_reader import read_range
from tickertape.journal.offline.snapshot import Absent, SnapshotReader, locate, locate_bookmark, take_snapshot
from tickertape.journal.offline.verify import survey, verify
from tickertape.journal.recovery.recovery import recover_journal
from tickertape.testing.disk import StrictDisk


def retired_log(segments: int = 3) -> Written:
    """Return a log whose oldest segments are removed. Publisher 5 is only in these."""
    written = Written()
    written.publish(count=2, publisher=5)
    while written.journal.view.segments[-1].number < 6:
        written.publish(size=400)
    written.retire(segments)
    return written


def rewrite(disk: StrictDisk, path: str, data: bytes) -> None:
    handle = disk.open(path)
    disk.truncate(handle, 0)
    disk.write(handle, 0, [data])
    disk.close(handle)


def reopened(written: Written) -> None:
    written.disk = written.disk.crash_clone(Random(1))
    written.start()


def test_retired_state_encodes_and_decodes_to_the_same_value() -> None:
    written = retired_log()
    retired = written.journal.view.retired
    assert retired is not None
    again = decode_retired(encode_retired(retired))
    assert again._replace(highest=retired.highest) == retired
    assert again.highest.as_dict() == retired.highest.as_dict()
    assert again.highest.of(5) == 2
    assert again.highest.of(6) == 0
    assert again.through == 3


def test_start_keeps_publisher_sequences_and_positions_of_removed_segments() -> None:
    written = retired_log()
    first, end = written.journal.view.first_position, written.journal.commits.persisted_end
    highest = dict(written.journal.highest)
    reopened(written)
    assert written.journal.highest == highest
    assert (written.journal.view.first_position, written.journal.commits.persisted_end) == (first, end)
    assert read_log(written.journal, written.disk)[0][0] == first
    written.publish(publisher=5)
    assert written.journal.highest[5] == 5


def test_second_retirement_extends_the_retired_state() -> None:
    written = retired_log(2)
    before = written.journal.view.retired
    after = written.retire(2)
    assert before is not None
    assert after.through == 4
    assert after.highest.of(5) == 2
    assert after.highest.of(7) > before.highest.of(7)
    assert after.removed_bytes > before.removed_bytes > 0
    reopened(written)
    assert written.journal.highest[5] == 2


def test_retirement_reads_highest_sequences_that_the_index_dropped() -> None:
    written = Written()
    written.publish(count=2, publisher=5)
    while written.journal.view.segments[-1].number < 4:
        written.publish(size=400)
    highest = written.journal.view.segments[1].index.highest_sequences()
    for segment in written.journal.view.segments[:2]:
        segment.index._publishers.give_up()
    retired = written.retire(2)
    assert highest is not None
    assert retired.highest.as_dict() == {5: 2, 7: highest[7]}


@pytest.mark.parametrize("at", [0, 8, 12, 20, 40, 200, -1])
def test_changed_byte_in_the_retired_file_refuses_the_start(at: int) -> None:
    written = retired_log()
    data = bytearray(written.disk.contents()[RETIRED_FILE])
    data[at] ^= 0x40
    rewrite(written.disk, RETIRED_FILE, bytes(data))
    before = written.disk.contents()
    with pytest.raises((JournalCorrupt, JournalVersion), match=r"retired\.bin"):
        recover_journal(written.disk, read_identity(written.disk).journal_id)
    assert written.disk.contents() == before, "nothing was changed"
    assert any(f.file == RETIRED_FILE for f in verify(written.disk).damage)


@pytest.mark.parametrize("size", [0, 7, 16, 60])
def test_truncated_retired_file_refuses_the_start(size: int) -> None:
    written = retired_log()
    rewrite(written.disk, RETIRED_FILE, written.disk.contents()[RETIRED_FILE][:size])
    with pytest.raises(JournalCorrupt, match="Restore it from a copy"):
        recover_journal(written.disk, read_identity(written.disk).journal_id)


def test_retired_file_above_the_size_limit_is_neither_read_nor_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = retired_log()
    retired = written.journal.view.retired
    assert retired is not None
    monkeypatch.setattr(retired_module, "retired_bytes_max", 100)
    with pytest.raises(JournalCorrupt, match="more than 100"):
        read_retired(written.disk, retired.journal_id)
    before = written.disk.contents()
    with pytest.raises(OSError, match="need more than 100 bytes"):
        write_retired(written.disk, retired)
    assert written.disk.contents() == before


def test_retired_file_of_another_journal_is_refused() -> None:
    written = retired_log()
    with pytest.raises(WrongJournal, match="another journal"):
        read_retired(written.disk, b"x" * 16)


def _without_file(written: Written) -> None:
    written.disk.remove(RETIRED_FILE)


def _without_first(written: Written) -> None:
    written.disk.remove(segment_path(4))


def _without_any(written: Written) -> None:
    for name in written.disk.names("journal"):
        written.disk.remove(f"journal/{name}")


def _with_another_end(written: Written) -> None:
    retired = written.journal.view.retired
    assert retired is not None
    write_retired(written.disk, retired._replace(previous_chain=retired.previous_chain ^ 1))


def _with_an_older_file(written: Written) -> None:
    retired = written.journal.view.retired
    assert retired is not None
    write_retired(written.disk, retired._replace(through=2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without_file, "segment 1 is missing"),
        (_without_first, "the log begins with it"),
        (_without_any, "the log begins with it"),
        (_with_another_end, "does not follow the removed segments"),
        (_with_an_older_file, "the log begins with it"),
    ],
)
def test_log_that_does_not_match_the_retired_state_is_refused(change: object, message: str) -> None:
    written = retired_log()
    assert callable(change)
    change(written)
    before = written.disk.contents()
    with pytest.raises(JournalCorrupt, match=message):
        recover_journal(written.disk, read_identity(written.disk).journal_id)
    assert written.disk.contents() == before, "nothing was changed"
    assert not verify(written.disk).whole


def test_leftover_files_of_retired_segments_are_not_part_of_the_log() -> None:
    written = Written()
    while written.journal.view.segments[-1].number < 5:
        written.publish(size=400)
    segment = written.disk.contents()[segment_path(2)]
    written.retire(3)
    handle = written.disk.open(segment_path(2), create=True)
    written.disk.write(handle, 0, [segment])
    recovered = recover_journal(written.disk, read_identity(written.disk).journal_id)
    assert recovered.leftovers == (2,)
    assert [s.number for s in recovered.segments] == [4, 5]
    assert "retired by an earlier run" in recovered.report[0]
    report = verify(written.disk)
    assert report.whole
    assert report.retired is not None
    assert report.retired.unfinished == 1
    assert recovered.retired is not None
    written._executor.run(RetireSegments(retired=recovered.retired, numbers=recovered.leftovers))
    assert not recover_journal(written.disk, read_identity(written.disk).journal_id).leftovers


def test_clean_shutdown_record_in_a_removed_segment_is_accepted() -> None:
    written = Written()
    written.publish()
    written.stop()
    from tickertape.journal.format.log_end import write_clean_shutdown

    reached = written.journal.commits.clean_shutdown
    assert reached is not None
    write_clean_shutdown(written.disk, reached)
    written.start()
    while written.journal.view.segments[-1].number < 4:
        written.publish(size=400)
    written.retire(2)
    reopened(written)
    assert verify(written.disk).whole


def test_verify_and_survey_report_the_removed_segments() -> None:
    written = retired_log()
    written.stop()
    for report in (verify(written.disk), survey(written.disk)):
        assert report.whole, report.damage
        assert report.retired is not None
        assert (report.retired.through, report.retired.unfinished) == (3, 0)
        assert report.retired.first_position == written.journal.view.first_position
        note = next(note for note in report.notes if note.file == RETIRED_FILE)
        assert "segments 1 to 3" in note.what
        assert "removed by retention" in note.what


def test_find_reports_a_message_removed_by_retention() -> None:
    written = retired_log()
    written.stop()
    snapshot = take_snapshot(written.disk)
    assert snapshot.damage is None
    reader = SnapshotReader(written.disk, snapshot.view)
    for absent in (locate_bookmark(reader, Bookmark(5, 1)), locate(reader, 3)):
        assert isinstance(absent, Absent)
        assert "removed by retention" in absent.reason
    unknown = locate_bookmark(reader, Bookmark(99, 1))
    assert isinstance(unknown, Absent)
    assert "no message of publisher 99" in unknown.reason


def test_snapshot_reader_of_a_removed_segment_raises_bookmark_expired() -> None:
    written = Written()
    while written.journal.view.segments[-1].number < 4:
        written.publish(size=400)
    written.rest()
    snapshot = take_snapshot(written.disk)
    written.retire(2)
    reader = SnapshotReader(written.disk, snapshot.view)
    with pytest.raises(BookmarkExpired, match="retention removed it during the read"):
        list(reader.parts(0, snapshot.view.end_position))


def test_range_reader_of_removed_segments_raises_bookmark_expired() -> None:
    written = Written()
    while written.journal.view.segments[-1].number < 5:
        written.publish(size=400)
    journal, end = written.journal.identity, written.journal.commits.persisted_end
    reading = read_range(written.disk, journal, 0, end, "orders")
    assert next(reading).header.first_position == 0
    retired = written.retire(3)
    with pytest.raises(BookmarkExpired, match="Run the query again"):
        list(reading)
    with pytest.raises(BookmarkExpired, match="position 0"):
        list(read_range(written.disk, journal, 0, end, "orders"))
    commits = list(read_range(written.disk, journal, retired.first_position, end, "orders"))
    assert commits[0].header.first_position == retired.first_position


def test_segment_with_damaged_control_records_is_not_retired() -> None:
    """An unreadable record cannot be kept, so its segment is not removed."""
    from tickertape.journal.retention import gather

    written = Written()
    while written.journal.view.segments[-1].number < 4:
        written.publish(size=400)
    written.journal.view.tail.clear()
    written.journal.view.segments[0].index._publishers.give_up()
    path = segment_path(1)
    data = bytearray(written.disk.contents()[path])
    data[900] ^= 1
    rewrite(written.disk, path, bytes(data))
    with pytest.raises(TickertapeError, match=r"0000000001\.segment"):
        drive(written.disk, gather(written.journal.view, written.journal.journal_id, 2))


def test_last_of_equal_control_records_is_kept() -> None:
    merged = drive(StrictDisk(Random(1)), with_records((b"a", b"b"), [b"c", b"a", b"d"]))
    assert merged == (b"b", b"c", b"a", b"d")


def test_highest_sequences_merge_over_many_publishers() -> None:
    some = np.array([3, 9], np.uint64), np.array([30, 90], np.uint64)
    more = np.array([2**64 - 1, 9, 1], np.uint64), np.array([7, 100, 11], np.uint64)
    highest = NOTHING_HIGHEST.with_later(*some).with_later(*more)
    assert highest.as_dict() == {1: 11, 3: 30, 9: 100, 2**64 - 1: 7}
    assert [highest.of(p) for p in (1, 2, 3, 9, 2**64 - 1)] == [11, 0, 30, 100, 7]
