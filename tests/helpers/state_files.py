"""Checkpoint files of a SOW topic: records as rows, a small checkpoint, and corrected checksums.

Must never use the product to find the parts of a file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from crc32c import crc32c

from tickertape.base.errors import JournalCorrupt
from tickertape.base.interfaces import Buffer
from tickertape.batch.format import Labels, offsets_from
from tickertape.journal.format.sow_blocks import DeadKeys, RecordBlock, key_column, key_list
from tickertape.journal.format.sow_checkpoint import (
    StateFile,
    StateFileEntry,
    StateFileWriter,
    StateManifest,
    base_name,
    delta_name,
    encode_manifest,
    read_file,
    state_directory,
    state_path,
)

JOURNAL_ID: Final = bytes(range(16))
TOPIC: Final = "orders"
DIRECTORY: Final = state_directory(TOPIC)
FINGERPRINT: Final = b"\x91\xa3/id"
GOLDEN: Final = Path(__file__).parents[1] / "golden"
STAMP: Final = 1_790_000_000_000_000
BLOCK_HEAD: Final = 24
TRAILER: Final = 48

Block = RecordBlock | DeadKeys


class Row(NamedTuple):
    """A record. Zeros, empty texts and a timestamp of -1 are absent."""

    key: bytes
    body: bytes
    position: int = 0
    sequence: int = 1
    stamp: int = STAMP
    publisher: int = 7
    timestamp: int = -1
    origin: int = 0
    topic: str = ""
    expiration: int = 0
    correlation_id: bytes = b""
    message_key: bytes = b""
    headers: bytes = b""


def block_of(rows: Sequence[Row], *, table: bool = False, parts: int = 1) -> RecordBlock:
    """Return rows as columns, without the columns that no row has.

    `table`: with a table of publishers. `parts`: pieces of the bodies."""
    publishers = np.array([row.publisher for row in rows], np.uint64)
    numbers = None
    if table:
        publishers, numbers = np.unique(publishers, return_inverse=True)
    timestamped = any(row.timestamp >= 0 for row in rows)
    topics, topic_numbers = topics_of([row.topic for row in rows])
    bodies = b"".join([row.body for row in rows])
    size = -(-len(bodies) // parts) or 1
    return RecordBlock(
        positions=np.array([row.position for row in rows], np.int64),
        sequences=np.array([row.sequence for row in rows], np.uint64),
        timestamps=np.array([row.timestamp for row in rows], np.int64) if timestamped else None,
        order_stamps=np.array([row.stamp for row in rows], np.int64),
        publishers=publishers,
        publisher_numbers=None if numbers is None else numbers.astype(np.uint32),
        origins=np.array([row.origin for row in rows], np.uint32) if any(r.origin for r in rows) else None,
        topics=topics,
        topic_numbers=topic_numbers,
        expirations=np.array([row.expiration for row in rows], np.int64)
        if any(row.expiration for row in rows)
        else None,
        keys=key_column([row.key for row in rows]),
        correlation_ids=_labels([row.correlation_id for row in rows]),
        message_keys=_labels([row.message_key for row in rows]),
        headers=_labels([row.headers for row in rows]),
        body_offsets=offsets_from(np.array([len(row.body) for row in rows], np.int32)),
        bodies=tuple(memoryview(bodies)[at : at + size] for at in range(0, len(bodies), size)),
    )


def dead_keys_of(keys: Iterable[tuple[str, bytes]]) -> DeadKeys:
    """Return topics and keys as columns."""
    pairs = list(keys)
    topics, numbers = topics_of([topic for topic, _ in pairs])
    return DeadKeys(topics=topics, topic_numbers=numbers, keys=key_column([key for _, key in pairs]))


def topics_of(names: Sequence[str]) -> tuple[tuple[str, ...], npt.NDArray[np.uint32] | None]:
    """Return the table and the numbers of topics, both empty without names."""
    table = tuple(sorted({*names}))
    if table == ("",):
        return (), None
    return table, np.array([table.index(name) for name in names], np.uint32)


def _labels(texts: list[bytes]) -> Labels | None:
    return key_column(texts) if any(texts) else None


def rows_of(block: RecordBlock) -> list[Row]:
    """Return the records of a block."""
    n = block.rows
    numbers = np.arange(n) if block.publisher_numbers is None else block.publisher_numbers
    publishers = block.publishers[numbers].tolist()
    topics = [""] * n
    if block.topic_numbers is not None:
        topics = [block.topics[number] for number in block.topic_numbers.tolist()]
    bodies = b"".join(block.bodies)
    columns = zip(
        key_list(block.keys),
        key_list(Labels(block.body_offsets, bodies)),
        block.positions.tolist(),
        block.sequences.tolist(),
        block.order_stamps.tolist(),
        publishers,
        [-1] * n if block.timestamps is None else block.timestamps.tolist(),
        [0] * n if block.origins is None else block.origins.tolist(),
        topics,
        [0] * n if block.expirations is None else block.expirations.tolist(),
        *(
            [b""] * n if labels is None else key_list(labels)
            for labels in (block.correlation_ids, block.message_keys, block.headers)
        ),
        strict=True,
    )
    return [Row(*row) for row in columns]


def keys_of(block: DeadKeys) -> list[tuple[str, bytes]]:
    """Return topic and key of each dead key."""
    numbers = block.topic_numbers
    topics = [""] * block.rows if numbers is None else [block.topics[n] for n in numbers.tolist()]
    return list(zip(topics, key_list(block.keys), strict=True))


def state_file(*, delta: bool = False) -> StateFile:
    """Return the header of a file of the topic."""
    return StateFile(journal_id=JOURNAL_ID, topic=TOPIC, fingerprint=FINGERPRINT, delta=delta)


def written(file: StateFile, blocks: Iterable[Block]) -> tuple[bytes, int]:
    """Return the bytes and the checksum of a file."""
    writer = StateFileWriter(file)
    buffers: list[Buffer] = [writer.begin()]
    for block in blocks:
        buffers += writer.records(block) if isinstance(block, RecordBlock) else writer.dead_keys(block)
    buffers.append(writer.end())
    data = b"".join(buffers)
    assert len(data) == writer.size
    return data, writer.checksum


def base_entry(data: bytes, checksum: int, *, start: int = 90, end: int = 100) -> StateFileEntry:
    """Return the entry of a base."""
    return StateFileEntry(
        name=base_name(end),
        size=len(data),
        checksum=checksum,
        start=start,
        end=end,
        commit=12,
        epoch=2,
        chain=0xDEAD,
    )


def delta_entry(
    data: bytes, checksum: int, *, since: int = 90, start: int = 120, end: int = 130
) -> StateFileEntry:
    """Return the entry of a delta."""
    return msgspec.structs.replace(
        base_entry(data, checksum, start=start, end=end), name=delta_name(since, end), commit=15, chain=0xBEEF
    )


def manifest_of(*files: StateFileEntry) -> StateManifest:
    """Return a manifest that ends with its last file."""
    last = files[-1]
    return StateManifest(
        journal_id=JOURNAL_ID,
        start=last.start,
        end=last.end,
        commit=last.commit,
        epoch=last.epoch,
        chain=last.chain,
        topic=TOPIC,
        fingerprint=FINGERPRINT,
        complete=False,
        incomplete_because="the log started at position 40",
        records=3,
        order_stamp=STAMP + 5,
        files=files,
    )


BASE_BLOCKS: Final[tuple[Block, ...]] = (
    block_of(
        [
            Row(
                b"1",
                b'{"id":1}',
                41,
                3,
                STAMP,
                7,
                STAMP + 1,
                0,
                "orders/a",
                5_000,
                b"c1",
                b"",
                b"\x81\xa1h\xa1v",
            ),
            Row(b"2", b"", 60, 2**63, STAMP + 1, 2**64 - 1, STAMP + 2, 3, "orders/b", 0, b"", b"k2", b""),
        ]
    ),
    block_of([Row(b"%d" % n, b"body %d" % n, 90 + n, n, STAMP + n, 7) for n in range(3, 8)]),
)
DELTA_BLOCKS: Final[tuple[Block, ...]] = (
    dead_keys_of([("", b"3"), ("", b"gone")]),
    block_of([Row(b"4", b'{"id":4}', 121, 9, STAMP + 5, 7)]),
)


class Checkpoint(NamedTuple):
    """A manifest, and the bytes of its files in their order."""

    manifest: StateManifest
    base: bytes
    delta: bytes

    @property
    def files(self) -> Iterator[tuple[StateFileEntry, bytes]]:
        """Entry and bytes of each file."""
        return zip(self.manifest.files, (self.base, self.delta), strict=True)


def checkpoint() -> Checkpoint:
    """Return a small base and a delta."""
    base, delta = written(state_file(), BASE_BLOCKS), written(state_file(delta=True), DELTA_BLOCKS)
    return Checkpoint(manifest_of(base_entry(*base), delta_entry(*delta)), base[0], delta[0])


# -- corrected checksums ------------------------------------------------------------------------------


def block_places(data: bytes) -> list[tuple[int, int]]:
    """Return offset and payload bytes of each block of a file, up to the first one that exceeds the file."""
    (at,) = struct.unpack_from("<I", data, 16)
    found = []
    while at + BLOCK_HEAD <= len(data) - TRAILER:
        (size,) = struct.unpack_from("<Q", data, at + 8)
        if at + BLOCK_HEAD + size > len(data) - TRAILER:
            break
        found.append((at, size))
        at += BLOCK_HEAD + size
    return found


def mended_state_file(data: bytes) -> bytes:
    """Return a base or delta file with correct checksums and the correct size in its trailer."""
    out = bytearray(data)
    end = len(out) - TRAILER
    if end < 48 or not 48 <= (size := struct.unpack_from("<I", out, 16)[0]) <= end:
        return data
    struct.pack_into("<I", out, 12, crc32c(bytes(out[16:size]), crc32c(bytes(out[:12]))))
    checksum = crc32c(bytes(out[12:16]))
    for at, payload in block_places(data):
        begin = at + BLOCK_HEAD
        struct.pack_into("<I", out, at + 16, crc32c(bytes(out[begin : begin + payload])))
        struct.pack_into("<I", out, at + 20, crc32c(bytes(out[at : at + 20])))
        checksum = crc32c(bytes(out[at + 20 : begin]), checksum)
    struct.pack_into("<QI", out, end + 32, len(out), checksum)
    struct.pack_into("<I", out, end + 44, crc32c(bytes(out[end : end + 44])))
    return bytes(out)


def mended_manifest(data: bytes) -> bytes:
    """Return a manifest with the correct length and checksum."""
    if len(data) < 72:
        return data
    out = data[:68] + struct.pack("<I", len(data) - 72) + data[72:]
    return out[:12] + struct.pack("<I", crc32c(out[16:], crc32c(out[:12]))) + out[16:]


def matching(entry: StateFileEntry, data: bytes) -> StateFileEntry:
    """Return an entry with size and checksum of other bytes."""
    return msgspec.structs.replace(entry, size=len(data), checksum=int.from_bytes(data[-4:], "little"))


SMALL = checkpoint()
MANIFEST = encode_manifest(SMALL.manifest)
BASE, DELTA = SMALL.manifest.files


def read(data: bytes, entry: StateFileEntry, manifest: StateManifest = SMALL.manifest) -> list[Block]:
    return list(read_file(data, manifest, entry))


def plain(block: Block) -> list[Any]:
    return rows_of(block) if isinstance(block, RecordBlock) else keys_of(block)


def refused(data: bytes, entry: StateFileEntry, cause: str = "Cannot read") -> JournalCorrupt:
    """Read a file that is refused, and return the error."""
    with pytest.raises(JournalCorrupt, match=cause) as caught:
        read(data, entry)
    assert str(caught.value).startswith(f"Cannot read '{state_path(TOPIC, entry.name)}'")
    assert str(caught.value).endswith(". Restore sow/ from the backup, or start with --rebuild-sow NAME.")
    return caught.value


def read_mended(data: bytes, entry: StateFileEntry) -> list[Block]:
    """Read a changed file with correct checksums."""
    mended = mended_state_file(data)
    return read(mended, matching(entry, mended))
