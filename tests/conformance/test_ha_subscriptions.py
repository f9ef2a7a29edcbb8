"""Subscriptions of HA clients: handlers continue, streams end, a manager restores subscriptions."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tickertape as tt
from tests.conformance.fronts import Front
from tests.helpers.ha_parts import FileManager, nowhere
from tests.helpers.relay import Relay
from tickertape.testing.server import RunningServer, running_server, wait_until
from tickertape.wire.commands import Logon, Subscribe

SECONDS = 20.0
SOON = 0.02


class RecordingHandler:
    """A handler that records and discards each message."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def __call__(self, message: tt.Message) -> None:
        self.bodies.append(message.data)
        message.discard()


def publisher(front: Front, name: str, uri: str, topic: str) -> Callable[..., None]:
    client = front.connect(f"{name}-publisher", uri)

    def publish(*numbers: int) -> None:
        client.publish_batch(topic, [b'{"n": %d}' % number for number in numbers])
        client.publish_flush()

    return publish


def bodies(*numbers: int) -> list[bytes]:
    return [b'{"n": %d}' % number for number in numbers]


@pytest.mark.behaviour(33)
def test_subscription_manager_is_restored_before_the_first_resubscription(
    front: Front, relay: Relay, name: str, topic: str, tmp_path: Path
) -> None:
    publish = publisher(front, name, relay.uri, topic)
    file, store = tmp_path / "subscriptions", tmp_path / "bookmarks"

    def connect(manager: FileManager) -> tt.HAClient:
        client = front.make_ha(
            name,
            servers=relay.uri,
            subscription_manager=manager,
            bookmark_store=tt.LoggedBookmarkStore(store),
            reconnect_delay=SOON,
        )
        client.connect_and_logon(SECONDS)
        return client

    received = RecordingHandler()
    manager = FileManager(file, {})
    client = connect(manager)
    client.bookmark_subscribe(
        topic, tt.EPOCH, filter="/n < 100", sub_id="risk", on_message=received, timestamp=True, depth=100_000
    )
    client.subscribe(topic, sub_id="live", on_message=received)
    client.subscribe(topic, sub_id="over", on_message=received)
    client.subscribe(topic, sub_id="a stream")
    client.unsubscribe("over")
    first, second = manager.stored()
    assert (first.command, first.topic, first.sub_id) == ("subscribe", topic, "risk")
    assert first.filter == "/n < 100"
    assert set(first.options.split(",")) >= {"bookmark", "timestamp"}
    assert (first.bookmark, first.depth_bytes, second.sub_id) == (tt.EPOCH, 100_000, "live")
    assert second.bookmark is None
    publish(1, 2)
    wait_until(lambda: sorted(received.bodies) == bodies(1, 1, 2, 2))
    client.close()
    _close_store(client)
    assert len(manager.stored()) == 2  # closing keeps stored subscriptions

    publish(3, 200)
    received = RecordingHandler()
    manager = FileManager(file, {"risk": received})
    relay.asked.clear()
    client = connect(manager)
    assert [stored.sub_id for stored in manager.bound] == ["risk", "live"]
    (subscribe,) = [command for command in relay.asked if isinstance(command, Subscribe)]
    assert isinstance(relay.asked[0], Logon)
    assert (subscribe.sub_id, subscribe.topic, subscribe.filter) == ("risk", topic, "/n < 100")
    publish(4)
    wait_until(lambda: received.bodies == bodies(3, 4))
    relay.cut()
    publisher(front, f"{name}-2", relay.uri, topic)(5)
    wait_until(lambda: received.bodies == bodies(3, 4, 5), SECONDS)
    assert [stored.sub_id for stored in manager.bound] == ["risk", "live"]  # once per process
    assert first in manager.stored()  # with the original start point
    client.close()
    _close_store(client)


def _close_store(client: tt.HAClient) -> None:
    store = client.bookmark_store
    assert store is not None
    store.close()


@pytest.mark.behaviour(33)
def test_ended_stream_stays_ended_and_new_subscribe_continues_at_most_recent(
    front: Front, relay: Relay, name: str, topic: str
) -> None:
    publish = publisher(front, name, relay.uri, topic)
    publish(1, 2, 3)
    store = tt.MemoryBookmarkStore()
    client = front.make_ha(name, servers=relay.uri, reconnect_delay=SOON, bookmark_store=store)
    client.connect_and_logon(SECONDS)
    stream = client.bookmark_subscribe(topic, tt.MOST_RECENT, sub_id="risk")
    for _ in range(2):
        stream.get(SECONDS).discard()
    relay.cut()
    rest = [message.data for message in stream]
    assert rest == bodies(3)
    assert stream.end_reason == "disconnected"
    publisher(front, f"{name}-2", relay.uri, topic)(4)
    wait_until(lambda: client.connected, SECONDS)
    assert list(stream) == []
    stream = client.bookmark_subscribe(topic, tt.MOST_RECENT, sub_id="risk")
    assert [stream.get(SECONDS).data for _ in range(2)] == bodies(3, 4)


