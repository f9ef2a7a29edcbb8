"""Streams that conflate, on a real server."""

from __future__ import annotations

import pytest

import tickertape as tt
from tests.conformance.fronts import Front
from tickertape.testing.server import wait_until

KEYS, ROUNDS = 10, 500


def publish(client: tt.Client, topic: str, low: int, high: int) -> None:
    for number in range(low, high):
        for key in range(KEYS):
            client.publish(topic, b"%d" % number, sow_key=f"k{key}")
    client.publish_flush()


def test_conflating_stream_of_slow_consumer_returns_newest_message_of_each_key(
    front: Front, client: tt.Client, uri: str, name: str, topic: str
) -> None:
    store = tt.MemoryBookmarkStore()
    reader = front.connect(f"{name}-reader", uri, bookmark_store=store)
    stream = reader.bookmark_subscribe(topic, tt.EPOCH, sub_id="s", depth="8KB")
    stream.conflate()
    publish(client, topic, 0, ROUNDS)
    wait_until(lambda: store._progress["s"].delivered == KEYS * ROUNDS)
    wait_until(lambda: store.undiscarded_count("s") == KEYS)
    publish(client, topic, ROUNDS, ROUNDS + 1)
    found: dict[str | None, bytes] = {}
    count = 0
    while set(found.values()) != {b"%d" % ROUNDS} or len(found) < KEYS:
        message = stream.get(20)
        found[message.sow_key] = message.data
        assert message.discard()
        count += 1
    assert count <= 3 * KEYS, "most messages were conflated"
    assert store.undiscarded_count("s") == 0
    publish(client, topic, 7, 8)
    assert stream.get(20).data == b"7"


def test_conflate_on_stream_with_handler_raises(client: tt.Client, topic: str) -> None:
    stream = client.subscribe(topic, on_message=print)
    with pytest.raises(tt.UsageError, match="Cannot conflate subscription"):
        stream.conflate()
