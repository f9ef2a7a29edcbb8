"""Segment scan: reads the commits of a segment and classifies the bytes after the last valid one.

Invariant: damage is never classified as a torn tail if a later commit proves that the damaged commit was
durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, NamedTuple

from tickertape.base.checksum import crc32c
from tickertape.base.limits import KIB, MIB
from tickertape.journal.format.commit_headers import CommitHeaders, ExpectedCommit, read_commit_headers
from tickertape.journal.format.segment import (
    CommitHeader,
    CommitKind,
    SegmentHeader,
    decode_commit,
    decode_footer,
    footer_bytes,
)
from tickertape.journal.limits import commit_header_bytes, segment_header_bytes

_WINDOW_BYTES: Final = 1 * MIB
_STRETCH_BYTES: Final = 4 * MIB
_SEARCH_BYTES: Final = 256 * KIB
"""Bytes searched at a time after the last valid commit, small enough for a processor's cache."""

ReadAt = Callable[[int, int], bytes]
"""Reads (offset, size) of one file. Returns fewer bytes only at its end."""


class Verdict(Enum):
    """Classification of the bytes after the last valid commit of a segment."""

    SEALED = "sealed"
    CLEAN = "zeros after the last valid commit"
    TORN = "an unfinished write after the last valid commit"
    CORRUPT = "damage below a commit that proves it was durable"
    UNFINISHED = "commits of a chain that has no end"


class ScannedCommit(NamedTuple):
    """A valid commit with its body."""

    header: CommitHeader
    body: memoryview


class Ending(NamedTuple):
    """The end of a segment."""

    verdict: Verdict
    end: int
    """Offset after the last valid commit. For CORRUPT the start of the damage, for UNFINISHED of the
    chain."""
    chain: int
    """Header checksum of the last valid commit, or of the segment header without one."""
    last: CommitHeader | None
    tail_end: int
    """Offset after the last nonzero byte. At most `end` if only zeros follow."""
    detail: str = ""


