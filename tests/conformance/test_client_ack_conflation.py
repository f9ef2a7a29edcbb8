"""`set_ack_conflation`: fewer acknowledgements, prompt flushes, messages that do not wait."""

from __future__ import annotations

import threading

import pytest

import tickertape as tt
from tests.conformance.fronts import Front
from tickertape.client.publish_store.protocol import Stored
from tickertape.client.publishing.in_flight import UnansweredFrames
from tickertape.client.publishing.publisher import Publisher
from tickertape.client.publishing.send_buffer import SendBuffer
from tickertape.testing.server import wait_until
from tickertape.wire.commands import Persisted

LONG = "1h"
"""An interval longer than the timeout of a test."""


@pytest.fixture
def acks(monkeypatch: pytest.MonkeyPatch) -> list[Persisted]:
    """The persisted acknowledgements that clients received."""
    found: list[Persisted] = []
    persisted = Publisher.persisted

    def counted(self: Publisher, command: Persisted) -> None:
        found.append(command)
        persisted(self, command)

    monkeypatch.setattr(Publisher, "persisted", counted)
    return found


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the publish frames that clients sent."""
    found: list[int] = []
    sent = UnansweredFrames.sent

    def counted(self: UnansweredFrames, buffer: SendBuffer, stored: Stored) -> int:
        found.append(sent(self, buffer, stored))
        return found[-1]

    monkeypatch.setattr(UnansweredFrames, "sent", counted)
    return found


def conflated(front: Front, uri: str, name: str, **options: object) -> tt.Client:
    client = front.make(name, uri, **options)
    client.set_ack_conflation(LONG)
    client.connect()
    return client


def test_acknowledgements_are_conflated_and_flush_is_prompt(
    front: Front, uri: str, name: str, topic: str, acks: list[Persisted]
) -> None:
    store = tt.MemoryPublishStore()
    client = conflated(front, uri, name, publish_store=store)
    for round_ in range(5):
        for number in range(20):
            client.publish(topic, b"%d" % number)
        client.publish_flush(timeout=30)
        assert len(acks) <= 2 * (round_ + 1)
        assert store.unpersisted_count() == 0
    client.close()


def test_messages_do_not_wait_for_acknowledgements(front: Front, uri: str, name: str, topic: str) -> None:
    reader = front.connect(f"{name}-reader", uri)
    stream = reader.subscribe(topic)
    client = conflated(front, uri, name)
    for number in range(10):
        client.publish(topic, b"%d" % number)
        assert stream.get(30).data == b"%d" % number
    client.close()


@pytest.mark.parametrize("stored", [False, True])
def test_messages_in_quick_succession_share_frames(
    front: Front, uri: str, name: str, topic: str, frames: list[int], *, stored: bool
) -> None:
    reader = front.connect(f"{name}-reader", uri)
    stream = reader.subscribe(topic)
    store = tt.MemoryPublishStore() if stored else None
    client = conflated(front, uri, name, publish_store=store)
    messages = [b"%d" % number for number in range(1_000)]
    front.publish_all(client, topic, messages)
    # All messages are sent, although later frames are acknowledged only when the interval ends.
    assert [stream.get(30).data for _ in messages] == messages
    assert len(frames) <= len(messages) // 4
    client.close()


def test_messages_do_not_wait_for_a_busy_handler(uri: str, name: str, topic: str) -> None:
    entered, leave = threading.Event(), threading.Event()

    def busy(_message: tt.Message) -> None:
        entered.set()
        leave.wait(60)

    with tt.Client(f"{name}-reader", uri) as reader, tt.Client(name, uri, connect=False) as client:
        stream = reader.subscribe(topic)
        client.set_ack_conflation(LONG)
        client.connect()
        client.subscribe(f"{topic}-other", on_message=busy)
        reader.publish(f"{topic}-other", b"x")
        try:
            assert entered.wait(30)
            for number in range(100):
                client.publish(topic, b"%d" % number)
            assert [stream.get(30).data for _ in range(100)] == [b"%d" % number for number in range(100)]
        finally:
            leave.set()


def test_stored_messages_are_resent_without_waiting_for_intervals(
    front: Front, uri: str, name: str, topic: str
) -> None:
    store = tt.MemoryPublishStore()
    client = front.make(name, uri, publish_store=store)
    client.set_ack_conflation(LONG)
    for _ in range(50):  # five times the amount sent before the first answer
        client.publish(topic, bytes(100_000))
    assert store.unpersisted_count() >= 49  # one may be gathered
    client.connect()
    wait_until(lambda: store.unpersisted_count() == 0)
    client.close()


def test_full_store_does_not_wait_for_intervals(front: Front, uri: str, name: str, topic: str) -> None:
    store = tt.MemoryPublishStore(bytes_max="64KB")
    client = conflated(front, uri, name, publish_store=store)
    for number in range(1_000):  # the store holds about 200
        client.publish(topic, b"%500d" % number)
    client.publish_flush(timeout=30)
    assert store.unpersisted_count() == 0
    client.close()


def test_bad_interval_is_refused(front: Front, uri: str, name: str) -> None:
    client = front.make(name, uri)
    for bad in ("soon", -1, "2d", 0.0001):
        with pytest.raises(tt.BadOption):
            client.set_ack_conflation(bad)
    client.set_ack_conflation("100ms")
    client.set_ack_conflation(None)
    client.connect()
    client.close()
