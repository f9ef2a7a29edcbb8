"""Calls of both clients: connecting, publishing, flushing, commands as data."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import tickertape as tt
from tests.conformance.fronts import Front
from tickertape.base.limits import message_bytes_max
from tickertape.testing.server import RunningServer, wait_until


def is_connected(client: tt.Client) -> bool:
    return client.connected  # a function, because a type checker narrows properties


# -- connecting ---------------------------------------------------------------------------------------


def test_client_connects_once_and_has_server_details(front: Front, uri: str, name: str) -> None:
    client = front.make(name, uri)
    assert (client.connected, client.server) == (False, None)
    client.connect()
    client.connect()
    assert is_connected(client)
    assert client.name == name
    assert client.server is not None
    assert client.server.recorded is not None
    assert "recorded-0" in client.server.recorded


def test_client_as_context_manager_closes_at_the_end(front: Front, uri: str, name: str, topic: str) -> None:
    with front.connect(name, uri) as client:
        client.publish(topic, b"1")
    assert not is_connected(client)
    other = front.connect(f"{name}-other", uri)
    assert [message.data for message in other.replay(topic)] == [b"1"]


def test_connect_with_name_of_another_user_raises_name_in_use(front: Front, uri: str, name: str) -> None:
    front.connect(name, uri, user="ann")
    second = front.make(name, uri, user="bob")
    with pytest.raises(tt.NameInUse):
        second.connect()
    assert not is_connected(second)


def test_connect_with_name_of_same_user_closes_the_older_client(
    front: Front, uri: str, name: str, topic: str
) -> None:
    first = front.connect(name, uri)
    stream = first.subscribe(topic)
    front.connect(name, uri)
    assert list(stream) == []
    assert stream.end_reason == "name_in_use"
    wait_until(lambda: not is_connected(first))
    for call in (lambda: first.publish(topic, b"1"), first.publish_flush, lambda: first.subscribe(topic)):
        with pytest.raises(
            tt.Disconnected, match=r"closed \(name_in_use\)\. .* Use a unique client name for each client"
        ) as lost:
            call()
        assert isinstance(lost.value.__cause__, tt.NameInUse)


def test_connect_to_silent_or_closed_port_raises(front: Front, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        client = front.make(name, address)
        with pytest.raises(tt.TimedOut):
            client.connect(timeout=0.05)
        with pytest.raises(tt.TimedOut):
            client.connect(timeout="50ms")
    with pytest.raises(tt.Disconnected, match="Cannot connect"):
        client.connect()


def test_client_with_invalid_name_address_or_timeout_raises(front: Front, uri: str) -> None:
    with pytest.raises(tt.TickertapeError) as caught:
        front.make("", uri)
    assert caught.value.code == "bad_name"
    with pytest.raises(tt.BadOption):
        front.make("a", "http://localhost:1")
    with pytest.raises(tt.BadOption):
        front.make("a", uri, timeout="soon")


@pytest.mark.behaviour(13)
def test_client_bookmark_store_can_be_replaced_without_active_subscription(
    front: Front, uri: str, name: str, topic: str
) -> None:
    first, second = tt.MemoryBookmarkStore(), tt.MemoryBookmarkStore()
    client = front.make(name, uri, bookmark_store=first)
    client.connect()
    assert client.bookmark_store is first
    client.publish(topic, b"1")
    stream = client.bookmark_subscribe(topic, tt.MOST_RECENT, sub_id="a")
    with pytest.raises(tt.UsageError, match="bookmark subscription 'a' is active"):
        client.set_bookmark_store(second)
    assert stream.get(10).discard()
    client.unsubscribe("a")
    client.publish_flush()
    client.set_bookmark_store(second)
    assert (first.subscriptions(), second.subscriptions()) == (["a"], [])
    client.set_bookmark_store(None)
    assert client.bookmark_store is None


@pytest.mark.behaviour(25)
def test_most_recent_without_bookmark_store_starts_at_the_first_message(
    client: tt.Client, topic: str
) -> None:
    client.publish_batch(topic, [b"1", b"2"])
    for sub_id in ("risk", "risk"):
        stream = client.bookmark_subscribe(topic, tt.MOST_RECENT, sub_id=sub_id)
        assert [stream.get(10).data for _ in range(2)] == [b"1", b"2"]
        client.unsubscribe(sub_id)


def test_calls_before_connect_and_after_close_raise(front: Front, uri: str, name: str, topic: str) -> None:
    client = front.make(name, uri)
    errors: tuple[type[tt.TickertapeError], ...] = (tt.Disconnected, tt.Closed)
    for error in errors:
        with pytest.raises(error):
            client.publish(topic, b"1")
        with pytest.raises(error):
            client.subscribe(topic)
        with pytest.raises(error):
            client.publish_flush()
        client.close()
        client.close()
    with pytest.raises(tt.Closed):
        client.connect()


# -- publishing ---------------------------------------------------------------------------------------


def test_publish_encodes_bytes_text_and_json_values(client: tt.Client, topic: str) -> None:
    for data in (b"bytes", "tëxt", {"id": 1}, [1, None], 2.5):
        assert client.publish(topic, data) is None
    client.publish_flush()
    bodies = [message.data for message in client.replay(topic)]
    assert bodies == [b"bytes", "tëxt".encode(), b'{"id":1}', b"[1,null]", b"2.5"]


def test_publish_with_store_returns_rising_sequences(front: Front, uri: str, name: str, topic: str) -> None:
    client = front.connect(name, uri, publish_store=tt.MemoryPublishStore())
    given = [client.publish(topic, b"%d" % i) for i in range(50)]
    assert client.publish("unrecorded", b"x") is None
    client.publish_flush()
    assert client.unpersisted_count() == 0
    assert [message.sequence for message in client.replay(topic)] == given
    with pytest.raises(tt.UsageError):
        client.publish_flush(level="sent")


def test_publish_store_can_be_set_and_removed(client: tt.Client, topic: str) -> None:
    client.set_publish_store(tt.MemoryPublishStore())
    assert client.publish(topic, b"1") is not None
    client.publish_flush()
    client.set_publish_store(None)
    assert client.publish(topic, b"2") is None


def test_expiration_correlation_id_and_key_arrive_with_the_message(client: tt.Client, topic: str) -> None:
    stream = client.subscribe(topic)
    client.publish(topic, b"1", expiration="5m", correlation_id="c-1", sow_key="k-1")
    client.publish(topic, b"2")
    first, second = stream.get(10), stream.get(10)
    assert (first.expiration, first.correlation_id, first.sow_key) == (300_000, "c-1", "k-1")
    assert (second.expiration, second.correlation_id, second.sow_key) == (None, None, None)
    client.publish_flush()
    replayed = [(m.expiration, m.correlation_id, m.sow_key) for m in client.replay(topic)]
    assert replayed == [(300_000, "c-1", "k-1"), (None, None, None)]


def test_publish_with_invalid_arguments_raises_and_publishes_nothing(client: tt.Client, topic: str) -> None:
    with pytest.raises(tt.BadTopic):
        client.publish("orders.*", b"1")
    with pytest.raises(tt.BadMessage):
        client.publish(topic, object())
    with pytest.raises(tt.MessageTooLarge):
        client.publish(topic, bytes(message_bytes_max + 1))
    with pytest.raises(tt.BadOption):
        client.publish(topic, b"1", expiration="later")
    client.publish(topic, b"1")
    assert [message.data for message in client.replay(topic)] == [b"1"]


def test_message_of_maximum_size_is_replayed(client: tt.Client, topic: str) -> None:
    body = bytes(range(256)) * (message_bytes_max // 256)
    client.publish(topic, body)
    client.publish(topic, b"after")
    client.publish_flush(timeout=30)
    messages = list(client.replay(topic, depth="64KB"))
    assert [message.data == wanted for message, wanted in zip(messages, (body, b"after"), strict=True)] == [
        True,
        True,
    ]


def test_publish_batch_returns_the_last_sequence(front: Front, uri: str, name: str, topic: str) -> None:
    client = front.connect(name, uri, publish_store=tt.MemoryPublishStore())
    bodies = [b"%06d" % i for i in range(20_000)]
    last = client.publish_batch(topic, iter(bodies))
    client.publish_flush(timeout=30)
    table = client.replay(topic).to_arrow(["data", "sequence"])
    assert table["data"].to_pylist() == bodies
    assert table["sequence"][-1].as_py() == last
    assert client.publish_batch(topic, []) is None
    with pytest.raises(tt.BadMessage):
        client.publish_batch(topic, [b"1", object()])


def test_publish_arrow_publishes_columns_of_every_binary_layout(client: tt.Client, topic: str) -> None:
    bodies = [b"%05d" % i * 20 for i in range(5_000)]
    array = pa.array(bodies, pa.binary())
    client.publish_arrow(topic, pa.table({"id": range(5_000), "data": array}))
    client.publish_arrow(topic, array[4_990:])
    client.publish_arrow(topic, pa.chunked_array([array[:1], array[:0], array[1:2]]))
    client.publish_arrow(topic, pa.record_batch({"text": pa.array(["a", "b"], pa.large_string())}))
    client.publish_arrow(topic, pa.table({"id": [1], "text": ["c"]}), column="text")
    client.publish_flush(timeout=30)
    read = client.replay(topic).to_arrow(["data"])["data"].to_pylist()
    assert read == [*bodies, *bodies[4_990:], *bodies[:2], b"a", b"b", b"c"]


def test_publish_arrow_with_unsuitable_columns_raises(client: tt.Client, topic: str) -> None:
    for wrong in (
        pa.table({"a": ["x"], "b": ["y"]}),
        [b"1"],
        pa.table({"data": ["x"]}).rename_columns(["d"]),
    ):
        with pytest.raises(tt.TickertapeError):
            client.publish_arrow(topic, wrong, column="data")
    for array in (pa.array([1, 2]), pa.array([b"1", None])):
        with pytest.raises(tt.BadMessage):
            client.publish_arrow(topic, array)
    assert list(client.replay(topic)) == []


def test_replayed_arrow_table_can_be_published(client: tt.Client, topic: str, other_topic: str) -> None:
    client.publish_batch(topic, [b"1", b"2", b"3"])
    client.publish_arrow(other_topic, client.replay(topic).to_arrow())
    assert [message.data for message in client.replay(other_topic)] == [b"1", b"2", b"3"]


# -- flushing -----------------------------------------------------------------------------------------


@pytest.mark.behaviour(10)
@pytest.mark.parametrize("level", ["persisted", "processed"])
def test_flush_covers_recorded_and_unrecorded_topics(client: tt.Client, topic: str, level: str) -> None:
    for i in range(200):
        client.publish(topic, b"%d" % i)
        client.publish("unrecorded", b"%d" % i)
    client.publish_flush(level=level)
    assert len(list(client.replay(topic))) == 200


@pytest.mark.behaviour(10)
def test_flush_that_times_out_leaves_the_publish_store_unchanged(
    front: Front, shared_server: RunningServer, name: str, topic: str
) -> None:
    client = front.connect(name, shared_server.uri, publish_store=tt.MemoryPublishStore())
    os.kill(shared_server.pid, signal.SIGSTOP)
    try:
        client.publish_batch(topic, [b"1", b"2", b"3"])
        with pytest.raises(tt.TimedOut):
            client.publish_flush(timeout=0.05)
        assert client.unpersisted_count() == 3
    finally:
        os.kill(shared_server.pid, signal.SIGCONT)
    client.publish_flush()
    assert client.unpersisted_count() == 0
    assert [message.data for message in client.replay(topic)] == [b"1", b"2", b"3"]


def publish_all(client: tt.Client, topic: str, bodies: list[bytes]) -> None:
    for body in bodies:
        client.publish(topic, body)


def test_full_publish_store_raises_or_waits_as_configured(
    front: Front, shared_server: RunningServer, name: str, topic: str
) -> None:
    stores = (tt.MemoryPublishStore("64KB", when_full="raise"), tt.MemoryPublishStore("64KB"))
    raising, waiting = (
        front.connect(f"{name}-{i}", shared_server.uri, publish_store=store, timeout=2.0)
        for i, store in enumerate(stores)
    )
    body = bytes(20_000)
    os.kill(shared_server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(tt.StoreFull):
            publish_all(raising, topic, [body] * 10)
        with pytest.raises(tt.TimedOut):
            publish_all(waiting, topic, [body] * 10)
        assert 1 <= raising.unpersisted_count() <= 3
        assert 1 <= waiting.unpersisted_count() <= 3
    finally:
        os.kill(shared_server.pid, signal.SIGCONT)
    publish_all(waiting, topic, [body] * 10)
    waiting.publish_flush(timeout=10)
    wait_until(lambda: raising.unpersisted_count() == 0)
    raising.publish(topic, body)


# -- commands in their general form -------------------------------------------------------------------


@pytest.mark.behaviour(13)
def test_commands_have_the_effects_of_the_methods(client: tt.Client, topic: str) -> None:
    live = client.execute(tt.Command("subscribe", topic, sub_id="live"))
    published = client.execute(tt.Command("publish", topic, data={"id": 1}, correlation_id="c"))
    assert (published.end_reason, list(published)) == ("complete", [])
    assert client.execute(tt.Command("flush")).end_reason == "complete"
    assert client.execute(tt.Command("flush", level="processed")).end_reason == "complete"
    message = live.get(10)
    assert (message.data, message.correlation_id, message.bookmark) == (b'{"id":1}', "c", None)
    assert client.execute(tt.Command("unsubscribe", sub_id="live")).end_reason == "complete"
    assert list(live) == []
    assert live.end_reason == "unsubscribed"


@pytest.mark.behaviour(13)
def test_subscribe_command_with_bookmark_is_a_bookmark_subscription(client: tt.Client, topic: str) -> None:
    client.publish_batch(topic, [b"1", b"2"])
    client.publish_flush()
    command = tt.Command("subscribe", topic, bookmark=tt.EPOCH, options="timestamp", depth="1MB")
    stream = client.execute(command)
    stream.wait_caught_up(10)
    client.publish(topic, b"3")
    messages = [stream.get(10) for _ in range(3)]
    assert [message.data for message in messages] == [b"1", b"2", b"3"]
    assert all(message.bookmark and message.timestamp for message in messages)
    limited = client.execute(tt.Command("subscribe", topic, bookmark=tt.EPOCH, until_caught_up=True))
    assert [message.data for message in limited] == [b"1", b"2", b"3"]


@pytest.mark.behaviour(13)
def test_execute_async_passes_messages_to_the_handler(client: tt.Client, topic: str) -> None:
    seen: list[bytes] = []
    client.publish_batch(topic, [b"1", b"2"])
    stream = client.execute_async(
        tt.Command("subscribe", topic, bookmark=tt.EPOCH), lambda message: seen.append(message.data)
    )
    client.publish(topic, b"3")
    wait_until(lambda: seen == [b"1", b"2", b"3"])
    client.unsubscribe(stream.sub_id)
    assert stream.end_reason == "unsubscribed"


@pytest.mark.behaviour(13)
@pytest.mark.parametrize(
    "command",
    [
        tt.Command("delta_subscribe", "t"),
        tt.Command("sow", "t", data=b"1"),
        tt.Command("delta_publish", "t", data=b"1", filter="/id"),
        tt.Command("sow_delete", "t", filter="/id", sub_id="a"),
        tt.Command("no_such"),
        tt.Command("publish", "t", data=b"1", bookmark=tt.EPOCH),
        tt.Command("publish", "t", data=b"1", options="timestamp"),
        tt.Command("subscribe", "t", data=b"1"),
        tt.Command("subscribe", "t", options="filter=/id"),
        tt.Command("subscribe", "t", bookmark=tt.EPOCH, options="max_backlog=5"),
        tt.Command("resume", "t", sub_id="a"),
        tt.Command("subscribe", "t", until_caught_up=True),
        tt.Command("unsubscribe", "t", sub_id="a"),
        tt.Command("flush", sub_id="a"),
    ],
    ids=lambda command: command.command,
)
def test_command_with_unsupported_name_or_field_raises(client: tt.Client, command: tt.Command) -> None:
    with pytest.raises(tt.BadOption):
        client.execute(command)
    with pytest.raises(tt.BadOption):
        client.execute_async(command, print)


def test_command_with_missing_or_invalid_field_raises(client: tt.Client) -> None:
    for command in (
        tt.Command("publish", "t"),
        tt.Command("subscribe", ""),
        tt.Command("subscribe", "t", sub_id=("a", "b")),
        tt.Command("unsubscribe"),
        tt.Command("unsubscribe", sub_id="nobody"),
        tt.Command("flush", level="sent"),
    ):
        with pytest.raises(tt.TickertapeError):
            client.execute(command)


WRONG: tuple[Any, ...] = (None, 5, b"x", ["a", 1], ("a", 1), {}, {"a": 1}, 2.5, True, object())


def is_refused(
    client: tt.Client,
    error: type[tt.TickertapeError] | tuple[type[tt.TickertapeError], ...],
    call: Callable[[Any], object],
    value: object,
) -> None:
    with pytest.raises(error):
        call(value)
    assert is_connected(client), value


def publish_with(client: tt.Client, topic: str, name: str, value: Any) -> None:
    client.publish(topic, b"1", **{name: value})


def subscribe_with(client: tt.Client, topic: str, name: str, value: Any) -> None:
    client.subscribe(topic, **{name: value})


def test_argument_of_wrong_type_raises_and_keeps_the_connection(client: tt.Client, topic: str) -> None:
    for wrong in WRONG:
        for by_topic in (
            lambda t: client.publish(t, b"1"),
            lambda t: client.publish(t, b"1", sow_key="k"),
            lambda t: client.publish_batch(t, [b"1"]),
            client.subscribe,
            client.replay,
        ):
            is_refused(client, tt.BadTopic, by_topic, wrong)
        is_refused(client, tt.BadBookmark, lambda b: client.replay(topic, b), wrong)
        is_refused(client, tt.BadBookmark, lambda b: client.bookmark_subscribe(topic, b), wrong)
        for others in (
            client.execute,
            client.unsubscribe,
            lambda w: client.execute(tt.Command(w)),
            lambda w: client.execute(tt.Command("unsubscribe", sub_id=w)),
            lambda w: client.publish_flush(level=w),
        ):
            is_refused(client, tt.UsageError, others, wrong)
    for wrong in WRONG[1:]:
        for label in ("correlation_id", "sow_key"):
            is_refused(client, tt.UsageError, partial(publish_with, client, topic, label), wrong)
        for text in ("sub_id", "options"):
            is_refused(client, tt.BadOption, partial(subscribe_with, client, topic, text), wrong)
        is_refused(client, tt.UsageError, client.set_publish_store, wrong)
    for wrong in (None, 5, 2.5, True, object()):
        is_refused(client, tt.UsageError, lambda w: client.publish_batch(topic, w), wrong)
    assert list(client.replay(topic)) == []


def test_client_constructor_with_argument_of_wrong_type_raises(front: Front, uri: str, name: str) -> None:
    for wrong in WRONG:
        with pytest.raises(tt.BadName):
            front.make(wrong, uri)
        with pytest.raises(tt.BadOption):
            front.make(name, wrong)
    for wrong in WRONG[1:]:
        for option in ("user", "password", "publish_store"):
            with pytest.raises(tt.UsageError):
                front.make(name, uri, **{option: wrong})


def test_list_of_bookmarks_starts_after_the_earliest(client: tt.Client, topic: str) -> None:
    client.publish_batch(topic, [b"1", b"2", b"3"])
    first, second, third = (m.bookmark for m in client.replay(topic))
    assert first is not None
    assert second is not None
    for start in ([second, first], (first, second), f"{first},{second}"):
        assert [m.bookmark for m in client.replay(topic, start)] == [second, third]
    stream = client.bookmark_subscribe(topic, [second])
    assert stream.get(10).bookmark == third


def test_datetime_is_accepted_as_start_point(client: tt.Client, topic: str) -> None:
    client.publish(topic, b"1")
    client.publish_flush()
    start_time = datetime(2020, 1, 1, tzinfo=UTC)
    assert [message.data for message in client.replay(topic, start_time)] == [b"1"]
    stream = client.execute(tt.Command("subscribe", topic, bookmark=start_time))
    assert stream.get(10).data == b"1"
