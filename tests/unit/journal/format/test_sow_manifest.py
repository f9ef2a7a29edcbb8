"""Manifest of a checkpoint of a SOW topic: valid and invalid values, and limits."""

from __future__ import annotations

import struct

import msgspec
import pytest

from tests.helpers.state_files import (
    BASE,
    DELTA,
    DIRECTORY,
    JOURNAL_ID,
    MANIFEST,
    SMALL,
    manifest_of,
    mended_manifest,
    state_file,
)
from tickertape.base.errors import JournalCorrupt
from tickertape.journal.format.sow_checkpoint import (
    StateFileEntry,
    StateFileWriter,
    StateManifest,
    decode_manifest,
    delta_name,
    encode_manifest,
    state_directory,
)
from tickertape.journal.limits import (
    sow_files_max,
    sow_fingerprint_bytes_max,
    sow_manifest_bytes_max,
)

replace = msgspec.structs.replace


def with_files(*files: StateFileEntry) -> StateManifest:
    return manifest_of(*files)


def with_file(number: int, **changes: object) -> StateManifest:
    """Return the manifest with a changed entry, and with the point of the last entry."""
    files = list(SMALL.manifest.files)
    files[number] = replace(files[number], **changes)
    return manifest_of(*files)


def third() -> StateFileEntry:
    return replace(DELTA, name=delta_name(120, 150), start=140, end=150, commit=20, epoch=3)


QUIET = replace(DELTA, name=delta_name(100, 100), start=100, end=100, commit=12)
"""Delta for changes during the scan of a base, without later ones."""


@pytest.mark.parametrize(
    "manifest",
    [
        manifest_of(BASE),
        with_files(BASE, DELTA, third()),
        replace(SMALL.manifest, start=130, end=130),
        replace(SMALL.manifest, start=500, end=500, commit=60, epoch=9, chain=1),
        replace(SMALL.manifest, complete=True, incomplete_because=""),
        replace(SMALL.manifest, topic="t" * 1024, fingerprint=bytes(sow_fingerprint_bytes_max)),
        replace(SMALL.manifest, records=2**63 - 1, order_stamp=2**63 - 1),
        # Nothing was added to the log while the base was written, and during its scan a record changed.
        with_files(BASE, replace(DELTA, name=delta_name(90, 100), start=100, end=100, commit=12)),
    ],
)
def test_valid_manifest_encodes_and_decodes_to_the_same_value(manifest: StateManifest) -> None:
    data = encode_manifest(manifest)
    assert decode_manifest(data, state_directory(manifest.topic), JOURNAL_ID) == manifest
    assert mended_manifest(data) == data


def raw_manifest(manifest: StateManifest) -> bytes:
    """Encode a manifest without checks."""
    fields = msgspec.structs.asdict(manifest)
    point = [fields.pop(name) for name in ("end", "start", "commit", "epoch", "chain")]
    head = struct.pack("<8sII16sQQQQII", b"TKTSOW\0\0", 0, 0, fields.pop("journal_id"), *point, 0)
    return mended_manifest(head + msgspec.msgpack.encode(fields))


def test_manifest_encoded_without_checks_has_the_same_bytes() -> None:
    assert raw_manifest(SMALL.manifest) == MANIFEST


