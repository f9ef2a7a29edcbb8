"""Checkpoint files of SOW topics: manifest, base and delta files (docs/formats/sow-checkpoint.md).

This module only encodes and decodes. Base and delta files have blocks of columns, and their bodies are
neither joined nor copied. P0 and P1 are the positions at the start and the end of a scan (ADR 44).

Invariants:
- A length is checked before its use, so no allocation exceeds the input.
- A written block or manifest has passed the checks of its reader.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import Annotated, Final, NamedTuple

import msgspec

from tickertape.base.checksum import crc32c
from tickertape.base.errors import JournalCorrupt, JournalVersion
from tickertape.base.interfaces import Buffer
from tickertape.batch.format import pad8
from tickertape.journal.format.files import damaged_at
from tickertape.journal.format.retired_state import RetiredManifest
from tickertape.journal.format.segment import SOW_DIRECTORY, FormatError, NewerFormat
from tickertape.journal.format.sow_blocks import (
    BLOCK_PAYLOAD_BYTES_MAX,
    DeadKeys,
    RecordBlock,
    check_topic,
    decode_dead_keys,
    decode_records,
    decode_topic,
    encode_dead_keys,
    encode_records,
)
from tickertape.journal.limits import (
    sow_files_max,
    sow_fingerprint_bytes_max,
    sow_manifest_bytes_max,
    sow_reason_bytes_max,
)

MANIFEST_NAME: Final = "manifest"
UNFINISHED_NAME: Final = "file.new"
"""Name of a base or delta file while it is written."""
_NAME: Final = re.compile(r"base-([0-9]{20})\.sow|delta-([0-9]{20})-([0-9]{20})\.sow")
_POSITION_END: Final = 1 << 63

_VERSION: Final = 0
_MANIFEST_MAGIC: Final = b"TKTSOW\x00\x00"
_FILE_MAGIC: Final = b"TKTSTF\x00\x00"
_TRAILER_MAGIC: Final = b"TKTSTE\x00\x00"
_BLOCK_MAGIC: Final = 0x4B4C4254
_SEAL: Final = struct.Struct("<8sII")
"""Magic, version, checksum of the bytes before and behind. Equal in all versions."""
_MANIFEST: Final = struct.Struct("<8sII16sQQQQII")
"""The same, then journal id, P1, P0, commit number, epoch, chain, bytes of the map."""
_FILE: Final = struct.Struct("<8sIIII16sII")
"""The same, then header bytes, kind of file, journal id, bytes of topic and fingerprint."""
_BLOCK: Final = struct.Struct("<IIQI")
"""Magic, kind, bytes and checksum of the payload. Last: checksum of these fields."""
_TRAILER: Final = struct.Struct("<8sQQQQI")
"""Magic, records, dead keys, blocks, bytes of the file, checksum of checksums. Last: checksum of these
fields."""
_SEAL_BYTES: Final = _SEAL.size
_BLOCK_BYTES: Final = _BLOCK.size + 4
_TRAILER_BYTES: Final = _TRAILER.size + 4

_BASE: Final = 1
_DELTA: Final = 2
_RECORDS: Final = 1
_DEAD_KEYS: Final = 2


RESTORE: Final = "Restore sow/ from the backup, or start with --rebuild-sow NAME."


# -- names --------------------------------------------------------------------------------------------


class StateFileName(NamedTuple):
    """Positions in the name of a base or delta file."""

    since: int | None
    """P0 of the file before a delta, or None for a base."""
    end: int
    """P1 of the file."""


def state_directory(topic: str) -> str:
    """Return the name of the directory of a SOW topic inside `sow/`."""
    return blake2b(topic.encode(), digest_size=16).hexdigest()


def state_path(topic: str, name: str) -> str:
    """Return the path of a file of a SOW topic relative to the data directory."""
    return f"{SOW_DIRECTORY}/{state_directory(topic)}/{name}"


def base_name(end: int) -> str:
    """Return the name of the base that ends at P1 `end`."""
    return f"base-{end:020d}.sow"


def delta_name(since: int, end: int) -> str:
    """Return the name of the delta from P0 of the file before it to its own P1."""
    return f"delta-{since:020d}-{end:020d}.sow"


def parse_file_name(name: str) -> StateFileName | None:
    """Return the positions in the name of a base or delta file, or None for any other name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    base, since, end = found.groups()
    parsed = StateFileName(None, int(base)) if base else StateFileName(int(since), int(end))
    return parsed if (parsed.since or 0) <= parsed.end < _POSITION_END else None


