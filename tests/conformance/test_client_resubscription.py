"""Bookmark stores and resubscription after a lost connection, in both clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import tickertape as tt
from tests.conformance.fronts import Front
from tests.helpers.relay import Relay
from tickertape.base.bookmarks import Bookmark
from tickertape.client.bookmark_store.progress import Mask, Publishers, UInt64s
from tickertape.testing.server import wait_until

SECONDS = 20


class Scene:
    """A subscriber behind a relay that cuts its connection, and a publisher beside it."""

    def __init__(self, front: Front, relay: Relay, uri: str, name: str) -> None:
        self.front = front
        self.relay = relay
        self.name = name
        self.publisher = front.connect(f"{name}-publisher", uri)
        self.reported: list[BaseException] = []
        self.client: Any = None

    def start(self, store: tt.BookmarkStore | None = None) -> Any:
        """Return a subscriber that keeps its handlers over a lost connection."""
        self.client = self.front.make(self.name, self.relay.uri, bookmark_store=store)
        self.core.subscriptions.keep = True
        self.client.set_exception_listener(self.reported.append)
        self.client.connect()
        return self.client

    @property
    def core(self) -> Any:
        return self._inner._driver.core

    @property
    def _inner(self) -> Any:
        return getattr(self.client, "target", self.client) if self.front.kind != "blocking" else self.client

    def publish(self, topic: str, numbers: Sequence[int]) -> None:
        self.publisher.publish_batch(topic, [b'{"n": %d}' % number for number in numbers])
        self.publisher.publish_flush()

    def disconnect(self) -> None:
        self.relay.cut()
        wait_until(lambda: not self.client.connected)

    def reconnect(self) -> list[tuple[str, Exception]]:
        """Connect and resubscribe. Return the refused subscriptions."""
        self.client.connect()
        inner = self._inner
        begun = inner._driver.call(inner._driver.core.resubscribe, SECONDS, "resubscribe")
        refused: list[tuple[str, Exception]] = (
            begun if self.front.kind == "blocking" else self.front.run(begun)
        )
        return refused


@pytest.fixture
def scene(front: Front, uri: str, name: str) -> Iterator[Scene]:
    with Relay(uri) as relay:
        scene = Scene(front, relay, uri, name)
        yield scene
        if scene.client is not None:
            scene.client.close()


class RecordingHandler:
    """A handler that records numbers and discards the messages that `discards` selects."""

    def __init__(self, discards: Callable[[int], bool] = lambda _: False) -> None:
        self.numbers: list[int] = []
        self._discards = discards

    def __call__(self, message: tt.Message) -> None:
        number = message.json()["n"]
        self.numbers.append(number)
        if self._discards(number):
            assert message.discard()

    def wait(self, count: int) -> list[int]:
        wait_until(lambda: len(self.numbers) >= count)
        return self.numbers


def store_of(kind: str, directory: Path) -> tt.BookmarkStore:
    if kind == "memory":
        return tt.MemoryBookmarkStore()
    return (tt.LoggedBookmarkStore if kind == "logged" else tt.RingBookmarkStore)(directory / "bookmarks")


# -- bookmark stores ----------------------------------------------------------------------------------


@pytest.mark.behaviour(25)
@pytest.mark.parametrize("kind", ["logged", "ring"])
def test_most_recent_starts_at_first_undiscarded_message_of_earlier_run(
    front: Front, uri: str, name: str, topic: str, tmp_path: Path, kind: str
) -> None:
    for run in range(3):
        store = store_of(kind, tmp_path)
        client = front.connect(name, uri, bookmark_store=store)
        client.publish_batch(topic, [b"%d" % (run * 10 + n) for n in range(10)])
        client.publish_flush()
        expected = list(range(max(0, 10 * run - 3), 10 * run + 10))
        stream = client.bookmark_subscribe(topic, tt.MOST_RECENT, sub_id="risk")
        messages = [stream.get(SECONDS) for _ in expected]
        assert [int(message.data) for message in messages] == expected
        assert [message.discard() for message in messages[:-3]] == [True] * (len(expected) - 3)
        assert not messages[0].discard(), "an earlier run discarded the message"
        client.close()
        store.close()


@pytest.mark.behaviour(34)
def test_ring_store_after_restart_redelivers_messages_discarded_out_of_order(
    front: Front, uri: str, name: str, topic: str, tmp_path: Path
) -> None:
    for kind, expected in (("ring", [1, 2, 3, 4]), ("logged", [1, 3])):
        for run in range(2):
            (tmp_path / kind).mkdir(exist_ok=True)
            store = store_of(kind, tmp_path / kind)
            client = front.connect(name, uri, bookmark_store=store)
            if run == 0 and kind == "ring":
                client.publish_batch(topic, [b"%d" % n for n in range(5)])
                client.publish_flush()
            stream = client.bookmark_subscribe(topic, tt.MOST_RECENT, sub_id="risk")
            wanted = expected if run else range(5)
            messages = [stream.get(SECONDS) for _ in wanted]
            assert [int(message.data) for message in messages] == list(wanted)
            if run == 0:
                for n in (0, 2, 4):
                    assert messages[n].discard()
            with pytest.raises(tt.TimedOut):
                stream.get(0.05)
            client.close()
            store.close()


def test_bookmark_store_keeps_only_bookmark_subscriptions_with_given_ids(
    front: Front, uri: str, name: str, topic: str, other_topic: str
) -> None:
    store = tt.MemoryBookmarkStore()
    client = front.connect(name, uri, bookmark_store=store)
    plain = client.subscribe(topic, sub_id="plain")
    replayed = client.bookmark_subscribe(topic, tt.EPOCH, sub_id="marked")
    made_up = client.bookmark_subscribe(topic, tt.EPOCH)
    client.publish(topic, b"1")
    assert not plain.get(SECONDS).discard()
    assert made_up.get(SECONDS).discard()
    assert store.undiscarded_count("marked") == 1
    assert next(iter(replayed.batches())).discard() == 1
    assert store.undiscarded_count("marked") == 0
    client.unsubscribe(made_up.sub_id, "plain")
    assert store.subscriptions() == ["marked"]


class Full(tt.MemoryBookmarkStore):
    """A store that raises `error` for one subscription."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def log(self, sub_id: str, publishers: Publishers, sequences: UInt64s) -> Mask | None:
        if sub_id == "full":
            raise self._error
        return super().log(sub_id, publishers, sequences)


