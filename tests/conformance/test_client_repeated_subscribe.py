"""A subscription id that is used again at once, or known from before, in both clients."""

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
"""So that a replay comes in several batches."""


class FailsOnce(tt.MemoryBookmarkStore):
    """A store that cannot record the second batch."""

    batches = 0

    def log(self, sub_id: str, publishers: Publishers, sequences: UInt64s) -> Mask | None:
        """See `BookmarkStore`."""
        self.batches += 1
        if self.batches == 2:
            raise tt.StoreFailed("no space left on device")
        return super().log(sub_id, publishers, sequences)


def publish(front: Front, name: str, uri: str, topic: str, count: int, body: bytes = b"") -> None:
    client = front.connect(f"{name}-publisher", uri)
    client.publish_batch(topic, [b"%6d" % number + body for number in range(count)])
    client.publish_flush()


@pytest.mark.behaviour(28)
def test_one_that_fails_in_its_store_is_asked_for_again_at_once_and_misses_nothing(
    front: Front, uri: str, name: str, topic: str
) -> None:
    publish(front, name, uri, topic, MESSAGES, BODY)
    heard: list[int] = []

    def hear(message: tt.Message) -> None:
        heard.append(int(message.data[:6]))
        message.discard()

    with FaultProxy(uri) as proxy:
        proxy.to_client.slice_bytes, proxy.to_client.delay = 100_000, 0.005
        client = front.connect(name, proxy.uri, bookmark_store=FailsOnce())
        told: list[BaseException] = []
        client.set_exception_listener(told.append)
        first = client.bookmark_subscribe(topic, tt.MOST_RECENT, sub_id="risk", on_message=hear)
        wait_until(lambda: first.end_reason is not None)
        second = client.bookmark_subscribe(topic, tt.MOST_RECENT, sub_id="risk", on_message=hear)
        wait_until(lambda: max(heard, default=0) == MESSAGES - 1)
        assert sorted(heard) == list(range(MESSAGES))
        assert (first.end_reason, second.end_reason) == ("store_failed", None)
        assert [type(error) for error in told] == [tt.StoreFailed]
        client.unsubscribe("risk")
        assert second.end_reason == "unsubscribed"


def test_a_stream_that_was_left_may_be_asked_for_again_at_once(
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
def test_a_range_under_an_id_that_is_known_keeps_to_its_begin(
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
        heard: list[int] = []
        stream = client.bookmark_subscribe(
            topic,
            f"({messages[5].bookmark}:{messages[9].bookmark}]",
            sub_id="risk",
            pause=True,
            on_message=lambda message: heard.append(int(message.data)),
        )
        relay.cut()
        wait_until(lambda: not client.connected)
        client.connect_and_logon(SECONDS)
        client.resume("risk")
        wait_until(lambda: stream.end_reason is not None and len(heard) >= 4)  # in this order
        assert (heard, stream.end_reason) == ([6, 7, 8, 9], "complete")


@pytest.mark.behaviour(28)
def test_what_is_discarded_while_its_copies_wait_is_not_handed_out_again(
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
        assert again == [count - 1, 0], "the one that was not discarded, and the new one"
