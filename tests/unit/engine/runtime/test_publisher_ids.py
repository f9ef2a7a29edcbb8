"""Publisher id bindings are restored from the log despite unreadable records."""

from __future__ import annotations

import msgspec
import pytest

from tests.simulation.engine_world import EngineWorld
from tests.simulation.journal_world import drive
from tickertape.base.errors import JournalCorrupt
from tickertape.batch import BatchBuilder, Stamp
from tickertape.engine.runtime.publisher_ids import (
    CONTROL_PUBLISHER,
    CONTROL_TOPIC,
    PublisherDirectory,
    load_publishers,
)
from tickertape.journal.format.segment import segment_path

GOOD: dict[str, object] = {"type": "publisher", "publisher": 7, "name": "seven"}
MALFORMED = {
    "nothing": b"",
    "cut short": msgspec.msgpack.encode(GOOD)[:-1],
    "trailing byte": msgspec.msgpack.encode(GOOD) + b"\x00",
    "garbage": b"\xc1\xff\x00",
    "deep nesting": b"\x91" * 50_000,
    "text that is not UTF-8": b"\x81\xa4type\xa2\xff\xfe",
    "not a map": msgspec.msgpack.encode([1, 2, 3]),
    "no type": msgspec.msgpack.encode({"publisher": 7, "name": "seven"}),
    "type that is not text": msgspec.msgpack.encode(GOOD | {"type": 1}),
    "name that is a number": msgspec.msgpack.encode(GOOD | {"name": 1}),
    "no name": msgspec.msgpack.encode({"type": "publisher", "publisher": 7}),
}


@pytest.mark.parametrize("case", list(MALFORMED))
def test_malformed_control_record_raises_and_binds_nothing(case: str) -> None:
    registry = PublisherDirectory()
    with pytest.raises(JournalCorrupt, match="invalid control record"):
        registry.apply(MALFORMED[case])
    assert not registry.is_bound(7)


def test_unknown_control_records_and_fields_are_ignored() -> None:
    registry = PublisherDirectory()
    registry.apply(msgspec.msgpack.encode({"type": "later", "publisher": "not ours"}))
    registry.apply(msgspec.msgpack.encode(GOOD | {"new": True}))
    assert registry.is_bound(7)
    assert registry.collides(7, "another")
    assert not registry.collides(7, "seven")


def test_bindings_around_malformed_records_are_loaded_and_damage_is_reported() -> None:
    world = EngineWorld(1)
    bodies = [MALFORMED["cut short"], msgspec.msgpack.encode(GOOD), MALFORMED["garbage"]]
    world.connect("before").publish("t", [b"1"])
    world.settle()
    builder = BatchBuilder()
    for body in bodies:
        builder.add(CONTROL_TOPIC, body, kind=1)
    now = world.now()
    journal = world.broker.journal
    first = journal.highest[CONTROL_PUBLISHER] + 1
    stamp = Stamp(CONTROL_PUBLISHER, first, journal.next_stamp(now))
    at = journal.append(builder.build(), stamp, first + len(bodies) - 1, now)
    world.connect("after").publish("t", [b"2"])
    world.settle()
    registry = drive(world.disk, load_publishers(journal))
    assert [registry.is_bound(number) for number in (7, 8)] == [True, False]
    assert [registry.collides(7, name) for name in ("seven", "x")] == [False, True]
    segment = journal.view.segment_of(at)
    assert segment is not None
    path = segment_path(segment.number)
    assert [(error.code, error.file) for error in registry.damage] == [("journal_corrupt", path)] * 2
    for error, position in zip(registry.damage, (at, at + 2), strict=True):
        assert str(error).startswith(f"Cannot read position {position} of {path!r}: invalid control record")


def foreign(**fields: object) -> bytes:
    """Return a control record of another log."""
    return msgspec.msgpack.encode({**fields, "log": bytes(range(16))})


def test_publisher_record_of_another_log_binds_nothing() -> None:
    registry = PublisherDirectory()
    registry.apply(foreign(**GOOD))
    assert not registry.is_bound(7)
    assert not registry.collides(7, "another")


def test_control_records_of_another_log_are_kept_apart_from_own_records() -> None:
    registry = PublisherDirectory()
    queue = {"type": "queue", "queue": "q", "recovery_point": "epoch", "position": 9}
    registry.apply(foreign(**queue))
    for count in range(2):
        registry.apply(foreign(type="transaction", latest_of="name 0", messages=count))
    own = msgspec.msgpack.encode({"type": "transaction", "latest_of": "name 0"})
    registry.apply(own)
    assert registry.others == []
    assert list(registry.latest.values()) == [own]
    assert list(registry.foreign.values()) == [
        foreign(**queue),
        foreign(type="transaction", latest_of="name 0", messages=1),
    ]


@pytest.mark.parametrize("log", [b"", b"short", bytes(17), "text", None, 7])
def test_control_record_with_an_invalid_log_id_is_malformed(log: object) -> None:
    registry = PublisherDirectory()
    with pytest.raises(JournalCorrupt, match="invalid control record"):
        registry.apply(msgspec.msgpack.encode(GOOD | {"log": log}))
    assert not registry.is_bound(7)
