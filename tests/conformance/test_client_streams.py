"""Streams of both clients: replay, live delivery, depth, timeouts, ends, tables."""

from __future__ import annotations

import asyncio
import threading
from typing import Final

import pytest

import tickertape as tt
from tests.conformance.fronts import Front
from tickertape.testing.server import wait_until

SECONDS: Final = 30.0


def filled(client: tt.Client, topic: str, count: int = 10) -> list[tt.Message]:
    """Publish `count` messages and return them as replayed."""
    client.publish_batch(topic, [b"%d" % i for i in range(count)])
    messages = list(client.replay(topic))
    assert [message.data for message in messages] == [b"%d" % i for i in range(count)]
    return messages


def mark(message: tt.Message) -> str:
    assert message.bookmark is not None
    return message.bookmark


def numbers(messages: list[tt.Message]) -> list[int]:
    return [int(message.data) for message in messages]


# -- start and end ------------------------------------------------------------------------------------


def test_live_subscription_receives_new_messages(client: tt.Client, topic: str) -> None:
    filled(client, topic)
    stream = client.subscribe(topic, sub_id="mine")
    client.publish(topic, {"id": 10})
    message = stream.get(10)
    assert (message.json(), message.topic, message.sub_id) == ({"id": 10}, topic, "mine")
    assert (message.command, stream.sub_id, stream.end_reason) == ("publish", "mine", None)


@pytest.mark.behaviour(8)
def test_messages_have_bookmark_and_timestamp_only_on_request(client: tt.Client, topic: str) -> None:
    plain = client.subscribe(topic)
    timed = client.subscribe(topic, timestamp=True)
    marked = client.subscribe(topic, options="bookmark")
    replayed = client.bookmark_subscribe(topic, tt.NOW)
    client.publish(topic, b"1")
    shown = [(m.bookmark is not None, m.timestamp is not None) for m in map(get, (plain, timed, marked))]
    assert shown == [(False, False), (False, True), (True, False)]
    assert get(replayed).bookmark is not None


def get(stream: tt.MessageStream) -> tt.Message:
    return stream.get(10)


def test_unrecorded_topic_is_delivered_live_and_not_replayed(client: tt.Client) -> None:
    stream = client.subscribe("unrecorded-live")
    client.publish("unrecorded-live", b"1")
    assert stream.get(10).data == b"1"
    with pytest.raises(tt.TopicNotRecorded):
        client.replay("unrecorded-live")


def test_replay_starts_after_the_bookmark(client: tt.Client, topic: str) -> None:
    messages = filled(client, topic)
    assert numbers(list(client.replay(topic, mark(messages[3])))) == [4, 5, 6, 7, 8, 9]
    assert numbers(list(client.replay(topic, mark(messages[9])))) == []


@pytest.mark.behaviour(6)
@pytest.mark.parametrize(
    ("text", "wanted"), [("[{}:{}]", [3, 4, 5, 6]), ("({}:{})", [4, 5]), ("[{}:{})", [3, 4, 5])]
)
def test_bookmark_range_honours_the_brackets_and_completes(
    client: tt.Client, topic: str, text: str, wanted: list[int]
) -> None:
    messages = filled(client, topic)
    stream = client.bookmark_subscribe(topic, text.format(mark(messages[3]), mark(messages[6])))
    assert numbers(list(stream)) == wanted
    stream.wait_caught_up(0)
    assert stream.end_reason == "complete"
    with pytest.raises(tt.StreamEnded, match="complete"):
        stream.get(0)


@pytest.mark.behaviour(5)
def test_range_with_end_before_start_completes_at_once(client: tt.Client, topic: str) -> None:
    filled(client, topic)
    assert list(client.replay(topic, "[20300101T000000:20200101T000000]")) == []


def test_unknown_bookmark_raises_or_follows_bookmark_not_found(client: tt.Client, topic: str) -> None:
    filled(client, topic, 3)
    with pytest.raises(tt.BookmarkUnknown):
        client.replay(topic, "1|1|")
    assert numbers(list(client.replay(topic, "1|1|", bookmark_not_found="epoch"))) == [0, 1, 2]
    stream = client.bookmark_subscribe(topic, "1|1|", bookmark_not_found="now")
    client.publish(topic, b"3")
    assert int(stream.get(10).data) == 3
    with pytest.raises(tt.BadOption):
        client.replay(topic, "1|1|", bookmark_not_found="guess")