@pytest.mark.parametrize(
    ("manifest", "cause"),
    [
        (replace(SMALL.manifest, start=131), "its positions 131 and 130 are out of order"),
        (replace(SMALL.manifest, end=2**63), "a number of its head has more than 63 bits"),
        (replace(SMALL.manifest, commit=2**63), "a number of its head has more than 63 bits"),
        (replace(SMALL.manifest, epoch=2**63), "a number of its head has more than 63 bits"),
        (replace(SMALL.manifest, records=-1), "its map is invalid"),
        (replace(SMALL.manifest, order_stamp=2**63), "its map is invalid"),
        (replace(SMALL.manifest, topic=""), "a topic name has 0 bytes"),
        (replace(SMALL.manifest, topic="Ü" * 513), "a topic name has 1026 bytes"),
        (replace(SMALL.manifest, fingerprint=b""), "its map is invalid"),
        (replace(SMALL.manifest, fingerprint=bytes(sow_fingerprint_bytes_max + 1)), "its map is invalid"),
        (replace(SMALL.manifest, complete=True), "it needs a reason exactly if the state is not complete"),
        (replace(SMALL.manifest, incomplete_because=""), "it needs a reason exactly if"),
        (replace(SMALL.manifest, incomplete_because="x" * 1025), "its reason is too long"),
        (replace(SMALL.manifest, files=()), "its map is invalid"),
        (replace(SMALL.manifest, files=(BASE,) * (sow_files_max + 1)), "its map is invalid"),
        (with_files(DELTA), "file 0 is not in the order base, deltas"),
        (with_files(BASE, BASE), "file 1 is not in the order base, deltas"),
        (with_files(BASE, third()), "file 1 does not follow the file before"),
        (with_files(BASE, DELTA, DELTA), "file 2 does not follow the file before"),
        (with_file(0, name="../base"), "the name of file 0 is invalid"),
        (with_file(1, name="a/" + DELTA.name), "the name of file 1 is invalid"),
        (with_file(0, end=101), "the positions of file 0 do not match"),
        (with_file(0, start=101), "the positions of file 0 do not match"),
        (replace(SMALL.manifest, files=(BASE, replace(DELTA, start=131))), "the positions of file 1 do not"),
        (with_file(1, start=99), "file 1 does not follow the file before"),
        (with_file(1, commit=11), "file 1 does not follow the file before"),
        (with_file(1, epoch=1), "file 1 does not follow the file before"),
        (with_file(0, size=BASE.size + 4), "the size of file 0 is invalid"),
        (with_file(0, size=88), "the size of file 0 is invalid"),
        (with_file(1, size=-8), "its map is invalid"),
        (replace(SMALL.manifest, files=(BASE, replace(DELTA, chain=2**32))), "its map is invalid"),
        (with_files(replace(BASE, start=100), QUIET, QUIET), "two of its files have the same name"),
        (replace(SMALL.manifest, start=119), "its position does not follow its last file"),
        (replace(SMALL.manifest, chain=1), "its position does not follow its last file"),
        (replace(SMALL.manifest, start=129, end=129), "its position does not follow its last file"),
        (replace(SMALL.manifest, start=140, end=140, commit=14), "its position does not follow"),
        (replace(SMALL.manifest, start=140, end=140, epoch=1), "its position does not follow"),
    ],
)
def test_invalid_manifest_is_neither_written_nor_read(manifest: StateManifest, cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        encode_manifest(manifest)
    with pytest.raises(JournalCorrupt, match=cause):
        decode_manifest(raw_manifest(manifest), state_directory(manifest.topic), JOURNAL_ID)


@pytest.mark.parametrize("changes", [{"chain": 2**32}, {"commit": -1}, {"end": 2**64}, {"records": 2**64}])
def test_manifest_with_a_number_out_of_range_is_not_written(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a number of the manifest is out of range"):
        encode_manifest(replace(SMALL.manifest, **changes))


@pytest.mark.parametrize("size", [0, 15, 17])
def test_manifest_with_a_journal_id_of_another_length_is_not_written(size: int) -> None:
    with pytest.raises(ValueError, match="the journal id does not have 16 bytes"):
        encode_manifest(replace(SMALL.manifest, journal_id=bytes(size)))
    with pytest.raises(ValueError, match="the journal id does not have 16 bytes"):
        StateFileWriter(replace(state_file(), journal_id=bytes(size))).begin()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x80",
        b"\xc0",
        b"\x90",
        MANIFEST[72:] + b"\xc0",
        msgspec.msgpack.encode({**msgspec.msgpack.decode(MANIFEST[72:]), "\n" * 900: 1}),
        msgspec.msgpack.encode({**msgspec.msgpack.decode(MANIFEST[72:]), "topic": b"orders"}),
        msgspec.msgpack.encode({**msgspec.msgpack.decode(MANIFEST[72:]), "files": [[1]]}),
        MANIFEST[72:].replace(b"orders", b"\xff\xfe\xfd\xfc\xfb\xfa"),
        b"\x81\xa5topic" + b"\x91" * 2000 + b"\xc0",
    ],
)
def test_manifest_with_an_invalid_map_is_refused_in_a_printable_line(body: bytes) -> None:
    with pytest.raises(JournalCorrupt) as caught:
        decode_manifest(mended_manifest(MANIFEST[:72] + body), DIRECTORY, JOURNAL_ID)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700


def test_manifest_entry_with_more_fields_is_refused() -> None:
    fields = msgspec.msgpack.decode(MANIFEST[72:])
    fields["files"][0].append(1)
    data = mended_manifest(MANIFEST[:72] + msgspec.msgpack.encode(fields))
    with pytest.raises(JournalCorrupt, match="its map is invalid"):
        decode_manifest(data, DIRECTORY, JOURNAL_ID)


def test_manifest_above_the_size_limit_is_refused() -> None:
    data = mended_manifest(MANIFEST + bytes(sow_manifest_bytes_max))
    with pytest.raises(JournalCorrupt, match=f"it has {len(data)} bytes"):
        decode_manifest(data, DIRECTORY, JOURNAL_ID)


def test_manifest_with_the_most_files_is_below_the_size_limit() -> None:
    entries = [BASE]
    while len(entries) < sow_files_max:
        last = entries[-1]
        name = delta_name(last.start, last.end + 20)
        entries.append(replace(last, name=name, start=last.end + 10, end=last.end + 20))
    manifest = replace(manifest_of(*entries), topic="t" * 1024, fingerprint=bytes(sow_fingerprint_bytes_max))
    data = encode_manifest(manifest)
    assert len(data) < sow_manifest_bytes_max // 4
    assert decode_manifest(data, state_directory(manifest.topic), JOURNAL_ID) == manifest
