"""All fields of `retired.bin`: golden files, checks, and fields that a removal carries unchanged."""

from __future__ import annotations

import struct
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from crc32c import crc32c

from tests.simulation.journal_world import drive
from tests.unit.journal.written import Written
from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import JournalVersion
from tickertape.base.interfaces import Buffer
from tickertape.batch import BatchBuilder, Stamp
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER, CONTROL_TOPIC, load_publishers
from tickertape.journal.format import retired_state
from tickertape.journal.format.link_records import LinkRecord, encode_link
from tickertape.journal.format.retired_state import (
    ForeignRecord,
    HighestSequences,
    RetiredManifest,
    RetiredState,
    decode_retired,
    encode_retired,
    is_expired,
    read_retired,
    with_records,
    write_retired,
)

GOLDEN = Path(__file__).parents[3] / "golden"
OTHER = bytes(range(16, 32))


def record(**fields: object) -> bytes:
    """Return the body of a control record."""
    return msgspec.msgpack.encode(fields)


NAME = record(type="publisher", publisher=11, name="eleven")
BEGUN = record(type="queue", queue="q", recovery_point="epoch", position=3, log=OTHER)
LINKS = (encode_link(LinkRecord(OTHER, 9, 70)), encode_link(LinkRecord(OTHER, 2**64 - 1, 2**40)))
PLAIN = RetiredState(
    journal_id=bytes(range(16)),
    through=3,
    first_position=40,
    first_commit=7,
    previous_chain=123,
    previous_end=8192,
    last_time=1_700_000_000_000_000,
    removed_bytes=24_576,
    highest=HighestSequences(np.array([11, 12], np.uint64), np.array([50, 9], np.uint64)),
    records=(NAME,),
    manifests={},
    links=(),
    holes={},
)
RESERVED = PLAIN._replace(
    records=(NAME, ForeignRecord(OTHER, BEGUN)),
    manifests={"orders": RetiredManifest(40, 6, 2, 123, 456)},
    links=LINKS,
    holes={11: struct.pack("<4Q", 10, 20, 22, 22)},
)
FILES = {"retired": PLAIN, "retired-reserved": RESERVED}


def fields_of(retired: RetiredState) -> dict[str, Any]:
    """Return the fields, in a form that can be compared."""
    return retired._asdict() | {"highest": retired.highest.as_dict()}


