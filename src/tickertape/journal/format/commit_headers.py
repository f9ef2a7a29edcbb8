"""Batch decoder for commit headers: many commits at once, from a window of a segment.

Invariant: it accepts the same commits as `SegmentScan`: same salt, offset, number, chain, epoch and
checksums, body included. Each commit left to `SegmentScan` costs another read of a whole window.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tickertape.base.checksum import crc32c
from tickertape.journal.format.segment import COMMIT_MAGIC, FLAG_CONTINUES, CommitHeader, CommitKind
from tickertape.journal.limits import commit_header_bytes

COMMIT_DTYPE: Final = np.dtype(
    [
        ("magic", "<u4"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("codec", "u1"),
        ("reserved", "u1"),
        ("salt", "<u8"),
        ("offset", "<u8"),
        ("number", "<u8"),
        ("first_position", "<u8"),
        ("messages", "<u4"),
        ("body_bytes", "<u4"),
        ("synced_through", "<u8"),
        ("timestamp", "<i8"),
        ("body_crc", "<u4"),
        ("chain", "<u4"),
        ("epoch", "<u8"),
        ("head_bytes", "<u4"),
        ("head_crc", "<u4"),
        ("ahead", "<u4"),
        ("crc", "<u4"),
    ]
)
_MAGIC_AND_BODY_BYTES: Final = Struct("<I40xI")
_CHECKED_BYTES: Final = commit_header_bytes - 4


class ExpectedCommit(NamedTuple):
    """Fields that the next commit must have."""

    salt: int
    epoch: int
    offset: int
    number: int
    chain: int


class CommitHeaders(NamedTuple):
    """Valid consecutive commits."""

    window: bytes
    starts: list[int]
    """Offsets of the commits in `window`."""
    rows: npt.NDArray[np.void]
    """Their headers, `COMMIT_DTYPE`."""

    def header(self, index: int) -> CommitHeader:
        """Return the header of the commit `index`."""
        row = self.rows[index]
        fields = (
            *("flags", "codec", "salt", "offset", "number", "first_position", "messages", "body_bytes"),
            *("synced_through", "timestamp", "body_crc", "chain", "epoch"),
            *("head_bytes", "head_crc", "ahead", "crc"),
        )
        return CommitHeader._make((CommitKind(int(row["kind"])), *(int(row[name]) for name in fields)))

    def last(self) -> CommitHeader:
        """Return the header of the last commit."""
        return self.header(-1)

    def chain(self, before: CommitHeader | None) -> CommitHeader | None:
        """Return the first commit of a chain (one transaction) that does not end within these commits.

        `before` is the first commit of a chain that is open before them."""
        ended = np.flatnonzero((self.rows["flags"] & FLAG_CONTINUES) == 0)
        if not len(ended):
            return before or self.header(0)
        first = int(ended[-1]) + 1
        return self.header(first) if first < len(self.starts) else None


def read_commit_headers(window: bytes, expected: ExpectedCommit) -> CommitHeaders | None:
    """Return the valid commits at the start of `window`, up to a seal. None without a whole commit."""
    starts, ends = _hop(window)
    if not starts:
        return None
    view = memoryview(window)
    rows = np.frombuffer(b"".join([window[at : at + commit_header_bytes] for at in starts]), COMMIT_DTYPE)
    crcs = np.array([crc32c(view[at : at + _CHECKED_BYTES]) for at in starts], np.uint32)
    bodies = np.array(
        [crc32c(view[at + commit_header_bytes : end]) for at, end in zip(starts, ends, strict=True)],
        np.uint32,
    )
    count = len(starts)
    valid = (rows["crc"] == crcs) & (rows["body_crc"] == bodies)
    valid &= (rows["salt"] == np.uint64(expected.salt)) & (rows["epoch"] == np.uint64(expected.epoch))
    valid &= rows["offset"] == np.array(starts, np.uint64) + np.uint64(expected.offset)
    valid &= rows["number"] == np.arange(count, dtype=np.uint64) + np.uint64(expected.number)
    valid &= rows["chain"] == np.concatenate((np.array([expected.chain], np.uint32), crcs[:-1]))
    kinds = rows["kind"]
    valid &= (kinds >= CommitKind.DATA) & (kinds <= CommitKind.SEAL)
    valid &= (kinds != CommitKind.MARK) | (rows["messages"] == 0)
    good = count if valid.all() else int(valid.argmin())
    seals = np.flatnonzero(kinds[:good] == CommitKind.SEAL)
    if len(seals):
        good = int(seals[0]) + 1
    return CommitHeaders(window, starts[:good], rows[:good]) if good else None


def _hop(window: bytes) -> tuple[list[int], list[int]]:
    """Return the bounds of whole commits by their magic numbers and lengths."""
    starts: list[int] = []
    ends: list[int] = []
    at, size = 0, len(window)
    unpack = _MAGIC_AND_BODY_BYTES.unpack_from
    while at + commit_header_bytes <= size:
        magic, body_bytes = unpack(window, at)
        end = at + commit_header_bytes + body_bytes
        if magic != COMMIT_MAGIC or end > size:
            break
        starts.append(at)
        ends.append(end)
        at = end
    return starts, ends


assert COMMIT_DTYPE.itemsize == commit_header_bytes
