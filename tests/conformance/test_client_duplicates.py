"""The handler for messages that duplicate detection drops, on all four clients."""

from __future__ import annotations

from functools import partial

import pytest

import tickertape as tt
from tests.conformance.fronts import Front
from tickertape.testing.server import wait_until


def filled(front: Front, uri: str, name: str, topic: str) -> None:
    with front.connect(f"{name}-source", uri) as source:
        source.publish_batch(topic, [b"%d" % number for number in range(6)])
        source.publish_flush()


def keep(into: list[bytes], message: tt.Message) -> None:
    into.append(message.data)


@pytest.mark.parametrize("kind", ["plain", "ha"])
def test_duplicate_message_handler_receives_discarded_messages(
    front: Front, uri: str, name: str, topic: str, kind: str
) -> None:
    filled(front, uri, name, topic)
    store = tt.MemoryBookmarkStore()
    dropped: list[tuple[bytes, str | None, str | None]] = []
    errors: list[BaseException] = []

    def handle(message: tt.Message) -> None:
        dropped.append((message.data, message.sub_id, message.bookmark))
        if message.data == b"3":
            raise ZeroDivisionError

    if kind == "plain":
        client = front.make(name, uri, bookmark_store=store)
        client.connect()
    else:
        client = front.make_ha(name, servers=uri, bookmark_store=store)
        client.connect_and_logon(30)
    client.set_exception_listener(errors.append)
    client.set_duplicate_message_handler(handle)
    stream = client.bookmark_subscribe(topic, tt.EPOCH, sub_id="s")
    first = [stream.get(30) for _ in range(6)]
    for message in first[1:5]:
        message.discard()
    assert dropped == []
    client.unsubscribe("s")
    stream = client.bookmark_subscribe(topic, tt.MOST_RECENT, sub_id="s")
    assert [stream.get(30).data for _ in range(2)] == [b"0", b"5"]
    wait_until(lambda: len(dropped) == 4)
    assert dropped == [(b"%d" % n, "s", first[n].bookmark) for n in range(1, 5)]
    wait_until(lambda: len(errors) == 1)
    client.set_duplicate_message_handler(None)
    client.unsubscribe("s")
    stream = client.bookmark_subscribe(topic, tt.MOST_RECENT, sub_id="s")
    assert [stream.get(30).data for _ in range(2)] == [b"0", b"5"]
    assert len(dropped) == 4
    client.close()


def test_duplicate_message_handler_reports_dropped_messages_per_subscription(
    front: Front, uri: str, name: str, topic: str
) -> None:
    filled(front, uri, name, topic)
    store = tt.MemoryBookmarkStore()
    dropped: list[tuple[str | None, bytes]] = []
    client = front.make(name, uri, bookmark_store=store)
    client.connect()
    client.set_duplicate_message_handler(lambda message: dropped.append((message.sub_id, message.data)))
    for sub_id, discarded in (("a", (1, 2)), ("b", (2, 3))):
        stream = client.bookmark_subscribe(topic, tt.EPOCH, sub_id=sub_id)
        messages = [stream.get(30) for _ in range(6)]
        for number in discarded:
            messages[number].discard()
        client.unsubscribe(sub_id)
    received: dict[str, list[bytes]] = {"a": [], "b": []}
    for sub_id, into in received.items():
        client.bookmark_subscribe(
            topic,
            tt.MOST_RECENT,
            sub_id=sub_id,
            options="pause",
            on_message=partial(keep, into),
        )
    client.resume("a", "b")
    wait_until(lambda: sum(map(len, received.values())) == 8)
    assert received == {"a": [b"0", b"3", b"4", b"5"], "b": [b"0", b"1", b"4", b"5"]}
    wait_until(lambda: len(dropped) == 4)
    assert sorted(dropped) == [("a", b"1"), ("a", b"2"), ("b", b"2"), ("b", b"3")]
    client.close()