def test_unsubscribe_without_server_ends_known_subscription_or_times_out(
    front: Front, uri: str, name: str, topic: str
) -> None:
    with Relay(uri) as relay:
        client = front.make_ha(name, servers=relay.uri, reconnect_delay=SOON)
        client.connect_and_logon(SECONDS)
        stream = client.subscribe(topic, sub_id="s", on_message=RecordingHandler())
        client.subscribe(topic, sub_id="t", on_message=RecordingHandler())
    wait_until(lambda: not client.connected)
    client.unsubscribe("s", timeout=SOON)
    assert stream.end_reason == "unsubscribed"
    for sub_ids in (("s",), ("t", "unknown")):
        with pytest.raises(tt.TimedOut):
            client.unsubscribe(*sub_ids, timeout=SOON)


def test_failing_subscription_manager_is_reported_and_client_connects(
    front: Front, uri: str, name: str, topic: str
) -> None:
    class Broken(tt.MemorySubscriptionManager):
        def stored(self) -> list[tt.StoredSubscription]:
            raise ValueError("the file is gone")

        def subscribed(self, subscription: tt.StoredSubscription) -> None:
            raise ValueError("the disk is full")

    reported: list[BaseException] = []
    client = front.make_ha(name, servers=uri, subscription_manager=Broken())
    client.set_exception_listener(reported.append)
    client.connect_and_logon(SECONDS)
    client.subscribe(topic, on_message=RecordingHandler())
    assert [str(error) for error in reported] == ["the file is gone", "the disk is full"]


def test_rejected_stored_subscription_is_reported_and_others_are_restored(
    front: Front, uri: str, name: str, topic: str
) -> None:
    class Full(tt.MemorySubscriptionManager):
        def bind(self, subscription: tt.StoredSubscription) -> tt.Handler | None:
            return received

    def stored(sub_id: str, filter_text: str | None) -> tt.StoredSubscription:
        return tt.StoredSubscription(
            command="subscribe", topic=topic, filter=filter_text, options="", sub_id=sub_id, bookmark=None,
            depth_bytes=100_000,
        )  # fmt: skip

    received = RecordingHandler()
    manager = Full()
    for subscription in (stored("bad", "/a ="), stored(f"{name}-1", None)):
        manager.subscribed(subscription)
    reported: list[BaseException] = []
    client = front.make_ha(name, servers=uri, subscription_manager=manager)
    client.set_exception_listener(reported.append)
    client.connect_and_logon(SECONDS)
    assert [type(error) for error in reported] == [tt.BadFilter]
    stream = client.subscribe(topic)  # the generated id differs from the restored id
    client.publish(topic, b"1")
    assert stream.get(SECONDS).data == b"1"
    wait_until(lambda: received.bodies == [b"1"])


