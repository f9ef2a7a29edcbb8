"""Crash recovery: surveys the files of a journal, decides an action for each, and performs it.

`decide` is pure and implements the table of docs/formats/journal.md.

Invariants:
- Recovery deletes nothing. Retention finishes the removals that it recorded.
- Files and bytes that are not part of the log are renamed or copied into `quarantine/`. A torn tail is cut
  only after its copy is durable.
- Damage to durable data refuses the start and changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from enum import Enum
from hashlib import blake2b
from typing import Final, NamedTuple, NoReturn

from tickertape.base.errors import BadBatch, JournalVersion, WrongJournal
from tickertape.base.interfaces import Buffer, Disk
from tickertape.base.limits import MIB
from tickertape.base.names import derived_publisher_id
from tickertape.batch import MessageBatch, Stamp, merge
from tickertape.journal.commit.active_segment import ActiveSegment, LogEnd, make_seal
from tickertape.journal.format.commit_headers import CommitHeaders
from tickertape.journal.format.files import open_file, set_aside
from tickertape.journal.format.identity import read_identity
from tickertape.journal.format.log_end import (
    CLEAN_SHUTDOWN_FILE,
    LAST_SEGMENT_FILE,
    CleanShutdown,
    read_clean_shutdown,
    read_last_segment,
)
from tickertape.journal.format.retired_state import RETIRED_FILE, RetiredState, read_retired
from tickertape.journal.format.segment import (
    AGAIN,
    FLAG_CONTINUES,
    JOURNAL_DIRECTORY,
    QUARANTINE_DIRECTORY,
    CommitHeader,
    SegmentHeader,
    segment_path,
)
from tickertape.journal.format.staging_file import STAGING_DIRECTORY, StagedFileDamaged, prepared_parts
from tickertape.journal.index.rebuild import IndexRebuild
from tickertape.journal.index.segment_index import SegmentIndex
from tickertape.journal.limits import segment_header_bytes
from tickertape.journal.reading.log_view import SealedSegment
from tickertape.journal.recovery.segment_scan import Ending, ScannedCommit, SegmentScan, Verdict
from tickertape.journal.recovery.survey import (
    PublisherFold,
    SegmentHead,
    SegmentSurvey,
    is_blank,
    leftovers,
    refuse,
    survey_segments,
)


class RecoveryAction(Enum):
    """Recovery action for one segment file."""

    USE = "sealed: use it"
    FINISH = "unsealed last segment: judge its end, cut a torn tail, seal it"
    ADOPT = "blank: reserved but never used, it becomes the next segment"
    ASIDE = "interrupted creation: move it to quarantine"


class RecoveredJournal(NamedTuple):
    """An opened journal."""

    segments: list[SealedSegment]
    end: LogEnd
    publishers: dict[int, int]
    """Highest sequence of each publisher."""
    report: list[str]
    """One line for each deviation from a clean stop."""
    unknown: list[str]
    """Unknown names in the journal directory. They are ignored."""
    retired: RetiredState | None = None
    """Facts about the segments removed by retention."""
    leftovers: tuple[int, ...] = ()
    """Segments whose recorded removal did not finish. They are no longer part of the log."""
    reserved_bytes: int = 0
    """Size of the reserved file of an earlier run, which becomes the next segment. 0 without one."""


# -- decide -------------------------------------------------------------------------------------------


def _foreign(file: SegmentSurvey) -> str:
    if file.header is not None and file.header.number != file.number:
        return f"its header has segment number {file.header.number}"
    return "it belongs to another journal"


def decide(
    files: list[SegmentSurvey], retired: RetiredState | None = None
) -> list[tuple[SegmentSurvey, RecoveryAction]]:
    """Decide the action for each file after the `retired` ones. Pure. Raises the error that refuses the
    start."""
    actions: list[tuple[SegmentSurvey, RecoveryAction]] = []
    first = 1 if retired is None else retired.through + 1
    if retired is not None and not any(
        file.head is SegmentHead.VALID and file.number == first for file in files
    ):
        refuse(
            segment_path(first), 0, f"the log begins with it according to {RETIRED_FILE}, but it is missing"
        )
    previous: SegmentSurvey | None = None
    for at, file in enumerate(files):
        later = files[at + 1 :]
        path = segment_path(file.number)
        if file.head is SegmentHead.NEWER:
            raise JournalVersion(
                f"Cannot open segment {path!r}: it has a newer format. Use a newer version of Tickertape. "
                "Nothing was changed."
            )
        if file.head is SegmentHead.FOREIGN:
            raise WrongJournal(
                f"Cannot open segment {path!r}: {_foreign(file)}. Move the file out of the data directory. "
                "Nothing was changed."
            )
        expected = files[at - 1].number + 1 if at else first
        if file.number != expected:
            refuse(path, 0, f"segment {expected} is missing")
        if file.head is SegmentHead.VALID:
            _check_link(previous, file, path)
            if previous is None and retired is not None:
                check_retired_link(file.header, retired)
            sealed = file.seal is not None
            if not sealed and any(f.head is SegmentHead.VALID for f in later):
                _refuse_unsealed(path, file, next(f for f in later if f.head is SegmentHead.VALID))
            actions.append((file, RecoveryAction.USE if sealed else RecoveryAction.FINISH))
            previous = file
        elif (
            any(f.head in (SegmentHead.VALID, SegmentHead.LOST) for f in later)
            or file.head is SegmentHead.LOST
        ):
            refuse(path, 0, f"{file.head.value} in the middle of the log")
        elif later:
            what = f"{file.head.value}, but it was in use: segment {later[0].number} was reserved after it"
            _refuse_lost(path, 0, what, "this file and the ones after it")
        else:
            actions.append(
                (file, RecoveryAction.ADOPT if file.head is SegmentHead.BLANK else RecoveryAction.ASIDE)
            )
    return actions


def _refuse_unsealed(path: str, file: SegmentSurvey, later: SegmentSurvey) -> NoReturn:
    """Refuse an unsealed segment that has a later segment."""
    assert later.header is not None
    what = "it does not end with a valid seal although a later segment exists"
    sealed = later.header.previous_end if later.number == file.number + 1 else file.size
    if file.size > sealed:
        refuse(path, sealed, f"{what}: {file.size - sealed} bytes follow its recorded end")
    if file.size < sealed:
        refuse(path, file.size, f"{what}: its last {sealed - file.size} bytes are missing")
    refuse(path, file.size, what)


def _check_link(previous: SegmentSurvey | None, file: SegmentSurvey, path: str) -> None:
    """Check that a segment follows the seal that its header names."""
    assert file.header is not None
    if previous is None or previous.seal is None or previous.header is None:
        return
    seal = previous.seal
    if (file.header.previous_chain, file.header.previous_end) != (seal.crc, previous.size):
        refuse(path, 0, f"it does not follow the present segment {previous.number}")
    if (file.header.first_position, file.header.first_commit) != (seal.first_position, seal.number + 1):
        refuse(path, 0, f"its positions do not continue those of segment {previous.number}")


def check_retired_link(header: SegmentHeader | None, retired: RetiredState) -> None:
    """Check that the first remaining segment follows the seal recorded by retention."""
    assert header is not None
    follows = (header.previous_chain, header.previous_end, header.first_position, header.first_commit)
    if follows != retired.follows:
        path = segment_path(header.number)
        refuse(path, 0, f"it does not follow the removed segments recorded in {RETIRED_FILE}")


def check_clean_shutdown(
    actions: list[tuple[SegmentSurvey, RecoveryAction]], shutdown: CleanShutdown | None
) -> None:
    """Refuse a log that ends before the seal of the last clean stop. Pure.

    If the last segment has no seal at its end, `_finish` checks it when it reads the segment."""
    if shutdown is None:
        return
    path = segment_path(shutdown.segment)
    used = {
        file.number: file for file, action in actions if action in (RecoveryAction.USE, RecoveryAction.FINISH)
    }
    last = used.get(shutdown.segment)
    if last is None and max(used, default=0) < shutdown.segment:
        _refuse_lost(path, 0, "a clean stop sealed it, but it is missing or empty")
    if last is not None and last.seal is not None and last.seal.number != shutdown.commit:
        _refuse_lost(path, last.seal.offset, f"its seal is not commit {shutdown.commit} of the clean stop")


def check_last_segment(actions: list[tuple[SegmentSurvey, RecoveryAction]], last_begun: int) -> None:
    """Refuse a log that ends before the newest segment on record, `last_begun` (0: none). Pure."""
    used = [file.number for file, action in actions if action in (RecoveryAction.USE, RecoveryAction.FINISH)]
    last = max(used, default=0)
    # A segment removed by retention does not matter: the remaining log starts after it.
    if last < last_begun:
        there = any(file.number == last + 1 for file, _ in actions)
        what = "reads as zeros or nonsense" if there else "is missing"
        _refuse_lost(segment_path(last + 1), 0, f"segment {last_begun} was in use, but this one {what}")


def _refuse_lost(path: str, offset: int, what: str, remove: str = "") -> NoReturn:
    also = f", {remove}" if remove else ""
    refuse(
        path,
        offset,
        f"{what}. To continue without the lost data, remove {CLEAN_SHUTDOWN_FILE}, {LAST_SEGMENT_FILE}{also}",
    )


# -- do -----------------------------------------------------------------------------------------------


def recover_journal(disk: Disk, journal_id: bytes) -> RecoveredJournal:
    """Open the journal on `disk`. Raises `JournalCorrupt`, `JournalVersion`, `WrongJournal` or `OSError`."""
    fold = PublisherFold()
    retired = read_retired(disk, journal_id)
    files, unknown = survey_segments(disk, journal_id, fold, retired)
    actions = decide(files, retired)
    report: list[str] = []
    if retired is not None:
        fold.count(retired.highest.as_dict())
    left = leftovers(disk, retired)
    if left:
        report.append(f"segments {left[0]} to {left[-1]}: retired by an earlier run, removal pending")
    shutdown = _clean_shutdown(disk, report)
    check_clean_shutdown(actions, shutdown)
    check_last_segment(actions, _last_segment(disk, journal_id, report))
    unknown = _restore_reserve(disk, files, retired, unknown)
    _make_durable(disk, actions, retired)
    segments: list[SealedSegment] = []
    used = [file for file, action in actions if action in (RecoveryAction.USE, RecoveryAction.FINISH)]
    last_number = used[-1].number if used else 0
    reserved = [
        file.size
        for file, action in actions
        if action is RecoveryAction.ADOPT and file.number == last_number + 1
    ]
    for file, action in actions:
        if action is RecoveryAction.ASIDE:
            set_aside(disk, segment_path(file.number), f"{file.number:010d}", ".segment")
            disk.sync_directory(JOURNAL_DIRECTORY)
            report.append(f"segment {file.number}: interrupted creation, moved to {QUARANTINE_DIRECTORY}/")
        elif action is RecoveryAction.FINISH:
            log_time = segments[-1].seal.timestamp if segments else 0
            sealed = shutdown is not None and shutdown.segment == file.number
            segments.append(_finish(disk, file, log_time, fold, report, sealed=sealed))
        elif action is RecoveryAction.USE:
            segments.append(read_sealed(disk, file, fold))
            if file.number == last_number:
                _write_back(disk, file.number, segments[-1].data_end, file.size)
    end = LogEnd(journal_id, 1, last_number, 0, 0, 0, 1, 0)
    if segments:
        last = segments[-1]
        end = LogEnd(
            journal_id=journal_id,
            epoch=last.header.epoch + 1,
            segment=last.number,
            chain=last.seal.crc,
            used=last.end,
            position=last.end_position,
            commit=last.seal.number + 1,
            timestamp=last.seal.timestamp,
        )
    return RecoveredJournal(segments, end, fold.publishers, report, unknown, retired, left, sum(reserved))


def _clean_shutdown(disk: Disk, report: list[str]) -> CleanShutdown | None:
    try:
        return read_clean_shutdown(disk)
    except ValueError as error:
        report.append(f"{error}. A loss of the end of the log cannot be detected.")
        return None


def _last_segment(disk: Disk, journal_id: bytes, report: list[str]) -> int:
    try:
        return read_last_segment(disk, journal_id)
    except ValueError as error:
        report.append(f"{error}. A loss of the last segment cannot be detected.")
        return 0


def _restore_reserve(
    disk: Disk, files: list[SegmentSurvey], retired: RetiredState | None, unknown: list[str]
) -> list[str]:
    """Restore the name of the reserved file if a crash hit between two renames (see `commit/jobs.py`).

    Return the names that remain unknown."""
    number = (files[-1].number if files else 0 if retired is None else retired.through) + 1
    path = segment_path(number) + AGAIN
    if path.rpartition("/")[2] not in unknown or not is_blank(disk, path):
        return unknown
    disk.rename(path, segment_path(number))
    return [name for name in unknown if name != path.rpartition("/")[2]]


def _make_durable(
    disk: Disk, actions: list[tuple[SegmentSurvey, RecoveryAction]], retired: RetiredState | None
) -> None:
    """Sync the files in use: after a killed process they may be in the page cache only."""
    paths = [
        segment_path(file.number)
        for file, action in actions
        if action in (RecoveryAction.USE, RecoveryAction.FINISH)
    ]
    if retired is not None:
        paths.append(RETIRED_FILE)
    for path in paths:
        with open_file(disk, path, write=True) as handle:
            disk.sync(handle)
    disk.sync_directory(JOURNAL_DIRECTORY)
    disk.sync_directory(".")


def read_sealed(disk: Disk, file: SegmentSurvey, fold: PublisherFold) -> SealedSegment:
    """Return a sealed segment as part of the log. Writes nothing. Raises `JournalCorrupt`."""
    assert file.header is not None
    assert file.seal is not None
    index = file.blocks
    if index is None or not file.counted:
        contents = read_contents(disk, file)
        if contents.ending.verdict is not Verdict.SEALED:
            what = contents.ending.detail or "a sealed segment cannot be read completely"
            refuse(segment_path(file.number), contents.ending.end, what)
        if index is None:
            index = contents.blocks
            fold.add(index)
        fold.count(contents.highest)
    seal = file.seal
    return SealedSegment(file.number, file.header, file.size, seal.offset, seal.first_position, seal, index)


class SegmentContents(NamedTuple):
    """Result of reading a whole segment."""

    blocks: SegmentIndex
    ending: Ending
    highest: dict[int, int]
    """Highest sequence of each publisher."""
    unproven: int
    """Offset of the first commit that no later commit proves durable."""
    chain: CommitHeader | None
    """The first commit of an unfinished chain."""


def read_contents(disk: Disk, file: SegmentSurvey, until: int | None = None) -> SegmentContents:
    """Read every commit of a segment, or those before `until`. Raises `JournalCorrupt` for an invalid
    batch."""
    assert file.header is not None
    with open_file(disk, segment_path(file.number)) as handle:
        scan = SegmentScan(lambda o, n: disk.read(handle, o, n), file.size, file.header, file.chain)
        rebuild = IndexRebuild(file.header.first_commit)
        at = segment_header_bytes
        chain: CommitHeader | None = None
        try:
            for found in scan.stretches(until):
                if isinstance(found, CommitHeaders):
                    rebuild.take_many(found)
                    at, chain = found.last().end, found.chain(chain)
                else:
                    rebuild.take(*found)
                    at = found.header.end
                    chain = (chain or found.header) if found.header.flags & FLAG_CONTINUES else None
        except BadBatch as error:
            refuse(segment_path(file.number), at, f"a commit after this offset: {error}")
        assert scan.ending is not None
        unproven = rebuild.unproven(scan.ending.end)
        return SegmentContents(rebuild.index, scan.ending, rebuild.highest, unproven, chain)


def read_unsealed(disk: Disk, file: SegmentSurvey) -> tuple[SegmentContents, IncompleteTransaction | None]:
    """Read an unsealed segment. Return its contents without an unfinished chain, and that chain.

    Raises `JournalCorrupt` for an invalid batch."""
    contents = read_contents(disk, file)
    chain, ending = contents.chain, contents.ending
    if chain is None or ending.verdict not in (Verdict.CLEAN, Verdict.TORN):
        return contents, None
    unfinished = IncompleteTransaction(chain, ending.end, max(ending.end, ending.tail_end))
    return read_contents(disk, file, until=chain.offset), unfinished


def _finish(
    disk: Disk, file: SegmentSurvey, log_time: int, fold: PublisherFold, report: list[str], *, sealed: bool
) -> SealedSegment:
    """Recover the segment that was active when the last run ended without a clean stop.

    Args:
        disk: The data directory.
        file: The segment.
        log_time: Log time before the segment, microseconds.
        fold: Collects the highest sequences.
        report: Collects report lines.
        sealed: A clean stop is known to have sealed the segment, so its seal must exist."""
    header = file.header
    assert header is not None
    (index, ending, highest, unproven, _), unfinished = read_unsealed(disk, file)
    if ending.verdict is Verdict.CORRUPT:
        refuse(segment_path(file.number), ending.end, ending.detail)
    if sealed and ending.verdict is not Verdict.SEALED:
        _refuse_lost(segment_path(file.number), ending.end, "a clean stop sealed it, but the seal is missing")
    fold.count(highest)
    _write_back(disk, file.number, unproven, ending.end)
    buffers: list[Buffer] = []
    with open_file(disk, segment_path(file.number), write=True) as handle:
        if ending.verdict is Verdict.SEALED:
            assert ending.last is not None
            seal = ending.last
            if ending.tail_end > ending.end:
                _copy_tail(disk, handle, file, ending.end, ending.tail_end, ending.tail_end)
                report.append(
                    f"segment {file.number}: {ending.tail_end - ending.end} bytes after its seal, moved to "
                    f"{QUARANTINE_DIRECTORY}/"
                )
        else:
            buffers, seal = _make_seal(file, index, ending, log_time)
        if unfinished is not None:
            _set_unfinished_aside(disk, handle, file, unfinished, seal.end, report)
        elif ending.verdict is Verdict.TORN:
            _copy_tail(disk, handle, file, ending.end, ending.tail_end, seal.end)
            report.append(
                f"segment {file.number}: {ending.tail_end - ending.end} bytes of an unfinished write at "
                f"{ending.end}, not proven to have been acknowledged, moved to {QUARANTINE_DIRECTORY}/"
            )
        elif ending.verdict is Verdict.CLEAN:
            report.append(
                f"segment {file.number}: no clean stop. All data up to offset {ending.end} is intact."
            )
        if buffers:
            # Write into reserved bytes, then cut: a full disk must not prevent opening a journal.
            disk.write(handle, seal.offset, buffers)
        disk.truncate(handle, seal.end)
        disk.sync(handle)
        return SealedSegment(file.number, header, seal.end, seal.offset, seal.first_position, seal, index)


def _make_seal(
    file: SegmentSurvey, index: SegmentIndex, ending: Ending, log_time: int
) -> tuple[list[Buffer], CommitHeader]:
    header, last = file.header, ending.last
    assert header is not None
    active = ActiveSegment(header, ending.chain, file.size, offset=ending.end, index=index)
    number = last.number + 1 if last else header.first_commit
    position = last.first_position + last.messages if last else header.first_position
    timestamp = last.timestamp if last else log_time
    end = LogEnd(header.journal_id, header.epoch, header.number, 0, 0, position, number, timestamp)
    return make_seal(active, number, position, number - 1, end)


def _write_back(disk: Disk, number: int, start: int, end: int) -> None:
    """Rewrite and sync the header of the last segment and the commits that no later commit proves durable.

    After a failed sync, the page cache may hold clean-looking bytes that never reached the disk. A new
    process reads them, and no sync writes them. Only rewriting them does."""
    with open_file(disk, segment_path(number), write=True) as handle:
        disk.write(handle, 0, [disk.read(handle, 0, segment_header_bytes)])
        for offset in range(start, end, 4 * MIB):
            disk.write(handle, offset, [disk.read(handle, offset, min(4 * MIB, end - offset))])
        disk.sync(handle)


def _set_unfinished_aside(
    disk: Disk,
    handle: int,
    file: SegmentSurvey,
    chain: IncompleteTransaction,
    seal_end: int,
    report: list[str],
) -> None:
    """Copy the bytes of an unfinished transaction to quarantine, unless they are still staged."""
    assert file.header is not None
    offset = chain.first.offset
    scan = SegmentScan(
        lambda o, n: disk.read(handle, o, n), chain.end, file.header, file.chain, start=chain.first
    )
    staged = is_staged(disk, file.header.journal_id, scan.commits())
    begin = chain.end if staged else offset
    what = f"segment {file.number}: the transaction at offset {offset} has no end and was cut off"
    if staged:
        what += f". Its messages are still in {STAGING_DIRECTORY}/"
    if chain.tail_end > begin:
        _copy_tail(disk, handle, file, begin, chain.tail_end, seal_end)
        size = chain.tail_end - begin
        what += f". {size} bytes at offset {begin} were moved to {QUARANTINE_DIRECTORY}/"
    report.append(what)


def _copy_tail(disk: Disk, handle: int, file: SegmentSurvey, begin: int, end: int, seal_end: int) -> None:
    """Copy bytes that are not part of the log from a segment to quarantine, and cut the zeros after them.

    A copy under its final name is complete and durable. If it exists already, an earlier recovery was
    interrupted after writing it, and the bytes in the segment are mixed with its seal."""
    # Cut the zeros first: the copy then needs no more disk space than they held. The seal needs its own
    # space.
    if max(end, seal_end) < file.size:
        disk.truncate(handle, max(end, seal_end))
    disk.make_directory(QUARANTINE_DIRECTORY)
    disk.sync_directory(".")
    names = disk.names(QUARANTINE_DIRECTORY)
    name = f"{file.number:010d}-{begin}.tail"
    if name in names:
        disk.sync_directory(QUARANTINE_DIRECTORY)
        return
    path = f"{QUARANTINE_DIRECTORY}/{name}"
    copy = disk.open(f"{path}.new", create=f"{name}.new" not in names)
    try:
        disk.truncate(copy, 0)
        for start in range(begin, end, 4 * MIB):
            data = disk.read(handle, start, min(4 * MIB, end - start))
            disk.write(copy, start - begin, [data])
        disk.sync(copy)
    finally:
        disk.close(copy)
    disk.rename(f"{path}.new", path)
    disk.sync_directory(QUARANTINE_DIRECTORY)


# -- unfinished transactions ----------------------------------------------------------------------


_NO_STAMP: Final = Stamp(1, 1, 0)


class IncompleteTransaction(NamedTuple):
    """The commits of a chain without an end."""

    first: CommitHeader
    end: int
    """Offset after the last valid commit."""
    tail_end: int
    """Offset after the last nonzero byte that follows them. `end` without one."""


def is_staged(disk: Disk, journal_id: bytes, chain: Iterable[ScannedCommit]) -> bool:
    """Return whether prepared parts hold the messages of all these commits.

    Raises `OSError` if the directory cannot be read."""
    missing: set[bytes] = set()
    publishers: set[int] = set()
    for commit in chain:
        missing.add(_digest(commit.body))
        publishers.update(MessageBatch.parse(commit.body).runs["publisher"].tolist())
    instance = read_identity(disk).instance
    for label, blocks in prepared_parts(disk, journal_id):
        if instance is not None and derived_publisher_id(label.publisher, instance) not in publishers:
            continue
        with contextlib.suppress(StagedFileDamaged, BadBatch, OSError):  # this part cannot be committed
            missing -= {_digest(block) for block in blocks}
        if not missing:
            return True
    return False


def _digest(encoded: Buffer) -> bytes:
    """Return a digest that is equal for a staged batch and its commit, which differ only in the stamp."""
    batch = merge((MessageBatch.parse(encoded),), (_NO_STAMP,))
    digest = blake2b(digest_size=16)
    for buffer in batch.buffers():
        digest.update(buffer)
    return digest.digest()