@pytest.mark.parametrize("name", list(FILES))
def test_written_retired_state_equals_the_golden_file(name: str) -> None:
    assert encode_retired(FILES[name]) == (GOLDEN / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("name", list(FILES))
def test_golden_retired_file_is_read_and_rewritten_with_every_field(name: str) -> None:
    data = (GOLDEN / f"{name}.bin").read_bytes()
    read = decode_retired(data)
    assert fields_of(read) == fields_of(FILES[name])
    assert encode_retired(read) == data


@pytest.mark.parametrize("name", list(FILES))
def test_golden_retired_file_with_one_changed_byte_is_refused(name: str) -> None:
    data = (GOLDEN / f"{name}.bin").read_bytes()
    for at in range(len(data)):
        with pytest.raises((ValueError, JournalVersion)):
            decode_retired(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def test_golden_retired_file_matches_the_format_document() -> None:
    data = (GOLDEN / "retired-reserved.bin").read_bytes()
    assert data[:12] == b"TKTRET\0\0" + bytes(4)
    assert data[12:16] == crc32c(data[16:]).to_bytes(4, "little")
    body = msgspec.msgpack.decode(data[16:], strict=False)
    assert body["records"] == [NAME, [OTHER, BEGUN]]
    assert body["manifests"] == {"orders": [40, 6, 2, 123, 456]}
    assert body["links"] == [
        b"\x94\xc4\x10" + OTHER + b"\x09\x46\xc0",
        b"\x94\xc4\x10" + OTHER + b"\xcf" + b"\xff" * 8 + b"\xcf\0\0\1\0\0\0\0\0\xc0",
    ]
    assert body["holes"] == {11: struct.pack("<4Q", 10, 20, 22, 22)}
    plain = msgspec.msgpack.decode((GOLDEN / "retired.bin").read_bytes()[16:])
    assert not {"manifests", "links", "holes"} & {*plain}


def stored(**fields: object) -> bytes:
    """Return a file with some fields replaced, with a valid checksum."""
    body = msgspec.msgpack.decode((GOLDEN / "retired-reserved.bin").read_bytes()[16:], strict=False)
    data = msgspec.msgpack.encode(body | fields)
    return b"TKTRET\0\0" + bytes(4) + crc32c(data).to_bytes(4, "little") + data


@pytest.mark.parametrize(
    "fields",
    [
        {"records": [[OTHER[:15], b"x"]]},
        {"records": [[OTHER]]},
        {"records": ["text"]},
        {"manifests": {"orders": [40, 6, 2, 123]}},
        {"manifests": {"orders": [-1, 6, 2, 123, 456]}},
        {"manifests": {"orders": [2**63, 6, 2, 123, 456]}},
        {"manifests": {"orders": [40, 6, 2, 2**32, 456]}},
        {"manifests": {"orders": [40, 6, 2, 123, 2**32]}},
        {"manifests": {1: [40, 6, 2, 123, 456]}},
        {"links": ["text"]},
        {"holes": {0: struct.pack("<2Q", 1, 2)}},
        {"holes": {-1: struct.pack("<2Q", 1, 2)}},
        {"holes": {11: b""}},
        {"holes": {11: struct.pack("<1Q", 1)}},
        {"holes": {11: struct.pack("<2Q", 2, 1)}},
        {"holes": {11: struct.pack("<4Q", 1, 2, 2, 3)}},
        {"holes": {11: struct.pack("<4Q", 1, 2, 3, 4)}},
        {"holes": {11: struct.pack("<4Q", 5, 6, 1, 2)}},
    ],
)
def test_invalid_field_of_the_retired_state_is_refused(fields: dict[str, object]) -> None:
    decode_retired(stored())
    with pytest.raises(ValueError, match=r"."):
        decode_retired(stored(**fields))


def test_bookmark_in_a_hole_of_sequences_is_not_expired() -> None:
    for sequence in range(1, 60):
        missing = 10 <= sequence <= 20 or sequence == 22
        assert is_expired(PLAIN, Bookmark(11, sequence)) == (sequence <= 50)
        assert is_expired(RESERVED, Bookmark(11, sequence)) == (sequence <= 50 and not missing)
        assert is_expired(RESERVED, Bookmark(12, sequence)) == (sequence <= 9)


def append_control(written: Written, *bodies: bytes) -> None:
    """Append control records to a log."""
    builder = BatchBuilder()
    for body in bodies:
        builder.add(CONTROL_TOPIC, body, kind=1)
    journal, now = written.journal, written._now()
    first = journal.highest.get(CONTROL_PUBLISHER, 0) + 1
    stamp = Stamp(CONTROL_PUBLISHER, first, journal.next_stamp(now))
    journal.append(builder.build(), stamp, first + len(bodies) - 1, now)
    written.work()


def grown(written: Written) -> Written:
    """Append messages for three more segments."""
    number = written.journal.view.segments[-1].number + 3
    while written.journal.view.segments[-1].number < number:
        written.publish(size=400)
    return written


def test_removal_carries_the_fields_that_only_later_versions_write() -> None:
    written = grown(Written())
    first = written.retire(1)
    more = RESERVED._replace(highest=first.highest)._asdict()
    kept = {name: more[name] for name in ("records", "manifests", "links", "holes")}
    written.journal.view.retired = first._replace(**kept)
    write_retired(written.disk, written.journal.view.retired)
    written.stop()
    written.start()
    removed = grown(written).retire(1)
    assert removed.through == 2
    read = read_retired(written.disk, removed.journal_id)
    assert read is not None
    assert {name: getattr(read, name) for name in kept} == kept


def test_removed_control_records_of_another_log_stay_foreign() -> None:
    written = Written()
    name = record(type="publisher", publisher=99, name="foreign", log=OTHER)
    again = [record(type="t", latest_of="x", n=n, log=OTHER) for n in range(2)]
    own = record(type="t", latest_of="x", n=9)
    append_control(written, name, NAME, again[0], own, again[1])
    grown(written)
    assert written.retire(1).records == (
        ForeignRecord(OTHER, name),
        NAME,
        own,
        ForeignRecord(OTHER, again[1]),
    )
    written.stop()
    written.start()
    registry = drive(written.disk, load_publishers(written.journal))
    assert not registry.damage
    assert [registry.is_bound(number) for number in (11, 99)] == [True, False]
    assert list(registry.latest.values()) == [own]
    assert list(registry.foreign.values()) == [name, again[1]]


def test_equal_subjects_of_two_logs_replace_only_own_records() -> None:
    own = [record(type="t", latest_of="x", n=n) for n in range(2)]
    foreign = [ForeignRecord(OTHER, body) for body in own]
    third = ForeignRecord(bytes(16), own[0])
    before = (own[0], foreign[0], third)
    merged = drive(Written().disk, with_records(before, [own[1], foreign[1]]))
    assert merged == (third, own[1], foreign[1])


@pytest.mark.parametrize(("kept", "more"), [(10_000, 1), (1, 10_000), (4096, 4097)])
def test_merge_of_control_records_decodes_at_most_4096_in_a_step(
    monkeypatch: pytest.MonkeyPatch, kept: int, more: int
) -> None:
    decoded = 0
    subject = retired_state._subject

    def counting(one: retired_state.ControlRecord) -> retired_state._Subject:
        nonlocal decoded
        decoded += 1
        return subject(one)

    monkeypatch.setattr(retired_state, "_subject", counting)
    bodies = [record(type="t", latest_of=f"name {n}") for n in range(kept + more)]
    merging = with_records(tuple(bodies[:kept]), [*bodies[kept:]])
    merged: list[tuple[retired_state.ControlRecord, ...]] = []
    steps = [0]

    def merge() -> Generator[None, Buffer]:
        merged.append((yield from merging))

    for _ in merge():
        steps.append(decoded - sum(steps))
    assert merged == [tuple(bodies)]
    assert decoded == sum(steps)
    assert sum(steps) == kept + more
    assert max(steps) == min(4096, max(kept, more))
