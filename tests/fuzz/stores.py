"""Fuzz targets of client store files: publish store segments, and both bookmark stores.

A store that opens has to reopen with the same contents. Must never catch more than the errors that a file may
cause.
"""

from __future__ import annotations

import functools
import struct
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from crc32c import crc32c

from tests.fuzz.target import Target, taken
from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import NotAStore, StoreCorrupt, StoreVersion
from tickertape.batch import batch_from_bodies
from tickertape.client.bookmark_store import LoggedBookmarkStore, RingBookmarkStore, log_format, ring_format
from tickertape.client.bookmark_store.store_file import boot_id
from tickertape.client.publish_store import FilePublishStore, Stored
from tickertape.client.publish_store.format import (
    CRC,
    HEADER_BYTES,
    MARK_AT,
    NEXT_AT,
    WORD,
    Header,
    encode_header,
    look,
    marked,
    read_mark,
)
from tickertape.client.publish_store.hybrid_parts import BacklogFiles

_SIZE_AT: Final = 60
"""Offset of the file size in the header of a publish store segment."""
_FILES_MAX: Final = 4
_THIS_RUN: Final = b"this run of it.."
"""Boot id in bookmark stores of the current run of the machine, which no committed file can contain."""
_BOOT_AT: Final = {"log": 16, "ring": 24}

# -- publish stores -----------------------------------------------------------------------------------


def publish_store(data: bytes) -> str:
    """Open a publish store: `StoreError`, or a store that reopens unchanged and shrinks on discards."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store"
        path.mkdir()
        for number, file in enumerate(segments_in(data), 1):
            (path / f"{number:010}.segment").write_bytes(file)
        with FilePublishStore(path) as store:
            held = _held(store)
            last = store.last_sequence
        with taken():
            with FilePublishStore(path) as store:
                assert (_held(store), store.last_sequence) == (held, last)
                if not held:
                    return "empty"
                store.discard(held[0][0])
            with FilePublishStore(path) as store:
                assert _held(store) == held[1:]
        return "holds"


def segments_in(data: bytes) -> list[bytes]:
    """Split `data` into files: each has the length in its header, and the last one takes the rest."""
    files: list[bytes] = []
    while len(data) > HEADER_BYTES and len(files) < _FILES_MAX - 1:
        size = max(struct.unpack_from("<I", data, _SIZE_AT)[0], HEADER_BYTES)
        files.append(data[:size])
        data = data[size:]
    return [*files, data] if data else files


def _held(store: FilePublishStore) -> list[tuple[int, str, bytes]]:
    """Return sequence, topic and body of each message, and check the counts of the store."""
    found = [
        (sequence, message.topic, bytes(message.data))
        for stored in store.held()
        for sequence, message in zip(stored.batch.sequences.tolist(), stored.batch, strict=True)
    ]
    assert len(found) == store.unpersisted_count()
    assert all(low[0] < high[0] for low, high in pairwise(found))
    assert not found or found[-1][0] <= store.last_sequence
    return found


def mended_publish_segments(data: bytes) -> bytes:
    """Return segments with the correct checksums of their headers and records."""
    return b"".join(map(_mended_segment, segments_in(data)))


def _mended_segment(data: bytes) -> bytes:
    if len(data) < HEADER_BYTES:
        return data
    out = bytearray(data)
    CRC.pack_into(out, 12, crc32c(bytes(out[16:MARK_AT]), crc32c(bytes(out[:12]))))
    seed = crc32c(out[16:32])
    at = HEADER_BYTES
    while (record := look(out, at)) is not None and record.end <= len(out):
        CRC.pack_into(out, at, crc32c(bytes(out[at + CRC.size : at + 32 + record.length]), seed))
        at = record.end
    return bytes(out)


def publish_segments() -> Sequence[bytes]:
    """Return a store of one file with records of each kind, one of two files, and an unused one."""
    return _one_segment(), _two_segments(), encode_header(_fresh(640)).ljust(640, b"\0")


def _fresh(size: int) -> Header:
    return Header(7, 1, 0, 0, 1, 0, size, "fuzzed", never_logged_on=True)


def _one_segment() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "0000000001.segment"
        file.write_bytes(encode_header(_fresh(1536)).ljust(1536, b"\0"))
        with BacklogFiles(directory) as store:
            store.attach("fuzzed")
            store.append(1, "orders", b"one")
            store.append(2, "orders", b"two", expiration_ms=5, correlation_id="c", key="k")
            store.append(3, "fills", b"three")
            store.put(Stored(4, 6, batch_from_bodies("orders", [b"4", b"5", b"6"], first_sequence=4)))
            store.replace(4, 6, batch_from_bodies("orders", [b"5"], first_sequence=5))
            store.note_used(8)
        with BacklogFiles(directory) as store:
            store.discard(1)
        return file.read_bytes()


def _two_segments() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        files = [Path(directory) / f"{number:010}.segment" for number in (1, 2)]
        files[0].write_bytes(encode_header(_fresh(768)).ljust(768, b"\0"))
        with FilePublishStore(directory) as store:
            store.attach("fuzzed")
            store.append(1, "orders", b"one")
        before = bytearray(files[0].read_bytes())
        end = read_mark(before, MARK_AT)
        assert end is not None
        WORD.pack_into(before, NEXT_AT, marked(1))
        files[0].write_bytes(before)
        after = encode_header(_fresh(896)._replace(number=2, used=1, previous_end=end))
        files[1].write_bytes(after.ljust(896, b"\0"))
        with FilePublishStore(directory) as store:
            store.attach("fuzzed")
            store.append(2, "orders", b"two")
        return b"".join(file.read_bytes() for file in files)


# -- bookmark stores ----------------------------------------------------------------------------------

_Places = dict[str, tuple[list[Bookmark], int]]


def bookmark_store(kind: str, data: bytes) -> str:
    """Open a bookmark store: `StoreCorrupt`, or a usable store that reopens with the same recovery points."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "bookmarks"
        path.write_bytes(_of_this_run(kind, data))
        open_store = LoggedBookmarkStore if kind == "log" else RingBookmarkStore
        with open_store(path) as store:
            before = _places(store)
        with taken(), open_store(path) as store:
            assert _places(store) == before
            for name in before:
                _remembers_new_publisher(store, name)
        return "remembers" if before else "empty"


