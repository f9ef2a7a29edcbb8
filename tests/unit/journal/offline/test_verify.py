"""Journal verification: each damaged byte is reported with its place, valid data never."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from crc32c import crc32c

from tests.helpers.reserved_batches import with_reserved
from tests.unit.journal.written import START_MICROS, Written
from tickertape.base.errors import NotAJournal
from tickertape.batch import MessageBatch
from tickertape.journal.format.identity import read_identity
from tickertape.journal.format.log_end import read_last_segment
from tickertape.journal.format.segment import (
    CommitHeader,
    CommitKind,
    Footer,
    SegmentHeader,
    decode_segment_header,
    encode_commit,
    encode_footer,
    encode_segment_header,
    footer_bytes,
    segment_path,
)
from tickertape.journal.index.segment_index import SegmentIndex
from tickertape.journal.limits import commit_header_bytes, segment_header_bytes
from tickertape.journal.offline.verify import segment_bytes, survey, verify
from tickertape.journal.recovery.segment_scan import SegmentScan
from tickertape.journal.recovery.survey import survey_segments
from tickertape.testing.disk import StrictDisk


def written_journal(*, stopped: bool, seed: int = 1) -> Written:
    """Return several segments of two runs. The last one is sealed, or active with a final mark."""
    written = Written(seed)
    for _ in range(30):
        written.publish()
    written.stop()
    written.start()
    written.publish(publisher=8)
    written.publish(count=1)
    written.rest()
    if stopped:
        written.stop()
    return written


def read_all(disk: StrictDisk, path: str) -> bytes:
    return disk.contents()[path]


def overwrite(disk: StrictDisk, path: str, offset: int, data: bytes) -> None:
    handle = disk.open(path)
    disk.write(handle, offset, [data])
    disk.close(handle)


def truncate(disk: StrictDisk, path: str, size: int) -> None:
    handle = disk.open(path)
    disk.truncate(handle, size)
    disk.close(handle)


@contextmanager
def flipped(disk: StrictDisk, path: str, offset: int, bit: int = 0) -> Iterator[None]:
    before = read_all(disk, path)[offset]
    overwrite(disk, path, offset, bytes([before ^ (1 << bit)]))
    try:
        yield
    finally:
        overwrite(disk, path, offset, bytes([before]))


def commits_of(disk: StrictDisk, number: int) -> list[CommitHeader]:
    data = read_all(disk, segment_path(number))
    header, crc = decode_segment_header(data[:segment_header_bytes])
    scan = SegmentScan(lambda o, n: data[o : o + n], len(data), header, crc)
    return [commit.header for commit in scan.commits()]


def found(disk: StrictDisk) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Places of damage and of notes."""
    report = verify(disk)
    return [(f.file, f.offset) for f in report.damage], [(f.file, f.offset) for f in report.notes]


# -- whole --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stopped", [True, False])
def test_verify_of_an_intact_journal_reports_nothing(stopped: bool) -> None:
    written = written_journal(stopped=stopped)
    report = verify(written.disk)
    assert (report.damage, report.notes, report.whole) == ([], [], True)
    assert report.journal == bytes(range(16)).hex()
    assert sum(segment.messages for segment in report.segments) == written.messages
    sealed = [segment.state for segment in report.segments if segment.state != "reserved"]
    assert len(sealed) > 2
    assert sealed[-1] == ("sealed" if stopped else "active")
    assert set(sealed[:-1]) == {"sealed"}


@pytest.mark.parametrize("stopped", [True, False])
def test_survey_and_verify_give_equal_reports_for_an_intact_journal(stopped: bool) -> None:
    disk = written_journal(stopped=stopped).disk
    assert survey(disk) == verify(disk)