@pytest.mark.parametrize(
    ("raised", "code"),
    [(tt.BookmarkStoreFull("no space"), "bookmark_store_full"), (OSError("broken disk"), "store_failed")],
)
def test_failing_bookmark_store_ends_only_the_affected_subscription(
    front: Front, uri: str, name: str, topic: str, raised: Exception, code: str
) -> None:
    reported: list[BaseException] = []
    client = front.connect(name, uri, bookmark_store=Full(raised))
    client.set_exception_listener(reported.append)
    full = client.bookmark_subscribe(topic, tt.EPOCH, sub_id="full")
    other = client.bookmark_subscribe(topic, tt.EPOCH, sub_id="other")
    client.publish(topic, b"1")
    assert other.get(SECONDS).data == b"1"
    assert list(full) == []
    assert full.end_reason == code
    wait_until(lambda: len(reported) == 1)
    assert reported[0] is full.end_error
    client.publish(topic, b"2")
    assert other.get(SECONDS).data == b"2"
    assert client.bookmark_subscribe(topic, tt.EPOCH, sub_id="full").sub_id == "full", (
        "the server removed the subscription"
    )


class Adapter:
    """A recovery point adapter that works through a client."""

    def __init__(self, client: object) -> None:
        self.client = client

    def load(self) -> list[tuple[str, Sequence[Bookmark]]]:
        return []

    def update(self, sub_id: str, bookmarks: Sequence[Bookmark]) -> None:
        raise AssertionError

    def purge(self, sub_id: str | None = None) -> None:
        raise AssertionError

    def close(self) -> None:
        raise AssertionError


