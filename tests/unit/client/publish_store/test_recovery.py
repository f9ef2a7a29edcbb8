"""Recovery of a publish store: truncation, flipped bytes and crashes at every byte of a write."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from random import Random

import pytest

import tickertape as tt
from tests.helpers import publish_batches
from tests.helpers.publish_batches import held_messages
from tickertape.base.errors import NotAStore, StoreCorrupt, StoreVersion
from tickertape.base.interfaces import Buffer
from tickertape.base.names import publisher_id
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.limits import publish_segment_bytes
from tickertape.client.publish_store import FilePublishStore
from tickertape.client.publish_store.format import (
    HEADER_BYTES,
    MARK_AT,
    Image,
    read_entry,
    read_mark,
    recover_store,
)
from tickertape.client.publish_store.hybrid_parts import BacklogFiles
from tickertape.client.publish_store.unpersisted import UnpersistedEntry

Messages = list[tuple[int, bytes]]


stored = partial(publish_batches.stored, name="a")


def written(path: Path) -> tuple[bytes, Messages]:
    """Write a store with every kind of record. Return the segment and its messages."""
    store = BacklogFiles(path)
    store.attach("a")
    store.put(stored(1, b"one", b"two"))
    store.append(3, "orders", b"three")
    store.append(4, "orders", b"four", 5, "corr", "key")
    store.put(stored(5, b"five", b"six", b"seven"))
    store.replace(5, 7, stored(6, b"six", b"seven").batch)
    store.note_used(100)
    store.discard(1)
    store.append(101, "orders", b"last")
    held = messages(store)
    store.close()
    (file,) = path.glob("*.segment")
    data = file.read_bytes()
    return data, [*held, (3, b"three"), (4, b"four"), (101, b"last")]


def messages(store: FilePublishStore) -> Messages:
    return list(held_messages(store).items())


def recovered(data: bytes) -> Messages:
    """Return the messages of a segment, or raise."""
    end = read_mark(data, MARK_AT) if len(data) >= HEADER_BYTES else None

    def segments(_: int) -> tuple[Buffer, int]:
        return data, len(data)

    def read(entry: UnpersistedEntry) -> MessageBatch:
        return read_entry(entry, segments, publisher_id("a"))

    found = recover_store([Image(1, "the file", lambda: data)], read)
    assert found.name == "a"
    assert end is not None
    assert found.segments[-1].end >= end
    return [
        (int(n), body)
        for entry in found.ledger.entries
        for n, body in zip(read(entry).sequences, read(entry).bodies_list(), strict=True)
    ]


def short(data: bytes) -> bytes:
    """Return the segment as a smaller file, so that a test can visit each byte."""
    from tickertape.client.publish_store.format import encode_header, parse_header

    end = (read_mark(data, MARK_AT) or 0) + 64
    header = parse_header(data, "")._replace(size=end)
    return encode_header(header)[:MARK_AT] + data[MARK_AT:end]


@pytest.fixture
def segment(tmp_path: Path) -> tuple[bytes, Messages]:
    data, held = written(tmp_path / "s")
    return short(data), sorted(held)


def test_recovery_returns_all_held_messages(segment: tuple[bytes, Messages]) -> None:
    data, held = segment
    assert recovered(data) == held
    assert [n for n, _ in held] == [2, 3, 4, 6, 7, 101]


def test_segment_truncated_at_any_byte_raises_with_the_offset(segment: tuple[bytes, Messages]) -> None:
    data, _ = segment
    for size in range(len(data)):
        with pytest.raises(StoreCorrupt, match="the file") as caught:
            recovered(data[:size])
        assert (caught.value.file, caught.value.offset) == ("the file", size)


def test_flipped_byte_raises_or_changes_nothing(segment: tuple[bytes, Messages]) -> None:
    data, held = segment
    end = read_mark(data, MARK_AT)
    assert end is not None
    silent = []
    for at in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            changed = bytearray(data)
            changed[at] ^= flip
            try:
                assert recovered(bytes(changed)) == held, f"byte {at}"
            except (StoreCorrupt, StoreVersion, NotAStore):
                continue
            silent.append(at)
    # Only changes of padding may go undetected.
    assert all(at >= end or at < HEADER_BYTES or data[at] == 0 for at in silent)
    assert len(set(silent)) < len(data) // 4


def test_crash_at_any_byte_of_a_write_loses_only_the_unfinished_message(tmp_path: Path) -> None:
    store = FilePublishStore(tmp_path / "s")
    store.attach("a")
    store.append(1, "orders", b"one")
    file = next((tmp_path / "s").glob("*.segment"))
    before = file.read_bytes()
    store.append(2, "orders", b"two, which is a little longer")
    after = file.read_bytes()
    store.close()
    start, end = read_mark(before, MARK_AT), read_mark(after, MARK_AT)
    assert start is not None
    assert end is not None
    for at in range(start, end + 1):
        torn = short(
            after[:at].ljust(len(after), b"\0")[:MARK_AT]
            + before[MARK_AT:HEADER_BYTES]
            + after[HEADER_BYTES:at].ljust(len(after) - HEADER_BYTES, b"\0")
        )
        found = recovered(torn[: start + 64] if len(torn) < start else torn)
        assert found[0] == (1, b"one")
        assert len(found) <= 2


def test_damaged_record_before_a_valid_one_raises_beyond_the_mark(
    segment: tuple[bytes, Messages],
) -> None:
    data, _ = segment
    old = bytearray(data)
    from tickertape.client.publish_store.format import WORD, marked

    WORD.pack_into(old, MARK_AT, marked(HEADER_BYTES))
    old[HEADER_BYTES + 50] ^= 1
    with pytest.raises(StoreCorrupt, match="precedes the valid one"):
        recovered(bytes(old))


def many(path: Path) -> Messages:
    """Write a store of three segments and return its messages."""
    store = FilePublishStore(path)
    store.attach("a")
    for i in range(1, 6):
        store.put(stored(i, bytes([i]) * (publish_segment_bytes // 2 - 1000)))
    held = messages(store)
    store.close()
    assert len(list(path.glob("*.segment"))) == 3
    return held


def test_missing_segment_raises_store_corrupt(tmp_path: Path) -> None:
    many(tmp_path / "s")
    for number in (1, 2, 3):
        shutil.copytree(tmp_path / "s", tmp_path / "t")
        os.unlink(tmp_path / "t" / f"{number:010}.segment")
        with pytest.raises(tt.StoreCorrupt) as caught:
            FilePublishStore(tmp_path / "t")
        assert caught.value.file
        shutil.rmtree(tmp_path / "t")


def test_segment_of_another_store_raises_store_corrupt(tmp_path: Path) -> None:
    many(tmp_path / "s")
    many(tmp_path / "t")
    shutil.copy(tmp_path / "s" / "0000000002.segment", tmp_path / "t" / "0000000002.segment")
    with pytest.raises(tt.StoreCorrupt, match="different store"):
        FilePublishStore(tmp_path / "t")


def test_crash_just_after_segment_creation_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s"
    store = FilePublishStore(path)
    store.attach("a")
    store.put(stored(1, b"x" * (publish_segment_bytes - 1000)))
    first = path / "0000000001.segment"
    before = first.read_bytes()
    store.put(stored(2, b"y" * 2000))
    second = path / "0000000002.segment"
    store.close()
    # a crash just after the creation of the segment
    first.write_bytes(before)
    data = second.read_bytes()
    second.write_bytes(
        data[:MARK_AT]
        + before[MARK_AT:HEADER_BYTES].replace(before[MARK_AT : MARK_AT + 8], fresh_mark())
        + bytes(len(data) - HEADER_BYTES)
    )
    again = FilePublishStore(path)
    assert [n for n, _ in messages(again)] == [1]
    again.put(stored(2, b"again"))
    again.close()
    last = FilePublishStore(path)
    assert [n for n, _ in messages(last)] == [1, 2]
    last.close()


def fresh_mark() -> bytes:
    from tickertape.client.publish_store.format import WORD, marked

    return WORD.pack(marked(HEADER_BYTES))


def test_garbage_after_the_mark_is_dropped_and_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "s"
    _, held = written(path)
    file = next(path.glob("*.segment"))
    data = bytearray(file.read_bytes())
    end = read_mark(data, MARK_AT) or 0
    data[end : end + 3000] = Random(1).randbytes(3000)
    file.write_bytes(data)
    store = FilePublishStore(path)
    assert messages(store) == sorted(held)
    store.append(102, "orders", b"continues")
    store.close()
    again = FilePublishStore(path)
    assert messages(again) == [*sorted(held), (102, b"continues")]
    again.close()