def test_survey_summary_describes_each_segment() -> None:
    written = written_journal(stopped=True)
    segments = [segment for segment in survey(written.disk).segments if segment.state != "reserved"]
    first, last = segments[0], segments[-1]
    assert (first.number, first.file, first.epoch) == (1, "journal/0000000001.segment", 1)
    assert first.first_position == 0
    assert (last.epoch, last.messages, last.publishers) == (2, 4, 2)
    # data, data, mark, seal
    assert last.commits == 4
    assert last.end_position == written.messages
    assert first.bytes == first.used == len(read_all(written.disk, first.file))
    assert START_MICROS < first.begun < first.last < last.begun < last.last < START_MICROS + 10**6
    for before, after in pairwise(segments):
        assert before.end_position == after.first_position


def test_verify_progress_adds_up_to_all_bytes() -> None:
    disk = written_journal(stopped=True).disk
    steps: list[int] = []
    verify(disk, steps.append)
    assert sum(steps) == segment_bytes(disk)
    assert len(steps) > 30


def test_verify_and_survey_write_and_lock_nothing() -> None:
    disk = written_journal(stopped=False).disk
    before, calls = disk.contents(), disk.calls.copy()
    verify(disk)
    survey(disk)
    assert disk.contents() == before
    assert set(disk.calls - calls) <= {"names", "open", "close", "size", "read"}
    assert disk.calls["open"] - calls["open"] == disk.calls["close"] - calls["close"]


def test_verify_of_a_directory_without_a_journal_raises() -> None:
    disk = StrictDisk(Random(1))
    for report in (survey, verify):
        with pytest.raises(NotAJournal, match=r"neither identity.json nor journal/"):
            report(disk)


# -- flipped bytes ------------------------------------------------------------------------------------


def test_verify_reports_flipped_bytes_of_sealed_segments_with_file_and_offset() -> None:
    disk = written_journal(stopped=True).disk
    rng = Random(2)
    numbers = [s.number for s in survey(disk).segments if s.state == "sealed"]
    kinds = set()
    for number in numbers:
        path = segment_path(number)
        parts: list[tuple[str, int, int]] = [("head", 0, segment_header_bytes)]
        parts += [(commit.kind.name, commit.offset, commit.end) for commit in commits_of(disk, number)]
        assert parts[-1][2] == len(read_all(disk, path))
        for kind, start, end in parts[:3] + parts[-3:]:
            kinds.add(kind)
            for offset in {start, end - 1, *(rng.randrange(start, end) for _ in range(3))}:
                with flipped(disk, path, offset, rng.randrange(8)):
                    damage, notes = found(disk)
                if kind == "SEAL" and number == numbers[-1]:
                    # an unfinished seal at the very end looks the same, and it holds no message
                    assert (damage, notes) == ([], [(path, start)])
                else:
                    assert (damage, notes) == ([(path, start)], []), (kind, offset)
    assert kinds == {"head", "DATA", "MARK", "SEAL"}
    assert found(disk) == ([], [])


def test_verify_reports_damage_before_the_mark_and_accepts_a_torn_tail() -> None:
    disk = written_journal(stopped=False).disk
    number = max(s.number for s in survey(disk).segments if s.state == "active")
    path = segment_path(number)
    first, second, mark = commits_of(disk, number)
    assert mark.kind is CommitKind.MARK
    for commit in (first, second):
        for offset in (commit.offset + 20, commit.offset + commit_header_bytes + 20):
            with flipped(disk, path, offset):
                assert found(disk) == ([(path, commit.offset)], [])
    for offset in (mark.offset + 20, mark.end + 1000):
        with flipped(disk, path, offset):
            assert found(disk) == ([], [(path, mark.offset if offset < mark.end else mark.end)])


