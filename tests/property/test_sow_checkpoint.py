"""Base and delta files of SOW topics against plain rows: any columns, blocks and damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.state_files import (
    DIRECTORY,
    JOURNAL_ID,
    TOPIC,
    Block,
    Row,
    base_entry,
    block_of,
    dead_keys_of,
    delta_entry,
    keys_of,
    manifest_of,
    mended_manifest,
    mended_state_file,
    rows_of,
    state_file,
    written,
)
from tickertape.base.errors import JournalCorrupt
from tickertape.journal.format.sow_blocks import RecordBlock
from tickertape.journal.format.sow_checkpoint import (
    StateFileEntry,
    StateManifest,
    decode_manifest,
    delta_name,
    encode_manifest,
    read_file,
)
from tickertape.journal.limits import sow_file_key_bytes_max

LABELS = st.text(max_size=5).map(str.encode)
U63 = st.integers(0, 2**63 - 1)
U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
KEYS = st.one_of(
    st.binary(max_size=20),
    st.integers(0, sow_file_key_bytes_max).map(bytes),
    st.just(b"k" * sow_file_key_bytes_max),
)
BODIES = st.one_of(st.just(b""), st.binary(max_size=40), st.integers(0, 3_000).map(bytes))
TOPICS = st.sampled_from(["orders", "orders/é", "x"])
POSITION_END = 2**63 - 1


@st.composite
def row_lists(draw: st.DrawFn) -> list[Row]:
    """Rows of a block. A column is absent in all of them, or in some."""

    def optional(values: st.SearchStrategy[int], absent: int) -> st.SearchStrategy[int]:
        return st.one_of(st.just(absent), values) if draw(st.booleans()) else st.just(absent)

    def texts() -> st.SearchStrategy[bytes]:
        return st.binary(max_size=9) if draw(st.booleans()) else st.just(b"")

    publishers = st.sampled_from([1, 7, 2**64 - 1]) if draw(st.booleans()) else U64
    rows = st.builds(
        Row,
        key=KEYS,
        body=BODIES if draw(st.booleans()) else st.just(b""),
        position=st.integers(0, POSITION_END - 1),
        sequence=U64,
        stamp=st.integers(-(2**63), 2**63 - 1),
        publisher=publishers,
        timestamp=U63 if draw(st.booleans()) else st.just(-1),
        origin=optional(U32, 0),
        topic=TOPICS if draw(st.booleans()) else st.just(""),
        expiration=optional(U63, 0),
        correlation_id=LABELS if draw(st.booleans()) else st.just(b""),
        message_key=texts(),
        headers=texts(),
    )
    return draw(st.lists(rows, min_size=1, max_size=12))


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    return block_of(draw(row_lists()), table=draw(st.booleans()), parts=draw(st.integers(1, 3)))


@st.composite
def dead_blocks(draw: st.DrawFn) -> Block:
    topics = TOPICS if draw(st.booleans()) else st.just("")
    return dead_keys_of(draw(st.lists(st.tuples(topics, KEYS), min_size=1, max_size=8)))


@st.composite
def state_files(draw: st.DrawFn) -> tuple[list[Block], bytes, StateFileEntry]:
    """Blocks of a file, its bytes and its entry."""
    delta = draw(st.booleans())
    held = draw(st.lists(blocks(), max_size=4))
    if delta:
        held = draw(st.lists(dead_blocks(), max_size=3)) + held
    data, checksum = written(state_file(delta=delta), held)
    entry = (delta_entry if delta else base_entry)(data, checksum, end=POSITION_END, start=100)
    return held, data, entry


def plain(block: Block) -> list[Row] | list[tuple[str, bytes]]:
    return rows_of(block) if isinstance(block, RecordBlock) else keys_of(block)


def read(data: bytes, entry: StateFileEntry) -> list[Block]:
    # A manifest has a base first. Only journal, topic and fingerprint count for a file.
    return list(read_file(data, manifest_of(entry), entry))


@given(state_files())
def test_state_file_reads_back_as_the_written_rows(held: tuple[list[Block], bytes, StateFileEntry]) -> None:
    blocks, data, entry = held
    assert [plain(block) for block in read(data, entry)] == [plain(block) for block in blocks]
    assert mended_state_file(data) == data
    assert len(data) % 8 == 0


@given(state_files())
def test_read_blocks_encode_to_the_same_bytes(held: tuple[list[Block], bytes, StateFileEntry]) -> None:
    _, data, entry = held
    delta = entry.name.startswith("delta")
    assert written(state_file(delta=delta), read(data, entry)) == (data, entry.checksum)


@given(state_files(), st.data())
def test_damaged_state_file_is_refused(
    held: tuple[list[Block], bytes, StateFileEntry], draw: st.DataObject
) -> None:
    _, data, entry = held
    at = draw.draw(st.integers(0, len(data) - 1))
    flip = draw.draw(st.integers(1, 255))
    size = draw.draw(st.integers(0, len(data) - 1))
    for damaged in (
        data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :],
        data[:size],
        data[:at] + data[size:] if at != size else data[1:],
    ):
        with pytest.raises(JournalCorrupt):
            read(damaged, entry)


@st.composite
def manifests(draw: st.DrawFn) -> StateManifest:
    """A manifest of a base and deltas, moved to a later commit or not."""
    data, checksum = written(state_file(), [])
    steps = st.integers(0, 5)
    start = draw(steps)
    files = [base_entry(data, checksum, start=start, end=start + draw(steps))]
    for _ in range(draw(st.integers(0, 4))):
        last = files[-1]
        start = last.end + draw(steps)
        # Each file ends behind the file before it, so that names differ.
        entry = delta_entry(data, checksum, since=last.start, start=start, end=start + 1 + draw(steps))
        files.append(entry)
    manifest = manifest_of(*files)
    if draw(st.booleans()):
        return manifest
    end = manifest.end + draw(steps)
    return StateManifest(
        journal_id=JOURNAL_ID,
        start=end,
        end=end,
        commit=manifest.commit + draw(steps),
        epoch=manifest.epoch + draw(steps),
        chain=draw(U32),
        topic=TOPIC,
        fingerprint=manifest.fingerprint,
        complete=True,
        incomplete_because="",
        records=draw(U63),
        order_stamp=draw(U63),
        files=tuple(files),
    )


@given(manifests())
def test_manifest_reads_back_as_the_written_value(manifest: StateManifest) -> None:
    data = encode_manifest(manifest)
    assert decode_manifest(data, DIRECTORY, JOURNAL_ID) == manifest
    assert mended_manifest(data) == data
    names = [entry.name for entry in manifest.files]
    starts = [entry.start for entry in manifest.files]
    assert names[1:] == [
        delta_name(since, entry.end) for since, entry in zip(starts, manifest.files[1:], strict=False)
    ]


@given(manifests(), st.data())
def test_damaged_manifest_is_refused(manifest: StateManifest, draw: st.DataObject) -> None:
    data = encode_manifest(manifest)
    at = draw.draw(st.integers(0, len(data) - 1))
    flip = draw.draw(st.integers(1, 255))
    for damaged in (data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :], data[:at]):
        with pytest.raises(JournalCorrupt):
            decode_manifest(damaged, DIRECTORY, JOURNAL_ID)