def _places(store: LoggedBookmarkStore | RingBookmarkStore) -> _Places:
    found = {name: (store.most_recent(name), store.undiscarded_count(name)) for name in store.subscriptions()}
    assert all(count >= 0 for _, count in found.values())
    return found


def _remembers_new_publisher(store: LoggedBookmarkStore | RingBookmarkStore, name: str) -> None:
    """Check that a store remembers a new publisher."""
    assert not store.is_discarded(name, 99, 5)
    store.log(name, 99, np.array([5], np.uint64))
    assert store.undiscarded_count(name) >= 1
    assert store.discard(name, 99, 5)
    assert store.is_discarded(name, 99, 5)


def _of_this_run(kind: str, data: bytes) -> bytes:
    """Replace `_THIS_RUN` with the boot id of this run. A valid checksum stays valid."""
    at = _BOOT_AT[kind]
    if data[at : at + 16] != _THIS_RUN or len(data) < at + 20:
        return data
    out = bytearray(data)
    right = crc32c(data[: at + 16]) == CRC.unpack_from(data, at + 16)[0]
    out[at : at + 16] = boot_id()
    if right:
        CRC.pack_into(out, at + 16, crc32c(bytes(out[: at + 16])))
    return bytes(out)


def mended_log(data: bytes) -> bytes:
    """Return a logged bookmark store with the correct checksums of its header and records."""
    out = bytearray(data)
    salt, at = _mended_header(out, _BOOT_AT["log"]), log_format.HEADER_BYTES
    while salt is not None and at + log_format.RECORD_BYTES <= len(out):
        _, what, value = log_format.RECORD.unpack_from(out, at)
        if not 1 <= what & 0xFF <= max(log_format.RecordKind):
            break
        end = (
            at
            + log_format.RECORD_BYTES
            + (0 if what & 0xFF == log_format.RecordKind.DISCARD else value + -value % 8)
        )
        if end > len(out):
            break
        CRC.pack_into(out, at, crc32c(bytes(out[at + 4 : end]), (salt + at) & 0xFFFF_FFFF))
        at = end
    return bytes(out)