def test_verify_reports_all_damage_in_one_segment() -> None:
    disk = written_journal(stopped=True).disk
    path = segment_path(1)
    commits = commits_of(disk, 1)
    body, head, twin = commits[1], commits[4], commits[5]
    with (
        flipped(disk, path, body.offset + commit_header_bytes + 100),
        flipped(disk, path, head.offset + 30),
        flipped(disk, path, twin.offset + 30),
        flipped(disk, segment_path(2), 600),
    ):
        report = verify(disk)
    assert [(f.file, f.offset) for f in report.damage] == [
        (path, body.offset),
        (path, head.offset),  # includes its neighbour: the two are adjacent
        (segment_path(2), segment_header_bytes),
    ]
    lost = f"(positions {body.first_position} to {body.first_position + body.messages - 1})"
    assert (
        f"Its header is intact, its {body.body_bytes} bytes of body {lost} are not" in report.damage[0].what
    )
    assert f"commit {head.number} is damaged" in report.damage[1].what
    # commits between the damaged ones are read and counted
    assert report.segments[0].commits == len(commits) - 3
    assert report.segments[0].state == "sealed"


def test_verify_reports_a_run_that_does_not_match_the_publisher_checksum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = Written()
    # the commit checksum covers memory that is already damaged, so it matches on disk
    monkeypatch.setattr("tickertape.journal.commit.accumulator.merge", _merge_with_a_wrong_body)
    written.publish()
    monkeypatch.undo()
    written.stop()
    report = verify(written.disk)
    assert [(f.file, f.offset) for f in report.damage] == [
        (segment_path(1), segment_header_bytes + commit_header_bytes)
    ]
    assert "run 0 of 1 (publisher 7, first sequence 1, 3 messages)" in report.damage[0].what


def _merge_with_a_wrong_body(batches: Any, stamps: Any) -> Any:
    from tickertape.batch import merge

    encoded = bytearray(merge(batches, stamps).encode())
    encoded[-20] ^= 1
    return MessageBatch.parse(bytes(encoded))


# -- errors under valid checksums ------------------------------------------------------------------------

Change = Callable[[CommitHeader, bytes], tuple[CommitHeader, bytes]]


def unchanged(header: CommitHeader, body: bytes) -> tuple[CommitHeader, bytes]:
    return header, body


def reforge(
    disk: StrictDisk,
    number: int,
    change: Change = unchanged,
    head: Callable[[SegmentHeader], SegmentHeader] = lambda header: header,
) -> None:
    """Write a segment again with other contents and right checksums, as a bug in the writer would have."""
    path = segment_path(number)
    data = read_all(disk, path)
    header, crc = decode_segment_header(data[:segment_header_bytes])
    scan = SegmentScan(lambda o, n: data[o : o + n], len(data), header, crc)
    encoded, chain = encode_segment_header(head(header))
    forged, at = [encoded], segment_header_bytes
    for old, view in scan.commits():
        new, body = change(old, bytes(view))
        new = new._replace(offset=at, chain=chain, body_bytes=len(body), body_crc=crc32c(body))
        encoded, chain = encode_commit(new)
        forged += [encoded, body]
        at = new.end
    truncate(disk, path, 0)
    overwrite(disk, path, 0, b"".join(forged))


def one_segment() -> Written:
    """A stopped journal of one segment: its commits 1 to 3 have 3, 3 and 2 messages, 4 is the seal."""
    written = Written(segment_bytes=65536)
    for count in (3, 3, 2):
        written.publish(count)
    written.stop()
    return written


def other_index(header: CommitHeader, body: bytes) -> bytes:
    """A seal's body with an index that knows nothing."""
    index = SegmentIndex().encode()
    padding = bytes(-len(index) % 8)
    end = header.offset + commit_header_bytes + len(index) + len(padding) + footer_bytes
    return index + padding + encode_footer(Footer(header.offset, end, header.salt, len(index)))


def with_flags(body: bytes, message_flags: list[int]) -> bytes:
    """A commit's batch with message flags."""
    return with_reserved(MessageBatch.parse(body), message_flags=message_flags).encode()