@pytest.mark.behaviour(3)
def test_malformed_bookmark_or_topic_raises(client: tt.Client, topic: str) -> None:
    for bookmark in ("[20261120T090000", "20261320T090000", "yesterday"):
        with pytest.raises(tt.BadBookmark):
            client.bookmark_subscribe(topic, bookmark)
    with pytest.raises(tt.BadTopic):
        client.subscribe("")


def test_stream_continues_from_replay_to_live_without_a_gap(client: tt.Client, topic: str) -> None:
    client.publish_batch(topic, [b"%d" % i for i in range(20_000)])
    stream = client.bookmark_subscribe(topic, tt.EPOCH, depth="64KB")
    stream.wait_caught_up(timeout=30)
    client.publish(topic, b"20000")
    seen: list[int] = []
    for batch in stream.batches(timeout=10):
        seen += [int(body) for body in batch.bodies_list()]
        if seen[-1] == 20_000:
            break
    assert seen == list(range(20_001))


def test_replay_of_range_into_the_future_ends_at_the_current_end_of_the_log(
    client: tt.Client, topic: str
) -> None:
    filled(client, topic)
    stream = client.replay(topic, "[0:20990101T000000]", timeout=10)
    assert numbers(list(stream)) == list(range(10))
    assert stream.end_reason == "complete"
    command = tt.Command("subscribe", topic, bookmark="[0:20990101T000000)", until_caught_up=True)
    assert numbers(list(client.execute(command))) == list(range(10))


# -- waiting ------------------------------------------------------------------------------------------


def test_stream_without_messages_times_out_and_stays_usable(client: tt.Client, topic: str) -> None:
    stream = client.subscribe(topic)
    for timeout in (0, 0.01, "10ms"):
        with pytest.raises(tt.TimedOut):
            stream.get(timeout)
    with pytest.raises(tt.TimedOut):
        next(stream.batches(0.01))
    client.publish(topic, b"1")
    assert stream.get(10).data == b"1"


def test_iteration_continues_after_a_timeout(client: tt.Client, topic: str) -> None:
    stream = client.subscribe(topic)
    stream.timeout = "20ms"
    for body in (b"1", b"2"):
        with pytest.raises(tt.TimedOut):
            next(stream)
        client.publish(topic, body)
        stream.timeout = 10
        assert next(stream).data == body
        stream.timeout = 0.02
    with pytest.raises(tt.TimedOut):
        stream.get()
    with pytest.raises(tt.TimedOut):
        stream.to_arrow()


def test_wait_caught_up_uses_the_timeout_of_the_client(front: Front, uri: str, name: str) -> None:
    client = front.make(name, uri, timeout="50ms")
    client.connect(timeout=10)
    never = client.subscribe("unrecorded-never", timeout=10)
    with pytest.raises(tt.TimedOut, match=r"did not reach the end of its replay within 0\.05 s"):
        never.wait_caught_up()
    with pytest.raises(tt.TimedOut, match=r"did not reach the end of its replay within 0\.02 s"):
        never.wait_caught_up(timeout="20ms")


def test_wait_caught_up_returns_times_out_or_raises_at_the_end(client: tt.Client, topic: str) -> None:
    filled(client, topic)
    stream = client.bookmark_subscribe(topic, tt.EPOCH)
    stream.wait_caught_up()
    stream.wait_caught_up("10s")
    assert numbers([stream.get(10) for _ in range(10)]) == list(range(10))
    never = client.subscribe("unrecorded-never")
    with pytest.raises(tt.TimedOut):
        never.wait_caught_up(0.01)
    never.close()
    client.publish_flush(level="processed")
    with pytest.raises(tt.StreamEnded):
        never.wait_caught_up(10)


# -- depth --------------------------------------------------------------------------------------------


def test_unread_stream_holds_at_most_the_depth_and_delays_no_other(client: tt.Client, topic: str) -> None:
    idle = client.bookmark_subscribe(topic, tt.EPOCH, depth="16KB")
    busy = client.bookmark_subscribe(topic, tt.EPOCH)
    bodies = [b"%05d" % i * 40 for i in range(5_000)]
    client.publish_batch(topic, bodies)
    client.publish_flush(timeout=10)  # a megabyte was acknowledged while `idle` holds 16 KB of it
    seen = 0
    for batch in busy.batches(10):
        seen += len(batch)
        if seen == len(bodies):
            break
    found: list[bytes] = []
    for batch in idle.batches(10):
        assert batch.cost <= 16 * 1024
        found += batch.bodies_list()
        if len(found) == len(bodies):
            break
    assert found == bodies


