"""Segment format: segment headers, commit headers and the seal footer (docs/formats/journal.md).

This module only encodes and decodes. It opens no file and does not judge damage.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from typing import Final, NamedTuple

from tickertape.base.checksum import crc32c
from tickertape.journal.limits import commit_header_bytes, segment_header_bytes

FORMAT_VERSION: Final = 0
SEGMENT_MAGIC: Final = b"TKTSEG\x00\x00"
COMMIT_MAGIC: Final = 0x544D4354
FOOTER_MAGIC: Final = b"TKTSEAL\x00"
CHECKSUM_CRC32C: Final = 1
footer_bytes: Final = 40

JOURNAL_DIRECTORY: Final = "journal"
QUARANTINE_DIRECTORY: Final = "quarantine"
SOW_DIRECTORY: Final = "sow"
AGAIN: Final = ".again"
"""Suffix of a reserved segment file between the two renames that make its name durable."""
SPILL_DIRECTORY: Final = "spill"
"""Default directory for backlogs of slow clients. It is emptied at every start and is not part of the log."""
CONTROL_TOPIC: Final = "$control"
"""Topic of control records. Publishers cannot use it because of the `$`."""
_NAME = re.compile(r"[0-9]{10}\.segment")

_SEGMENT = struct.Struct("<8sHHI16sQQQQQIIQq")
_COMMIT = struct.Struct("<IBBBBQQQQIIQqIIQIII")
_FOOTER = struct.Struct("<8sQQQI")
_U32 = struct.Struct("<I")

FLAG_CONTINUES: Final = 1
FLAG_ENDS: Final = 2


class CommitKind(IntEnum):
    """Purpose of a commit: messages, proof that the previous commit is durable, or the seal of the
    segment."""

    DATA = 1
    MARK = 2
    SEAL = 3


class SegmentHeader(NamedTuple):
    """First sector of a segment. It is written and synced before the first commit."""

    journal_id: bytes
    number: int
    epoch: int
    first_position: int
    first_commit: int
    salt: int
    previous_chain: int
    """Header checksum of the seal of the previous segment, or 0 for the first segment."""
    previous_end: int
    """Length of the previous segment, or 0 for the first segment."""
    created: int
    """Microseconds since 1970 UTC."""


class CommitHeader(NamedTuple):
    """Header of a commit, the unit of a sync. Each commit is chained to the previous one."""

    kind: CommitKind
    flags: int
    codec: int
    salt: int
    offset: int
    number: int
    first_position: int
    messages: int
    body_bytes: int
    synced_through: int
    """Highest commit number known to be durable when this commit was written."""
    timestamp: int
    """Log time after this commit, microseconds since 1970 UTC."""
    body_crc: int
    chain: int
    """Header checksum of the previous commit, or of the segment header for the first commit."""
    epoch: int
    head_bytes: int = 0
    """Bytes of the batch head at the start of the body of a data commit, or 0 for other commits."""
    head_crc: int = 0
    """CRC32C of that head."""
    ahead: int = 0
    """Microseconds by which the highest order stamp of the log is above `timestamp`. Always 0 in this
    version."""
    crc: int = 0
    """Own header checksum, filled in by `encode_commit` and `decode_commit`."""

    @property
    def end(self) -> int:
        """Offset of the byte after this commit."""
        return self.offset + commit_header_bytes + self.body_bytes


class FormatError(ValueError):
    """Bytes that are not a valid header. The text gives the reason."""


class NewerFormat(FormatError):
    """A valid header with an unknown, newer format version."""


def segment_name(number: int) -> str:
    """Return the file name of a segment inside the journal directory."""
    return f"{number:010d}.segment"


def segment_path(number: int) -> str:
    """Return the path of a segment relative to the data directory."""
    return f"{JOURNAL_DIRECTORY}/{segment_name(number)}"


def segment_number(name: str) -> int | None:
    """Return the number in a segment's file name, or None for any other name."""
    return int(name[:10]) if _NAME.fullmatch(name) else None


def encode_segment_header(header: SegmentHeader) -> tuple[bytes, int]:
    """Return the 512 encoded bytes and their checksum, which starts the chain of the segment."""
    body = _SEGMENT.pack(
        SEGMENT_MAGIC,
        FORMAT_VERSION,
        CHECKSUM_CRC32C,
        0,
        *header[:7],
        0,
        *header[7:],
    ).ljust(segment_header_bytes - 4, b"\x00")
    crc = crc32c(body)
    return body + _U32.pack(crc), crc


def decode_segment_header(data: bytes) -> tuple[SegmentHeader, int]:
    """Return header and checksum. Raises `FormatError` (damaged) or `NewerFormat`."""
    if len(data) < segment_header_bytes:
        raise FormatError(f"segment header has {len(data)} of {segment_header_bytes} bytes")
    if data[:8] != SEGMENT_MAGIC:
        raise FormatError("not a segment header")
    crc = _U32.unpack_from(data, segment_header_bytes - 4)[0]
    if crc32c(data[: segment_header_bytes - 4]) != crc:
        raise FormatError("segment header does not match its checksum")
    fields = _SEGMENT.unpack_from(data)
    if fields[1] > FORMAT_VERSION or fields[2] != CHECKSUM_CRC32C:
        raise NewerFormat(f"it has segment format {fields[1]} and checksum kind {fields[2]}")
    return SegmentHeader(*fields[4:11], *fields[12:]), crc


def encode_commit(header: CommitHeader) -> tuple[bytes, int]:
    """Return the 96 encoded bytes and their checksum, which the next commit refers to."""
    body = _COMMIT.pack(COMMIT_MAGIC, *header[:3], 0, *header[3:-1])
    crc = crc32c(body)
    return body + _U32.pack(crc), crc


def decode_commit(data: bytes | memoryview, at: int = 0) -> CommitHeader | None:
    """Return the commit header at `at`, or None if it is invalid.

    Checksum, magic, kind and length must be valid. A mark that counts messages is invalid, because readers
    skip marks."""
    if at + commit_header_bytes > len(data):
        return None
    fields = _COMMIT.unpack_from(data, at)
    if fields[0] != COMMIT_MAGIC:
        return None
    crc = _U32.unpack_from(data, at + commit_header_bytes - 4)[0]
    if crc32c(data[at : at + commit_header_bytes - 4]) != crc or fields[1] not in (1, 2, 3):
        return None
    header = CommitHeader._make((CommitKind(fields[1]), *fields[2:4], *fields[5:19], crc))
    return None if header.kind is CommitKind.MARK and header.messages else header


class Footer(NamedTuple):
    """The last bytes of a sealed segment."""

    seal_offset: int
    end: int
    """Size of the file in bytes."""
    salt: int
    index_bytes: int
    """Length of the index at the start of the seal's body."""


def encode_footer(footer: Footer) -> bytes:
    body = _FOOTER.pack(FOOTER_MAGIC, *footer)
    return body + _U32.pack(crc32c(body))


def decode_footer(data: bytes) -> Footer | None:
    """Return the footer, or None if it is invalid."""
    if len(data) != footer_bytes or data[:8] != FOOTER_MAGIC:
        return None
    if crc32c(data[:-4]) != _U32.unpack_from(data, footer_bytes - 4)[0]:
        return None
    return Footer._make(_FOOTER.unpack_from(data)[1:])


assert _SEGMENT.size <= segment_header_bytes - 4
assert _COMMIT.size == commit_header_bytes - 4
assert _FOOTER.size == footer_bytes - 4
