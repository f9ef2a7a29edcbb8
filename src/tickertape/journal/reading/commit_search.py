"""Commit search: finds the header of the commit that ends at a position of the log."""

from __future__ import annotations

from collections.abc import Generator

from tickertape.base.interfaces import Buffer
from tickertape.journal.format.segment import CommitHeader, CommitKind, decode_commit
from tickertape.journal.limits import commit_header_bytes, read_bytes_target
from tickertape.journal.reading.log_view import LogView, ReadRequest, corrupt, header_problem

CommitSearch = Generator[ReadRequest, Buffer, CommitHeader | None]


def find_commit(view: LogView, end: int) -> CommitSearch:
    """Return the header of the commit of messages that ends at the position `end`.

    None if no commit of the log ends there. Bodies are not checked. Raises `JournalCorrupt` for a damaged
    header."""
    segment = view.segment_of(end - 1) if view.first_position < end <= view.end_position else None
    if segment is None:
        return None
    index = segment.index
    offset, stop = index.block_bounds(index.block_of_position(end - 1))
    stop = min(stop, segment.end)
    while offset < stop:
        size = min(max(read_bytes_target, commit_header_bytes), stop - offset)
        data = memoryview((yield ReadRequest(segment.number, offset, size)))
        at = 0
        while at + commit_header_bytes <= len(data):
            header = decode_commit(data, at)
            problem = header_problem(segment, offset + at, header)
            if header is None or problem is not None:
                raise corrupt(segment, offset + at, problem or "no valid commit header")
            after = header.first_position + header.messages
            if after >= end and header.kind is CommitKind.DATA:
                return header if after == end else None
            at = header.end - offset
        if not at:
            raise corrupt(segment, offset, "the file ends before the persisted end")
        offset += at
    return None