# -- manifest -----------------------------------------------------------------------------------------

_Number = Annotated[int, msgspec.Meta(ge=0, le=_POSITION_END - 1)]
_Checksum = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_Fingerprint = Annotated[bytes, msgspec.Meta(min_length=1, max_length=sow_fingerprint_bytes_max)]


class StateFileEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """A base or delta file in a manifest."""

    name: str
    size: _Number
    """Bytes of the file."""
    checksum: _Checksum
    """Checksum of its trailer (`StateFileWriter.checksum`)."""
    start: _Number
    """P0. A state that is loaded up to this file continues with the log from here."""
    end: _Number
    """P1. Number, epoch and header checksum of the commit that ends here follow."""
    commit: _Number
    epoch: _Number
    chain: _Checksum


_Entries = Annotated[tuple[StateFileEntry, ...], msgspec.Meta(min_length=1, max_length=sow_files_max)]


class StateManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The files of the checkpoint of a SOW topic, bound to a commit of the log."""

    journal_id: bytes
    start: int
    """P0. The log from here on follows the files."""
    end: int
    """P1. Number, epoch and header checksum of the commit that ends here follow."""
    commit: int
    epoch: int
    chain: int
    topic: str
    fingerprint: bytes
    """Of the definition that decides keys and topics of records. Never empty."""
    complete: bool
    """Whether the state includes all messages of the topic."""
    incomplete_because: str
    """Reason if the state is not complete, else empty."""
    records: int
    order_stamp: int
    """Highest order stamp of the state, or 0."""
    files: tuple[StateFileEntry, ...]
    """The base, then its deltas in the order of their positions."""


class _ManifestMap(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: str
    fingerprint: _Fingerprint
    complete: bool
    incomplete_because: str
    records: _Number
    order_stamp: _Number
    files: _Entries


_MAP_FIELDS: Final = _ManifestMap.__struct_fields__


def encode_manifest(manifest: StateManifest) -> bytes:
    """Return the bytes of the file. Raises `ValueError` for a manifest that readers would refuse."""
    fields = {name: getattr(manifest, name) for name in _MAP_FIELDS}
    try:
        body = msgspec.msgpack.encode(_ManifestMap(**fields))
        head = _MANIFEST.pack(
            _MANIFEST_MAGIC,
            _VERSION,
            0,
            manifest.journal_id,
            manifest.end,
            manifest.start,
            manifest.commit,
            manifest.epoch,
            manifest.chain,
            len(body),
        )
    except (struct.error, OverflowError) as error:
        raise ValueError(f"a number of the manifest is out of range: {error}") from None
    data = _sealed(head + body)
    if _manifest_in(memoryview(data)) != manifest:
        raise ValueError("the journal id does not have 16 bytes")
    return data


def manifest_checksum(data: bytes) -> int:
    """Return the checksum that identifies an encoded manifest."""
    return int(_SEAL.unpack_from(data)[2])


def retired_manifest(manifest: StateManifest, checksum: int) -> RetiredManifest:
    """Return the entry of `retired.bin` for a checkpoint with this manifest and checksum."""
    return RetiredManifest(manifest.end, manifest.commit, manifest.epoch, manifest.chain, checksum)


def decode_manifest(data: Buffer, directory: str, journal_id: bytes) -> StateManifest:
    """Decode the manifest in a directory inside `sow/`.

    Raises:
        JournalCorrupt: It is damaged, or belongs to another journal or to the topic of another directory.
        JournalVersion: It has a newer format."""
    path = f"{SOW_DIRECTORY}/{directory}/{MANIFEST_NAME}"
    try:
        manifest = _manifest_in(memoryview(data))
        if manifest.journal_id != journal_id:
            raise FormatError("it belongs to another journal")
        if state_directory(manifest.topic) != directory:
            raise FormatError("it belongs to another topic")
    except FormatError as error:
        raise _refusal(path, 0, error) from None
    return manifest


def _manifest_in(source: memoryview) -> StateManifest:
    if not _MANIFEST.size < len(source) <= sow_manifest_bytes_max:
        raise FormatError(f"it has {len(source)} bytes")
    _check_seal(source, _MANIFEST_MAGIC)
    _, _, _, journal_id, end, start, commit, epoch, chain, size = _MANIFEST.unpack_from(source)
    if size != len(source) - _MANIFEST.size:
        raise FormatError("it does not have the length given in its head")
    try:
        body = msgspec.msgpack.decode(source[_MANIFEST.size :], type=_ManifestMap)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"its map is invalid: {str(error)[:200]!r}") from None
    manifest = StateManifest(
        journal_id=journal_id,
        start=start,
        end=end,
        commit=commit,
        epoch=epoch,
        chain=chain,
        **{name: getattr(body, name) for name in _MAP_FIELDS},
    )
    _check_manifest(manifest)
    return manifest


def _check_manifest(manifest: StateManifest) -> None:
    if max(manifest.end, manifest.commit, manifest.epoch) >= _POSITION_END:
        raise FormatError("a number of its head has more than 63 bits")
    if manifest.start > manifest.end:
        raise FormatError(f"its positions {manifest.start} and {manifest.end} are out of order")
    check_topic(manifest.topic)
    if manifest.complete == bool(manifest.incomplete_because):
        raise FormatError("it needs a reason exactly if the state is not complete")
    if len(manifest.incomplete_because.encode()) > sow_reason_bytes_max:
        raise FormatError("its reason is too long")
    before: StateFileEntry | None = None
    for number, entry in enumerate(manifest.files):
        _check_entry(number, entry, before)
        before = entry
    if len({entry.name for entry in manifest.files}) < len(manifest.files):
        raise FormatError("two of its files have the same name")
    last = manifest.files[-1]
    if _point(manifest) == _point(last):
        return
    if manifest.start != manifest.end or _is_before(manifest, last):
        raise FormatError("its position does not follow its last file")


def _check_entry(number: int, entry: StateFileEntry, before: StateFileEntry | None) -> None:
    name = parse_file_name(entry.name)
    if name is None:
        raise FormatError(f"the name of file {number} is invalid")
    if (name.since is None) != (before is None):
        raise FormatError(f"file {number} is not in the order base, deltas")
    if entry.start > entry.end or name.end != entry.end:
        raise FormatError(f"the positions of file {number} do not match")
    if entry.size % 8 or entry.size < _FILE.size + _TRAILER_BYTES:
        raise FormatError(f"the size of file {number} is invalid")
    if before is not None and (name.since != before.start or _is_before(entry, before)):
        raise FormatError(f"file {number} does not follow the file before it")


def _point(at: StateManifest | StateFileEntry) -> tuple[int, ...]:
    return at.start, at.end, at.commit, at.epoch, at.chain


def _is_before(later: StateManifest | StateFileEntry, earlier: StateFileEntry) -> bool:
    return later.start < earlier.end or later.commit < earlier.commit or later.epoch < earlier.epoch


# -- files ----------------------------------------------------------------------------------------------


class StateFile(msgspec.Struct, frozen=True, kw_only=True):
    """Header of a base or delta file."""

    journal_id: bytes
    topic: str
    fingerprint: bytes
    delta: bool


class _Totals:
    """Counts of a file, for its trailer. Checks the order of blocks."""

    def __init__(self, delta: bool) -> None:
        self._delta = delta
        self._counts = {_RECORDS: 0, _DEAD_KEYS: 0}
        self._blocks = 0
        self.size = 0
        self._checksum = 0

    def add(self, size: int, checksum: Buffer) -> None:
        """Count bytes with the encoded checksum of their head.

        Only the checksum is summed: CRC32C of bytes and their CRC32C does not depend on the bytes."""
        self.size += size
        self._checksum = crc32c(checksum, self._checksum)

    def add_rows(self, kind: int, rows: int) -> None:
        """Count a block. Raises `FormatError` for dead keys in the wrong place."""
        if kind == _DEAD_KEYS and (not self._delta or self._counts[_RECORDS]):
            raise FormatError("dead keys belong to the start of a delta")
        self._counts[kind] += rows
        self._blocks += 1

    def trailer(self) -> bytes:
        """Return the end of the file."""
        fields = (*self._counts.values(), self._blocks, self.size + _TRAILER_BYTES, self._checksum)
        return _with_checksum(_TRAILER.pack(_TRAILER_MAGIC, *fields))


class StateFileWriter:
    """Encodes a base or delta file as buffers, in the order of the file.

    First `begin`, then the blocks, then `end`. Dead keys precede records.
    """

    def __init__(self, file: StateFile) -> None:
        self._file = file
        self._totals = _Totals(file.delta)
        self.checksum = 0
        """Checksum of the trailer, which identifies the file. 0 before `end`."""

    @property
    def size(self) -> int:
        """Bytes of all returned buffers."""
        return self._totals.size

    def begin(self) -> bytes:
        """Return the header. Raises `ValueError` for a header that readers would refuse."""
        topic = self._file.topic.encode()
        lengths = len(topic), len(self._file.fingerprint)
        size = pad8(_FILE.size + sum(lengths))
        kind = _DELTA if self._file.delta else _BASE
        head = _FILE.pack(_FILE_MAGIC, _VERSION, 0, size, kind, self._file.journal_id, *lengths)
        data = _sealed((head + topic + self._file.fingerprint).ljust(size, b"\x00"))
        if _header_in(memoryview(data)) != (self._file, size):
            raise ValueError("the journal id does not have 16 bytes")
        self._totals.add(size, data[_SEAL_BYTES - 4 : _SEAL_BYTES])
        return data

    def records(self, block: RecordBlock) -> list[Buffer]:
        """Return a block of records. The arrays and bodies must not change until the buffers are written.

        Raises:
            ValueError: The columns do not fit each other, or have more than `sow_file_block_bytes_max` bytes
                beside the last body."""
        return self._block(_RECORDS, block.rows, encode_records(block))

    def dead_keys(self, block: DeadKeys) -> list[Buffer]:
        """Return a block of dead keys. Raises `ValueError` as `records` does, and after records."""
        return self._block(_DEAD_KEYS, block.rows, encode_dead_keys(block))

    def end(self) -> bytes:
        """Return the trailer."""
        trailer = self._totals.trailer()
        self._totals.add(_TRAILER_BYTES, b"")
        self.checksum = _checksum_in(trailer)
        return trailer

    def _block(self, kind: int, rows: int, buffers: list[Buffer]) -> list[Buffer]:
        self._totals.add_rows(kind, rows)
        size = checksum = 0
        for buffer in buffers:
            size += len(buffer)  # all are flat bytes
            checksum = crc32c(buffer, checksum)
        head = _with_checksum(_BLOCK.pack(_BLOCK_MAGIC, kind, size, checksum))
        self._totals.add(_BLOCK_BYTES + size, head[-4:])
        return [head, *buffers]


def _sealed(data: bytes) -> bytes:
    """Return `data` with its checksum behind magic and version."""
    before, behind = data[: _SEAL_BYTES - 4], data[_SEAL_BYTES:]
    return before + crc32c(behind, crc32c(before)).to_bytes(4, "little") + behind


def _with_checksum(data: bytes) -> bytes:
    return data + crc32c(data).to_bytes(4, "little")


# -- read ---------------------------------------------------------------------------------------------


def read_file(
    data: Buffer, manifest: StateManifest, entry: StateFileEntry
) -> Iterator[RecordBlock | DeadKeys]:
    """Yield the blocks of a file of `manifest`, as views of `data`.

    Dead keys apply to the files before this one, and precede the records. The file is intact only if the
    iterator ends.

    Raises:
        JournalCorrupt: The file is damaged, or is not the file that the manifest names.
        JournalVersion: The file has a newer format."""
    source = memoryview(data)
    path = state_path(manifest.topic, entry.name)
    at = 0
    try:
        header_bytes, delta = _check_file(source, manifest, entry)
        totals = _Totals(delta)
        totals.add(header_bytes, source[_SEAL_BYTES - 4 : _SEAL_BYTES])
        at = header_bytes
        end = len(source) - _TRAILER_BYTES
        while at < end:
            kind, payload = _payload_at(source, at, end)
            block = decode_records(payload) if kind == _RECORDS else decode_dead_keys(payload)
            if isinstance(block, RecordBlock) and int(block.positions.max()) >= entry.end:
                raise FormatError(f"a record is at or above position {entry.end}")
            totals.add_rows(kind, block.rows)
            size = _BLOCK_BYTES + len(payload)
            totals.add(size, source[at + _BLOCK_BYTES - 4 : at + _BLOCK_BYTES])
            yield block
            at += size
        if source[end:] != totals.trailer():
            raise FormatError("its blocks do not match its trailer")
    except FormatError as error:
        raise _refusal(path, at, error) from None


def _check_file(source: memoryview, manifest: StateManifest, entry: StateFileEntry) -> tuple[int, bool]:
    """Check header, size and trailer of a file. Return the bytes of the header, and whether it is a delta."""
    if len(source) != entry.size:
        raise FormatError(f"it has {len(source)} bytes, not {entry.size}")
    found, at = _header_in(source)
    if found.journal_id != manifest.journal_id:
        raise FormatError("it belongs to another journal")
    if found.topic != manifest.topic:
        raise FormatError("it belongs to another topic")
    if found.fingerprint != manifest.fingerprint:
        raise FormatError("it has another fingerprint than its manifest")
    name = parse_file_name(entry.name)
    if name is None or found.delta != (name.since is not None):
        raise FormatError("its name does not match its kind")
    trailer = source[max(len(source) - _TRAILER_BYTES, at) :]
    if len(trailer) < _TRAILER_BYTES or not _has_checksum(trailer):
        raise FormatError("it has no valid trailer")
    magic, *_, size, _ = _TRAILER.unpack_from(trailer)
    if magic != _TRAILER_MAGIC or size != len(source) or _checksum_in(trailer) != entry.checksum:
        raise FormatError("its trailer does not match its manifest")
    return at, found.delta


def _header_in(source: memoryview) -> tuple[StateFile, int]:
    """Return the header of a file and its bytes."""
    if len(source) < _FILE.size:
        raise FormatError(f"it has {len(source)} bytes")
    _, _, _, size, kind, journal_id, topic_bytes, fingerprint_bytes = _FILE.unpack_from(source)
    if not _FILE.size <= size <= len(source):
        raise FormatError("its header exceeds the file")
    _check_seal(source[:size], _FILE_MAGIC)
    topic_end = _FILE.size + topic_bytes
    if size != pad8(topic_end + fingerprint_bytes):
        raise FormatError("its header does not have the given length")
    if kind not in (_BASE, _DELTA):
        raise FormatError(f"it has the unknown kind {kind}")
    if not 0 < fingerprint_bytes <= sow_fingerprint_bytes_max:
        raise FormatError(f"its fingerprint has {fingerprint_bytes} bytes")
    topic = decode_topic(source[_FILE.size : topic_end])
    fingerprint = bytes(source[topic_end : topic_end + fingerprint_bytes])
    file = StateFile(journal_id=journal_id, topic=topic, fingerprint=fingerprint, delta=kind == _DELTA)
    return file, size


def _payload_at(source: memoryview, at: int, end: int) -> tuple[int, memoryview]:
    """Return kind and payload of the block at an offset."""
    head = source[at : min(at + _BLOCK_BYTES, end)]
    if len(head) < _BLOCK_BYTES or not _has_checksum(head):
        raise FormatError("it has no valid block")
    magic, kind, size, checksum = _BLOCK.unpack_from(head)
    if magic != _BLOCK_MAGIC or kind not in (_RECORDS, _DEAD_KEYS):
        raise FormatError(f"it has a block of the unknown kind {kind}")
    begin = at + _BLOCK_BYTES
    if size % 8 or size > min(end - begin, BLOCK_PAYLOAD_BYTES_MAX):
        raise FormatError(f"a block has {size} bytes")
    payload = source[begin : begin + size]
    if crc32c(payload) != checksum:
        raise FormatError("a block does not match its checksum")
    return kind, payload


def _check_seal(source: memoryview, magic: bytes) -> None:
    """Check magic, checksum and version of a manifest or header."""
    found, version, checksum = _SEAL.unpack_from(source)
    if found != magic:
        raise FormatError("it does not start like such a file")
    if crc32c(source[_SEAL_BYTES:], crc32c(source[: _SEAL_BYTES - 4])) != checksum:
        raise FormatError("its head does not match its checksum")
    if version > _VERSION:
        raise NewerFormat("it has a newer format")


def _has_checksum(data: memoryview) -> bool:
    return crc32c(data[:-4]) == _checksum_in(data)


def _checksum_in(data: Buffer) -> int:
    return int.from_bytes(data[-4:], "little")


def _refusal(path: str, offset: int, error: FormatError) -> JournalVersion | JournalCorrupt:
    if isinstance(error, NewerFormat):
        return JournalVersion(f"Cannot read {path!r}: {error}. Use a newer version of Tickertape.")
    return damaged_at(path, offset, str(error), RESTORE)
