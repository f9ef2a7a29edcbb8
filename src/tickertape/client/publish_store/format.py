"""Segment format of a publish store (docs/formats/publish-store.md), and what a store holds by it.

Invariant: only what was never stored to its end is dropped. What lies below a segment's mark is read back, or
an error names the file and the place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
from crc32c import crc32c

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


# -- recovery -----------------------------------------------------------------------------------------


class Image(NamedTuple):
    """A segment as it was found. `read` gives its bytes, which nobody keeps longer than needed."""

    number: int
    file: str
    read: Callable[[], Buffer]


class StoreSegment(NamedTuple):
    """A segment that was read, and found right."""

    image: Image
    header: Header
    end: int
    """Where its records end."""
    records: list[Record]


class RecoveredStore(NamedTuple):
    """What a store holds, and what is to be done."""

    name: str
    ledger: UnpersistedIndex
    used: int
    """Highest sequence that may have been used."""
    settled: int
    never_logged_on: bool
    segments: Sequence[StoreSegment]
    """Those that are needed; the last one is to go on with, at its `end`."""
    remove: tuple[int, ...]
    """Segments that are not needed."""


def recover_store(
    images: Sequence[Image], read: Callable[[UnpersistedEntry], MessageBatch]
) -> RecoveredStore:
    """What the segments hold, at least one, rising; `read` gives the batch of an entry.

    Raises `NotAStore`, `StoreVersion`, `StoreCorrupt`.
    """
    headers = [parse_header(image.read(), image.file) for image in images]
    for image, header in zip(images, headers, strict=True):
        if header.number != image.number:
            raise _damage(image, 24, f"is segment {header.number} under another name")
    unused = _made_and_never_used(images, headers)
    used = len(headers) - unused
    segments: list[StoreSegment] = []
    oldest = 0
    for i in reversed(range(used)):
        if headers[i].number < oldest:
            break  # not needed: names that were removed may be back after power loss, in any order
        segment = _read_segment(images[i], headers[i], headers[i + 1] if i + 1 < used else None)
        said = [record.first for record in segment.records if record.kind == SETTLED]
        oldest = max([oldest, segment.header.oldest, *said])
        segments.insert(0, segment)
    if segments[0].header.number > oldest:
        raise StoreCorrupt(
            f"{segments[0].image.file} is the first file there is, and segment {oldest} is still needed: put "
            "it back, or restore the store from a copy",
            file=segments[0].image.file,
        )
    needed = [s for s in segments if s.header.number >= oldest]
    if not needed:
        raise _damage(segments[-1].image, 48, f"is the last file there is, and segment {oldest} is needed")
    fold = _StoreFold(needed[0].header, read)
    for segment in needed:
        _check_sequence(segment, HEADER_BYTES, max(segment.header.used, segment.header.settled))
        for record in segment.records:
            _check_sequence(segment, record.at, max(record.first, record.last))
            fold.take(segment, record)
    fold.ledger.settle(fold.settled)
    if any(low.last >= high.first for low, high in pairwise(fold.ledger.entries)):
        # Records that are whole each for itself contradict each other: no writer of ours made them.
        raise _damage(
            needed[-1].image, HEADER_BYTES, "and those before it do not hold messages in their order"
        )
    remove = [image.number for image in images[:used] if image.number < oldest]
    remove += [image.number for image in images[used:]]
    name, never = needed[0].header.name, fold.never_logged_on and not fold.settled
    return RecoveredStore(name, fold.ledger, fold.used, fold.settled, never, needed, tuple(remove))


def _check_sequence(segment: StoreSegment, offset: int, sequence: int) -> None:
    if sequence > stored_sequence_max:
        raise _damage(segment.image, offset, f"names message {sequence}, and nobody publishes so many")


def _made_and_never_used(images: Sequence[Image], headers: Sequence[Header]) -> int:
    """1 when the last segment was made, and an exception came before it was begun: the one before went on."""
    if len(images) < 2:
        return 0
    before, data = images[-2].read(), images[-1].read()
    end = read_mark(before, MARK_AT)
    begun = read_mark(before, NEXT_AT) == 1 or read_mark(data, MARK_AT) != HEADER_BYTES
    return 1 if not begun and end is not None and end > headers[-1].previous_end else 0


def _read_segment(image: Image, header: Header, following: Header | None) -> StoreSegment:
    """One segment's records; all of them, up to where the `following` one says that it ended."""
    view = memoryview(image.read())
    mark = read_mark(view, MARK_AT)
    if mark is None or not HEADER_BYTES <= mark <= header.size or mark & 7:
        raise _damage(image, MARK_AT, "has no mark that says how far it was written")
    until, seed = header.size, header.seed
    if following is not None:
        if (following.store, following.name) != (header.store, header.name):
            raise _damage(image, 16, f"and segment {following.number} belong to different stores")
        if following.number != header.number + 1:
            raise _damage(image, 24, f"is followed by segment {following.number}: files are missing")
        until = following.previous_end
        if not mark <= until <= header.size:
            raise _damage(image, MARK_AT, f"was written up to {mark}, and the next one says {until}")
    if view[NEXT_AT : NEXT_AT + 8] != bytes(8):
        if read_mark(view, NEXT_AT) != 1:
            raise _damage(image, NEXT_AT, "does not tell whether another segment follows")
        if following is None:
            raise _damage(image, NEXT_AT, "is the last file there is, and another one followed")
    at, records = HEADER_BYTES, []
    while at < until and (record := read_record(view, at, until, seed)) is not None:
        records.append(record)  # behind the mark too: written to its end, but for the mark
        at = record.end
    if at < mark or (following is not None and at != until):
        raise _damage(image, at, "has a record that does not match its checksum")
    if following is None:
        _nothing_behind(image, view, at, header)
    return StoreSegment(image, header, at, records)


def _nothing_behind(image: Image, view: memoryview, at: int, header: Header) -> None:
    """What was never written to its end has no whole record behind it."""
    written = at + len(bytes(view[at:]).rstrip(b"\0"))
    seed = header.seed
    for place in range(at + 8, written, 8):
        if read_record(view, place, header.size, seed) is not None:
            raise _damage(image, at, f"has a damaged record before the whole one at {place}")


class _StoreFold:
    """What records add up to."""

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
        """One record more."""
        kind, first, last = record.kind, record.first, record.last
        self.used = max(self.used, last)
        if kind == SETTLED:
            self.settled = max(self.settled, last)
        elif kind == USED:
            self.never_logged_on = self.never_logged_on and first != 0
        elif kind == BATCH:
            # What lies above it was never returned: a batch is put when nothing else is gathered.
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
                # A publish was interrupted before it returned: its number was given again.
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
        f"{image.file} {what} (offset {offset}): restore the store from a copy, or move it away to begin a "
        "new one without what it held",
        file=image.file,
        offset=offset,
    )


_MESSAGES: Final = frozenset({MESSAGE, LABELLED})
_WRONG: Final = (TickertapeError, ValueError, struct.error)
"""What bytes make that were whole when the store was opened."""

Segments = Callable[[int], tuple[Buffer, int]]
"""Bytes of a segment, and where its records end; by number."""


def read_entry(entry: UnpersistedEntry, segments: Segments, publisher: int) -> MessageBatch:
    """The batch of an entry: messages `first` to `last` of what lies at its place.

    Raises `StoreCorrupt` when the file was changed meanwhile.
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
    """What an entry has of a batch that lies there."""
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
        f"segment {entry.number} of the publish store was changed while it was in use, at offset {entry.at}: "
        "restore the store from a copy",
        offset=entry.at,
    )
