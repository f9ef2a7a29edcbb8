"""Retired state (`retired.bin`): facts about segments removed by retention, and bookmark expiry.

It records the highest sequences, the control records and the start of the log. It is durable before the first
of these segments is removed, and is part of the log from then on: a log without its first segments is invalid
without it. The server refuses to start with a damaged file.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tickertape.base.bookmarks import Bookmark, format_timestamp
from tickertape.base.checksum import crc32c
from tickertape.base.errors import BookmarkExpired, JournalCorrupt, JournalVersion, WrongJournal
from tickertape.base.interfaces import Buffer, Disk
from tickertape.journal.format.control_record import LogId, decode_head
from tickertape.journal.format.files import open_file, replace_file
from tickertape.journal.format.segment import FORMAT_VERSION
from tickertape.journal.limits import retired_bytes_max, retired_step_records

RETIRED_FILE: Final = "retired.bin"
_MAGIC: Final = b"TKTRET\x00\x00"
_HEAD_BYTES: Final = 16
_U8: Final = np.dtype("<u8")

Numbers = npt.NDArray[np.uint64]


class StoredMessage(NamedTuple):
    """A message of a publisher in the log or the archive. Never a control record."""

    bookmark: Bookmark
    timestamp: int
    """Microseconds since 1970 UTC."""


class HighestSequences:
    """Highest removed sequence of each publisher, 16 bytes per publisher."""

    def __init__(self, publishers: Numbers, sequences: Numbers) -> None:
        self.publishers = publishers
        """Publisher ids, ascending."""
        self.sequences = sequences

    def of(self, publisher: int) -> int:
        """Return the highest removed sequence of `publisher`, or 0 if none of its messages was removed."""
        at = int(self.publishers.searchsorted(np.uint64(publisher)))
        if at == len(self.publishers) or int(self.publishers[at]) != publisher:
            return 0
        return int(self.sequences[at])

    def with_later(self, publishers: Numbers, sequences: Numbers) -> HighestSequences:
        """Return these merged with the ones of later segments. `publishers` may repeat earlier ids."""
        ids = np.concatenate((self.publishers, publishers))
        lasts = np.concatenate((self.sequences, sequences))
        if not len(ids):
            return self
        order = np.argsort(ids, kind="stable")  # fast: the input is two ascending runs
        ids, lasts = ids[order], lasts[order]
        firsts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
        return HighestSequences(ids[firsts], np.maximum.reduceat(lasts, firsts))

    def as_dict(self) -> dict[int, int]:
        """Return the sequences by publisher id."""
        return dict(zip(self.publishers.tolist(), self.sequences.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.publishers)


NOTHING_HIGHEST: Final = HighestSequences(np.empty(0, _U8), np.empty(0, _U8))

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Crc = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_Micros = Annotated[int, msgspec.Meta(ge=0, lt=253_402_300_800_000_000)]
"""Before year 10000."""


class ForeignRecord(NamedTuple):
    """A control record that another log wrote."""

    log: LogId
    """Id of that log."""
    body: bytes


ControlRecord = bytes | ForeignRecord
"""The body of a control record, with the id of its log if that is another one."""


class RetiredManifest(NamedTuple):
    """Identity of the newest checkpoint of a topic when segments were removed."""

    position: _Count
    """Position that the checkpoint covers, then number and epoch of the commit that ends there."""
    commit: _Count
    epoch: _Count
    chain: _Crc
    """Header checksum of this commit."""
    checksum: _Crc
    """Checksum of the manifest."""


class RetiredState(NamedTuple):
    """Facts about the segments 1 to `through`, and the start of the one after them."""

    journal_id: bytes
    through: int
    first_position: int
    """As in the header of segment `through + 1`, like the next three fields."""
    first_commit: int
    previous_chain: int
    previous_end: int
    last_time: int
    """Log time of the last removed commit, microseconds since 1970 UTC. 0 if the segments had none."""
    removed_bytes: int
    """Size of all removed segments."""
    highest: HighestSequences
    records: tuple[ControlRecord, ...]
    """Their control records, in log order, without duplicates."""
    manifests: Mapping[str, RetiredManifest]
    """By SOW topic. Without a default, so that no writer of the file can forget this and the next fields."""
    links: tuple[bytes, ...]
    """Body of the newest record on topic `$link` of each source."""
    holes: Mapping[int, bytes]
    """Sequences that the log may still receive: u64 pairs (first, last) by publisher."""

    @property
    def follows(self) -> tuple[int, int, int, int]:
        """The fields that the header of segment `through + 1` must have."""
        return self.previous_chain, self.previous_end, self.first_position, self.first_commit

    def __str__(self) -> str:
        until = f", the last of {format_timestamp(self.last_time)}" if self.last_time else ""
        return (
            f"segments 1 to {self.through} (positions below {self.first_position}{until}, "
            f"{self.removed_bytes:,} bytes) were removed by retention"
        )


def is_expired(retired: RetiredState | None, bookmark: Bookmark) -> bool:
    """Return whether retention has removed the message, if it ever existed.

    True if its publisher reached the sequence before the start of the log and it is not in a hole."""
    if retired is None or not 0 < bookmark.sequence <= retired.highest.of(bookmark.publisher):
        return False
    holes = np.frombuffer(retired.holes.get(bookmark.publisher, b""), _U8)
    at = int(holes[::2].searchsorted(np.uint64(bookmark.sequence), side="right")) - 1
    return at < 0 or bookmark.sequence > int(holes[2 * at + 1])


def record_of(body: bytes) -> ControlRecord:
    """Return a control record from its body in the log. An unreadable one counts as own."""
    if b"log" not in body:
        return body
    try:
        log = decode_head(body).log
    except JournalCorrupt:
        return body
    return ForeignRecord(log, body) if log else body


def with_records(
    records: tuple[ControlRecord, ...], more: list[ControlRecord]
) -> Generator[None, Buffer, tuple[ControlRecord, ...]]:
    """Return merged control records. Of equal records, or records of one log on one subject, the last one is
    kept. Yields None to let other work run."""
    if not more:
        return records
    latest: dict[_Subject, ControlRecord] = {}
    kept: list[ControlRecord] = []
    for start in range(0, len(more), retired_step_records):
        for record in more[start : start + retired_step_records]:
            subject = _subject(record)
            latest.pop(subject, None)
            latest[subject] = record
        yield None
    for start in range(0, len(records), retired_step_records):
        some = records[start : start + retired_step_records]
        kept += [record for record in some if _subject(record) not in latest]
        yield None
    return (*kept, *latest.values())


_Subject = str | bytes | tuple[bytes, str | bytes]


def _subject(record: ControlRecord) -> _Subject:
    if isinstance(record, ForeignRecord):
        return record.log, _matter(record.body)
    return _matter(record)


def _matter(body: bytes) -> str | bytes:
    if b"latest_of" not in body:
        return body
    try:
        return decode_head(body).latest_of or body
    except JournalCorrupt:
        return body


def expired(what: str, retired: RetiredState | None, first: StoredMessage | None) -> BookmarkExpired:
    """Return the error for a start among removed messages, or before the log."""
    why = f"{retired}. The log starts" if retired is not None else "the log starts"
    if first is None:
        return BookmarkExpired(
            f"Cannot start at {what}: {why} with the next published message. Use NOW or EPOCH."
        )
    where = f"{first.bookmark} of {format_timestamp(first.timestamp)}"
    return BookmarkExpired(
        f"Cannot start at {what}: {why} with {where}. Handle the missing messages, then start from EPOCH.",
        available=str(first.bookmark),
    )


# -- storing ------------------------------------------------------------------------------------------


class _StoredRetired(msgspec.Struct, kw_only=True, omit_defaults=True):
    journal: bytes
    through: _Count
    first_position: _Count
    first_commit: _Count
    previous_chain: _Count
    previous_end: _Count
    last_time: _Micros
    removed_bytes: _Count
    publishers: bytes
    sequences: bytes
    records: list[bytes | ForeignRecord]
    manifests: dict[str, RetiredManifest] = {}
    links: list[bytes] = []
    holes: dict[int, bytes] = {}


_PLAIN: Final = {"records": list, "manifests": dict, "links": list, "holes": dict}


def encode_retired(retired: RetiredState) -> bytes:
    """Return the bytes of the file. Raises `OverflowError` above `retired_bytes_max`."""
    fields = retired._asdict()
    highest: HighestSequences = fields.pop("highest")
    fields["journal"] = fields.pop("journal_id")
    fields["publishers"], fields["sequences"] = highest.publishers.tobytes(), highest.sequences.tobytes()
    for name, make in _PLAIN.items():
        fields[name] = make(fields[name])
    body = msgspec.msgpack.encode(_StoredRetired(**fields))
    if len(body) + _HEAD_BYTES > retired_bytes_max:
        raise OverflowError(f"{len(highest)} publishers need more than {retired_bytes_max} bytes")
    return _MAGIC + FORMAT_VERSION.to_bytes(4, "little") + crc32c(body).to_bytes(4, "little") + body


def decode_retired(data: bytes) -> RetiredState:
    """Decode the result of `encode_retired`. Raises `ValueError`, or `JournalVersion` for a newer format."""
    if len(data) < _HEAD_BYTES or data[:8] != _MAGIC:
        raise ValueError("it does not start like such a file")
    if int.from_bytes(data[12:16], "little") != crc32c(data[_HEAD_BYTES:]):
        raise ValueError("it does not match its checksum")
    if int.from_bytes(data[8:12], "little") > FORMAT_VERSION:
        raise JournalVersion(
            f"Cannot read {RETIRED_FILE!r}: it has a newer format. Use a newer version of Tickertape."
        )
    try:
        stored = msgspec.msgpack.decode(data[_HEAD_BYTES:], type=_StoredRetired)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if len(stored.publishers) != len(stored.sequences) or len(stored.publishers) % _U8.itemsize:
        raise ValueError("its columns differ in length")
    publishers = np.frombuffer(stored.publishers, _U8)
    if (publishers[1:] <= publishers[:-1]).any():
        raise ValueError("its publishers are out of order")
    if stored.through < 1 or len(stored.journal) != 16:
        raise ValueError("it names no removed segment of a journal")
    for publisher, holes in stored.holes.items():
        if not (0 < publisher < 2**64 and _are_holes(holes)):
            raise ValueError(f"the holes of publisher {publisher} are invalid")
    fields = msgspec.structs.asdict(stored)
    del fields["publishers"], fields["sequences"]
    fields["highest"] = HighestSequences(publishers, np.frombuffer(stored.sequences, _U8))
    fields["records"], fields["links"] = tuple(stored.records), tuple(stored.links)
    return RetiredState(fields.pop("journal"), **fields)


def _are_holes(data: bytes) -> bool:
    """Return whether holes are whole pairs, ascending and not adjacent."""
    if not data or len(data) % (2 * _U8.itemsize):
        return False
    bounds = np.frombuffer(data, _U8)
    first, last = bounds[::2], bounds[1::2]
    return bool((first <= last).all() and (first[1:] > last[:-1]).all() and (first[1:] - last[:-1] > 1).all())


def write_retired(disk: Disk, retired: RetiredState) -> None:
    """Write the file atomically and durably. On `OSError` the previous file is kept."""
    try:
        data = encode_retired(retired)
    except OverflowError as error:
        raise OSError(str(error)) from None
    replace_file(disk, RETIRED_FILE, [data])


def read_retired(disk: Disk, journal_id: bytes) -> RetiredState | None:
    """Return the state, or None if no segment was ever removed.

    Raises:
        JournalCorrupt: The file is damaged.
        WrongJournal: The file belongs to another journal.
        JournalVersion: The file has a newer format."""
    if RETIRED_FILE not in disk.names("."):
        return None
    try:
        with open_file(disk, RETIRED_FILE) as handle:
            size = disk.size(handle)
            if size > retired_bytes_max:
                raise ValueError(f"it has {size} bytes, more than {retired_bytes_max}")
            retired = decode_retired(disk.read(handle, 0, size))
    except ValueError as error:
        raise JournalCorrupt(
            f"Cannot read {RETIRED_FILE!r}: {error}. The file describes the removed segments. "
            "Restore it from a copy. Nothing was changed.",
            file=RETIRED_FILE,
        ) from None
    if retired.journal_id != journal_id:
        raise WrongJournal(
            f"Cannot read {RETIRED_FILE!r}: it belongs to another journal. Move it away. Nothing was changed."
        )
    return retired
