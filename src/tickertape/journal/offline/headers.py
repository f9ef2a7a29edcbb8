"""Owns walking the commit headers of a whole directory, for people who want to see them.

Must never read a body, or stop at the end of a segment that is being written as if that were damage.
"""

from __future__ import annotations

from collections.abc import Iterator

from tickertape.base.errors import JournalCorrupt, NotAJournal
from tickertape.base.interfaces import Disk
from tickertape.base.limits import commit_header_bytes, segment_header_bytes
from tickertape.journal.format.identity import IDENTITY_FILE, read_identity
from tickertape.journal.format.segment import CommitHeader, CommitKind, decode_commit, segment_path
from tickertape.journal.recovery.survey import SegmentHead, SegmentSurvey, survey_segments


def commit_headers(disk: Disk) -> Iterator[tuple[str, CommitHeader]]:
    """File and header of every commit that follows from the one before, in order.

    Raises `NotAJournal`, `JournalCorrupt` (a sealed segment in which the headers break off), `OSError`."""
    if IDENTITY_FILE not in disk.names("."):
        raise NotAJournal(f"no {IDENTITY_FILE} in {disk.where}: this is not the data directory of a journal")
    seen, _ = survey_segments(disk, read_identity(disk).journal_id)
    for file in seen:
        if file.head is SegmentHead.VALID:
            yield from _of_segment(disk, file)


def _of_segment(disk: Disk, file: SegmentSurvey) -> Iterator[tuple[str, CommitHeader]]:
    path = segment_path(file.number)
    assert file.header is not None
    handle = disk.open(path, write=False)
    try:
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
            raise JournalCorrupt(
                f"{path} at {offset}: no valid commit header; `tickertape journal verify` shows the extent",
                file=path,
                offset=offset,
            )
    finally:
        disk.close(handle)
