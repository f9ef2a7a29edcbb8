"""Edges of the engine at which it once was wrong."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.simulation.engine_world import EngineWorld
from tickertape.base.limits import batch_bytes_max
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.wire.commands import Publish


def stamp(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1e6, UTC).strftime("%Y%m%dT%H%M%S.%fZ")


def parsed(builder: BatchBuilder) -> MessageBatch:
    return MessageBatch.parse(builder.build().encode())


def test_bounded_range_in_the_past_after_a_timer_keeps_the_end() -> None:
    world = EngineWorld(1)
    publisher, subscriber = world.connect("p"), world.connect("s")
    publisher.publish("t", [b"inside"])
    world.settle()
    end = world.wall + 1_000_000
    world.wall = end + 1_000_000
    publisher.publish("t", [b"after the end"])
    world.settle()
    subscriber.subscribe("a", "t", bookmark=f"[20000101T000000:{stamp(end)})")
    world.wake()  # the driver's timer: the deadline of a stop in the past is now
    world.settle()
    assert [heard.body for heard in subscriber.heard["a"]] == [b"inside"]


def test_bounded_range_with_a_live_end_excludes_messages_with_a_later_timestamp() -> None:
    world = EngineWorld(1)
    publisher, subscriber = world.connect("p"), world.connect("s")
    end = world.wall + 1_000_000
    subscriber.subscribe("a", "t", bookmark=f"[20000101T000000:{stamp(end)})")
    world.settle()
    world.wall = end + 500_000  # before the timer fires
    publisher.publish("t", [b"after the end"])
    world.settle()
    assert subscriber.heard["a"] == []


def test_takeover_with_messages_in_flight_acknowledges_no_other_message() -> None:
    world = EngineWorld(1)
    old = world.connect("p")
    old.publish("t", [b"first"])
    world.settle()
    old.publish("t", [b"in flight"])  # accepted, with its sync pending
    new = world.connect("p")
    assert new.received == [], "the logon is answered when the messages in flight are durable"
    world.settle()
    assert new.logged_on is not None
    assert new.logged_on.last_persisted == 2
    new.publish("t", [b"another"])
    world.settle()
    assert [heard.body for heard in world.log("t")] == [b"first", b"in flight", b"another"]
    assert new.acked_sequence == 3


def test_sequence_column_of_a_run_with_another_publisher_is_kept_or_refused() -> None:
    world = EngineWorld(1)
    peer = world.connect("p")
    builder = BatchBuilder()
    for sequence in (10, 20, 30):
        builder.add("t", b"x", sequence=sequence)
    peer.send(Publish(frame=1, sequenced=True), parsed(builder))
    world.settle()
    refused = peer.goodbye is not None
    assert refused or [heard.sequence for heard in world.log("t")] == [10, 20, 30]


def test_topic_selection_larger_than_a_frame_does_not_stop_the_server() -> None:
    count = batch_bytes_max // 8240
    label = "k" * 4096

    def build(pad: int) -> BatchBuilder:
        builder = BatchBuilder()
        for i in range(count):
            if i == 1:
                builder.add("b", b"")  # its absence makes a gap: the selection of "a" gets a sequence column
            else:
                builder.add("a", b"", correlation_id=label, key=label)
        builder.add("a", bytes(pad))
        return builder

    room = (batch_bytes_max - build(0).build().nbytes) // 8 * 8
    while build(room).build().nbytes > batch_bytes_max:
        room -= 8
    world = EngineWorld(1, segment_bytes=4 << 20)
    peer = world.connect("p")
    peer.subscribe("s", "a", credit=1 << 20)
    world.settle()
    peer.send(Publish(frame=1), parsed(build(room)))
    world.settle()  # raises FrameTooLarge out of Broker.disk_done, on the real event loop too
    assert len(peer.heard["s"]) == count


def test_delivery_beyond_the_credit_of_a_transient_topic_is_a_single_message() -> None:
    world = EngineWorld(1, recorded=frozenset({"recorded"}))
    peer = world.connect("p")
    peer.subscribe("s", "live", credit=32)
    try:
        peer.publish("live", [b"x" * 100] * 10, sequenced=False)
    except AssertionError as error:
        pytest.fail(f"the peer says: {error}")


def test_publish_with_a_wrong_body_checksum_is_refused() -> None:
    world = EngineWorld(1)
    peer = world.connect("p")
    assert peer.logged_on is not None
    builder = BatchBuilder()
    builder.add("t", b"a body that rots on its way")
    encoded = bytearray(builder.build(peer.logged_on.publisher, first_sequence=1).encode())
    encoded[encoded.index(b"rots")] ^= 1
    peer.send(Publish(frame=1, sequenced=True), MessageBatch.parse(bytes(encoded)))
    world.settle()
    assert peer.goodbye is not None
    assert peer.goodbye.code == "corrupt_batch"
    assert world.log() == []