def mended_ring(data: bytes) -> bytes:
    """Return a ring with the correct checksums of its header, names and slots."""
    out = bytearray(data)
    salt = _mended_header(out, _BOOT_AT["ring"])
    if salt is None:
        return bytes(out)
    subscriptions, publishers = struct.unpack_from("<II", out, 16)
    if (
        len(out) != ring_format.place_at(subscriptions, publishers)
        or subscriptions * (publishers + 1) > 1 << 10
    ):
        return bytes(out)
    for number in range(subscriptions):
        at = ring_format.place_at(number, publishers)
        _, length, epoch = ring_format.NAME.unpack_from(out, at)
        if length <= ring_format.NAME_LENGTH_MAX and any(out[at : at + ring_format.NAME_BYTES]):
            text = bytes(out[at + ring_format.NAME.size : at + ring_format.NAME.size + length])
            out[at : at + 4] = ring_format.name(text, epoch, at, salt)[:4]
        place = ring_format.RingSlot(number, publishers, epoch, salt)
        for cell in (place.base, *place.spare):
            for slot, seed in ((cell.at, cell.seed), (cell.other, cell.other_seed)):
                if any(out[slot : slot + ring_format.SLOT_BYTES]):
                    CRC.pack_into(
                        out, slot, crc32c(bytes(out[slot + 4 : slot + ring_format.SLOT_BYTES]), seed)
                    )
    return bytes(out)


def _mended_header(out: bytearray, boot_at: int) -> int | None:
    """Correct the checksum of a header, and return its salt. None: the header is incomplete."""
    if len(out) < log_format.HEADER_BYTES:
        return None
    CRC.pack_into(out, boot_at + 16, crc32c(bytes(out[: boot_at + 16])))
    return int(struct.unpack_from("<I", out, 12)[0])


def bookmark_stores(kind: str) -> Sequence[bytes]:
    """Return stores with records of each kind, from another run of the machine and from this one."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "bookmarks"
        head = log_format.header(9, bytes(16)) if kind == "log" else _empty_ring()
        path.write_bytes(head)
        with LoggedBookmarkStore(path) if kind == "log" else RingBookmarkStore(path) as store:
            store.started("s", [Bookmark(1, 2)])
            store.log("s", 7, np.array([3, 4, 6], np.uint64))
            store.log("s", np.array([7, 8], np.uint64), np.array([9, 1], np.uint64))
            store.discard("s", 7, 3)
            store.discard_all("s", 7, np.array([4, 9], np.uint64))
            store.persisted("s", Bookmark(7, 9))
            store.resumed("s", forget_beyond=True)
            store.started("gone", [Bookmark(3, 3)])
            store.purge("gone")
            store.log("t", 8, np.arange(5, 9, dtype=np.uint64))
        made = path.read_bytes()
    at = _BOOT_AT[kind]
    here = made[:at] + _THIS_RUN + made[at + 16 :]
    return made, (mended_log if kind == "log" else mended_ring)(here)


def _empty_ring() -> bytes:
    return ring_format.header(9, 2, 1, bytes(16)).ljust(ring_format.place_at(2, 1), b"\0")


STORE_TARGETS: Final[dict[str, Target]] = {
    "publish_store": Target(
        publish_store,
        publish_segments,
        mended_publish_segments,
        cost=10,
        allowed=(NotAStore, StoreCorrupt, StoreVersion),
    ),
    "bookmark_log": Target(
        functools.partial(bookmark_store, "log"),
        functools.partial(bookmark_stores, "log"),
        mended_log,
        cost=10,
        allowed=(StoreCorrupt,),
    ),
    "bookmark_ring": Target(
        functools.partial(bookmark_store, "ring"),
        functools.partial(bookmark_stores, "ring"),
        mended_ring,
        cost=10,
        allowed=(StoreCorrupt,),
    ),
}
