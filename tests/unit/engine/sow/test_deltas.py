"""Tests of deltas: merges at the accepted state, resends, refusals, and topics without merges."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from tests.helpers.sow_engine import SowEngine, expiry_in_flight, publish, rejected, send
from tests.simulation.journal_world import read_log
from tickertape.base.limits import message_bytes_max, sow_deltas_per_frame_max
from tickertape.batch.format import RUN_BY_SERVER, RUN_MERGED
from tickertape.engine.limits import overlay_seconds
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.wire.sow_command import SowDelete

ORDERS = SowDefinition("orders", key=("/id",))
_ENCODE = msgspec.msgpack.encode


def body(key: object, **fields: object) -> bytes:
    return msgspec.json.encode({"id": key, **fields})


def logged(world: SowEngine, topic: str = "orders") -> list[tuple[bytes, int]]:
    """Return the bodies of the log and the flags of their runs. No message has flags of its own."""
    found = []
    for _, batch in read_log(world.broker.journal, world.disk):
        assert batch.message_flags is None
        runs = batch.run_starts.tolist()
        for run, (low, high) in enumerate(pairwise(runs)):
            flags = int(batch.runs["flags"][run])
            found += [(batch.body(row), flags) for row in range(low, high) if batch.topic(row) == topic]
    return found


def test_delta_is_merged_into_the_record_and_the_merged_body_is_stored() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    publish(peer, [("orders", body(1, a=1, b={"x": 1, "y": 2}))])
    world.settle()
    send(peer, [("orders", body(1, b={"y": 3}, c=[1]))], deltas=[0])
    world.settle()
    whole = body(1, a=1, b={"x": 1, "y": 3}, c=[1])
    assert world.records("orders") == {_ENCODE(1): whole}
    assert logged(world)[1] == (whole, RUN_BY_SERVER | RUN_MERGED)
    assert peer.acked_sequence == 2


def test_deltas_of_a_frame_are_bounded() -> None:
    world = SowEngine(ORDERS, segment_bytes=1 << 22)
    peer, other = world.connect("p"), world.connect("other")
    deltas = [("orders", body(1, v=number)) for number in range(sow_deltas_per_frame_max)]
    send(peer, deltas, deltas=range(len(deltas)))
    world.settle()
    assert world.records("orders") == {_ENCODE(1): body(1, v=len(deltas) - 1)}
    send(other, [*deltas, deltas[0]], deltas=range(len(deltas) + 1))
    world.settle()
    assert other.goodbye is not None
    assert other.goodbye.code == "bad_batch"


def test_delta_sees_earlier_rows_of_the_frame_and_messages_in_flight() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    publish(peer, [("orders", body(1, a=1))])
    send(peer, [("orders", body(1, b=1))], deltas=[0])
    send(peer, [("orders", body(2, a=1)), ("orders", body(2, b=1)), ("orders", body(1, c=1))], deltas=[1, 2])
    assert world.broker.journal.commits.persisted_end == 0
    world.settle()
    assert world.records("orders") == {_ENCODE(1): body(1, a=1, b=1, c=1), _ENCODE(2): body(2, a=1, b=1)}


def test_delta_of_another_publisher_sees_a_message_in_flight() -> None:
    world = SowEngine(ORDERS)
    first, second = world.connect("first"), world.connect("second")
    publish(first, [("orders", body(1, a=1))])
    send(second, [("orders", body(1, b=1))], deltas=[0])
    world.settle()
    assert world.records("orders") == {_ENCODE(1): body(1, a=1, b=1)}


def test_delta_without_a_record_is_stored_as_a_publish() -> None:
    world = SowEngine(ORDERS)
    send(world.connect("p"), [("orders", body(1, a=1))], deltas=[0])
    world.settle()
    assert world.records("orders") == {_ENCODE(1): body(1, a=1)}
    assert logged(world) == [(body(1, a=1), RUN_BY_SERVER)]


def test_resent_delta_is_merged_once() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    publish(peer, [("orders", body(1, a=1))])
    first = send(peer, [("orders", body(1, a=2))], deltas=[0])
    publish(peer, [("orders", body(1, a=3))])
    world.settle()
    rows = [("orders", body(1, a=2)), ("orders", body(1, a=3)), ("orders", body(1, b=1))]
    send(peer, rows, deltas=[0, 2], first=first)
    world.settle()
    assert world.records("orders") == {_ENCODE(1): body(1, a=3, b=1)}
    assert len(logged(world)) == 4
    rows = [("orders", body(1, a=2)), ("orders", body(1, d=1))]
    peer.next_sequence = 5
    send(peer, rows, deltas=[0, 1], first=4)
    world.settle()
    assert world.records("orders") == {_ENCODE(1): body(1, a=3, b=1, d=1)}


def test_delta_after_a_delete_in_flight_starts_a_new_record() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    publish(peer, [("orders", body(1, a=1))])
    world.settle()
    send(peer, [SowDelete(topic="orders", canonical=(_ENCODE(1),))])
    send(peer, [("orders", body(1, b=1))], deltas=[0])
    world.settle()
    assert world.records("orders") == {_ENCODE(1): body(1, b=1)}


def test_delta_after_an_expiry_in_flight_starts_a_new_record() -> None:
    world = SowEngine(SowDefinition("orders", key=("/id",), expiration=30_000))
    peer = world.connect("p")
    publish(peer, [("orders", body(1, a=1))])
    world.settle()
    expiry_in_flight(world)
    send(peer, [("orders", body(1, b=1))], deltas=[0])
    world.settle()
    assert world.records("orders") == {_ENCODE(1): body(1, b=1)}


def test_delta_without_a_key_is_refused() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    publish(peer, [("orders", body(1, a=1))])
    send(peer, [("orders", b'{"a":2}'), ("orders", body(1, b=1))], deltas=[0, 1])
    world.settle()
    (refusal,) = rejected(peer)
    assert (refusal.code, refusal.refused) == ("bad_sow_key", (2,))
    assert world.records("orders") == {_ENCODE(1): body(1, a=1, b=1)}


def test_merge_above_the_largest_message_is_refused_and_the_record_stays() -> None:
    world = SowEngine(ORDERS, segment_bytes=128 << 20)
    peer = world.connect("p")
    half = "x" * (message_bytes_max // 2)
    publish(peer, [("orders", body(1, a=half))])
    send(peer, [("orders", body(1, c=1)), ("orders", body(1, b=half)), ("orders", body(2))], deltas=[0, 1, 2])
    world.settle()
    (refusal,) = rejected(peer)
    assert (refusal.code, refusal.refused) == ("message_too_large", (3,))
    assert world.records("orders") == {_ENCODE(1): body(1, a=half, c=1), _ENCODE(2): body(2)}
    assert peer.acked_sequence == 4


def test_delta_of_a_type_without_fields_replaces_the_record() -> None:
    world = SowEngine(SowDefinition("raw"), topic_types={"raw": "binary"})
    world.broker.catalog.message_types = {"raw": "binary"}
    peer = world.connect("p")
    publish(peer, [("raw", b"one")], keys=["k"])
    send(peer, [("raw", b"two")], deltas=[0], keys=["k"])
    world.settle()
    assert world.records("raw") == {_ENCODE("k"): b"two"}


def test_delta_for_a_topic_without_a_sow_is_stored_as_a_publish() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    send(peer, [("other", body(1, a=1)), ("other", body(1, b=1))], deltas=[0, 1])
    world.settle()
    assert [found for found, _ in logged(world, "other")] == [body(1, a=1), body(1, b=1)]


def test_accepted_rows_are_forgotten_when_folded_and_the_overlay_after_a_minute() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    accepted = world.broker.states.accepted_rows
    publish(peer, [("orders", body(1, a=1))])
    assert not accepted.armed
    send(peer, [("orders", body(1, b=1))], deltas=[0])
    overlay = accepted.overlay(world.state("orders"))
    assert list(overlay.rows) == [_ENCODE(1)]
    world.settle()
    assert not overlay.rows
    assert len(accepted) == 0
    world.wake(overlay_seconds + 1)
    publish(peer, [("orders", body(2))])
    assert not accepted.armed
