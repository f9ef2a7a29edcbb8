"""Golden files of a delete record and an expiry record.

`TICKERTAPE_GOLDEN=write` regenerates the files.
"""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tickertape.engine.sow.state.delete import DeleteBuilder, DeleteKind, DeleteRecord, decode, encode

GOLDEN = Path(__file__).parents[4] / "golden"
TIME = 1_790_000_000_000_000
LOG = bytes(range(16))
ORDERS = [b"\x81\x07", b"\xa3IBM", b"\xa4MSFT", b"\xa3IBM"]
"""Any bytes: the format of a key is not part of the record."""


def delete() -> DeleteRecord:
    """Return a delete over a pattern with every part, also those of other logs."""
    builder = DeleteBuilder("all orders", LOG)
    builder.add(
        ORDERS,
        np.array([12472216704108904515, 0, 7, 7], np.uint64),
        np.array([42, 0, 44, 2**40], np.uint64),
        np.array([TIME, 0, TIME + 1, TIME + 2], np.int64),
        topics=["orders/b", "orders/b", "orders/a", "orders/a"],
        live=np.array([True, False, False, True]),
    )
    record = builder.build(300, 1_000, more=True)
    return msgspec.structs.replace(record, logs=(LOG,), log_numbers=np.array([0, 0, 1, 0], np.uint16))


def expiry() -> DeleteRecord:
    builder = DeleteBuilder("orders", LOG, DeleteKind.EXPIRED)
    builder.add(
        [b"\xa3IBM", b"\x81\x07"],
        np.array([7, 7], np.uint64),
        np.array([44, 45], np.uint64),
        np.array([TIME, TIME + 1], np.int64),
    )
    return builder.build()


RECORDS = {"sow-delete": delete, "sow-expiry": expiry}


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("name", RECORDS)
def test_written_sow_records_equal_the_golden_files(name: str) -> None:
    written = encode(RECORDS[name]())
    if os.environ.get("TICKERTAPE_GOLDEN") == "write":
        (GOLDEN / f"{name}.bin").write_bytes(written)
    assert written == golden(name), (
        "the format changed: describe the change in an ADR, then regenerate the file"
    )
    assert RECORDS[name]().encoded_bytes == len(written)


@pytest.mark.parametrize("name", RECORDS)
def test_golden_sow_records_decode_to_the_same_columns(name: str) -> None:
    found, expected = decode(golden(name)), RECORDS[name]()
    assert encode(found) == encode(expected)
    assert found.keys() == expected.keys()
    assert found.topics_between(0, found.count) == expected.topics_between(0, found.count)
    assert (found.kind, found.counts, found.more) == (expected.kind, expected.counts, expected.more)


def test_golden_delete_matches_the_documented_layout() -> None:
    topic, kind, counts, more, logs, topics, publishers, sequences, stamps, *rest = msgspec.msgpack.decode(
        golden("sow-delete")
    )
    numbers, log_numbers, topic_numbers, offsets, keys, key_fingerprint = rest
    assert (topic, kind, counts, more) == ("all orders", 1, [300, 1_000, 2], True)
    assert (logs, topics) == ([LOG], ["orders/b", "orders/a"])
    assert struct.unpack("<2Q", publishers) == (7, 12472216704108904515)
    assert struct.unpack("<4Q", sequences) == (42, 0, 2**40, 44)
    assert struct.unpack("<4q", stamps) == (TIME, 0, TIME + 2, TIME + 1)
    assert struct.unpack("<4I", numbers) == (1, 0xFFFF_FFFF, 0, 0)
    assert struct.unpack("<4H", log_numbers) == (0, 0, 1, 0)
    assert struct.unpack("<4I", topic_numbers) == (0, 0, 1, 1)
    assert struct.unpack("<5I", offsets) == (0, 2, 6, 10, 15)
    assert keys == b"\x81\x07\xa3IBM\xa3IBM\xa4MSFT"
    assert key_fingerprint == LOG


def test_golden_expiry_matches_the_documented_layout() -> None:
    elements = msgspec.msgpack.decode(golden("sow-expiry"))
    assert elements[:6] == ["orders", 2, [0, 0, 0], False, [], []]
    assert elements[6] == struct.pack("<Q", 7)
    assert elements[7:10] == [struct.pack("<2Q", 45, 44), struct.pack("<2q", TIME + 1, TIME), bytes(8)]
    assert elements[10:] == [b"", b"", struct.pack("<3I", 0, 2, 6), b"\x81\x07\xa3IBM", LOG]


def test_example_of_the_format_page_equals_the_encoded_columns() -> None:
    builder = DeleteBuilder("orders", LOG)
    builder.add([b"A", b"B"], np.array([7, 0], np.uint64), np.array([44, 0], np.uint64), np.array([1, 0]))
    elements = msgspec.msgpack.decode(encode(builder.build(1, 1)))
    page = (Path(__file__).parents[5] / "docs" / "formats" / "sow-records.md").read_text(encoding="utf-8")
    rows = dict(
        re.findall(r"^\| (\d+(?:(?:,| to) \d+)?) \| (.*) \|$", page.partition("## Example")[2], re.MULTILINE)
    )
    assert elements[:4] == ["orders", 1, [1, 1, 1], False]
    assert rows["0 to 3"] == '`"orders"`, 1, `[1, 1, 1]`, false'
    assert elements[4:6] == [[], []]
    assert elements[10:12] == [b"", b""]
    for index in (6, 7, 9, 12, 13, 14):
        assert bytes.fromhex(rows[str(index)].replace(",", "")) == elements[index]
    assert rows["8"].endswith(elements[8][8:].hex(" "))