@pytest.mark.behaviour(32)
def test_recovery_point_adapter_with_the_same_client_is_rejected(uri: str, name: str) -> None:
    for kind in (tt.Client, tt.AsyncClient):
        client = kind(name, uri, connect=False) if kind is tt.Client else tt.AsyncClient(name, uri)
        with pytest.raises(tt.UsageError, match="uses the same client"):
            client.set_bookmark_store(tt.MemoryBookmarkStore(adapter=Adapter(client)))
        client.set_bookmark_store(tt.MemoryBookmarkStore(adapter=Adapter(object())))


# -- resubscription -----------------------------------------------------------------------------------


def test_handlers_after_reconnect_miss_and_repeat_no_bookmarked_message(scene: Scene, topic: str) -> None:
    client, plain, marked = scene.start(), RecordingHandler(), RecordingHandler()
    client.subscribe(topic, on_message=plain)
    client.bookmark_subscribe(topic, tt.EPOCH, on_message=marked, filter="/n < 50")
    scene.publish(topic, range(10))
    marked.wait(10)
    plain.wait(10)
    for low in (10, 20, 30):
        scene.disconnect()
        scene.publish(topic, range(low, low + 5))
        assert scene.reconnect() == []
        scene.publish(topic, range(low + 5, low + 10))
        scene.publish(topic, [99])
        marked.wait(low + 10)
        wait_until(lambda: plain.numbers[-1] == 99)
    assert marked.numbers == list(range(40)), "no message is missing or duplicated"
    assert [n for n in plain.numbers if n != 99] == [n for n in range(40) if n < 10 or n % 10 >= 5]
    assert scene.reported == []


@pytest.mark.behaviour(26)
def test_now_subscription_without_messages_resumes_at_the_original_start(scene: Scene, topic: str) -> None:
    scene.publish(topic, range(5))
    client, received = scene.start(), RecordingHandler()
    client.bookmark_subscribe(topic, tt.NOW, on_message=received)
    scene.disconnect()
    scene.publish(topic, range(5, 10))
    assert scene.reconnect() == []
    assert received.wait(5) == list(range(5, 10))


@pytest.mark.behaviour(26)
def test_bookmark_store_keeps_the_resolved_start_for_the_next_client(
    scene: Scene, topic: str, tmp_path: Path
) -> None:
    scene.publish(topic, range(5))
    with tt.LoggedBookmarkStore(tmp_path / "bookmarks") as store:
        client, received = scene.start(store), RecordingHandler()
        client.bookmark_subscribe(topic, tt.NOW, on_message=received, sub_id="a")
        assert len(store.most_recent("a")) == 1
        client.close()
    scene.publish(topic, range(5, 10))
    with tt.LoggedBookmarkStore(tmp_path / "bookmarks") as store:
        client, received = scene.start(store), RecordingHandler()
        client.bookmark_subscribe(topic, tt.MOST_RECENT, on_message=received, sub_id="a")
        assert received.wait(5) == list(range(5, 10))
        client.close()


@pytest.mark.behaviour(26)
def test_range_subscription_after_reconnect_keeps_the_end(scene: Scene, topic: str) -> None:
    scene.publish(topic, range(20))
    marks = [message.bookmark for message in scene.publisher.replay(topic)]
    client, received, over = scene.start(), RecordingHandler(), RecordingHandler()
    running = client.bookmark_subscribe(
        topic, f"[{marks[3]}:{marks[15]}]", on_message=received, rate=100, timestamp=True
    )
    client.bookmark_subscribe(topic, f"[{marks[3]}:{marks[5]}]", on_message=over)
    received.wait(2)
    over.wait(3)
    wait_until(lambda: len(scene.core.subscriptions) == 1)
    scene.disconnect()
    assert scene.reconnect() == []
    wait_until(lambda: running.end_reason is not None)
    assert running.end_reason == "complete"
    assert received.wait(13) == list(range(3, 16)), "handlers get all messages up to the end of the range"
    assert over.numbers == [3, 4, 5], "a completed range is not resubscribed"


