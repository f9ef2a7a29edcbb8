"""Replaced subscriptions of both clients on a real server."""

from __future__ import annotations

import pytest

import tickertape as tt
from tickertape.testing.server import wait_until


def numbers(stream: tt.MessageStream) -> list[int]:
    return [int(message.data) for message in stream]


@pytest.mark.behaviour(20)
def test_replaced_live_streams_lose_and_duplicate_nothing(client: tt.Client, topic: str) -> None:
    streams = [client.subscribe(topic, sub_id="s")]
    for number in range(300):
        client.publish(topic, b"%d" % number)
        if number % 60 == 30:
            streams.append(client.subscribe(topic, sub_id="s", replace=True))
    client.publish_flush()
    received: list[int] = []
    for stream in streams[:-1]:
        received += numbers(stream)
        assert (stream.end_reason, stream.end_error) == ("replaced", None)
    while len(received) < 300:
        received.append(int(streams[-1].get(10).data))
    assert received == list(range(300))
    with pytest.raises(tt.StreamEnded, match="replaced"):
        streams[0].get(0)


@pytest.mark.behaviour(20)
def test_replacement_changes_topic_filter_and_handler_together(
    client: tt.Client, topic: str, other_topic: str
) -> None:
    first = client.subscribe(topic, sub_id="s")
    client.publish(topic, b"1")
    received: list[tuple[str, bytes]] = []
    client.subscribe(
        other_topic, sub_id="s", filter="/a = 1", replace=True,
        on_message=lambda message: received.append((message.topic, message.data)),
    )  # fmt: skip
    client.publish(topic, b"2")
    client.publish(other_topic, b'{"a": 2}')
    client.publish(other_topic, b'{"a": 1}')
    wait_until(lambda: bool(received) and received[-1][0] == other_topic, 10)
    # the old subscription selects earlier messages, and either stream may get them
    assert [(topic, b"%d" % number) for number in numbers(first)] + received == [
        (topic, b"1"), (other_topic, b'{"a": 1}'),
    ]  # fmt: skip


@pytest.mark.behaviour(20)
def test_replaced_replay_continues_at_the_next_message(client: tt.Client, topic: str) -> None:
    client.publish_batch(topic, [b"%d" % i for i in range(20_000)])
    client.publish_flush()
    old = client.bookmark_subscribe(topic, tt.EPOCH, sub_id="s", depth="32KB")
    assert int(old.get(10).data) == 0
    new = client.subscribe(topic, sub_id="s", replace=True, depth="32KB")
    begun = numbers(old)
    assert old.end_reason == "replaced"
    first = new.get(10)
    assert int(first.data) == begun[-1] + 1
    assert first.bookmark is not None
    left = [int(new.get(10).data) for _ in range(20_000 - int(first.data) - 1)]
    assert left == list(range(int(first.data) + 1, 20_000))
    assert new.recovery_point is not None


def test_rejected_replacement_keeps_the_old_subscription(client: tt.Client, topic: str) -> None:
    stream = client.subscribe(topic, sub_id="s")
    with pytest.raises(tt.BadFilter, match=r"\^"):
        client.subscribe(topic, sub_id="s", replace=True, filter="/a = = 1")
    with pytest.raises(tt.BadOption, match="Invalid rate 'fast'"):
        client.bookmark_subscribe(topic, tt.EPOCH, sub_id="s", replace=True, rate="fast")
    with pytest.raises(tt.SubscriptionExists):
        client.subscribe(topic, sub_id="s")
    client.publish(topic, b"1")
    assert stream.get(10).data == b"1"
    stream.close()
    client.publish_flush(level="processed")
    again = client.subscribe(topic, sub_id="s", replace=True)
    client.publish(topic, b"2")
    assert again.get(10).data == b"2"


def test_close_of_replaced_stream_keeps_the_new_subscription(client: tt.Client, topic: str) -> None:
    old = client.bookmark_subscribe(topic, tt.NOW, sub_id="s")
    new = client.bookmark_subscribe(topic, tt.EPOCH, sub_id="s", replace=True)
    old.close()
    client.publish(topic, b"1")
    assert new.get(10).data == b"1"
    assert old.end_reason == "replaced"
