"""Queues of a real server on all fronts: consume, acknowledge, reconnect."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import tickertape as tt
from tests.conformance.fronts import Front
from tests.helpers.relay import Relay
from tickertape.testing.server import RunningServer, running_server, wait_until

QUEUES = 60
SECONDS = 20.0
CONFIG = "".join(
    f"""
[[queue]]
name = "work-{number}"
underlying = "jobs-{number}"
lease_period = "60s"
[[queue]]
name = "once-{number}"
semantics = "at-most-once"
"""
    for number in range(QUEUES)
)
_numbers = itertools.count()


@pytest.fixture(scope="module")
def queues() -> Iterator[RunningServer]:
    """A server with queues. Each test has its own queues."""
    with running_server(config=CONFIG) as running:
        yield running


@pytest.fixture
def number() -> int:
    """The number of queues that no other test has."""
    return next(_numbers)


class Work:
    """A queue, a producer, and consumers of one front."""

    def __init__(self, front: Front, server: RunningServer, queue: str) -> None:
        self.front = front
        self.server = server
        self.queue = queue
        self._names = itertools.count()

    def connect(self, **options: Any) -> tt.Client:
        """Return a new client."""
        return self.front.connect(f"{self.queue}-{next(self._names)}", self.server.uri, **options)

    def put(self, *bodies: str) -> None:
        """Publish messages into the queue."""
        producer = self.connect()
        for body in bodies:
            producer.publish(self.queue, body)
        producer.publish_flush()

    def left(self) -> list[str]:
        """Return the messages that wait in the queue."""
        stream = self.connect().subscribe(self.queue, browse=True)
        return [message.data.decode() for message in stream]


@pytest.fixture
def work(front: Front, queues: RunningServer, number: int) -> Work:
    return Work(front, queues, f"work-{number}")


@pytest.fixture
def once(front: Front, queues: RunningServer, number: int) -> Work:
    return Work(front, queues, f"once-{number}")


def take(stream: tt.MessageStream, count: int) -> list[tt.Message]:
    return [stream.get(timeout=SECONDS) for _ in range(count)]


def texts(messages: list[tt.Message]) -> list[str]:
    return [message.data.decode() for message in messages]


def test_queue_message_has_topic_underlying_topic_bookmark_and_lease(work: Work) -> None:
    work.put("1")
    before = datetime.now(UTC)
    stream = work.connect().subscribe(work.queue, max_backlog=2)
    (message,) = take(stream, 1)
    assert (message.topic, message.underlying_topic) == (work.queue, work.queue.replace("work", "jobs"))
    assert message.bookmark is not None
    assert message.lease_expires is not None
    granted = message.lease_expires - timedelta(seconds=60)
    assert before <= granted <= datetime.now(UTC)


def test_queue_removes_acknowledged_messages_and_redelivers_cancelled_ones(work: Work) -> None:
    work.put("1", "2", "3")
    client = work.connect()
    with client.subscribe(work.queue, max_backlog=10) as stream:
        one, two, three = take(stream, 3)
        one.ack()
        two.cancel()
        (again,) = take(stream, 1)
        assert (again.data, again.bookmark) == (b"2", two.bookmark)
        client.ack(work.queue, again.bookmark or "")
        three.expire()
        client.publish_flush()
    assert work.left() == []


def test_client_acknowledges_queue_messages_after_pickling(work: Work) -> None:
    work.put("1", "2", "3")
    client = work.connect()
    with client.subscribe(work.queue, max_backlog=10) as stream:
        one, two, three = [pickle.loads(pickle.dumps(message)) for message in take(stream, 3)]
        client.ack(work.queue, one)
        client.ack(work.queue, two.batch)
        client.ack(work.queue, [three])
        client.publish_flush()
    assert work.left() == []


def test_queue_subscription_without_max_backlog_has_one_message_at_a_time(work: Work) -> None:
    work.put("1", "2")
    stream = work.connect().subscribe(work.queue)
    (one,) = take(stream, 1)
    with pytest.raises(tt.TimedOut):
        stream.get(timeout=0.1)
    one.ack()
    assert texts(take(stream, 1)) == ["2"]


def test_consumer_with_ack_batch_size_above_backlog_never_stalls(work: Work) -> None:
    work.put(*map(str, range(50)))
    client = work.connect()
    client.ack_batch_size = 1000
    client.ack_timeout = 600
    stream = client.subscribe(work.queue, max_backlog=10)
    seen = []
    for _ in range(50):
        (message,) = take(stream, 1)
        seen.append(message.data.decode())
        message.ack()
    assert seen == list(map(str, range(50)))
    client.close()
    assert work.left() == []


def test_closed_queue_stream_returns_unacknowledged_messages(work: Work) -> None:
    work.put("1", "2", "3")
    client = work.connect()
    client.ack_batch_size = 100
    stream = client.subscribe(work.queue, max_backlog=10)
    take(stream, 3)[1].ack()
    stream.close()
    client.publish_flush()
    wait_until(lambda: sorted(work.left()) == ["1", "3"])


def test_batch_ack_settles_all_messages(work: Work) -> None:
    work.put("1", "2", "3")
    client = work.connect()
    seen = 0
    with client.subscribe(work.queue, max_backlog=10) as stream:
        for batch in stream.batches(timeout=SECONDS):
            assert batch.queue == work.queue
            batch.ack()
            seen += batch.count
            if seen == 3:
                break
    client.close()
    assert work.left() == []


def test_sow_delete_with_filter_settles_matching_messages(work: Work) -> None:
    work.put('{"id": 1}', '{"id": 2}')
    client = work.connect()
    client.sow_delete(work.queue, filter="/id = 1")
    client.publish_flush()
    wait_until(lambda: work.left() == ['{"id": 2}'])


def test_ack_on_topic_without_queue_is_rejected(work: Work) -> None:
    client = work.connect()
    client.ack("nobody-s", "1|1|")
    with pytest.raises(tt.PublishRejected, match="queue"):
        client.publish_flush()


def test_auto_ack_handler_acknowledges_on_return_and_releases_on_exception(work: Work) -> None:
    work.put("1", "2", "3")
    client = work.connect()
    client.auto_ack = True
    client.set_exception_listener(lambda _: None)
    seen: list[str] = []

    def handle(message: tt.Message) -> None:
        seen.append(message.data.decode())
        if seen.count("2") == 1 and message.data == b"2":
            raise ValueError

    client.subscribe(work.queue, on_message=handle, max_backlog=1)
    wait_until(lambda: sorted(seen) == ["1", "2", "2", "3"])
    client.close()
    assert work.left() == []


def test_auto_ack_stream_acknowledges_all_but_the_last_message(work: Work) -> None:
    work.put("1", "2", "3")
    client = work.connect()
    client.auto_ack = True
    with client.subscribe(work.queue, max_backlog=2) as stream:
        assert texts(take(stream, 3)) == ["1", "2", "3"]
    client.close()
    wait_until(lambda: work.left() == ["3"])


@pytest.mark.behaviour(40)
def test_at_most_once_queue_never_redelivers(once: Work) -> None:
    once.put("1", "2", "3")
    client = once.connect()
    stream = client.subscribe(once.queue, max_backlog=2)
    one, two = take(stream, 2)
    assert (one.lease_expires, one.topic) == (None, once.queue)
    one.cancel()
    client.publish_flush()
    with pytest.raises(tt.TimedOut):
        stream.get(timeout=0.1)
    two.ack()
    assert texts(take(stream, 1)) == ["3"]
    client.close()
    assert once.left() == []


def test_bookmark_subscription_to_queue_topic_replays_published_messages(work: Work) -> None:
    work.put("1", "2")
    client = work.connect()
    assert [message.data for message in client.replay(work.queue)] == [b"1", b"2"]
    (message,) = take(client.bookmark_subscribe(work.queue, tt.EPOCH), 1)
    with pytest.raises(tt.UsageError, match="is not a queue subscription"):
        message.ack()


def test_ha_client_after_reconnect_acknowledges_held_messages(
    front: Front, queues: RunningServer, work: Work
) -> None:
    with Relay(queues.uri) as relay:
        client = front.make_ha(f"{work.queue}-ha", servers=relay.uri, reconnect_delay=0.01)
        client.connect_and_logon()
        seen: list[tt.Message] = []
        client.subscribe(work.queue, on_message=seen.append, max_backlog=10)
        work.put("1", "2", "3")
        wait_until(lambda: len(seen) == 3)
        relay.cut()
        seen[0].ack()
        wait_until(lambda: texts(seen[3:]) in (["2", "3"], ["1", "2", "3"]))
        seen[1].ack()  # received on the lost connection
        seen[-1].ack()
        client.publish_flush(timeout=SECONDS)
        client.close()
        assert work.left() == []