class SegmentScan:
    """Reads the commits of one segment in order. After `commits()` is exhausted, `ending` describes the end.

    With `start` the scan starts at that commit, as `verify` does after damage."""

    def __init__(
        self,
        read: ReadAt,
        size: int,
        header: SegmentHeader,
        header_crc: int,
        *,
        start: CommitHeader | None = None,
    ) -> None:
        self._read = read
        self._size = size
        self._header = header
        self._chain = header_crc if start is None else start.chain
        self._start = start
        self._window = memoryview(b"")
        self._window_start = 0
        self.ending: Ending | None = None

    def commits(self) -> Iterator[ScannedCommit]:
        """Yield valid commits in order."""
        start = self._start
        offset = segment_header_bytes if start is None else start.offset
        number = self._header.first_commit if start is None else start.number
        last: CommitHeader | None = None
        while True:
            commit = self._commit_at(offset, number)
            if commit is None:
                self.ending = self._judge(offset, number, last)
                return
            last = commit.header
            offset, number, self._chain = last.end, number + 1, last.crc
            yield commit
            if last.kind is CommitKind.SEAL:
                self.ending = self._judge_seal(last)
                return

    def stretches(self, until: int | None = None) -> Iterator[CommitHeaders | ScannedCommit]:
        """Yield the same commits as `commits` from the start, but many small commits at once.

        `until` is the offset of a chain without an end. Each byte is read at most twice, so the duration of a
        server start is proportional to the size of the segment."""
        offset, number = segment_header_bytes, self._header.first_commit
        last: CommitHeader | None = None
        while last is None or last.kind is not CommitKind.SEAL:
            if offset == until:
                self.ending = Ending(Verdict.UNFINISHED, offset, self._chain, last, offset)
                return
            size = _STRETCH_BYTES if until is None else min(_STRETCH_BYTES, until - offset)
            window = self._read(offset, size)
            heads = read_commit_headers(
                window, ExpectedCommit(self._header.salt, self._header.epoch, offset, number, self._chain)
            )
            found = heads or self._commit_at(offset, number)
            if found is None:
                self.ending = self._judge(offset, number, last)
                return
            last = found.header if isinstance(found, ScannedCommit) else found.last()
            offset, number, self._chain = last.end, last.number + 1, last.crc
            yield found
        self.ending = self._judge_seal(last)

    def next_header(self, after: int) -> CommitHeader | None:
        """Return the first header of this segment after the offset `after`."""
        salt = self._header.salt.to_bytes(8, "little")
        at = after + 1
        while at < self._size:
            data = self._read(at, _WINDOW_BYTES + commit_header_bytes)
            found = data.find(salt)
            while found >= 0:
                header = decode_commit(data, found - 8) if found >= 8 else None
                if header is not None and self._belongs(header, at + found - 8):
                    return header
                found = data.find(salt, found + 1)
            at += _WINDOW_BYTES
        return None

    def _bytes(self, offset: int, size: int) -> memoryview:
        start = offset - self._window_start
        if start < 0 or start + size > len(self._window):
            self._window = memoryview(self._read(offset, max(size, _WINDOW_BYTES)))
            self._window_start, start = offset, 0
        return self._window[start : start + size]

    def _commit_at(self, offset: int, number: int) -> ScannedCommit | None:
        """Return the commit expected here: matching salt, offset, number, chain and body."""
        header = decode_commit(self._bytes(offset, commit_header_bytes))
        if header is None or not self._belongs(header, offset):
            return None
        if header.number != number or header.chain != self._chain or header.end > self._size:
            return None
        body = self._bytes(offset + commit_header_bytes, header.body_bytes)
        if len(body) != header.body_bytes or crc32c(body) != header.body_crc:
            return None
        return ScannedCommit(header, body)

    def _belongs(self, header: CommitHeader, offset: int) -> bool:
        return (
            header.salt == self._header.salt
            and header.offset == offset
            and header.epoch == self._header.epoch
        )

    def _judge(self, offset: int, number: int, last: CommitHeader | None) -> Ending:
        """Classify an offset without a valid commit: an end, a torn tail, or damage to durable data."""
        tail_end = offset
        proof: CommitHeader | None = None
        salt = self._header.salt.to_bytes(8, "little")
        for at, data in self._not_zeros(offset):
            tail_end = max(tail_end, at + len(data.rstrip(b"\x00")))
            proof = proof or self._later_commit(data, at, salt, number)
        if proof is not None:
            later = f"commit {proof.number} at offset {proof.offset}"
            detail = f"commit {number} is damaged, {later} proves it was durable"
            return Ending(Verdict.CORRUPT, offset, self._chain, last, tail_end, detail)
        verdict = Verdict.CLEAN if tail_end == offset else Verdict.TORN
        return Ending(verdict, offset, self._chain, last, tail_end)

    def _not_zeros(self, offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield the nonzero stretches from `offset` on, with their offsets. Stretches overlap by a header."""
        zeros = bytes(_SEARCH_BYTES + commit_header_bytes)
        for at in range(offset, self._size, _SEARCH_BYTES):
            data = self._read(at, len(zeros))
            # A reserved segment is mostly zeros, and comparing costs a tenth of examining each byte.
            if data != zeros and data.strip(b"\x00"):
                yield at, data

    def _later_commit(self, data: bytes, start: int, salt: bytes, number: int) -> CommitHeader | None:
        """Return a valid later header of this segment that proves that commit `number` was durable."""
        found = data.find(salt)
        while found >= 0:
            at = found - 8
            if at >= 0:
                header = decode_commit(data, at)
                if header and self._belongs(header, start + at) and header.synced_through >= number:
                    return header
            found = data.find(salt, found + 1)
        return None

    def _judge_seal(self, seal: CommitHeader) -> Ending:
        footer = decode_footer(bytes(self._read(seal.end - footer_bytes, footer_bytes)))
        if footer is None or footer[:3] != (seal.offset, seal.end, self._header.salt):
            return Ending(
                Verdict.CORRUPT, seal.offset, self._chain, seal, seal.end, "seal without its footer"
            )
        # A crash between seal and truncation leaves zeros after the seal. Other bytes must not be dropped.
        ends = [at + len(data.rstrip(b"\x00")) for at, data in self._not_zeros(seal.end)]
        return Ending(Verdict.SEALED, seal.end, self._chain, seal, max(ends, default=seal.end))


def read_seal(read: ReadAt, size: int, header: SegmentHeader) -> ScannedCommit | None:
    """Return the seal of a sealed segment, found from its end, with its body cut to the index. None without
    one."""
    footer = decode_footer(read(size - footer_bytes, footer_bytes)) if size > footer_bytes else None
    if footer is None or footer.end != size or footer.salt != header.salt:
        return None
    if not segment_header_bytes <= footer.seal_offset <= size - commit_header_bytes - footer_bytes:
        return None
    data = memoryview(read(footer.seal_offset, size - footer.seal_offset))
    seal = decode_commit(data)
    if seal is None or seal.kind is not CommitKind.SEAL or seal.salt != header.salt:
        return None
    body = data[commit_header_bytes:]
    if seal.offset != footer.seal_offset or seal.end != size:
        return None
    if crc32c(body) != seal.body_crc or footer.index_bytes > len(body) - footer_bytes:
        return None
    return ScannedCommit(seal, body[: footer.index_bytes])
