"""Segment format of a publish store: header, mark and records (docs/formats/publish-store.md)."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from tickertape.base.errors import BadMessage, NotAStore, StoreCorrupt, StoreVersion
from tickertape.base.interfaces import Buffer
from tickertape.batch.encode import label_bytes

MAGIC: Final = b"TKTPUB\0\0"
VERSION: Final = 0
HEADER_BYTES: Final = 512
MARK_AT: Final = 448
"""Where the end of what was stored stands, as `marked` gives it."""
NEXT_AT: Final = 456
"""Where it stands that a next segment follows: 0, or `marked(1)`."""
RECORD_BYTES: Final = 32
"""A record's header."""

MESSAGE: Final = 1
"""Topic and body of one message."""
LABELLED: Final = 2
"""As `MESSAGE`, with expiration, correlation id and key."""
BATCH: Final = 3
"""An encoded batch. It takes the place of messages with its sequences that were stored one by one."""
SETTLED: Final = 4
"""`last`: everything up to it is settled. `first`: number of the oldest segment that is still needed."""
REPLACED: Final = 5
"""What is held of `first` to `last` is replaced by the batch, or by nothing."""
USED: Final = 6
"""Sequences up to `last` may have been used. With `first` 0: a server has accepted a logon, too."""

CRC: Final = Struct("<I")
EXPIRATION: Final = Struct("<q")
WORD: Final = Struct("@Q")
"""Native: written by one move of 8 bytes, so that no end of the process leaves half of it."""
BEHIND_CRC: Final = Struct("<IQQHHHH")
"""length, first, last, kind, bytes of topic, correlation id, key."""
_HEADER: Final = Struct("<8sIIQQQQQIIII")
_NAME_AT: Final = 128
_MARK_BASE: Final = 0xFFFF_FFFF << 32
_MARK_STEP: Final = 0xFFFF_FFFF


class Header(NamedTuple):
    """What a segment says of itself when it is made."""

    store: int
    """Random, the same in all segments of a store."""
    number: int
    used: int
    """Highest sequence that may have been used before."""
    settled: int
    oldest: int
    """Number of the oldest segment that was needed."""
    previous_end: int
    """Where the segment before ended; 0 for the first."""
    size: int
    name: str
    """Client name to which the store belongs."""
    never_logged_on: bool = False
    """Whether no server had accepted a logon with this store."""

    @property
    def seed(self) -> int:
        """Where checksums of records begin: a record of another segment never fits."""
        return crc32c(WORD.pack(self.store) + WORD.pack(self.number))


class Record(NamedTuple):
    """One record as it lies: payload at `at + RECORD_BYTES`."""

    at: int
    end: int
    kind: int
    first: int
    last: int
    length: int
    topic_bytes: int
    correlation_bytes: int
    key_bytes: int


def marked(end: int) -> int:
    """`end`, below 2**32, and its complement in one number of 64 bits."""
    return _MARK_BASE - end * _MARK_STEP


def read_mark(data: Buffer, at: int) -> int | None:
    """Return the argument of `marked`; None when it is unknown."""
    value: int = WORD.unpack_from(data, at)[0]
    end = value & 0xFFFF_FFFF
    return end if marked(end) == value else None


def padded(end: int) -> int:
    """The next multiple of 8."""
    return (end + 7) & ~7


def encode_header(header: Header) -> bytes:
    """The first `HEADER_BYTES` of a fresh segment."""
    name = header.name.encode()
    fields = _HEADER.pack(MAGIC, VERSION, 0, *header[:6], header.size, len(name), header.never_logged_on)
    plain = fields.ljust(_NAME_AT, b"\0") + name
    plain = plain.ljust(MARK_AT, b"\0")
    plain = plain[:12] + CRC.pack(_header_crc(plain)) + plain[16:]
    return (plain + WORD.pack(marked(HEADER_BYTES))).ljust(HEADER_BYTES, b"\0")


def parse_header(data: Buffer, file: str) -> Header:
    """Raises `NotAStore`, `StoreVersion`, `StoreCorrupt`."""
    view = memoryview(data)
    size = view.nbytes
    if size < HEADER_BYTES:
        raise StoreCorrupt(
            f"{file} has {size} bytes, a header has {HEADER_BYTES}: it was cut off; restore it from a copy",
            file=file,
            offset=size,
        )
    magic, version, crc, *numbers = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise NotAStore(f"{file} is no segment of a publish store: give the store a directory of its own")
    if version > VERSION:
        raise StoreVersion(
            f"{file} has format {version}, this program knows up to {VERSION}: use a newer one"
        )
    if crc != _header_crc(view):
        raise StoreCorrupt(f"{file}: the header at offset 0 does not match its checksum", file=file)
    name = _name(view, numbers[7], file)
    store, number, used, settled, oldest, previous_end, stated, _, never = numbers
    header = Header(store, number, used, settled, oldest, previous_end, stated, name, never == 1)
    if header.size != size:
        raise StoreCorrupt(
            f"{file} has {size} bytes instead of {header.size}: it was cut off or continued",
            file=file,
            offset=min(size, header.size),
        )
    return header


def _name(view: memoryview, length: int, file: str) -> str:
    try:
        if length <= MARK_AT - _NAME_AT:
            return bytes(view[_NAME_AT : _NAME_AT + length]).decode()
    except UnicodeDecodeError:
        pass
    raise StoreCorrupt(
        f"{file}: the name of a client at offset {_NAME_AT} is none; restore it from a copy",
        file=file,
        offset=_NAME_AT,
    )


def _header_crc(data: Buffer) -> int:
    view = memoryview(data)
    return crc32c(view[16:MARK_AT], crc32c(view[:12]))


def encode_message(
    topic: bytes, body: bytes, sequence: int, expiration_ms: int, correlation_id: str, key: str
) -> bytes:
    """The record of a message with labels, without its checksum. Raises `BadMessage`."""
    labels = [label_bytes(text, "label") for text in (correlation_id, key)]
    if not 0 <= expiration_ms < 1 << 63:
        raise BadMessage(f"a message has an expiration of {expiration_ms} ms")
    payload = b"".join((EXPIRATION.pack(expiration_ms), topic, *labels, body))
    sizes = len(topic), len(labels[0]), len(labels[1])
    return BEHIND_CRC.pack(len(payload), sequence, sequence, LABELLED, *sizes) + payload


def read_record(data: Buffer, at: int, end: int, seed: int) -> Record | None:
    """The record at `at`, which ends at `end` or before; None when there is no whole one."""
    record = look(data, at)
    if record is None or record.end > end:
        return None
    whole = memoryview(data)[at + CRC.size : at + RECORD_BYTES + record.length]
    return record if crc32c(whole, seed) == CRC.unpack_from(data, at)[0] else None


def look(data: Buffer, at: int) -> Record | None:
    """As `read_record`, unchecked: for what was checked when the store was opened."""
    if at + RECORD_BYTES > memoryview(data).nbytes:
        return None
    length, first, last, kind, topic, correlation, key = BEHIND_CRC.unpack_from(data, at + CRC.size)
    labels = EXPIRATION.size if kind == LABELLED else 0
    if not MESSAGE <= kind <= USED or labels + topic + correlation + key > length:
        return None
    end = padded(at + RECORD_BYTES + length)
    return Record(at, end, kind, first, last, length, topic, correlation, key)
