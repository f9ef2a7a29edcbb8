"""Queue consumer of the driver with a real server: extended leases and lost connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tickertape as tt
from tests.helpers.admin import stats_of
from tickertape.batch import MessageBatch
from tickertape.engine.queues.snapshot import QueueSnapshot
from tickertape.spark.queues.consumer import QueueConsumer
from tickertape.spark.queues.options import queue_options
from tickertape.testing import running_server
from tickertape.testing.server import RunningServer

pytestmark = pytest.mark.slow

CONFIG = """
[[queue]]
name = "work"
underlying = "jobs"
lease_period = "2s"
"""
SECONDS = 30.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "data", CONFIG) as running:
        yield running


@pytest.fixture
def consumers(server: RunningServer) -> Iterator[Callable[..., QueueConsumer]]:
    made: list[QueueConsumer] = []

    def make(**options: str) -> QueueConsumer:
        given = {"servers": server.uri, "queue": "work", "maxRowsPerTrigger": "10", **options}
        made.append(QueueConsumer(queue_options(given)))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


def publish(server: RunningServer, numbers: range, size: int = 0) -> None:
    with tt.Client("publisher", server.uri) as client:
        client.publish_batch("jobs", [{"n": n, "x": "x" * size} for n in numbers])
        client.publish_flush()


def numbers(batches: list[MessageBatch]) -> list[int]:
    return [message.json()["n"] for batch in batches for message in batch]


def queue(server: RunningServer) -> QueueSnapshot:
    [found] = stats_of(server).queues
    return found


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_consumer_prefetches_and_bounds_batches_by_messages(
    server: RunningServer, consumers: Callable[..., QueueConsumer]
) -> None:
    consumer = consumers()
    publish(server, range(50))
    taken = consumer.take(SECONDS)
    until(lambda: queue(server).leased == 20)  # this batch and the next one
    assert numbers(taken) == [*range(len(numbers(taken)))]
    assert 0 < len(numbers(taken)) <= 10
    consumer.acknowledge(taken)
    assert queue(server).acknowledged == len(numbers(taken))


def test_consumer_bounds_batches_by_bytes_with_at_least_one_message(
    server: RunningServer, consumers: Callable[..., QueueConsumer]
) -> None:
    consumer = consumers(maxBytesPerTrigger="2500")
    publish(server, range(6), size=1_000)
    found: list[int] = []
    while len(found) < 6:
        taken = consumer.take(SECONDS)
        assert sum(batch.body_bytes for batch in taken) <= 2_500
        found += numbers(taken)
        consumer.acknowledge(taken)
    assert found == [*range(6)]
    publish(server, range(6, 8), size=4_000)
    assert numbers(consumer.take(SECONDS)) == [6]


def test_leases_are_extended_on_arrival_and_up_to_the_maximum(
    server: RunningServer, consumers: Callable[..., QueueConsumer]
) -> None:
    publish(server, range(20))
    consumer = consumers()
    consumer.take(SECONDS)
    until(lambda: queue(server).leased == 20)
    with tt.Client("witness", server.uri) as witness:
        publish(server, range(20, 21))
        stream = witness.subscribe("work")
        stream.get(timeout=SECONDS)
        until(
            lambda: queue(server).returned == {"lease_expired": 1}
        )  # the lease of the witness, which is not extended
    assert queue(server).leased >= 20
    assert consumer.extend_leases(time.monotonic()) == 20
    assert consumer.extend_leases(time.monotonic() + 3_601) == 0, "not beyond maxLeaseTime"


def test_batch_is_acknowledged_on_the_next_connection_after_a_server_restart(
    server: RunningServer, consumers: Callable[..., QueueConsumer]
) -> None:
    publish(server, range(30))
    consumer = consumers()
    taken = consumer.take(SECONDS)
    server.kill()
    server.restart()
    consumer.acknowledge(taken)
    found = set(numbers(taken))
    while len(found) < 30:
        more = consumer.take(SECONDS)
        assert not found & set(numbers(more))
        found |= set(numbers(more))
        consumer.acknowledge(more)
    assert queue(server).depth == 0


def test_close_returns_all_leased_messages(
    server: RunningServer, consumers: Callable[..., QueueConsumer]
) -> None:
    publish(server, range(20))
    consumer = consumers()
    assert consumer.take(SECONDS)
    consumer.close()
    until(lambda: queue(server).ready == 20)


def test_consumer_reports_available_messages_and_positions(
    server: RunningServer, consumers: Callable[..., QueueConsumer]
) -> None:
    consumer = consumers()
    assert not consumer.has_more()
    publish(server, range(3))
    assert consumer.has_more()
    end = consumer.end_of_log()
    assert consumer.position_of_oldest(consumer.take(SECONDS)) == end - 3


def test_topic_that_is_not_a_queue_is_refused(consumers: Callable[..., QueueConsumer]) -> None:
    with pytest.raises(tt.NotAQueue, match="is not a queue"):
        consumers(queue="jobs").take()
