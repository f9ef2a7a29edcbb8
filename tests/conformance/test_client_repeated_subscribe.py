"""A subscription id that both clients reuse at once or know from an earlier subscription."""

from __future__ import annotations

import pytest

import tickertape as tt
from tests.conformance.fronts import Front
from tests.helpers.relay import Relay
from tickertape.client.bookmark_store.progress import Mask, Publishers, UInt64s
from tickertape.testing import FaultProxy
from tickertape.testing.server import wait_until

SECONDS = 20.0
MESSAGES = 200
BODY = b" " * 20_000
"""Large enough for a replay in several batches."""


class FailsOnce(tt.MemoryBookmarkStore):
    """A store that cannot record the second batch."""

    batches = 0

    def log(self, sub_id: str, publishers: Publishers, sequences: UInt64s) -> Mask | None:
        """Raise at the second batch."""
        self.batches += 1
        if self.batches == 2:
            raise tt.StoreFailed("no space left on device")
        return super().log(sub_id, publishers, sequences)


def publish(front: Front, name: str, uri: str, topic: str, count: int, body: bytes = b"") -> None:
    client = front.connect(f"{name}-publisher", uri)
    client.publish_batch(topic, [b"%6d" % number + body for number in range(count)])
    client.publish_flush()


@pytest.mark.behaviour(28)
def test_subscription_after_bookmark_store_failure_resumes_without_loss(
    front: Front, uri: str, name: str, topic: str
) -> None:
    publish(front, name, uri, topic, MESSAGES, BODY)
    received: list[int] = []

    def handle(message: tt.Message) -> None:
        received.append(int(message.data[:6]))
        message.discard()

    with FaultProxy(uri) as proxy:
        proxy.to_client.slice_bytes, proxy.to_client.delay = 100_000, 0.005
        client = front.connect(name, proxy.uri, bookmark_store=FailsOnce())
        reported: list[BaseException] = []
        client.set_exception_listener(reported.append)
        first = client.bookmark_subscribe(topic, tt.MOST_RECENT, sub_id="risk", on_message=handle)
        wait_until(lambda: first.end_reason is not None)
        second = client.bookmark_subscribe(topic, tt.MOST_RECENT, sub_id="risk", on_message=handle)
        wait_until(lambda: max(received, default=0) == MESSAGES - 1)
        assert sorted(received) == list(range(MESSAGES))
        assert (first.end_reason, second.end_reason) == ("store_failed", None)
        assert [type(error) for error in reported] == [tt.StoreFailed]
        client.unsubscribe("risk")
        assert second.end_reason == "unsubscribed"


def test_subscription_id_of_closed_stream_is_reusable_at_once(
    front: Front, uri: str, name: str, topic: str
) -> None:
    publish(front, name, uri, topic, 20)
    client = front.connect(name, uri, bookmark_store=tt.MemoryBookmarkStore())
    for number in range(20):
        with client.bookmark_subscribe(topic, tt.MOST_RECENT, sub_id="risk") as stream:
            message = stream.get(timeout=SECONDS)
            assert int(message.data) == number
            message.discard()


@pytest.mark.behaviour(26)
@pytest.mark.parametrize("known", [False, True])
def test_range_subscription_with_known_id_keeps_the_range_after_reconnect(
    front: Front, uri: str, name: str, topic: str, known: bool
) -> None:
    publish(front, name, uri, topic, 10)
    with Relay(uri) as relay:
        client = front.make_ha(name, servers=relay.uri, reconnect_delay=0.02)
        client.connect_and_logon(SECONDS)
        before = client.bookmark_subscribe(topic, tt.EPOCH, sub_id="risk" if known else "other")
        messages = [before.get(timeout=SECONDS) for _ in range(10)]
        for message in messages[:3]:
            message.discard()
        before.close()
        received: list[int] = []
        stream = client.bookmark_subscribe(
            topic,
            f"({messages[5].bookmark}:{messages[9].bookmark}]",
            sub_id="risk",
            pause=True,
            on_message=lambda message: received.append(int(message.data)),
        )
        relay.cut()
        wait_until(lambda: not client.connected)
        client.connect_and_logon(SECONDS)
        client.resume("risk")
        wait_until(lambda: stream.end_reason is not None and len(received) >= 4)  # in this order
        assert (received, stream.end_reason) == ([6, 7, 8, 9], "complete")


@pytest.mark.behaviour(28)
def test_messages_discarded_while_redelivered_copies_wait_are_dropped(
    front: Front, uri: str, name: str, topic: str
) -> None:
    count = 30
    publish(front, name, uri, topic, count)
    store = tt.MemoryBookmarkStore()
    with FaultProxy(uri) as proxy:
        client = front.make_ha(name, servers=proxy.uri, bookmark_store=store, reconnect_delay=0.001)
        client.connect_and_logon(SECONDS)
        first = client.bookmark_subscribe(topic, tt.MOST_RECENT, sub_id="risk")
        held = [first.get(timeout=SECONDS) for _ in range(count)]
        proxy.cut()
        wait_until(lambda: first.end_reason is not None)
        second = client.bookmark_subscribe(topic, tt.MOST_RECENT, sub_id="risk")
        second.wait_caught_up(SECONDS)
        for message in held[:-1]:
            message.discard()
        publish(front, f"{name}-2", uri, topic, 1)
        again = [int(second.get(timeout=SECONDS).data) for _ in range(2)]
        assert again == [count - 1, 0], "the undiscarded message and the new one"
