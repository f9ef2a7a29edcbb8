"""SOW topics whose definition changes: deletes and expiries of the earlier definition end their messages."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tests.helpers.sow_engine import SowEngine, publish, send
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow.state import records
from tickertape.wire.sow_command import SowDelete

BY_ID = SowDefinition("orders", key=("/id",), expiration="enabled", checkpoint_interval=1.0)
BY_PLACE = replace(BY_ID, key=("/place",))
BY_NUMBER = replace(BY_ID, key=("/number",))
PATTERN = SowDefinition("orders", key=("/id",), pattern="^orders/", checkpoint_interval=1.0)
_ENCODE = msgspec.msgpack.encode


def body(key: int, place: str, number: int = 0) -> bytes:
    return msgspec.json.encode({"id": key, "place": place, "number": number})


def key_delete(topic: str, key: int) -> SowDelete:
    return SowDelete(topic=topic, data=body(key, ""))


def test_delete_of_an_earlier_key_ends_only_the_named_message() -> None:
    world = SowEngine(BY_ID)
    peer = world.connect("p")
    publish(peer, [("orders", body(1, "a", 5)), ("orders", body(2, "b", 1))])
    send(peer, [key_delete("orders", 1)])
    publish(peer, [("orders", body(3, "c", 2))])
    world.settle()
    assert world.records("orders") == {_ENCODE(2): body(2, "b", 1), _ENCODE(3): body(3, "c", 2)}
    world.reopen(BY_PLACE)
    assert world.records("orders") == {_ENCODE("b"): body(2, "b", 1), _ENCODE("c"): body(3, "c", 2)}
    world.reopen(BY_NUMBER)  # the delete of id 1 does not end the record of number 1
    assert world.records("orders") == {_ENCODE(1): body(2, "b", 1), _ENCODE(2): body(3, "c", 2)}
    assert world.state("orders").fold.deleted == 0
    world.reopen(BY_ID)
    assert world.records("orders") == {_ENCODE(2): body(2, "b", 1), _ENCODE(3): body(3, "c", 2)}


def test_deletes_and_expiries_of_an_earlier_key_spare_later_messages() -> None:
    world = SowEngine(BY_ID)
    peer = world.connect("p")
    publish(peer, [("orders", body(key, "a")) for key in range(3)])
    send(peer, [key_delete("orders", 0)])
    publish(peer, [("orders", body(9, "b"))], expirations=[1_000])
    world.settle()
    world.wake(10)
    world.settle()
    assert {*world.records("orders")} == {_ENCODE(1), _ENCODE(2)}
    publish(peer, [("orders", body(2, "c")), ("orders", body(7, "b"))])
    world.settle()
    world.reopen(BY_PLACE)
    expected = {"a": body(2, "a"), "b": body(7, "b"), "c": body(2, "c")}
    assert world.records("orders") == {_ENCODE(place): kept for place, kept in expected.items()}


def test_delete_of_one_topic_ends_the_named_message_under_a_pattern() -> None:
    world = SowEngine(replace(PATTERN, pattern=None))
    peer = world.connect("p")
    publish(peer, [("orders", body(1, "a")), ("orders", body(2, "b"))])
    send(peer, [key_delete("orders", 1)])
    world.settle()
    world.reopen(PATTERN)
    assert [*world.records("orders").values()] == [body(2, "b")]


def test_many_deletes_of_an_earlier_key_end_all_named_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small frames and large ones between the deletes, and more outdated messages than are kept."""
    world = SowEngine(BY_ID)
    peer = world.connect("p")
    expected: dict[bytes, bytes] = {}
    for life in range(30):
        size = 200 if life % 2 else 2
        publish(peer, [("orders", body(key, f"{key}", life)) for key in range(size)])
        send(peer, [key_delete("orders", life % size)])
        expected |= {_ENCODE(f"{key}"): body(key, f"{key}", life) for key in range(size)}
        del expected[_ENCODE(f"{life % size}")]
        world.settle()
    monkeypatch.setattr(records, "_OUTDATED_ENTRIES_MAX", 50)
    world.reopen(BY_PLACE)
    assert world.records("orders") == expected
