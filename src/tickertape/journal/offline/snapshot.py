"""Snapshot: the durable log of a data directory, even while a server runs, and lookups in it.

Nothing is written or locked. By default only commits that a later commit proves durable are shown: a running
server may still lose other commits and write different ones in their place.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import NamedTuple, TypeVar

import numpy as np

from tickertape.base.bookmarks import Bookmark, format_timestamp
from tickertape.base.errors import BookmarkExpired, JournalCorrupt
from tickertape.base.interfaces import Buffer, Disk
from tickertape.batch import MessageBatch, select
from tickertape.batch.format import KIND_CONTROL, KIND_MESSAGE, Int64s
from tickertape.journal.commit.active_segment import ActiveSegment
from tickertape.journal.format.files import damaged_at, open_file
from tickertape.journal.format.identity import IDENTITY_FILE, no_journal, read_identity
from tickertape.journal.format.retired_state import RetiredState, is_expired, read_retired
from tickertape.journal.format.segment import CommitHeader, CommitKind, decode_commit, segment_path
from tickertape.journal.limits import commit_header_bytes, segment_header_bytes
from tickertape.journal.reading.log_reader import LogReader, find_bookmark, find_time
from tickertape.journal.reading.log_view import LogPart, LogSegment, LogView, ReadRequest, SealedSegment
from tickertape.journal.recovery.recovery import RecoveryAction, decide, read_sealed, read_unsealed
from tickertape.journal.recovery.segment_scan import Verdict
from tickertape.journal.recovery.survey import PublisherFold, SegmentHead, SegmentSurvey, survey_segments

T = TypeVar("T")

_ATTEMPTS_MAX = 5
"""Attempts to survey a directory while a server starts segments."""


class Snapshot(NamedTuple):
    """The log at one time. `view` does not change while the log grows."""

    view: LogView
    unproven: int
    """Messages after the end of `view` that are written but not known to be durable."""
    damage: JournalCorrupt | None
    """The reason why `view` ends before the log does, or None."""


def take_snapshot(disk: Disk, *, unsynced: bool = False) -> Snapshot:
    """Take a snapshot of the journal on `disk`. `unsynced` includes commits not known to be durable.

    Damage of the last segments, or between segments, ends the view before it and is reported in the snapshot.

    Raises:
        NotAJournal, WrongJournal, JournalVersion: The directory has no usable journal.
        JournalCorrupt: The identity is damaged.
        OSError: The disk cannot be read."""
    if IDENTITY_FILE not in disk.names("."):
        raise no_journal(disk)
    journal_id = read_identity(disk).journal_id
    damage: JournalCorrupt | None = None
    for look_number in range(_ATTEMPTS_MAX):
        fold = PublisherFold()
        retired = read_retired(disk, journal_id)
        try:
            files, _ = survey_segments(disk, journal_id, fold, retired)
            actions, damage = decide(files, retired), None
            break
        except FileNotFoundError:
            if look_number == _ATTEMPTS_MAX - 1:
                raise
        except JournalCorrupt as error:
            damage = error
    if damage is not None:
        actions = _before_damage(files, retired)
    sealed: list[SealedSegment] = []
    active: SegmentSurvey | None = None
    for file, action in actions:
        if action is RecoveryAction.USE:
            try:
                sealed.append(read_sealed(disk, file, fold))
            except JournalCorrupt as error:
                return Snapshot(LogView(sealed, retired), 0, _damage_error(error))
        elif action is RecoveryAction.FINISH:
            active = file
    view = LogView(sealed, retired)
    unproven = 0
    if active is not None:
        unproven, ended = _add_active(disk, view, active, unsynced=unsynced)
        damage = damage or ended
    return Snapshot(view, unproven, _damage_error(damage))


def _damage_error(error: JournalCorrupt | None) -> JournalCorrupt | None:
    """Return the damage without the advice about server starts."""
    if error is None:
        return None
    what = str(error).partition(". The start is refused")[0]
    return JournalCorrupt(
        f"Cannot read the whole log: {what}. Everything before it was read. Run `tickertape journal "
        "verify` to "
        "see the extent.",
        file=error.file,
        offset=error.offset,
    )


def _before_damage(
    files: list[SegmentSurvey], retired: RetiredState | None
) -> list[tuple[SegmentSurvey, RecoveryAction]]:
    """Return the actions for the segments before the first invalid one."""
    for count in range(len(files) - 1, 0, -1):
        try:
            return decide(files[:count], retired)
        except JournalCorrupt:
            continue
    return []


def _add_active(
    disk: Disk, view: LogView, file: SegmentSurvey, *, unsynced: bool
) -> tuple[int, JournalCorrupt | None]:
    """Add the unsealed segment to a view. Return the number of messages left out, and the damage at its
    end."""
    header = file.header
    assert header is not None
    corrupt_at = -1
    for _ in range(_ATTEMPTS_MAX):
        try:
            (index, ending, _, unproven, _), _ = read_unsealed(disk, file)
        except JournalCorrupt as error:
            return 0, error
        if ending.verdict is not Verdict.CORRUPT or ending.end == corrupt_at:
            break
        corrupt_at = ending.end  # real damage is still at this offset after a second read
    view.opened(ActiveSegment(header, file.chain, file.size, index=index))
    segment = view.segments[-1]
    last = ending.last
    written = last.first_position + last.messages if last is not None else header.first_position
    timestamp = last.timestamp if last is not None else 0
    segment.advance(ending.end, written, timestamp)
    if not unsynced and ending.verdict is not Verdict.SEALED and unproven < ending.end:
        first = _header_at(disk, file.number, unproven)
        segment.advance(unproven, first.first_position, timestamp)
    damage = None
    if ending.verdict is Verdict.CORRUPT:
        damage = damaged_at(segment_path(file.number), ending.end, ending.detail)
    return written - segment.end_position, damage


def _header_at(disk: Disk, number: int, offset: int) -> CommitHeader:
    path = segment_path(number)
    with open_file(disk, path) as handle:
        header = decode_commit(disk.read(handle, offset, commit_header_bytes))
    if header is None:
        raise damaged_at(path, offset, "it changed while it was read")
    return header


class SelectedMessages(NamedTuple):
    """Messages of one commit, with their positions."""

    positions: Int64s
    batch: MessageBatch

    @property
    def end_position(self) -> int:
        """Position after the last message."""
        return int(self.positions[-1]) + 1


# -- reading ------------------------------------------------------------------------------------------


class SnapshotReader:
    """Reads a snapshot with blocking reads and one open segment at a time."""

    def __init__(self, disk: Disk, view: LogView) -> None:
        self._disk = disk
        self.view = view
        self._number = 0
        self._handle: int | None = None

    def parts(self, start: int, stop: int, topic: str | None = None) -> Iterator[LogPart]:
        """Yield parts with positions from `start` up to `stop`, without blocks that lack `topic`.

        Raises `JournalCorrupt` where the log cannot be read."""
        reader = LogReader(self.view, start, topic)
        while reader.position < stop:
            step = reader.poll()
            if step is None:
                return
            for part in reader.answer(self._read(step)) if isinstance(step, ReadRequest) else step:
                if part.first_position >= stop:
                    return
                yield part

    def selected(self, start: int, stop: int, topic: str | None = None) -> Iterator[SelectedMessages]:
        """Yield the messages in `[start, stop)`, of `topic` if given, without control records.

        Raises `JournalCorrupt` where the log cannot be read."""
        for part in self.parts(start, stop, topic):
            batch = part.batch
            positions = part.positions
            if positions is None:
                positions = np.arange(part.first_position, part.first_position + batch.count)
            mask = (positions >= start) & (positions < stop)
            if topic is not None and topic not in batch.topics:
                mask[:] = False
            elif topic is not None and batch.topic_index is not None:
                mask &= batch.topic_index == batch.topics.index(topic)
            if batch.kinds is not None:
                mask &= batch.kinds == KIND_MESSAGE
            if mask.any():
                yield SelectedMessages(positions[mask], batch if mask.all() else select(batch, mask))

    def bytes_before(self, position: int) -> int:
        """Return the approximate number of log bytes before `position`."""
        done = 0
        for segment in self.view.segments:
            if position < segment.end_position:
                if position > segment.first_position and segment.index.blocks:
                    done += segment.index.block_bounds(segment.index.block_of_position(position))[0]
                break
            done += segment.end
        return done

    def find(self, search: Generator[ReadRequest, Buffer, T]) -> T:
        """Run a search of `log_reader.py` to completion and return its result."""
        try:
            request = next(search)
            while True:
                request = search.send(self._read(request))
        except StopIteration as done:
            result: T = done.value
            return result

    def header_of(self, position: int) -> tuple[LogSegment, CommitHeader]:
        """Return the segment and the commit that hold `position`, which must be in the view."""
        segment = self.view.segment_of(position)
        assert segment is not None
        offset = segment.index.block_bounds(segment.index.block_of_position(position))[0]
        while True:
            header = decode_commit(
                memoryview(self._read(ReadRequest(segment.number, offset, commit_header_bytes)))
            )
            if header is None:
                raise damaged_at(segment_path(segment.number), offset, "no valid commit")
            if position < header.first_position + header.messages:
                return segment, header
            offset = header.end

    def close(self) -> None:
        """Close open files."""
        if self._handle is not None:
            self._disk.close(self._handle)
        self._handle, self._number = None, 0

    def _read(self, request: ReadRequest) -> Buffer:
        if request.segment != self._number:
            self.close()
            try:
                self._handle = self._disk.open(segment_path(request.segment), write=False)
            except FileNotFoundError:
                raise BookmarkExpired(
                    f"Cannot read segment {request.segment}: retention removed it during the read. Run the "
                    "command again."
                ) from None
            self._number = request.segment
        assert self._handle is not None
        handle = self._handle
        return request.read(lambda offset, size: self._disk.read(handle, offset, size))


def commit_headers(disk: Disk) -> Iterator[tuple[str, CommitHeader]]:
    """Yield file and header of every commit in chain order.

    Raises `NotAJournal`, `JournalCorrupt` (a sealed segment with missing headers), `OSError`."""
    if IDENTITY_FILE not in disk.names("."):
        raise no_journal(disk)
    files, _ = survey_segments(disk, read_identity(disk).journal_id)
    for file in files:
        if file.head is SegmentHead.VALID:
            yield from _of_segment(disk, file)


def _of_segment(disk: Disk, file: SegmentSurvey) -> Iterator[tuple[str, CommitHeader]]:
    path = segment_path(file.number)
    assert file.header is not None
    with open_file(disk, path) as handle:
        offset, chain = segment_header_bytes, file.chain
        while True:
            header = decode_commit(disk.read(handle, offset, commit_header_bytes))
            if header is None or (header.salt, header.offset, header.chain) != (
                file.header.salt,
                offset,
                chain,
            ):
                break
            yield path, header
            if header.kind is CommitKind.SEAL:
                return
            offset, chain = header.end, header.crc
        if file.seal is not None:
            what = "no valid commit header. Run `tickertape journal verify` to see the extent."
            raise damaged_at(path, offset, what)


# -- locations of messages ------------------------------------------------------------------------


class Location(NamedTuple):
    """Location of one message."""

    file: str
    offset: int
    """Offset of the commit that holds it."""
    commit: int
    position: int
    topic: str
    bookmark: str
    timestamp: int
    """Microseconds since 1970 UTC."""
    data_bytes: int
    control: bool


class Absent(NamedTuple):
    """The reason why a message is absent."""

    reason: str


def locate(reader: SnapshotReader, position: int) -> Location | Absent:
    """Return the location of the message at `position`."""
    view = reader.view
    if position >= view.end_position:
        held = f"the log has positions {view.first_position} to {view.end_position} (exclusive)"
        return Absent(f"position {position} is after the last message: {held}")
    if position < view.first_position:
        removed = f". {view.retired}" if view.retired is not None else ""
        first = f"{view.first_position}, the first position of the log"
        return Absent(f"position {position} is below {first}{removed}")
    segment, header = reader.header_of(position)
    part = next(p for p in reader.parts(position, position + 1) if position < p.end_position)
    batch, index = part.batch, position - part.first_position
    return Location(
        file=segment_path(segment.number),
        offset=header.offset,
        commit=header.number,
        position=position,
        topic=batch.topic(index),
        bookmark=str(Bookmark(int(batch.publishers[index]), int(batch.sequences[index]))),
        timestamp=int(batch.timestamps[index]),
        data_bytes=len(batch.body(index)),
        control=batch.kinds is not None and int(batch.kinds[index]) == KIND_CONTROL,
    )


def locate_bookmark(reader: SnapshotReader, bookmark: Bookmark) -> Location | Absent:
    """Return the location of the message with this bookmark."""
    position = reader.find(find_bookmark(reader.view, bookmark.publisher, bookmark.sequence))
    if position is not None:
        return locate(reader, position)
    return Absent(f"bookmark {str(bookmark)!r}: {_why_absent(reader, bookmark)}")


def locate_time(reader: SnapshotReader, micros: int) -> Location | Absent:
    """Return the location of the first message with a timestamp of at least `micros`."""
    position = reader.find(find_time(reader.view, micros, inclusive=True))
    if position < reader.view.end_position:
        return locate(reader, position)
    last = max((s.timestamp for s in reader.view.segments if s.index.blocks), default=None)
    if last is None:
        return Absent("the log is empty")
    return Absent(
        f"{format_timestamp(micros)} is after the last message, which has the timestamp "
        f"{format_timestamp(last)}"
    )


def _why_absent(reader: SnapshotReader, bookmark: Bookmark) -> str:
    if is_expired(reader.view.retired, bookmark):
        return f"it was removed, if it ever existed: {reader.view.retired}"
    silent = [s.number for s in reader.view.segments if not s.index.knows_publishers]
    if silent:
        return (
            f"not in the log. The sequences of publisher {bookmark.publisher} in it are unknown: "
            f"{len(silent)} of {len(reader.view.segments)} segments have too many publishers for "
            f"their indexes (the first is segment {silent[0]})"
        )
    low, high = _publisher_bounds(reader.view, bookmark.publisher)
    if low is None or high is None:
        return f"the log has no message of publisher {bookmark.publisher}"
    if bookmark.sequence < low:
        return f"the lowest sequence of this publisher in the log is {low}"
    if bookmark.sequence > high:
        return f"the highest sequence of this publisher in the log is {high}"
    before, after = _neighbours(reader, bookmark)
    return f"a gap: the publisher went from sequence {before} to {after}"


def _publisher_bounds(view: LogView, publisher: int) -> tuple[int | None, int | None]:
    bounds = [b for s in view.segments if (b := s.index.publisher_bounds(publisher)) is not None]
    return (min(low for low, _ in bounds), max(high for _, high in bounds)) if bounds else (None, None)


def _neighbours(reader: SnapshotReader, bookmark: Bookmark) -> tuple[int, int]:
    """Return the publisher's sequences before and after a missing one."""
    before, after = 0, 2**64 - 1
    for segment in reader.view.segments:
        bounds = segment.index.publisher_bounds(bookmark.publisher)
        if bounds is None:
            continue
        if bounds[1] < bookmark.sequence:
            before = max(before, bounds[1])
            continue
        if bounds[0] > bookmark.sequence:
            after = min(after, bounds[0])
            continue
        for part in reader.parts(segment.first_position, segment.end_position):
            mine = part.batch.sequences[part.batch.publishers == np.uint64(bookmark.publisher)]
            below, above = mine[mine < bookmark.sequence], mine[mine > bookmark.sequence]
            if len(below):
                before = max(before, int(below.max()))
            if len(above):
                after = min(after, int(above.min()))
    return before, after