@pytest.mark.parametrize("depth", [31, "2GB", "much"])
def test_subscription_with_invalid_depth_raises(client: tt.Client, topic: str, depth: int | str) -> None:
    with pytest.raises(tt.BadOption):
        client.subscribe(topic, depth=depth)


def test_one_message_may_exceed_the_depth(client: tt.Client, topic: str) -> None:
    stream = client.subscribe(topic, depth=32)
    for size in (10_000, 0, 10):
        client.publish(topic, bytes(size))
        assert len(stream.get(10).data) == size


# -- batches and tables -------------------------------------------------------------------------------


def test_batches_continue_after_the_last_message(client: tt.Client, topic: str) -> None:
    filled(client, topic)
    stream = client.replay(topic)
    assert numbers([next(stream), stream.get(10)]) == [0, 1]
    rest = [message for batch in stream.batches() for message in batch]
    assert numbers(rest) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert all(message.bookmark and message.timestamp for message in rest)


def test_replay_as_table_has_columns_and_remaining_messages(
    client: tt.Client, topic: str, other_topic: str
) -> None:
    messages = filled(client, topic)
    table = client.replay(topic).to_arrow()
    assert table.column_names == ["topic", "publisher", "sequence", "timestamp", "data"]
    assert table["data"].to_pylist() == [message.data for message in messages]
    assert table["timestamp"].to_pylist() == [message.timestamp for message in messages]
    stream = client.replay(topic)
    assert next(stream).data == b"0"
    assert stream.to_arrow(["data"])["data"].to_pylist() == [b"%d" % i for i in range(1, 10)]
    assert client.replay(other_topic).to_arrow().num_rows == 0
    with pytest.raises(tt.UsageError):
        client.replay(topic).to_arrow(["no_such"])


def test_table_shares_message_bodies_without_copy(client: tt.Client, topic: str) -> None:
    filled(client, topic)
    for batch in client.replay(topic).batches():
        data = batch.to_arrow(["data"])["data"].buffers()[2]
        with memoryview(batch.bodies) as bodies:
            assert data.address == _address(bodies)


def _address(memory: memoryview) -> int:
    import numpy as np

    return int(np.frombuffer(memory, np.uint8).ctypes.data)


# -- handlers -----------------------------------------------------------------------------------------


def test_handler_can_close_the_client_and_then_the_stream(uri: str, name: str, topic: str) -> None:
    failures: list[BaseException] = []
    closed = threading.Event()
    streams: list[tt.MessageStream] = []
    with tt.Client(f"{name} reads", uri) as client, tt.Client(name, uri) as writer:
        client.set_exception_listener(failures.append)

        def handler(_: tt.Message) -> None:
            client.close()
            streams[0].close()
            closed.set()

        streams.append(client.subscribe(topic, on_message=handler))
        writer.publish(topic, b"1")
        writer.publish_flush()
        assert closed.wait(SECONDS), failures
    assert failures == []


def test_handler_that_raises_gets_every_message_in_order(client: tt.Client, topic: str) -> None:
    filled(client, topic, 1_000)
    seen: list[int] = []
    reported: list[BaseException] = []

    def handle(message: tt.Message) -> None:
        seen.append(int(message.data))
        if len(seen) % 500 == 0:
            raise ValueError(message.data)

    client.set_exception_listener(reported.append)
    stream = client.bookmark_subscribe(topic, tt.EPOCH, on_message=handle, depth=4_000)
    client.publish(topic, b"1000")
    wait_until(lambda: len(seen) == 1_001)
    assert seen == list(range(1_001))
    assert [type(error) for error in reported] == [ValueError, ValueError]
    with pytest.raises(tt.UsageError, match="on_message"):
        stream.get(0)


