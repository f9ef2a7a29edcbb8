"""The resolved start of a bookmark subscription, as reported by the stream."""

from __future__ import annotations

import tickertape as tt
from tests.conformance.fronts import Front


def published(client: tt.Client, topic: str) -> list[str]:
    client.publish_batch(topic, [b"1", b"2", b"3"])
    client.publish_flush()
    stream = client.bookmark_subscribe(topic, tt.EPOCH)
    found = [stream.get(10).bookmark for _ in range(3)]
    client.unsubscribe(stream.sub_id)
    return [bookmark for bookmark in found if bookmark is not None]


def test_subscription_start_is_the_message_before_the_first(client: tt.Client, topic: str) -> None:
    first, second, third = published(client, topic)
    started = {
        (): client.bookmark_subscribe(topic, tt.EPOCH),
        (first,): client.bookmark_subscribe(topic, first),
        (second,): client.bookmark_subscribe(topic, second),
    }
    assert [stream.bookmark_found for stream in started.values()] == [True] * 3
    after = [stream.started_after for stream in started.values()]
    assert after[1:] == [first, second]
    assert [stream.recovery_point for stream in started.values()] == after
    stream = started[(second,)]
    assert stream.get(10).bookmark == third
    assert stream.started_after == second


def test_subscription_start_at_unknown_bookmark_follows_the_option(client: tt.Client, topic: str) -> None:
    *_, third = published(client, topic)
    now = client.bookmark_subscribe(topic, "12|13|", bookmark_not_found="now")
    assert (now.bookmark_found, now.started_after, now.recovery_point) == (False, third, third)
    epoch = client.bookmark_subscribe(topic, "12|13|", bookmark_not_found="epoch")
    assert epoch.bookmark_found is False
    assert epoch.started_after != third
    assert [epoch.get(10).data for _ in range(3)] == [b"1", b"2", b"3"]


def test_recovery_point_before_the_first_message_misses_nothing(client: tt.Client, topic: str) -> None:
    published(client, topic)
    stream = client.bookmark_subscribe(topic, tt.NOW)
    client.unsubscribe(stream.sub_id)
    client.publish(topic, b"4")
    client.publish_flush()
    assert stream.recovery_point is not None
    again = client.bookmark_subscribe(topic, stream.recovery_point)
    assert again.get(10).data == b"4"


def test_plain_subscription_has_no_start(client: tt.Client, topic: str) -> None:
    stream = client.subscribe(topic)
    assert (stream.started_after, stream.bookmark_found, stream.recovery_point) == (None, None, None)


def test_handler_stream_has_a_start(front: Front, uri: str, name: str, topic: str) -> None:
    client = front.connect(name, uri)
    *_, third = published(client, topic)
    stream = client.bookmark_subscribe(topic, tt.NOW, on_message=lambda _: None)
    assert (stream.started_after, stream.bookmark_found) == (third, True)