@pytest.mark.behaviour(27)
def test_subscriptions_after_reconnect_keep_the_paused_or_resumed_state(scene: Scene, topic: str) -> None:
    client, paused, resumed = scene.start(), RecordingHandler(), RecordingHandler()
    client.bookmark_subscribe(topic, tt.EPOCH, on_message=paused, sub_id="paused")
    client.bookmark_subscribe(topic, tt.EPOCH, on_message=resumed, sub_id="resumed", pause=True)
    scene.publish(topic, range(5))
    paused.wait(5)
    client.pause("paused")
    client.resume("resumed")
    resumed.wait(5)
    scene.disconnect()
    scene.publish(topic, range(5, 10))
    assert scene.reconnect() == []
    assert resumed.wait(10) == list(range(10))
    assert paused.numbers == list(range(5))
    client.resume("paused")
    assert paused.wait(10) == list(range(10))


@pytest.mark.behaviour(28)
@pytest.mark.parametrize("kind", ["memory", "logged", "ring"])
def test_reconnect_redelivers_only_undiscarded_messages(
    scene: Scene, topic: str, tmp_path: Path, kind: str
) -> None:
    store = store_of(kind, tmp_path)
    client, received = scene.start(store), RecordingHandler(lambda n: n % 3 != 0 or n >= 30)
    client.bookmark_subscribe(topic, tt.MOST_RECENT, on_message=received, sub_id="a")
    scene.publish(topic, range(20))
    received.wait(20)
    scene.disconnect()
    scene.publish(topic, range(20, 40))
    assert scene.reconnect() == []
    again = [0, 3, 6, 9, 12, 15, 18]
    assert received.wait(47) == [*range(20), *again, *range(20, 40)]
    scene.disconnect()
    assert scene.reconnect() == []
    scene.publish(topic, [40])
    assert received.wait(47 + 11)[47:] == [*again, 21, 24, 27, 40]
    client.close()
    store.close()


class Forgetful(tt.MemoryBookmarkStore):
    """A store that returns an unknown bookmark for one subscription."""

    def most_recent(self, sub_id: str) -> list[Bookmark]:
        return (
            [Bookmark(7, 7)] if sub_id == "b" and self.undiscarded_count("b") else super().most_recent(sub_id)
        )


@pytest.mark.behaviour(28)
def test_unknown_bookmark_at_resubscription_ends_only_the_affected_subscription(
    scene: Scene, topic: str
) -> None:
    client = scene.start(Forgetful())
    received = {sub_id: RecordingHandler() for sub_id in "abc"}
    streams = {
        sub_id: client.bookmark_subscribe(topic, tt.EPOCH, on_message=received[sub_id], sub_id=sub_id)
        for sub_id in "abc"
    }
    scene.publish(topic, [1])
    for one in received.values():
        one.wait(1)
    scene.disconnect()
    ((refused, error),) = scene.reconnect()
    assert refused == "b"
    assert isinstance(error, tt.BookmarkUnknown)
    wait_until(lambda: len(scene.reported) == 1)
    assert scene.reported == [error]
    assert streams["b"].end_reason == "bookmark_unknown"
    scene.publish(topic, [2])
    for sub_id in "ac":
        assert received[sub_id].wait(3) == [1, 1, 2], "undiscarded messages are redelivered"
    assert received["b"].numbers == [1]
    scene.disconnect()
    assert scene.reconnect() == [], "a failed subscription is not resubscribed"


@pytest.mark.behaviour(33)
def test_stream_ends_with_the_connection_and_new_subscribe_resumes(scene: Scene, topic: str) -> None:
    client = scene.start(tt.MemoryBookmarkStore())
    scene.publish(topic, range(10))
    stream = client.bookmark_subscribe(topic, tt.MOST_RECENT, sub_id="a")
    for n in range(10):
        message = stream.get(SECONDS)
        assert message.json()["n"] == n
        if n < 8:
            message.discard()
    scene.disconnect()
    assert list(stream) == []
    assert stream.end_reason == "disconnected"
    scene.publish(topic, [10])
    assert scene.reconnect() == []
    assert list(stream) == [], "an ended stream stays ended"
    stream = client.bookmark_subscribe(topic, tt.MOST_RECENT, sub_id="a")
    assert [stream.get(SECONDS).json()["n"] for _ in range(3)] == [8, 9, 10]