def test_verify_accepts_superseded_messages() -> None:
    disk = one_segment().disk
    reforge(disk, 1, lambda h, b: (h, with_flags(b, [0, 1, 1])) if h.number == 2 else (h, b))
    assert not [finding for finding in verify(disk).damage if "commit 2" in finding.what]


@pytest.mark.parametrize(
    ("number", "change", "text"),
    [
        (2, lambda h, b: (h._replace(timestamp=START_MICROS), b), "commit 2: log time decreases"),
        (2, lambda h, b: (h._replace(synced_through=2), b), "commit 2 claims to be durable"),
        (3, lambda h, b: (h._replace(first_position=7), b), "commit 3 starts at position 7, not 6"),
        (3, lambda h, b: (h._replace(messages=5), b), "commit 3 holds 2 messages, not 5"),
        (2, lambda h, b: (h, with_flags(b, [0, 3, 0])), "commit 2: message 1 is a delta"),
        (4, lambda h, b: (h, other_index(h, b)), "the last sequences in the index differ"),
    ],
)
def test_verify_reports_contradictions_under_valid_checksums(number: int, change: Change, text: str) -> None:
    disk = one_segment().disk
    assert verify(disk).whole
    offset = commits_of(disk, 1)[number - 1].offset
    reforge(disk, 1, lambda h, b: change(h, b) if h.number == number else (h, b))
    first = verify(disk).damage[0]
    assert (first.file, first.what[: len(text)]) == (segment_path(1), text)
    assert first.offset in (offset, offset + commit_header_bytes)


def test_verify_reports_a_duplicate_message_in_a_segment() -> None:
    disk = one_segment().disk
    first, second, *_ = commits_of(disk, 1)
    data = read_all(disk, segment_path(1))
    body = data[first.offset + commit_header_bytes : first.end]
    reforge(disk, 1, lambda h, b: (h, body) if h.number == 2 else (h, b))
    assert [str(finding) for finding in verify(disk).damage] == [
        (
            f"{segment_path(1)} at offset {second.offset + commit_header_bytes}: "
            "commit 2: publisher 7 has sequence 1 after 3"
        )
    ]


def test_verify_reports_a_duplicate_message_in_a_later_segment() -> None:
    written = Written(segment_bytes=65536)
    written.publish()
    written.stop()
    data = read_all(written.disk, segment_path(1))
    first = commits_of(written.disk, 1)[0]
    body = data[first.offset + commit_header_bytes : first.end]
    written.start()
    written.publish()
    written.stop()
    reforge(written.disk, 2, lambda h, b: (h, body) if h.kind is CommitKind.DATA else (h, b))
    assert "commit 3: publisher 7 has sequence 1 after 3" in verify(written.disk).damage[0].what


def test_verify_reports_a_segment_with_a_position_gap() -> None:
    written = Written(segment_bytes=65536)
    written.publish()
    written.stop()
    written.start()
    written.stop()
    reforge(written.disk, 2, head=lambda header: header._replace(first_position=99))
    assert [str(finding) for finding in verify(written.disk).damage] == [
        f"{segment_path(2)}: its positions do not continue those of segment 1",
        f"{segment_path(2)} at offset {segment_header_bytes}: commit 3 starts at position 3, not 99",
    ]


# -- files --------------------------------------------------------------------------------------------


def move_away(disk: StrictDisk, name: str) -> None:
    """Move a file out of the journal (the port cannot delete)."""
    disk.make_directory("quarantine")
    disk.rename(name, "quarantine/taken")


def test_verify_reports_a_missing_middle_segment_at_the_next_one() -> None:
    disk = written_journal(stopped=True).disk
    move_away(disk, segment_path(2))
    report = verify(disk)
    assert [str(f) for f in report.damage] == [f"{segment_path(3)}: segment 2 before it is missing"]
    assert [f.file for f in report.notes] == ["quarantine/taken"]


def test_verify_reports_missing_first_segments() -> None:
    disk = written_journal(stopped=True).disk
    move_away(disk, segment_path(1))
    assert [str(f) for f in verify(disk).damage] == [
        f"{segment_path(2)}: the log begins here, but segment 1 existed before it"
    ]


