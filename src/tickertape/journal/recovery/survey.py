"""Survey: state of the segment files of a directory before any recovery decision.

The survey writes nothing. It keeps at most `indexes_bytes_max` of indexes of sealed segments in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple, NoReturn

from tickertape.base.interfaces import Disk
from tickertape.base.limits import KIB
from tickertape.journal.format.files import damaged_at, open_file
from tickertape.journal.format.retired_state import RetiredState
from tickertape.journal.format.segment import (
    COMMIT_MAGIC,
    JOURNAL_DIRECTORY,
    CommitHeader,
    FormatError,
    NewerFormat,
    SegmentHeader,
    decode_commit,
    decode_segment_header,
    segment_number,
    segment_path,
)
from tickertape.journal.index.index_cache import IndexCache
from tickertape.journal.index.segment_index import SegmentIndex
from tickertape.journal.limits import commit_header_bytes, segment_header_bytes
from tickertape.journal.recovery.segment_scan import ReadAt, ScannedCommit, read_seal

_SEARCH_BYTES = 256 * KIB
_COMMIT_MAGIC_BYTES = COMMIT_MAGIC.to_bytes(4, "little")


class SegmentHead(Enum):
    """State of the first sector of a segment file."""

    VALID = "valid header"
    BLANK = "the whole file is zeros"
    BROKEN = "no valid header and no commit"
    LOST = "no valid header, but commits"
    FOREIGN = "header of another journal"
    NEWER = "header of a newer format"


class SegmentSurvey(NamedTuple):
    """State of one segment file."""

    number: int
    size: int
    head: SegmentHead
    header: SegmentHeader | None = None
    chain: int = 0
    """Checksum of the segment header."""
    seal: CommitHeader | None = None
    blocks: SegmentIndex | None = None
    """The index in its seal, as coarse as in memory. None if it was not requested or is unreadable."""
    counted: bool = False
    """Its index has the highest sequence of each publisher, and they were counted."""


class PublisherFold:
    """Collects highest sequences of publishers, and indexes, during a survey."""

    def __init__(self) -> None:
        self.sealed = IndexCache()
        self.publishers: dict[int, int] = {}
        """Highest sequence of each publisher: exact, however coarse the indexes become."""

    def add(self, index: SegmentIndex) -> bool:
        """Add the next index. False if it lacks the highest sequences."""
        highest = index.highest_sequences()
        if highest is not None:
            self.count(highest)
        self.sealed.add(index)
        self.sealed.fit()
        return highest is not None

    def count(self, highest: Mapping[int, int]) -> None:
        """Add the highest sequences of one segment."""
        for publisher, sequence in highest.items():
            if sequence > self.publishers.get(publisher, 0):
                self.publishers[publisher] = sequence


def survey_segments(
    disk: Disk, journal_id: bytes, fold: PublisherFold | None = None, retired: RetiredState | None = None
) -> tuple[list[SegmentSurvey], list[str]]:
    """Survey all segment files in order, except `retired` ones. Return them, and the names of other files.

    The indexes of sealed segments are added to `fold`, if given."""
    unknown = []
    try:
        names = disk.names(JOURNAL_DIRECTORY)
    except FileNotFoundError:
        refuse(JOURNAL_DIRECTORY, 0, "the directory is missing, although the identity file exists")
    numbers = []
    for name in names:
        number = segment_number(name)
        if number is None:
            unknown.append(name)
        elif retired is None or number > retired.through:
            numbers.append(number)
    return [_survey(disk, number, journal_id, fold) for number in sorted(numbers)], unknown


def leftovers(disk: Disk, retired: RetiredState | None) -> tuple[int, ...]:
    """Return the numbers of segment files whose recorded removal did not finish."""
    if retired is None:
        return ()
    numbers = map(segment_number, disk.names(JOURNAL_DIRECTORY))
    return tuple(sorted(number for number in numbers if number is not None and number <= retired.through))


def read_index(disk: Disk, file: SegmentSurvey) -> SegmentIndex | None:
    """Return the complete index in the seal of a segment. None if it is missing or unreadable."""
    if file.header is None or file.seal is None:
        return None
    with open_file(disk, segment_path(file.number)) as handle:
        seal = read_seal(lambda o, n: disk.read(handle, o, n), file.size, file.header)
        return None if seal is None else _decoded(seal)


def _decoded(seal: ScannedCommit) -> SegmentIndex | None:
    try:
        return SegmentIndex.decode(seal.body, seal.header.offset)
    except ValueError:
        # The body matched its checksum, so this is a bug or a newer index format: rebuild the index from
        # commits.
        return None


def _survey(disk: Disk, number: int, journal_id: bytes, fold: PublisherFold | None) -> SegmentSurvey:
    with open_file(disk, segment_path(number)) as handle:
        size = disk.size(handle)

        def read(offset: int, count: int) -> bytes:
            return disk.read(handle, offset, count)

        try:
            header, chain = decode_segment_header(read(0, segment_header_bytes))
        except NewerFormat:
            return SegmentSurvey(number, size, SegmentHead.NEWER)
        except FormatError:
            return SegmentSurvey(number, size, _without_header(read, size))
        if header.journal_id != journal_id or header.number != number:
            return SegmentSurvey(number, size, SegmentHead.FOREIGN, header, chain)
        seal = read_seal(read, size, header)
        if seal is None:
            return SegmentSurvey(number, size, SegmentHead.VALID, header, chain)
        index = _decoded(seal) if fold is not None else None
        counted = fold is not None and index is not None and fold.add(index)
        return SegmentSurvey(number, size, SegmentHead.VALID, header, chain, seal.header, index, counted)


def is_blank(disk: Disk, path: str) -> bool:
    """Return whether a file is empty or contains only zeros."""
    with open_file(disk, path) as handle:
        return _without_header(lambda o, n: disk.read(handle, o, n), disk.size(handle)) is SegmentHead.BLANK


def _without_header(read: ReadAt, size: int) -> SegmentHead:
    blank = True
    zeros = bytes(_SEARCH_BYTES + commit_header_bytes)
    for start in range(0, size, _SEARCH_BYTES):
        data = read(start, len(zeros))
        if data == zeros or not data.strip(b"\x00"):
            continue
        blank = False
        at = data.find(_COMMIT_MAGIC_BYTES)
        while at >= 0:
            commit = decode_commit(data, at)
            if commit is not None and commit.offset == start + at:
                return SegmentHead.LOST
            at = data.find(_COMMIT_MAGIC_BYTES, at + 1)
    return SegmentHead.BLANK if blank else SegmentHead.BROKEN


def refuse(path: str, offset: int, what: str) -> NoReturn:
    """Raise the error that refuses the server start."""
    raise damaged_at(
        path,
        offset,
        f"{what}. The start is refused and nothing was changed",
        "Run `tickertape journal verify` to see the extent, then restore the file from a copy.",
    )
