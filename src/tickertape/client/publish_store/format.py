"""Segment format of a publish store (docs/formats/publish-store.md), and recovery of its contents.

Invariant: only incomplete records are dropped. All records below the mark of a segment are recovered, or an
error names the file and the offset.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from tickertape.base.checksum import crc32c
from tickertape.base.errors import BadMessage, NotAStore, StoreCorrupt, StoreVersion, TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.base.limits import batch_bytes_target, message_cost_bytes
from tickertape.batch.builders.builder import BatchBuilder
from tickertape.batch.derive import slice_batch
from tickertape.batch.encode import label_bytes
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.limits import stored_sequence_max
from tickertape.client.publish_store.unpersisted import UnpersistedEntry, UnpersistedIndex

MAGIC: Final = b"TKTPUB\0\0"
VERSION: Final = 0
HEADER_BYTES: Final = 512
MARK_AT: Final = 448
"""Offset of the mark: the end of the stored records, encoded by `marked`."""
NEXT_AT: Final = 456
"""Offset of the flag for a following segment: 0 or `marked(1)`."""
SESSION_AT: Final = 464
"""Offset of the number of the last logon, followed by its complement. Both are 0 before the first logon."""
RECORD_BYTES: Final = 32
"""Size of a record header."""

MESSAGE: Final = 1
"""Topic and body of one message."""
LABELLED: Final = 2
"""As `MESSAGE`, with expiration, correlation id and key."""
BATCH: Final = 3
"""An encoded batch. It replaces messages with its sequences that were stored one by one."""
SETTLED: Final = 4
"""All messages up to `last` are settled. `first`: number of the oldest segment that is still needed."""
REPLACED: Final = 5
"""The batch, or nothing, replaces the stored messages `first` to `last`."""
USED: Final = 6
"""Sequences up to `last` may have been used. `first` 0: a server has also accepted a logon."""

CRC: Final = Struct("<I")
EXPIRATION: Final = Struct("<q")
WORD: Final = Struct("@Q")
"""Native byte order: written by one store of 8 bytes, so that a killed process cannot leave half of it."""
BEHIND_CRC: Final = Struct("<IQQHHHH")
"""Length, first, last, kind, and byte counts of topic, correlation id and key."""
_SESSION: Final = Struct("<QQ")
SESSION_END: Final = SESSION_AT + _SESSION.size
_HEADER: Final = Struct("<8sIIQQQQQIIII")
_NAME_AT: Final = 128
_MARK_BASE: Final = 0xFFFF_FFFF << 32
_MARK_STEP: Final = 0xFFFF_FFFF
_WORD_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF


class Header(NamedTuple):
    """Header of a segment, written when the segment is created."""

    store: int
    """Random id, the same in all segments of a store."""
    number: int
    used: int
    """Highest sequence that may have been used before this segment."""
    settled: int
    oldest: int
    """Number of the oldest segment needed at creation."""
    previous_end: int
    """End of the previous segment, 0 for the first segment."""
    size: int
    name: str
    """Client name that owns the store."""
    never_logged_on: bool = False
    """Whether no server had accepted a logon with this store."""

    @property
    def seed(self) -> int:
        """Initial value of record checksums, so that a record of another segment never matches."""
        return crc32c(WORD.pack(self.store) + WORD.pack(self.number))


class Record(NamedTuple):
    """Location and header fields of a record. The payload is at `at + RECORD_BYTES`."""

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
    """Return `end`, below 2**32, and its complement as one 64-bit number."""
    return _MARK_BASE - end * _MARK_STEP


def read_mark(data: Buffer, at: int) -> int | None:
    """Return the argument of `marked`, or None if the mark is invalid."""
    value: int = WORD.unpack_from(data, at)[0]
    end = value & 0xFFFF_FFFF
    return end if marked(end) == value else None


def encode_session(session: int) -> bytes:
    """Return the number of the last logon as bytes of a header, from `SESSION_AT` to `SESSION_END`."""
    return _SESSION.pack(session, session ^ _WORD_MAX)


def read_session(data: Buffer) -> int:
    """Return the number of the last logon. 0 without one, or if a killed process left half of it."""
    session, complement = _SESSION.unpack_from(data, SESSION_AT)
    return int(session) if session ^ _WORD_MAX == complement else 0


def padded(end: int) -> int:
    """Round up to a multiple of 8."""
    return (end + 7) & ~7


def encode_header(header: Header) -> bytes:
    """Return the first `HEADER_BYTES` bytes of a new segment."""
    name = header.name.encode()
    fields = _HEADER.pack(MAGIC, VERSION, 0, *header[:6], header.size, len(name), header.never_logged_on)
    plain = fields.ljust(_NAME_AT, b"\0") + name
    plain = plain.ljust(MARK_AT, b"\0")
    plain = plain[:12] + CRC.pack(_header_crc(plain)) + plain[16:]
    return (plain + WORD.pack(marked(HEADER_BYTES))).ljust(HEADER_BYTES, b"\0")


def parse_header(data: Buffer, file: str) -> Header:
    """Return the header of a segment. Raises `NotAStore`, `StoreVersion`, `StoreCorrupt`."""
    view = memoryview(data)
    size = view.nbytes
    if size < HEADER_BYTES:
        raise StoreCorrupt(
            f"Cannot read {file!r}: it has {size} bytes, less than its header of {HEADER_BYTES} bytes. "
            "Restore it from a copy.",
            file=file,
            offset=size,
        )
    magic, version, crc, *numbers = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise NotAStore(
            f"Cannot read {file!r}: it is not a segment of a publish store. "
            "Use a separate directory for the store."
        )
    if version > VERSION:
        raise StoreVersion(
            f"Cannot read {file!r}: it has format {version}, and this version of Tickertape reads formats up "
            f"to {VERSION}. Use a newer version."
        )
    if crc != _header_crc(view):
        raise StoreCorrupt(
            f"Cannot read {file!r}: the header at offset 0 does not match its checksum. Restore it from a "
            "copy.",
            file=file,
        )
    name = _name(view, numbers[7], file)
    store, number, used, settled, oldest, previous_end, stated, _, never = numbers
    header = Header(store, number, used, settled, oldest, previous_end, stated, name, never == 1)
    if header.size != size:
        raise StoreCorrupt(
            f"Cannot read {file!r}: it has {size} bytes instead of {header.size}. Restore it from a copy.",
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
        f"Cannot read {file!r}: invalid client name at offset {_NAME_AT}. Restore it from a copy.",
        file=file,
        offset=_NAME_AT,
    )


def _header_crc(data: Buffer) -> int:
    view = memoryview(data)
    return crc32c(view[16:MARK_AT], crc32c(view[:12]))


def encode_message(
    topic: bytes, body: bytes, sequence: int, expiration_ms: int, correlation_id: str, key: str
) -> bytes:
    """Return the record of a message with labels, without its checksum. Raises `BadMessage`."""
    labels = [label_bytes(text, "label") for text in (correlation_id, key)]
    if not 0 <= expiration_ms < 1 << 63:
        raise BadMessage(f"Invalid expiration of {expiration_ms} ms. Use 0 to 2**63 - 1 ms.")
    payload = b"".join((EXPIRATION.pack(expiration_ms), topic, *labels, body))
    sizes = len(topic), len(labels[0]), len(labels[1])
    return BEHIND_CRC.pack(len(payload), sequence, sequence, LABELLED, *sizes) + payload


def read_record(data: Buffer, at: int, end: int, seed: int) -> Record | None:
    """Return the record at `at` if it is complete and ends at or before `end`, else None."""
    record = look(data, at)
    if record is None or record.end > end:
        return None
    whole = memoryview(data)[at + CRC.size : at + RECORD_BYTES + record.length]
    return record if crc32c(whole, seed) == CRC.unpack_from(data, at)[0] else None


def look(data: Buffer, at: int) -> Record | None:
    """Read a record without its checksum, which was verified when the store was opened."""
    if at + RECORD_BYTES > memoryview(data).nbytes:
        return None
    length, first, last, kind, topic, correlation, key = BEHIND_CRC.unpack_from(data, at + CRC.size)
    labels = EXPIRATION.size if kind == LABELLED else 0
    if not MESSAGE <= kind <= USED or labels + topic + correlation + key > length:
        return None
    end = padded(at + RECORD_BYTES + length)
    return Record(at, end, kind, first, last, length, topic, correlation, key)


# -- recovery -----------------------------------------------------------------------------------------


class Image(NamedTuple):
    """A segment file before recovery. `read` returns its bytes, which are released as soon as possible."""

    number: int
    file: str
    read: Callable[[], Buffer]


class StoreSegment(NamedTuple):
    """A verified segment."""

    image: Image
    header: Header
    end: int
    """End of its records."""
    records: list[Record]
    session: int
    """Number of the last logon before the next segment."""


class RecoveredStore(NamedTuple):
    """Recovered contents of a store, and unneeded segments."""

    name: str
    ledger: UnpersistedIndex
    used: int
    """Highest sequence that may have been used."""
    settled: int
    session: int
    """Number of the last logon, 0 if unknown."""
    never_logged_on: bool
    segments: Sequence[StoreSegment]
    """Segments that are needed. New records are appended to the last one, at its `end`."""
    remove: tuple[int, ...]
    """Segments that can be removed."""


def recover_store(
    images: Sequence[Image], read: Callable[[UnpersistedEntry], MessageBatch]
) -> RecoveredStore:
    """Return the contents of the segments `images`, at least one, in ascending order.

    `read` returns the batch of an entry. Raises `NotAStore`, `StoreVersion`, `StoreCorrupt`.
    """
    headers = [parse_header(image.read(), image.file) for image in images]
    for image, header in zip(images, headers, strict=True):
        if header.number != image.number:
            raise _damage(image, 24, f"it contains segment {header.number}")
    unused = _made_and_never_used(images, headers)
    used = len(headers) - unused
    segments: list[StoreSegment] = []
    oldest = 0
    for i in reversed(range(used)):
        if headers[i].number < oldest:
            break  # not needed: power loss may bring back removed files, in any order
        segment = _read_segment(images[i], headers[i], headers[i + 1] if i + 1 < used else None)
        said = [record.first for record in segment.records if record.kind == SETTLED]
        oldest = max([oldest, segment.header.oldest, *said])
        segments.insert(0, segment)
    if segments[0].header.number > oldest:
        raise StoreCorrupt(
            f"Cannot open the publish store: segment {oldest} is missing, and the first file is "
            f"{segments[0].image.file!r}. Restore the segment, or the store, from a copy.",
            file=segments[0].image.file,
        )
    needed = [s for s in segments if s.header.number >= oldest]
    if not needed:
        raise _damage(segments[-1].image, 48, f"it requires segment {oldest}, which is missing")
    fold = _StoreFold(needed[0].header, read)
    for segment in needed:
        _check_sequence(segment, HEADER_BYTES, max(segment.header.used, segment.header.settled))
        for record in segment.records:
            _check_sequence(segment, record.at, max(record.first, record.last))
            fold.take(segment, record)
    fold.ledger.settle(fold.settled)
    if any(low.last >= high.first for low, high in pairwise(fold.ledger.entries)):
        # Valid records contradict each other: this program did not write them.
        raise _damage(
            needed[-1].image, HEADER_BYTES, "its messages and those of earlier files are out of order"
        )
    remove = [image.number for image in images[:used] if image.number < oldest]
    remove += [image.number for image in images[used:]]
    name, never = needed[0].header.name, fold.never_logged_on and not fold.settled
    session = max(segment.session for segment in needed)
    return RecoveredStore(name, fold.ledger, fold.used, fold.settled, session, never, needed, tuple(remove))


def _check_sequence(segment: StoreSegment, offset: int, sequence: int) -> None:
    if sequence > stored_sequence_max:
        raise _damage(segment.image, offset, f"it contains the impossible sequence {sequence}")


def _made_and_never_used(images: Sequence[Image], headers: Sequence[Header]) -> int:
    """Return 1 if an exception prevented the use of the last segment and the previous one was continued."""
    if len(images) < 2:
        return 0
    before, data = images[-2].read(), images[-1].read()
    end = read_mark(before, MARK_AT)
    begun = read_mark(before, NEXT_AT) == 1 or read_mark(data, MARK_AT) != HEADER_BYTES
    return 1 if not begun and end is not None and end > headers[-1].previous_end else 0


def _read_segment(image: Image, header: Header, following: Header | None) -> StoreSegment:
    """Read the records of a segment, up to the end in the header of the `following` segment if any."""
    view = memoryview(image.read())
    mark = read_mark(view, MARK_AT)
    if mark is None or not HEADER_BYTES <= mark <= header.size or mark & 7:
        raise _damage(image, MARK_AT, "the mark (end of its records) is invalid")
    until, seed = header.size, header.seed
    if following is not None:
        if (following.store, following.name) != (header.store, header.name):
            raise _damage(image, 16, f"segment {following.number} belongs to a different store")
        if following.number != header.number + 1:
            raise _damage(image, 24, f"the next file is segment {following.number}: files are missing")
        until = following.previous_end
        if not mark <= until <= header.size:
            raise _damage(image, MARK_AT, f"its end is {mark}, and {until} according to the next segment")
    if view[NEXT_AT : NEXT_AT + 8] != bytes(8):
        if read_mark(view, NEXT_AT) != 1:
            raise _damage(image, NEXT_AT, "the flag for a following segment is invalid")
        if following is None:
            raise _damage(image, NEXT_AT, "it is the last file, and the following segment is missing")
    at, records = HEADER_BYTES, []
    while at < until and (record := read_record(view, at, until, seed)) is not None:
        records.append(record)  # also behind the mark: the record is complete, only the mark is old
        at = record.end
    if at < mark or (following is not None and at != until):
        raise _damage(image, at, "a record does not match its checksum")
    if following is None:
        _nothing_behind(image, view, at, header)
    return StoreSegment(image, header, at, records, read_session(view))


def _nothing_behind(image: Image, view: memoryview, at: int, header: Header) -> None:
    """Raise `StoreCorrupt` if a valid record follows an incomplete one."""
    written = at + len(bytes(view[at:]).rstrip(b"\0"))
    seed = header.seed
    for place in range(at + 8, written, 8):
        if read_record(view, place, header.size, seed) is not None:
            raise _damage(image, at, f"a damaged record precedes the valid one at {place}")


class _StoreFold:
    """Accumulated state of the records."""

    def __init__(self, header: Header, read: Callable[[UnpersistedEntry], MessageBatch]) -> None:
        self._read = read
        self.ledger = UnpersistedIndex(read)
        self.used = header.used
        self.settled = header.settled
        self.never_logged_on = header.never_logged_on
        self._open = False
        """Whether the last entry may take one more message."""
        self._highest = 0

    def take(self, segment: StoreSegment, record: Record) -> None:
        """Apply one record."""
        kind, first, last = record.kind, record.first, record.last
        self.used = max(self.used, last)
        if kind == SETTLED:
            self.settled = max(self.settled, last)
        elif kind == USED:
            self.never_logged_on = self.never_logged_on and first != 0
        elif kind == BATCH:
            # `publish` never returned for higher messages: a batch is put when nothing is appended.
            self.ledger.replace(first, max(last, self._highest), None)
            self.ledger.add(self._entry(segment, record))
            self._open = False
        elif kind == REPLACED:
            rest = self._entry(segment, record) if record.length else None
            if not self.ledger.replace(first, last, rest) and rest is not None:
                self.ledger.restore(rest)
            self._open = False
        elif kind in (MESSAGE, LABELLED):
            if first <= self._highest:
                # A publish was interrupted before it returned, and its sequence was reused.
                self.ledger.replace(first, self._highest, None)
                self._open = False
            self._message(segment.header.number, record)
            self._highest = first
        if kind == BATCH:
            self._highest = last

    def _message(self, number: int, record: Record) -> None:
        ledger, cost = self.ledger, record.length + message_cost_bytes
        if self._open and ledger.entries and self._fits(cost):
            ledger.grow(record.first, cost)
        else:
            ledger.add(UnpersistedEntry(record.first, record.first, 1, cost, number, record.at))
        self._open = True

    def _fits(self, cost: int) -> bool:
        return self.ledger.entries[-1].nbytes + cost <= batch_bytes_target

    def _entry(self, segment: StoreSegment, record: Record) -> UnpersistedEntry:
        entry = UnpersistedEntry(
            record.first, record.last, 1, record.length, segment.header.number, record.at
        )
        batch = self._read(entry)
        _check_sequence(segment, record.at, int(batch.sequences[-1]))
        entry.first, entry.last = int(batch.sequences[0]), int(batch.sequences[-1])
        entry.count = batch.count
        return entry


def _damage(image: Image, offset: int, what: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"Cannot read {image.file!r}: it is damaged at offset {offset}: {what}. "
        "Restore the store from a copy, or move it "
        "away to start a new one without its messages.",
        file=image.file,
        offset=offset,
    )


_MESSAGES: Final = frozenset({MESSAGE, LABELLED})
_WRONG: Final = (TickertapeError, ValueError, struct.error)
"""Errors of bytes that were valid when the store was opened."""

Segments = Callable[[int], tuple[Buffer, int]]
"""Function from a segment number to the bytes of the segment and the end of its records."""


def read_entry(entry: UnpersistedEntry, segments: Segments, publisher: int) -> MessageBatch:
    """Return the batch of an entry: messages `first` to `last` of the records at its location.

    Raises `StoreCorrupt` if the file was changed meanwhile.
    """
    data, _ = segments(entry.number)
    record = look(data, entry.at)
    if record is not None and record.kind in (BATCH, REPLACED):
        try:
            return _part(entry, record, data)
        except _WRONG as error:
            raise _changed(entry) from error
    builder = BatchBuilder()
    for source, message in _messages(entry, segments):
        try:
            _add(builder, source, message)
        except _WRONG as error:
            raise _changed(entry) from error
    if not builder.count:
        raise _changed(entry)
    return builder.build(publisher=publisher)


def _part(entry: UnpersistedEntry, record: Record, data: Buffer) -> MessageBatch:
    """Return the messages of an entry from its stored batch."""
    begin = entry.at + RECORD_BYTES
    batch = MessageBatch.parse(memoryview(data)[begin : begin + record.length].toreadonly())
    if record.kind == REPLACED and entry.first == record.first and entry.last == record.last:
        return batch
    low, high = np.searchsorted(
        batch.sequences, np.array((entry.first, entry.last + 1), np.uint64), side="left"
    )
    return slice_batch(batch, int(low), int(high))


def _messages(entry: UnpersistedEntry, segments: Segments) -> Iterator[tuple[Buffer, Record]]:
    number, at = entry.number, entry.at
    data, end = segments(number)
    while True:
        if at >= end:
            number, at = number + 1, HEADER_BYTES
            data, end = segments(number)
            continue
        record = look(data, at)
        if record is None:
            raise _changed(entry)
        at = record.end
        if record.kind in _MESSAGES and record.first >= entry.first:
            if record.first <= entry.last:
                yield data, record
            if record.first >= entry.last:
                return


def _add(builder: BatchBuilder, data: Buffer, record: Record) -> None:
    view = memoryview(data)
    at = record.at + RECORD_BYTES
    stop = at + record.length
    expiration = 0
    if record.kind == LABELLED:
        expiration = EXPIRATION.unpack_from(view, at)[0]
        at += EXPIRATION.size
    texts = []
    for size in (record.topic_bytes, record.correlation_bytes, record.key_bytes):
        texts.append(bytes(view[at : at + size]).decode())
        at += size
    topic, correlation_id, key = texts
    builder.add(
        topic,
        bytes(view[at:stop]),
        expiration_ms=expiration,
        correlation_id=correlation_id,
        key=key,
        sequence=record.first,
    )


def _changed(entry: UnpersistedEntry) -> StoreCorrupt:
    return StoreCorrupt(
        f"Cannot read segment {entry.number} of the publish store at offset {entry.at}: it was changed while "
        "in use. Restore the store from a copy.",
        offset=entry.at,
    )