def test_filtered_subscriptions_after_reconnect_each_resume_at_the_last_position(
    scene: Scene, topic: str
) -> None:
    client = scene.start(tt.MemoryBookmarkStore())
    received = [RecordingHandler(lambda n, k=k: n % 4 == k) for k in range(4)]  # type: ignore[misc]
    for k in range(4):
        client.bookmark_subscribe(
            topic, tt.NOW, on_message=received[k], sub_id=f"s{k}", filter=f"/n % 2 = {k % 2}"
        )
    scene.publish(topic, range(40))
    for k in range(4):
        received[k].wait(20)
    scene.disconnect()
    scene.publish(topic, range(40, 48))
    assert scene.reconnect() == []
    for k in range(4):
        mine = [n for n in range(40) if n % 2 == k % 2]
        again = [n for n in mine if n % 4 != k]
        late = [n for n in range(40, 48) if n % 2 == k % 2]
        assert received[k].wait(len(mine) + len(again) + len(late)) == mine + again + late


@pytest.mark.behaviour(26)
@pytest.mark.parametrize("stored", [False, True], ids=["no store", "store"])
def test_conflated_subscription_after_reconnect_delivers_newest_message_of_each_key(
    scene: Scene, topic: str, *, stored: bool
) -> None:
    client = scene.start(tt.MemoryBookmarkStore() if stored else None)
    newest: dict[int, int] = {}

    def handle(message: tt.Message) -> None:
        body = message.json()
        assert newest.get(body["k"], -1) <= body["n"], "values of a key never decrease"
        newest[body["k"]] = body["n"]
        message.discard()

    client.bookmark_subscribe(
        topic, tt.EPOCH, on_message=handle, conflation=0.02, conflation_key="[/k]", sub_id="a"
    )
    for low in (0, 40, 80):
        for n in range(low, low + 40):
            scene.publisher.publish(topic, b'{"k": %d, "n": %d}' % (n % 3, n))
        if low:
            assert scene.reconnect() == []
        scene.publisher.publish_flush()
        wanted = {n % 3: n for n in range(low + 37, low + 40)}
        wait_until(lambda wanted=wanted: newest == wanted)
        scene.disconnect()


def test_subscriptions_removed_while_disconnected_are_not_resubscribed(scene: Scene, topic: str) -> None:
    client, gone, stays = scene.start(), RecordingHandler(), RecordingHandler()
    stream = client.subscribe(topic, on_message=gone, sub_id="gone")
    closed = client.subscribe(topic, on_message=gone, sub_id="closed")
    client.subscribe(topic, on_message=stays, sub_id="stays")
    scene.disconnect()
    with pytest.raises(tt.Disconnected):
        client.subscribe(topic)
    client.unsubscribe("gone")
    closed.close()
    assert stream.end_reason == "unsubscribed"
    assert scene.reconnect() == []
    scene.publish(topic, [1])
    stays.wait(1)
    assert gone.numbers == []


def test_handler_running_at_connection_loss_gets_remaining_messages_once(scene: Scene, topic: str) -> None:
    client = scene.start(tt.MemoryBookmarkStore())
    inside, go_on = threading.Event(), threading.Event()
    received = RecordingHandler(lambda _: True)

    def slow(message: tt.Message) -> None:
        if message.json()["n"] == 3:
            inside.set()
            assert go_on.wait(SECONDS)
        received(message)

    async def slow_async(message: tt.Message) -> None:
        await asyncio.to_thread(slow, message)

    handler = slow if scene.front.kind == "blocking" else slow_async
    client.bookmark_subscribe(topic, tt.MOST_RECENT, on_message=handler, sub_id="a")
    scene.publish(topic, range(10))
    assert inside.wait(SECONDS)
    scene.relay.cut()
    if scene.front.kind != "blocking":  # the blocking client detects the loss when the handler returns
        wait_until(lambda: not client.connected)
    go_on.set()
    wait_until(lambda: not client.connected)
    assert scene.reconnect() == []
    scene.publish(topic, [10])
    wait_until(lambda: 10 in received.numbers)
    assert sorted(set(received.numbers)) == list(range(11))
    assert received.numbers == sorted(received.numbers), "each message is handled once, in order"
