"""Control records of replication: documented bytes, round trips, and records that are refused."""

from __future__ import annotations

import msgspec
import pytest

from tickertape.base.errors import JournalCorrupt
from tickertape.journal.format.control_record import decode_head
from tickertape.journal.format.replication_records import (
    HoleRange,
    LogPlace,
    ReplicationRecord,
    after,
    as_foreign,
    covered,
    decode_record,
    encode_record,
    holes,
    level,
    origin,
    reporter,
    started,
)

A = bytes(range(16))
B = b"\xff" * 16
F = "ff" * 16
POSITION = b"\xa8position\xcd\3\xe8"
RANGES = b"\xa6ranges\x92\x94\x03\x09\x46\xc3\x94\x0a\x64\xcf\0\0\1\0\0\0\0\0\xc2"

GOLDEN: dict[str, tuple[ReplicationRecord, bytes]] = {
    "started": (
        started(2**64 - 1, 4099, 1000),
        b"\x85\xa4type\xa7started\xa9latest_of\xa9started 3\xa5start\xcf"
        + B[:8]
        + b"\xa6number\xcd\x10\x03"
        + POSITION,
    ),
    "downgraded": (
        level("ny-2", 1000, 900, "policy", downgraded=True),
        b"\x86\xa4type\xaadowngraded\xa9latest_of\xaalevel ny-2\xabdestination\xa4ny-2"
        + POSITION
        + b"\xa7covered\xcd\3\x84\xa6reason\xa6policy",
    ),
    "upgraded": (
        level("ny-2", 1000, 1000, "operator", downgraded=False),
        b"\x86\xa4type\xa8upgraded\xa9latest_of\xaalevel ny-2\xabdestination\xa4ny-2"
        + POSITION
        + b"\xa7covered\xcd\3\xe8\xa6reason\xa8operator",
    ),
    "reporter": (
        reporter(B),
        b"\x83\xa4type\xa8reporter\xa9latest_of\xd9\x29reporter " + F.encode() + b"\xa7journal\xc4\x10" + B,
    ),
    "origin": (
        origin(7, A, "ny-1", "ny", [A, B]),
        b"\x87\xa4type\xa6origin\xa9latest_of\xa8origin 7\xa6number\x07\xa7journal\xc4\x10"
        + A
        + b"\xa8instance\xa4ny-1\xa5group\xa2ny\xa4path\x92\xc4\x10"
        + A
        + b"\xc4\x10"
        + B,
    ),
    "after": (
        after(B, 2**63 + 1, 3, 100),
        b"\x85\xa4type\xa5after\xa9latest_of\xd9\x3aafter 9223372036854775809 "
        + F.encode()
        + b"\xa9publisher\xcf\x80\0\0\0\0\0\0\1\xa7session\x03\xa5after\x64",
    ),
    "after, unproven": (
        after(B, 5, 0, 9, proven=False),
        b"\x86\xa4type\xa5after\xa9latest_of\xd9\x28after 5 "
        + F.encode()
        + b"\xa9publisher\x05\xa7session\0\xa5after\x09\xa8unproven\xc3",
    ),
    "holes": (
        holes(5, 100, [HoleRange(3, 9, 70, True), HoleRange(10, 100, 2**40, False)]),
        b"\x85\xa4type\xa5holes\xa9latest_of\xa7holes 5\xa9publisher\x05\xa7highest\x64" + RANGES,
    ),
    "holes, none open": (
        holes(5, 100, []),
        b"\x85\xa4type\xa5holes\xa9latest_of\xa7holes 5\xa9publisher\x05\xa7highest\x64\xa6ranges\x90",
    ),
    "covered": (
        covered(4, 9, 1000, [LogPlace(B, 8, 2**33)], [A, B], 50),
        b"\x88\xa4type\xa7covered\xa9latest_of\xa7covered\xa6number\x04\xa5start\x09"
        + POSITION
        + b"\xa6places\x91\x93\xc4\x10"
        + B
        + b"\x08\xcf\0\0\0\2\0\0\0\0\xa7members\x92\xc4\x10"
        + A
        + b"\xc4\x10"
        + B
        + b"\xa5stamp\x32",
    ),
    "after of another log": (
        as_foreign(after(B, 5, 1, 9), B),
        b"\x86\xa4type\xa5after\xa9latest_of\xd9\x49"
        + F.encode()
        + b" after 5 "
        + F.encode()
        + b"\xa3log\xc4\x10"
        + B
        + b"\xa9publisher\x05\xa7session\x01\xa5after\x09",
    ),
    "started of another log": (
        as_foreign(started(1, 0, 0), B),
        b"\x86\xa4type\xa7started\xa9latest_of\xd9\x2a"
        + F.encode()
        + b" started 0\xa3log\xc4\x10"
        + B
        + b"\xa5start\x01\xa6number\0\xa8position\0",
    ),
}


@pytest.mark.parametrize("case", list(GOLDEN))
def test_records_have_the_documented_bytes(case: str) -> None:
    record, golden = GOLDEN[case]
    assert encode_record(record) == golden
    assert decode_record(golden) == record


@pytest.mark.parametrize("case", list(GOLDEN))
def test_records_are_kept_by_log_and_subject(case: str) -> None:
    record, golden = GOLDEN[case]
    head = decode_head(golden)
    assert head.type == case.split(maxsplit=1)[0].rstrip(",")
    assert head.latest_of == record.latest_of
    assert head.log == (B if "another log" in case else b"")
    if head.log and head.latest_of:
        assert head.latest_of.startswith(F + " ")


def fields(case: str) -> dict[str, object]:
    decoded: dict[str, object] = msgspec.msgpack.decode(GOLDEN[case][1])
    return decoded


def test_records_with_unknown_fields_are_read() -> None:
    body = msgspec.msgpack.encode(fields("after") | {"later": [1]})
    assert decode_record(body) == GOLDEN["after"][0]


REFUSED: dict[str, tuple[str, dict[str, object]]] = {
    "another type": ("holes", {"type": "copy"}),
    "log id of 15 bytes": ("after", {"log": A[:15]}),
    "start without position": ("started", {"position": None}),
    "reporter with a short id": ("reporter", {"journal": A[:15]}),
    "origin number 0": ("origin", {"number": 0}),
    "origin number above 32 bits": ("origin", {"number": 2**32}),
    "path with a short id": ("origin", {"path": [A[:15]]}),
    "negative sequence": ("after", {"after": -1}),
    "no session": ("after", {"session": None}),
    "hole from 0": ("holes", {"ranges": [[0, 9, 70, True]]}),
    "hole that ends before its first sequence": ("holes", {"ranges": [[10, 9, 70, True]]}),
    "hole above the highest sequence": ("holes", {"ranges": [[3, 101, 70, True]]}),
    "holes that overlap": ("holes", {"ranges": [[3, 9, 70, True], [9, 12, 71, True]]}),
    "holes that descend": ("holes", {"ranges": [[10, 12, 70, True], [3, 9, 71, True]]}),
    "hole without position": ("holes", {"ranges": [[3, 9]]}),
    "place of another log without position": ("covered", {"places": [[B, 8]]}),
    "members as text": ("covered", {"members": ["ny-1"]}),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_invalid_records_are_refused(case: str) -> None:
    base, change = REFUSED[case]
    with pytest.raises(JournalCorrupt, match="invalid control record"):
        decode_record(msgspec.msgpack.encode(fields(base) | change))


def test_records_cut_short_are_refused() -> None:
    for _, golden in GOLDEN.values():
        for end in range(len(golden)):
            with pytest.raises(JournalCorrupt, match="invalid control record"):
                decode_record(golden[:end])
