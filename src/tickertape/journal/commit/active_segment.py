"""Active segment: offset, index and free space of the segment being written, and its seal.

Invariant: commits leave space for a mark and the seal, so neither can meet a full disk.
"""

from __future__ import annotations

from typing import NamedTuple

from tickertape.base.checksum import crc32c
from tickertape.base.interfaces import Buffer
from tickertape.batch import MessageBatch
from tickertape.journal.format.segment import (
    CommitHeader,
    CommitKind,
    Footer,
    SegmentHeader,
    encode_commit,
    encode_footer,
    footer_bytes,
)
from tickertape.journal.index.segment_index import SegmentIndex
from tickertape.journal.limits import commit_header_bytes, segment_header_bytes


class LogEnd(NamedTuple):
    """End of the log when a run starts."""

    journal_id: bytes
    epoch: int
    segment: int
    """Number of the last segment, or 0 without one."""
    chain: int
    used: int
    position: int
    """Position of the next message."""
    commit: int
    """Number of the next commit."""
    timestamp: int
    """Log time, microseconds."""


class ActiveSegment:
    """The segment that is being written."""

    def __init__(
        self,
        header: SegmentHeader,
        chain: int,
        capacity: int,
        *,
        offset: int = segment_header_bytes,
        index: SegmentIndex | None = None,
    ) -> None:
        self.header = header
        self.chain = chain
        self.capacity = capacity
        self.half = capacity // 2
        """Above this offset the next segment is prepared."""
        self.offset = offset
        self.index = SegmentIndex() if index is None else index
        self._reserved = _reserve_bytes(self.index)
        self.room = capacity - offset - self._reserved
        """Free bytes for commits, without the space reserved for a mark and the seal."""

    def add(self, end: int, first_position: int, time_before: int, batch: MessageBatch) -> None:
        """Add a commit of `batch`, written from `offset` to `end`, to the index."""
        if self.index.add(self.offset, end, first_position, time_before, batch):
            self._reserved = _reserve_bytes(self.index)
            self.room = self.capacity - self.offset - self._reserved

    def advance(self, end: int, chain: int) -> None:
        """Record that a commit with the checksum `chain` is written up to `end`."""
        self.offset, self.chain = end, chain
        self.room = self.capacity - end - self._reserved


def _reserve_bytes(index: SegmentIndex) -> int:
    """Return the most space that a mark and the seal take."""
    return 2 * commit_header_bytes + index.encoded_bytes_max + footer_bytes + 8


def commit_bytes_of(batch: MessageBatch) -> int:
    """Return the most space that a commit of `batch` takes in a segment, including its part of the seal."""
    return commit_header_bytes + batch.nbytes + SegmentIndex.growth_bytes_max(batch)


def segment_bytes_of(room: int) -> int:
    """Return the size of the smallest segment whose commits may take `room` bytes."""
    return segment_header_bytes + _reserve_bytes(SegmentIndex()) + room


def make_seal(
    active: ActiveSegment, number: int, position: int, synced_through: int, log_end: LogEnd
) -> tuple[list[Buffer], CommitHeader]:
    """Return the seal commit of a segment. Its body is index, padding and footer."""
    index = active.index.encode()
    padding = bytes(-len(index) % 8)
    offset = active.offset
    end = offset + commit_header_bytes + len(index) + len(padding) + footer_bytes
    body = index + padding + encode_footer(Footer(offset, end, active.header.salt, len(index)))
    header = CommitHeader(
        kind=CommitKind.SEAL,
        flags=0,
        codec=0,
        salt=active.header.salt,
        offset=offset,
        number=number,
        first_position=position,
        messages=0,
        body_bytes=len(body),
        synced_through=synced_through,
        timestamp=log_end.timestamp,
        body_crc=crc32c(body),
        chain=active.chain,
        epoch=active.header.epoch,
    )
    encoded, crc = encode_commit(header)
    return [encoded, body], header._replace(crc=crc)