def test_verify_reports_a_segment_that_does_not_follow_the_previous_one() -> None:
    disk = written_journal(stopped=True).disk
    other = written_journal(stopped=True, seed=5).disk
    data = read_all(other, segment_path(1))
    truncate(disk, segment_path(1), 0)
    overwrite(disk, segment_path(1), 0, data)
    assert [str(f) for f in verify(disk).damage] == [
        f"{segment_path(2)}: it does not follow the present segment 1"
    ]


@pytest.mark.parametrize("size", [0, 100, segment_header_bytes, 3000, -1])
def test_verify_reports_a_truncated_middle_segment(size: int) -> None:
    disk = written_journal(stopped=True).disk
    whole = commits_of(disk, 2)
    full = len(read_all(disk, segment_path(2)))
    size = size if size >= 0 else full - 1
    truncate(disk, segment_path(2), size)
    damage, _ = found(disk)
    left = [commit.end for commit in whole if commit.end <= size]
    start = 0 if size < segment_header_bytes else max(left, default=segment_header_bytes)
    assert damage == [(segment_path(2), start)]


def test_verify_reports_bytes_after_a_middle_seal_and_notes_bytes_after_the_last() -> None:
    written = written_journal(stopped=True)
    disk = written.disk
    sealed = [s for s in survey(disk).segments if s.state == "sealed"]
    overwrite(disk, sealed[1].file, sealed[1].used, b"x" * 8)
    overwrite(disk, sealed[-1].file, sealed[-1].used, b"x" * 8)
    assert found(disk) == ([(sealed[1].file, sealed[1].used)], [(sealed[-1].file, sealed[-1].used)])


def test_verify_reports_a_bad_identity_and_still_reads_segments() -> None:
    disk = written_journal(stopped=True).disk
    overwrite(disk, "identity.json", 0, b"?")
    report = verify(disk)
    assert [(f.file, f.offset) for f in report.damage] == [("identity.json", 0)]
    assert "Cannot read 'identity.json'" in report.damage[0].what
    move_away(disk, "identity.json")
    report = verify(disk)
    assert [str(f) for f in report.damage] == ["identity.json: missing"]
    assert len(report.segments) > 2


def test_verify_notes_unknown_names_without_damage() -> None:
    disk = written_journal(stopped=True).disk
    for name in ("journal/notes.txt", "journal/1.segment", "README"):
        disk.close(disk.open(name, create=True))
    assert found(disk) == ([], [("README", 0), ("journal/1.segment", 0), ("journal/notes.txt", 0)])


def test_verify_reports_a_segment_of_another_journal() -> None:
    disk = written_journal(stopped=True).disk
    foreign = Written(3, new_id=b"another journal!")
    foreign.stop()
    data = read_all(foreign.disk, segment_path(1))
    truncate(disk, segment_path(2), 0)
    overwrite(disk, segment_path(2), 0, data)
    assert [str(f) for f in verify(disk).damage] == [f"{segment_path(2)}: header of another journal"]


def test_verify_reports_a_read_error_as_damage_of_the_segment() -> None:
    disk = written_journal(stopped=True).disk
    before = disk_reads_before_commits(disk)
    for again in (1, 2):  # suspected damage is read twice
        disk.fail("read", before + again, errno.EIO)
    report = verify(disk)
    assert disk.faults_left == 0
    assert [str(f) for f in report.damage] == [f"{segment_path(1)}: cannot be read: Input/output error"]


def disk_reads_before_commits(disk: StrictDisk) -> int:
    """Count reads before the first commit: identity, then head and seal of each segment."""
    before = disk.calls["read"]
    journal_id = read_identity(disk).journal_id
    read_last_segment(disk, journal_id)
    survey_segments(disk, journal_id)
    return disk.calls["read"] - before
