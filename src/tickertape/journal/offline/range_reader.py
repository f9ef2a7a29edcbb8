"""Range reader: reads a range of positions of a journal that another process may have open.

The caller knows that the positions are persisted. Persisted messages do not change, even if the server
commits, seals or cuts after them meanwhile. The reader writes and locks nothing, and reads nothing beyond the
range.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator
from typing import Final, NamedTuple, NoReturn

from tickertape.base.errors import (
    BadBatch,
    BookmarkExpired,
    JournalVersion,
    WrongJournal,
)
from tickertape.base.interfaces import Disk
from tickertape.base.limits import KIB, MIB
from tickertape.batch import MessageBatch
from tickertape.journal.format.files import damaged_at
from tickertape.journal.format.identity import no_journal, read_identity
from tickertape.journal.format.retired_state import read_retired
from tickertape.journal.format.segment import (
    JOURNAL_DIRECTORY,
    CommitHeader,
    CommitKind,
    FormatError,
    NewerFormat,
    SegmentHeader,
    decode_commit,
    decode_segment_header,
    segment_number,
    segment_path,
)
from tickertape.journal.index.segment_index import SegmentIndex
from tickertape.journal.limits import commit_header_bytes, segment_header_bytes
from tickertape.journal.offline.segment_check import OpenFile, opened
from tickertape.journal.reading.log_view import LogSegment, decode_commits
from tickertape.journal.recovery.segment_scan import read_seal

_WINDOW_BYTES: Final = 64 * KIB
"""Bytes read at a time to move from one commit header to the next."""
READ_BYTES: Final = 1 * MIB
"""Bytes of commits read at a time, unless one commit is larger."""
_BEHIND_ALL: Final = 1 << 64


class StoredCommit(NamedTuple):
    """A commit as stored in a segment."""

    segment: int
    header: CommitHeader
    body: memoryview
    """An encoded batch."""

    def batch(self) -> MessageBatch:
        """Return its messages. Raises `JournalCorrupt`."""
        header = self.header
        try:
            batch = MessageBatch.parse(self.body)
        except BadBatch as error:
            _corrupt(segment_path(self.segment), header.offset, f"commit {header.number}: {error}")
        if batch.count != header.messages:
            what = f"commit {header.number} holds {batch.count} messages, not {header.messages}"
            _corrupt(segment_path(self.segment), header.offset, what)
        return batch


def read_range(
    disk: Disk, journal: str, start: int, end: int, topic: str | None
) -> Generator[StoredCommit, None, None]:
    """Yield the commits with messages in `[start, end)`, in order.

    Checksums are verified, but batches are not parsed yet. The first and the last commit may extend beyond
    the range, and commits may hold other topics: the caller cuts and selects.

    Args:
        disk: The data directory.
        journal: Id of the journal.
        start: First position.
        end: Position after the last one. It must not be above the persisted end of the journal.
        topic: Commits without messages of this topic may be left out. None for all topics.

    Raises:
        NotAJournal: The directory has no journal.
        WrongJournal: The directory has another journal.
        JournalVersion: The journal has a newer format.
        JournalCorrupt: A segment is damaged, or positions are missing.
        BookmarkExpired: Retention has removed the messages, perhaps during the read.
        OSError: The disk cannot be read."""
    journal_id = _journal_id(disk, journal)
    position = start
    _check_kept(disk, journal_id, position)
    try:
        for commit in _commits_from(disk, journal_id, start, end, topic):
            yield commit
            position = max(position, commit.header.first_position + commit.header.messages)
    except FileNotFoundError:
        _check_kept(disk, journal_id, position)
        raise


def first_position(disk: Disk, journal: str) -> int:
    """Return the first available position of the journal `journal`.

    Raises `NotAJournal`, `WrongJournal`, `JournalCorrupt`, `OSError`."""
    retired = read_retired(disk, _journal_id(disk, journal))
    return 0 if retired is None else retired.first_position


def _check_kept(disk: Disk, journal_id: bytes, position: int) -> None:
    """Raise `BookmarkExpired` if retention has removed the message at `position`."""
    retired = read_retired(disk, journal_id)
    if retired is not None and position < retired.first_position:
        raise BookmarkExpired(f"Cannot read position {position}: {retired}. Run the query again.")


def _commits_from(
    disk: Disk, journal_id: bytes, start: int, end: int, topic: str | None
) -> Generator[StoredCommit, None, None]:
    position = start
    for number in _numbers_from(disk, start):
        if position >= end:
            return
        with opened(disk, segment_path(number)) as file:
            header = _header(file, number, journal_id)
            if header.first_position > position:
                _corrupt(segment_path(number), 0, f"position {position} is in no segment before it")
            segment = _sealed(file, header)
            if segment is not None:
                stretches = _stretches(segment.index, position, end, topic)
            else:
                segment, begin = _unsealed_segment(file, header, position, end)
                stretches = iter([(begin, segment.end)])
            yield from _commits(file, segment, stretches, position, end)
            position = max(position, segment.end_position)
    if position < end:
        _corrupt(JOURNAL_DIRECTORY, 0, f"positions {position} to {end} are in no segment")


def _commits(
    file: OpenFile, segment: LogSegment, stretches: Iterator[tuple[int, int]], start: int, end: int
) -> Iterator[StoredCommit]:
    def wanted(header: CommitHeader) -> bool:
        first = header.first_position
        return first < end and first + header.messages > start

    for offset, after in stretches:
        at, need = offset, 0
        while at < after:
            size = min(max(min(READ_BYTES, after - at), need), segment.end - at)
            data = file.read(at, size)
            if len(data) < size:
                _corrupt(segment_path(segment.number), at + len(data), "the file is shorter than its commits")
            commits, need = decode_commits(segment, at, data, excuse=lambda header, _: not wanted(header))
            for header, body in commits:
                at = header.end
                if header.kind is CommitKind.DATA and wanted(header):
                    yield StoredCommit(segment.number, header, body)


def _stretches(index: SegmentIndex, start: int, end: int, topic: str | None) -> Iterator[tuple[int, int]]:
    """Yield the byte ranges of adjacent blocks to read."""
    if topic is None:
        if index.blocks:
            first, last = index.block_of_position(start), index.block_of_position(end - 1)
            yield index.offsets[first], index.block_bounds(last)[1]
        return
    block: int | None = index.block_of_position(start)
    while block is not None and (block := index.next_block_with(topic, block)) is not None:
        if index.positions[block] >= end:
            return
        offset = index.offsets[block]
        after = index.reach_with(topic, offset, READ_BYTES)
        yield offset, after
        block = index.block_of_offset(after - 1) + 1


def _journal_id(disk: Disk, journal: str) -> bytes:
    """Return the 16 bytes that each segment must carry, after checking the identity of the directory."""
    try:
        identity = read_identity(disk)
    except FileNotFoundError:
        raise no_journal(disk) from None
    if identity.journal != journal:
        raise WrongJournal(
            f"Cannot read positions of journal '{journal}': directory {disk.where!r} has journal "
            f"'{identity.journal}'. Use the data directory of the server that assigned the positions."
        )
    return identity.journal_id


def _numbers_from(disk: Disk, position: int) -> list[int]:
    """Return the numbers of the segments from the one that must hold `position`, in order."""
    names = disk.names(JOURNAL_DIRECTORY)
    numbers = [number for name in names if (number := segment_number(name)) is not None]
    at = bisect_right(numbers, position, key=lambda number: _first_position(disk, number))
    return numbers[max(at - 1, 0) :]


def _first_position(disk: Disk, number: int) -> int:
    """Return the first position of a segment, or a position above all others for a reserved file."""
    with opened(disk, segment_path(number)) as file:
        try:
            return decode_segment_header(file.read(0, segment_header_bytes))[0].first_position
        except FormatError:
            return _BEHIND_ALL


def _header(file: OpenFile, number: int, journal_id: bytes) -> SegmentHeader:
    path = segment_path(number)
    try:
        header, _ = decode_segment_header(file.read(0, segment_header_bytes))
    except NewerFormat as error:
        raise JournalVersion(f"Cannot read {path!r}: {error}. Use a newer version of Tickertape.") from None
    except FormatError as error:
        _corrupt(path, 0, str(error))
    if header.journal_id != journal_id:
        raise WrongJournal(f"Cannot read {path!r}: it belongs to another journal. Restore it from a copy.")
    if header.number != number:
        raise WrongJournal(
            f"Cannot read {path!r}: its header has segment number {header.number}, but its name has "
            f"{number}. Restore it from a copy."
        )
    return header


def _sealed(file: OpenFile, header: SegmentHeader) -> LogSegment | None:
    """Return the segment as its seal describes it. None without a seal or with an unusable index."""
    seal = read_seal(file.read, file.size, header)
    if seal is None:
        return None
    try:
        index = SegmentIndex.decode(seal.body, seal.header.offset)
    except ValueError:
        return None
    return LogSegment(header, index, seal.header.offset, seal.header.first_position, seal.header.timestamp)


def _unsealed_segment(file: OpenFile, header: SegmentHeader, start: int, end: int) -> tuple[LogSegment, int]:
    """Return an unsealed segment up to `end`, and the offset of the commit that holds `start`.

    The offset is found by walking from commit to commit. If the segment was sealed since its size was read,
    it ends with the seal found here."""
    begin = offset = segment_header_bytes
    position, last = header.first_position, header.created
    sealed = False
    for commit in _headers(file, header):
        if position >= end or commit.kind is CommitKind.SEAL or commit.first_position != position:
            sealed = commit.kind is CommitKind.SEAL
            break
        offset, position, last = commit.end, position + commit.messages, commit.timestamp
        if position <= start:
            begin = offset
    if position < end and not sealed:
        _corrupt(segment_path(header.number), offset, f"no commit that starts with position {position}")
    return LogSegment(header, SegmentIndex(), offset, position, last), begin


def _headers(file: OpenFile, segment: SegmentHeader) -> Iterator[CommitHeader]:
    """Yield the commit headers of a segment in order, skipping bodies, up to the first invalid header."""
    window, begin, offset = b"", 0, segment_header_bytes
    while True:
        if offset + commit_header_bytes > begin + len(window):
            window, begin = file.read(offset, _WINDOW_BYTES), offset
        commit = decode_commit(window, offset - begin)
        if commit is None or commit.salt != segment.salt or commit.offset != offset:
            return
        yield commit
        offset = commit.end


def _corrupt(path: str, offset: int, what: str) -> NoReturn:
    raise damaged_at(path, offset, what)