@pytest.mark.slow
def test_ha_client_after_server_kill_keeps_messages_and_handlers(front: Front, tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        received = RecordingHandler()
        client = front.make_ha("a", servers=[server.uri, nowhere()], reconnect_delay=SOON)
        reported: list[BaseException] = []
        client.set_exception_listener(reported.append)
        client.connect_and_logon(SECONDS)
        client.bookmark_subscribe("orders", tt.EPOCH, sub_id="all", on_message=received)
        numbers = itertools.count()
        for _ in range(3):
            for number in itertools.islice(numbers, 300):
                client.publish("orders", b"%d" % number)
                if number % 300 == 150:
                    _restart(server)
        client.publish_flush(timeout=SECONDS)
        wait_until(lambda: len(received.bodies) >= 900, SECONDS)
        assert received.bodies == [b"%d" % number for number in range(900)]
        assert reported == []


def _restart(server: RunningServer) -> None:
    server.kill()
    server.start()


@pytest.mark.full
@pytest.mark.slow
def test_file_backed_ha_client_resumes_from_stores_after_restart(front: Front, tmp_path: Path) -> None:
    paths = {"publish_path": tmp_path / "publishes", "bookmark_path": tmp_path / "bookmarks"}
    make = front.make_ha_backed
    with running_server(tmp_path / "data") as server:
        received = RecordingHandler()
        client = make("file", "a", servers=server.uri, reconnect_delay=SOON, **paths)
        client.connect_and_logon(SECONDS)
        client.bookmark_subscribe("orders", tt.MOST_RECENT, sub_id="all", on_message=received)
        client.publish("orders", b"1")
        client.publish_flush(timeout=SECONDS)
        wait_until(lambda: received.bodies == [b"1"])
        server.kill()
        client.publish("orders", b"2")
        client.publish("orders", b"3")
        assert client.unpersisted_count() == 2
        client.close()  # with the stores
        server.start()
        client = make("file", "a", servers=server.uri, **paths)
        assert client.unpersisted_count() == 2
        client.connect_and_logon(SECONDS)
        received.bodies.clear()
        client.bookmark_subscribe("orders", tt.MOST_RECENT, sub_id="all", on_message=received)
        wait_until(lambda: received.bodies == [b"2", b"3"])
        client.publish_flush(timeout=SECONDS)
        assert client.unpersisted_count() == 0
        with pytest.raises(tt.StoreLocked):
            make("file", "a", servers=server.uri, **paths)
        client.close()
        with pytest.raises(tt.BadOption):
            make("file", "a", **paths)
        client = make("file", "a", servers=server.uri, **paths)  # a failed construction holds no lock
        client.close()
        client = make("memory", "b", servers=server.uri)
        client.connect_and_logon(SECONDS)
        assert isinstance(client.bookmark_store, tt.MemoryBookmarkStore)
        assert client.publish("orders", b"4") is not None


def test_invalid_stored_subscriptions_are_reported_and_skipped(
    front: Front, uri: str, name: str, topic: str
) -> None:
    received: list[bytes] = []

    class Strange(tt.MemorySubscriptionManager):
        def stored(self) -> Any:
            good = tt.StoredSubscription(
                command="subscribe",
                topic=topic,
                filter=None,
                options="",
                sub_id="good",
                bookmark=None,
                depth_bytes=1 << 20,
            )
            bad: list[object] = [
                {"topic": topic},
                msgspec.structs.replace(good, sub_id=["list"]),
                msgspec.structs.replace(good, sub_id="unheard"),
                msgspec.structs.replace(good, sub_id="options", options=7),
                msgspec.structs.replace(good, sub_id="filter", filter=7),
                msgspec.structs.replace(good, sub_id="depth", depth_bytes="much"),
            ]
            return [*bad, good]

        def bind(self, subscription: tt.StoredSubscription) -> Any:
            if getattr(subscription, "sub_id", "") == "unheard":
                return "no handler"
            return lambda message: received.append(message.data)

    reported: list[BaseException] = []
    client = front.make_ha(name, servers=uri, subscription_manager=Strange())
    client.set_exception_listener(reported.append)
    client.connect_and_logon(SECONDS)
    assert len(reported) == 6
    client.publish(topic, b"1")
    wait_until(lambda: received == [b"1"])


def test_manager_keeps_subscription_when_the_replacement_is_rejected(
    front: Front, uri: str, name: str, topic: str
) -> None:
    received, manager = RecordingHandler(), tt.MemorySubscriptionManager()
    client = front.make_ha(name, servers=uri, subscription_manager=manager)
    client.connect_and_logon(SECONDS)
    client.subscribe(topic, sub_id="risk", on_message=received)
    before = manager.stored()
    with pytest.raises(tt.BadFilter):
        client.subscribe(topic, sub_id="risk", on_message=received, filter="/a = = 3", replace=True)
    assert manager.stored() == before
    client.subscribe(topic, sub_id="risk", on_message=received, filter="/n = 2", replace=True)
    assert [stored.filter for stored in manager.stored()] == ["/n = 2"]
    client.publish_batch(topic, bodies(1, 2))
    wait_until(lambda: received.bodies == bodies(2))
    client.subscribe(topic, sub_id="risk", replace=True)
    wait_until(lambda: manager.stored() == ())  # no handler is left


def test_manager_keeps_subscription_when_the_replacement_is_lost(
    front: Front, uri: str, name: str, topic: str
) -> None:
    received, manager = RecordingHandler(), tt.MemorySubscriptionManager()
    with Relay(uri) as relay:
        client = front.make_ha(name, servers=relay.uri, subscription_manager=manager, reconnect_delay=SOON)
        client.connect_and_logon(SECONDS)
        client.bookmark_subscribe(topic, tt.EPOCH, sub_id="risk", on_message=received)
        before = manager.stored()
        relay.asked.clear()
        relay.hold()

        def cut() -> None:
            wait_until(lambda: any(isinstance(command, Subscribe) for command in relay.asked), SECONDS)
            relay.cut()
            relay.release()

        cutter = threading.Thread(target=cut)
        cutter.start()
        with pytest.raises(tt.Disconnected):
            client.subscribe(topic, sub_id="risk", on_message=received, filter="/n = 2", replace=True)
        cutter.join(SECONDS)
        client.publish_batch(topic, bodies(1, 2))
        wait_until(lambda: received.bodies == bodies(1, 2), SECONDS)
        assert manager.stored() == before
        client.unsubscribe("risk")
        assert manager.stored() == ()