def test_handler_after_exit_or_cancellation_gets_the_next_message(
    front: Front, client: tt.Client, topic: str
) -> None:
    seen: list[bytes] = []
    reported: list[BaseException] = []
    client.set_exception_listener(reported.append)

    def exits(message: tt.Message) -> None:
        seen.append(message.data)
        raise SystemExit(3)  # on the receive thread SystemExit does not end the program

    async def cancelled(message: tt.Message) -> None:
        seen.append(message.data)
        waited_for = asyncio.get_running_loop().create_future()
        waited_for.cancel()
        await waited_for

    handler = exits if front.kind == "blocking" else cancelled
    for sub_id, filter_text in (("alone", None), ("a", "/n > 0"), ("b", "/n > 0")):
        client.subscribe(topic, on_message=handler, sub_id=sub_id, filter=filter_text)
    for number in range(3):
        client.publish(topic, b'{"n": %d}' % number)
    wait_until(lambda: len(seen) == 3 + 2 * 2)
    wait_until(lambda: len(reported) == len(seen))
    wanted = SystemExit if front.kind == "blocking" else asyncio.CancelledError
    assert {type(error) for error in reported} == {wanted}
    assert client.connected


# -- the end ------------------------------------------------------------------------------------------


@pytest.mark.behaviour(33)
def test_stream_end_reason_is_complete_unsubscribed_or_closed(client: tt.Client, topic: str) -> None:
    replayed = client.replay(topic)
    unsubscribed = client.subscribe(topic, sub_id="a")
    closed = client.subscribe(topic, sub_id="b")
    client.publish(topic, b"1")
    wait_until(lambda: closed.get(10).data == b"1")
    client.unsubscribe("a")
    client.close()
    assert list(replayed) == []
    assert [message.data for message in unsubscribed] == [b"1"]
    assert list(closed) == []
    assert [stream.end_reason for stream in (replayed, unsubscribed, closed)] == [
        "complete",
        "unsubscribed",
        "closed",
    ]
    assert list(unsubscribed) == []


def test_subscribe_twice_or_unsubscribe_unknown_id_keeps_subscriptions(client: tt.Client, topic: str) -> None:
    stream = client.subscribe(topic, sub_id="a")
    with pytest.raises(tt.SubscriptionExists):
        client.subscribe(topic, sub_id="a")
    with pytest.raises(tt.SubscriptionUnknown):
        client.unsubscribe("a", "b")
    client.publish(topic, b"1")
    assert stream.get(10).data == b"1"
    client.unsubscribe("a")
    client.subscribe(topic, sub_id="a")


def test_closed_stream_ends_the_subscription(client: tt.Client, topic: str) -> None:
    filled(client, topic)
    with client.bookmark_subscribe(topic, tt.EPOCH, sub_id="a") as stream:
        assert stream.get(10).data == b"0"
    assert list(stream) == []
    stream.close()
    wait_until(lambda: stream.end_reason == "unsubscribed")
    assert client.bookmark_subscribe(topic, tt.EPOCH, sub_id="a").get(10).data == b"0"


def test_recovery_point_is_the_bookmark_of_the_last_finished_message(client: tt.Client, topic: str) -> None:
    messages = filled(client, topic, 3)
    last = mark(messages[-1])
    stream = client.bookmark_subscribe(topic, tt.EPOCH)
    points = [stream.recovery_point]
    assert numbers([stream.get(10) for _ in range(3)]) == [0, 1, 2]
    client.publish(topic, b"3")
    assert stream.get(10).data == b"3"
    points.append(stream.recovery_point)
    assert points == [tt.EPOCH, last]
    assert client.subscribe(topic).recovery_point is None


@pytest.mark.slow
def test_recovery_point_of_quiet_subscription_follows_server_notices(
    client: tt.Client, topic: str, other_topic: str
) -> None:
    """The server sends a notice once a second, although no message matches the subscription."""
    filled(client, topic, 3)
    stream = client.bookmark_subscribe(topic, tt.EPOCH)
    assert numbers([stream.get(10) for _ in range(3)]) == [0, 1, 2]
    with pytest.raises(tt.TimedOut):
        stream.get(0)
    elsewhere = mark(filled(client, other_topic, 5)[-1])
    wait_until(lambda: stream.recovery_point == elsewhere)
    client.publish(topic, b"3")
    again = client.bookmark_subscribe(topic, elsewhere)
    assert int(again.get(10).data) == int(stream.get(10).data) == 3
