"""Subscriptions that take the place of others, with a real server and both clients."""

from __future__ import annotations

import pytest

import tickertape as tt
from tickertape.testing.server import wait_until


def numbers(stream: tt.MessageStream) -> list[int]:
    return [int(message.data) for message in stream]


@pytest.mark.behaviour(20)
def test_a_stream_is_taken_over_exactly(client: tt.Client, topic: str) -> None:
    streams = [client.subscribe(topic, sub_id="s")]
    for number in range(300):
        client.publish(topic, b"%d" % number)
        if number % 60 == 30:
            streams.append(client.subscribe(topic, sub_id="s", replace=True))
    client.publish_flush()
    heard: list[int] = []
    for stream in streams[:-1]:
        heard += numbers(stream)
        assert (stream.end_reason, stream.end_error) == ("replaced", None)
    while len(heard) < 300:
        heard.append(int(streams[-1].get(10).data))
    assert heard == list(range(300))
    with pytest.raises(tt.StreamEnded, match="replaced"):
        streams[0].get(0)


@pytest.mark.behaviour(20)
def test_topic_filter_and_handler_change_at_once(client: tt.Client, topic: str, other_topic: str) -> None:
    first = client.subscribe(topic, sub_id="s")
    client.publish(topic, b"1")
    heard: list[tuple[str, bytes]] = []
    client.subscribe(
        other_topic, sub_id="s", filter="/a = 1", replace=True,
        on_message=lambda message: heard.append((message.topic, message.data)),
    )  # fmt: skip
    client.publish(topic, b"2")
    client.publish(other_topic, b'{"a": 2}')
    client.publish(other_topic, b'{"a": 1}')
    wait_until(lambda: bool(heard) and heard[-1][0] == other_topic, 10)
    # what was accepted before is the old one's choice, whichever of the two gets it
    assert [(topic, b"%d" % number) for number in numbers(first)] + heard == [
        (topic, b"1"), (other_topic, b'{"a": 1}'),
    ]  # fmt: skip


@pytest.mark.behaviour(20)
def test_a_replay_goes_on_where_it_was_and_is_read_to_its_end(client: tt.Client, topic: str) -> None:
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


def test_a_replacement_that_is_refused_leaves_the_old_one(client: tt.Client, topic: str) -> None:
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


def test_closing_the_old_stream_leaves_the_new_one(client: tt.Client, topic: str) -> None:
    old = client.bookmark_subscribe(topic, tt.NOW, sub_id="s")
    new = client.bookmark_subscribe(topic, tt.EPOCH, sub_id="s", replace=True)
    old.close()
    client.publish(topic, b"1")
    assert new.get(10).data == b"1"
    assert old.end_reason == "replaced"
