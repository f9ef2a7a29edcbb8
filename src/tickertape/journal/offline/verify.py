"""Verify: surveys (`survey`) and checks (`verify`) the files of a journal without opening it.

Nothing is written or locked, and a running server may commit, seal and start segments meanwhile. Damage is
therefore read again, and counts only if it persists.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container
from typing import Final

from tickertape.base.errors import JournalError, WrongJournal
from tickertape.base.interfaces import Disk
from tickertape.journal.format.identity import CREATED_NAMES, IDENTITY_FILE, no_journal, read_identity
from tickertape.journal.format.log_end import (
    CLEAN_SHUTDOWN_FILE,
    LAST_SEGMENT_FILE,
    CleanShutdown,
    read_clean_shutdown,
    read_last_segment,
)
from tickertape.journal.format.queue_checkpoint import QUEUES_FILE
from tickertape.journal.format.retired_state import RETIRED_FILE, RetiredState, read_retired
from tickertape.journal.format.segment import (
    JOURNAL_DIRECTORY,
    QUARANTINE_DIRECTORY,
    SOW_DIRECTORY,
    SPILL_DIRECTORY,
    FormatError,
    decode_segment_header,
    segment_number,
    segment_path,
)
from tickertape.journal.format.staging_file import STAGING_DIRECTORY
from tickertape.journal.limits import segment_header_bytes
from tickertape.journal.offline.report import RetiredSummary, SegmentSummary, VerifyFinding, VerifyReport
from tickertape.journal.offline.segment_check import Progress, SegmentChecker, opened
from tickertape.journal.offline.state_check import check_states
from tickertape.journal.recovery.recovery import check_retired_link
from tickertape.journal.recovery.survey import SegmentHead, SegmentSurvey, leftovers, survey_segments

_REPLACED: Final = (LAST_SEGMENT_FILE, CLEAN_SHUTDOWN_FILE, RETIRED_FILE, QUEUES_FILE)
"""Files written under a temporary name and then renamed."""

DATA_NAMES: Final = CREATED_NAMES.union(
    _REPLACED,
    (f"{name}.new" for name in _REPLACED),
    (QUARANTINE_DIRECTORY, SOW_DIRECTORY, SPILL_DIRECTORY, STAGING_DIRECTORY),
)
"""All known names in a data directory, including `lost+found` of the file system."""


_LOOKS_MAX: Final = 5
"""Attempts to survey a directory while a server removes segments."""


def survey(disk: Disk, known: Container[str] = ()) -> VerifyReport:
    """Survey a journal: sealed segments by their seals, other segments by reading them.

    Names in `known` are not reported as foreign files. Raises `NotAJournal` without a journal, `OSError` if
    the disk cannot be read."""
    return _looked(disk, known, through=False, progress=_unseen)


def verify(disk: Disk, progress: Progress | None = None, known: Container[str] = ()) -> VerifyReport:
    """Read and check every commit of every segment.

    Names in `known` are not reported as foreign files. Raises `NotAJournal` without a journal, `OSError` if
    the disk cannot be read. Damage does not raise: it is in the report."""
    return _looked(disk, known, through=True, progress=progress or _unseen)


def _looked(disk: Disk, known: Container[str], *, through: bool, progress: Progress) -> VerifyReport:
    for _ in range(_LOOKS_MAX):
        with contextlib.suppress(FileNotFoundError):  # a server may remove segments meanwhile
            return _Verifier(disk, known, through=through, progress=progress).run()
    return _Verifier(disk, known, through=through, progress=progress).run()


def segment_bytes(disk: Disk) -> int:
    """Return the size of all segment files that `verify` reads."""
    if JOURNAL_DIRECTORY not in disk.names("."):
        return 0
    return sum(_size(disk, f"{JOURNAL_DIRECTORY}/{name}") for name in disk.names(JOURNAL_DIRECTORY))


class _Verifier:
    """One pass over a directory."""

    def __init__(self, disk: Disk, known: Container[str], *, through: bool, progress: Progress) -> None:
        self._disk = disk
        self._known = known
        self._through = through
        self._progress = progress
        self._report = VerifyReport()
        self._highest: dict[int, int] = {}
        self._raised: dict[int, int] | None = {}
        """Ends of holes that earlier segments opened. None after a segment that was not read."""
        self._retired: RetiredState | None = None

    def run(self) -> VerifyReport:
        names = self._disk.names(".")
        if IDENTITY_FILE not in names and JOURNAL_DIRECTORY not in names:
            neither = f"it has neither {IDENTITY_FILE} nor {JOURNAL_DIRECTORY}/"
            raise no_journal(self._disk, neither)
        for name in names:
            if name not in DATA_NAMES and name not in self._known:
                self._note(name, 0, "not a Tickertape file, ignored by the server")
        if QUARANTINE_DIRECTORY in names:
            for name in self._disk.names(QUARANTINE_DIRECTORY):
                path = f"{QUARANTINE_DIRECTORY}/{name}"
                self._note(path, 0, f"{_size(self._disk, path)} bytes quarantined by an earlier recovery")
        if JOURNAL_DIRECTORY in names:
            # Read the marker first: a server that stops meanwhile seals first, and then writes the marker.
            shutdown = self._clean_shutdown()
            journal_id = self._journal_id(names)
            begun = self._last_segment(journal_id)
            self._segments(journal_id)
            states = check_states(self._disk, journal_id, self._retired, through=self._through)
            self._report.damage.extend(states.damage)
            self._report.notes.extend(states.notes)
            self._check_clean_shutdown(shutdown)
            self._check_last_segment(begun)
        else:
            self._damage(JOURNAL_DIRECTORY, 0, "the directory is missing")
        self._report.damage[:] = sorted(set(self._report.damage))
        self._report.notes.sort()
        return self._report

    def _clean_shutdown(self) -> CleanShutdown | None:
        try:
            return read_clean_shutdown(self._disk)
        except ValueError as error:
            self._note(CLEAN_SHUTDOWN_FILE, 0, str(error))
            return None

    def _last_segment(self, journal_id: bytes) -> int:
        try:
            return read_last_segment(self._disk, journal_id)
        except ValueError as error:
            self._note(LAST_SEGMENT_FILE, 0, str(error))
            return 0

    def _check_last_segment(self, begun: int) -> None:
        """Check that the newest segment on record exists and is in use."""
        through = 0 if self._retired is None else self._retired.through
        there = [one.number for one in self._report.segments if one.state in ("sealed", "active")]
        path = segment_path(max(there, default=through) + 1)
        if max(there, default=through) < begun and all(found.file != path for found in self._report.damage):
            self._damage(path, 0, f"segment {begun} was in use, but is missing or blank")

    def _check_clean_shutdown(self, shutdown: CleanShutdown | None) -> None:
        """Check that the segment sealed by the last clean stop exists and is sealed."""
        if shutdown is None or (self._retired is not None and shutdown.segment <= self._retired.through):
            return
        found = {segment.number: segment for segment in self._report.segments}.get(shutdown.segment)
        if found is None or found.state != "sealed" or found.end_position != shutdown.position:
            what = f"a clean stop sealed it at position {shutdown.position}, but that seal is missing"
            self._damage(segment_path(shutdown.segment), found.used if found else 0, what)

    def _journal_id(self, names: list[str]) -> bytes:
        """Return the id that segments must carry, from the identity or from the first segment."""
        try:
            if IDENTITY_FILE in names:
                identity = read_identity(self._disk)
                self._report.journal = identity.journal
                return identity.journal_id
            self._damage(IDENTITY_FILE, 0, "missing")
        except JournalError as error:
            self._damage(IDENTITY_FILE, 0, str(error))
        for name in self._disk.names(JOURNAL_DIRECTORY):
            if segment_number(name) is not None:
                with (
                    opened(self._disk, f"{JOURNAL_DIRECTORY}/{name}") as file,
                    contextlib.suppress(FormatError),
                ):
                    return decode_segment_header(file.read(0, segment_header_bytes))[0].journal_id
        return bytes(16)

    def _segments(self, journal_id: bytes) -> None:
        retired = self._read_retired(journal_id)
        files, unknown = survey_segments(self._disk, journal_id, retired=retired)
        doubts: list[tuple[int, SegmentHead]] = []
        while doubts != (doubts := _doubts(files)):
            # a segment may have been started meanwhile
            files, unknown = survey_segments(self._disk, journal_id, retired=retired)
        self._note_retired(retired, self._read_retired(journal_id))
        self._check_first(files, retired)
        for name in unknown:
            self._note(f"{JOURNAL_DIRECTORY}/{name}", 0, "not a Tickertape file, ignored by the server")
        previous: SegmentChecker | None = None
        for at, file in enumerate(files):
            path = segment_path(file.number)
            if at and file.number != files[at - 1].number + 1:
                self._damage(path, 0, f"segment {files[at - 1].number + 1} before it is missing")
                previous = None
            begun_after = any(
                later.head in (SegmentHead.VALID, SegmentHead.LOST) for later in files[at + 1 :]
            )
            if file.head is SegmentHead.VALID:
                first = at == 0 and retired is None
                previous = self._valid(file, previous, first=first, begun_after=begun_after)
            else:
                self._without_header(file, path, begun=file is not files[-1])
                previous = None

    def _read_retired(self, journal_id: bytes) -> RetiredState | None:
        try:
            retired = read_retired(self._disk, journal_id)
        except (JournalError, WrongJournal) as error:
            self._damage(RETIRED_FILE, 0, str(error))
            return None
        return retired

    def _note_retired(self, retired: RetiredState | None, now: RetiredState | None) -> None:
        """Report removed segments. `now` is the record read after the survey of the segments."""
        if now is not None and (retired is None or now.through != retired.through):
            raise FileNotFoundError("segments were removed meanwhile")  # the caller then repeats the survey
        if retired is None:
            return
        left = len(leftovers(self._disk, retired))
        self._retired, self._highest = retired, retired.highest.as_dict()
        self._report.retired = RetiredSummary(
            through=retired.through,
            first_position=retired.first_position,
            bytes=retired.removed_bytes,
            publishers=len(retired.highest),
            last=retired.last_time,
            unfinished=left,
            text=str(retired),
        )
        still = f". {left} of the files still exist, the server removes them" if left else ""
        self._note(RETIRED_FILE, 0, f"{retired}{still}")

    def _check_first(self, files: list[SegmentSurvey], retired: RetiredState | None) -> None:
        """Check that the log starts where the removed segments end."""
        if retired is None:
            return
        first = files[0] if files else None
        if first is None or first.number != retired.through + 1 or first.header is None:
            what = f"segment {retired.through + 1}, the first of the log, is missing"
            self._damage(segment_path(retired.through + 1), 0, what)
            return
        try:
            check_retired_link(first.header, retired)
        except JournalError:
            self._damage(segment_path(first.number), 0, f"it does not follow the record in {RETIRED_FILE}")

    def _without_header(self, file: SegmentSurvey, path: str, *, begun: bool) -> None:
        reserved = file.head is SegmentHead.BLANK and not begun
        summary = SegmentSummary(
            number=file.number, file=path, state="reserved" if reserved else "unreadable", bytes=file.size
        )
        self._report.segments.append(summary)
        if file.head is SegmentHead.BROKEN and not begun:
            self._note(path, 0, "interrupted creation, the next start moves it to quarantine")
        elif not reserved:
            self._damage(path, 0, file.head.value)
        self._progress(file.size)

    def _valid(
        self, file: SegmentSurvey, previous: SegmentChecker | None, *, first: bool, begun_after: bool
    ) -> SegmentChecker:
        walk = SegmentChecker(self._disk, file, self._highest, self._raised, begun_after=begun_after)
        if self._through or file.seal is None or not walk.by_seal(file):
            walk.go(self._progress)
            found: list[VerifyFinding] = []
            while walk.damage and walk.damage != found:
                found = walk.damage
                walk = SegmentChecker(self._disk, file, self._highest, self._raised, begun_after=begun_after)
                walk.go(_unseen)
        self._highest.update(walk.highest)
        self._raised = walk.raised
        walk.check_link(previous, first=first)
        self._report.segments.append(walk.summary)
        self._report.damage.extend(walk.damage)
        self._report.notes.extend(walk.notes)
        return walk

    def _damage(self, file: str, offset: int, what: str) -> None:
        self._report.damage.append(VerifyFinding(file, offset, what))

    def _note(self, file: str, offset: int, what: str) -> None:
        self._report.notes.append(VerifyFinding(file, offset, what))


def _doubts(files: list[SegmentSurvey]) -> list[tuple[int, SegmentHead]]:
    """Return the files whose first sector is invalid, except a reserved one at the end."""
    last = files[-1].number if files else 0
    blank = [(last, SegmentHead.BLANK)]
    return [
        d for d in ((f.number, f.head) for f in files) if d[1] is not SegmentHead.VALID and d not in blank
    ]


def _size(disk: Disk, path: str) -> int:
    with opened(disk, path) as file:
        return file.size


def _unseen(more: int) -> None:
    """Ignore progress."""
