"""Ids, control records, identity and index match docs/formats/journal.md byte by byte."""

from __future__ import annotations

import json
import re
import struct
from hashlib import blake2b
from pathlib import Path

import msgspec
from crc32c import crc32c

from tests.unit.journal.format.test_segment import GOLDEN
from tests.unit.journal.written import Written
from tickertape.base.names import derived_publisher_id, publisher_id
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER, CONTROL_TOPIC, PublisherDirectory
from tickertape.journal.limits import index_block_bytes, index_zone_bytes

DOCUMENT = (Path(__file__).parents[4] / "docs" / "formats" / "journal.md").read_text(encoding="utf-8")


def documented_hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little") or 1


def test_publisher_ids_equal_the_documented_hashes() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (?:`([^`]+)` )?\| (\d+) \|$", DOCUMENT, re.MULTILINE)
    assert len(rows) == 3
    for name, instance, number in rows:
        data = f"{name}\0{instance}" if instance else name
        made = derived_publisher_id(name, instance) if instance else publisher_id(name)
        assert made == documented_hash(data.encode()) == int(number)
    assert documented_hash(b"$control") == CONTROL_PUBLISHER


def test_publisher_control_record_matches_the_documented_map() -> None:
    batch = PublisherDirectory().bind(2**63 + 1, "risk-1", derived=True)
    assert (batch.topics, batch.count) == ((CONTROL_TOPIC,), 1)
    assert batch.kinds is not None
    assert batch.kinds.tolist() == [1]
    golden = b"\x84\xa4type\xa9publisher\xa9publisher\xcf\x80\0\0\0\0\0\0\1\xa4name\xa6risk-1\xa7derived\xc3"
    assert bytes(batch.body(0)) == golden
    registry = PublisherDirectory()
    registry.apply(golden)
    assert registry.is_bound(2**63 + 1)
    registry.apply(b"\x82\xa4type\xa7unknown\xa9publisher\x05")
    assert not registry.is_bound(5)


def test_identity_file_has_the_documented_bytes() -> None:
    data = Written(new_id=bytes(range(16))).disk.contents()["identity.json"]
    assert json.loads(data) == {"journal": "000102030405060708090a0b0c0d0e0f", "format": 0}
    assert data.endswith(b"}\n")
    assert data == b'{"journal":"000102030405060708090a0b0c0d0e0f","format":0}\n'


def test_index_of_the_golden_segment_has_the_documented_layout() -> None:
    data = GOLDEN.read_bytes()
    _, seal, _, _, index_bytes, _ = struct.unpack("<8sQQQII", data[-40:])
    elements = msgspec.msgpack.decode(data[seal + 96 : seal + 96 + index_bytes])
    offsets, positions, times, (zone_bytes, rows), (stride, hashes, counts, groups), late = elements
    assert late is None
    assert struct.unpack("<Q", offsets) == (512,)
    assert struct.unpack("<Q", positions) == (0,)
    assert struct.unpack("<q", times) == (0,)
    assert zone_bytes == index_zone_bytes == 64 * 1024
    assert index_block_bytes == 4 * 1024
    assert {key: struct.unpack("<3Q", row) for key, row in rows.items()} == {7: (0, 1, 3), 8: (0, 5, 6)}
    assert stride == 1
    assert struct.unpack("<2I", hashes) == tuple(sorted((crc32c(b"orders"), crc32c(b"fills"))))
    assert struct.unpack("<2I", counts) == (1, 1)
    assert struct.unpack("<2H", groups) == (0, 0)
