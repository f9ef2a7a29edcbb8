"""Delivery of new messages to other clients."""

from __future__ import annotations

from time import monotonic_ns

import tickertape as tt
from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import (
    A_CALL,
    BODY,
    FLUSH_SECONDS,
    Worker,
    percentile,
    publisher,
    stage,
    timed,
    workers,
)
from tests.helpers.processes import processor_seconds

SUBSCRIBERS = 10
RATE = 10_000


@bench(
    "live",
    "10 subscribers at the end of the log through batches(), one publisher: sum delivered",
    unit="msg/s",
    floor=1_500_000,
    aim=4_000_000,
)
def fan_out(room: Room) -> Reading:
    bodies = [BODY] * A_CALL
    count = max(1, room.count(500_000) // len(bodies)) * len(bodies)
    with stage(room.directory) as server, publisher(server) as client:
        listeners = [("listen", server.uri, "orders", count)] * SUBSCRIBERS
        with workers(*listeners) as started:
            for worker in started:
                worker.tell()
            start = timed()
            for _ in range(count // len(bodies)):
                client.publish_batch("orders", bodies)
            client.publish_flush(timeout=FLUSH_SECONDS)
            for worker in started:
                said = worker.answer()
                assert said == f"{count} {count * len(BODY)}", said
            taken = timed() - start
    return Reading(SUBSCRIBERS * count / taken, f"{SUBSCRIBERS} processes, {count:,} messages each")


def _delivery(room: Room, fraction: float) -> Reading:
    count = room.count(30_000)
    taken: list[float] = []
    with (
        stage(room.directory) as server,
        workers(("paced", server.uri, "paced", count, RATE)) as (worker,),
        tt.Client("bench-reader", server.uri) as client,
    ):
        stream = client.subscribe("paced")
        worker.tell()
        for message in stream:
            taken.append((monotonic_ns() - int(message.data[:20])) / 1e3)
            if len(taken) == count:
                break
        reached = worker.answer()
    return Reading(percentile(taken[count // 10 :], fraction), f"{int(reached):,} msg/s from another process")


@bench(
    "live",
    "publish() to delivery at another client, p50, sync always",
    unit="us",
    floor=1_000,
    aim=800,
)
def delivery_p50(room: Room) -> Reading:
    return _delivery(room, 0.5)


@bench(
    "live",
    "publish() to delivery at another client, p99, sync always",
    unit="us",
    floor=5_000,
    aim=2_000,
)
def delivery_p99(room: Room) -> Reading:
    return _delivery(room, 0.99)


def _to_all(client: tt.Client, worker: Worker) -> float:
    """Publish one message until all have it, and return the seconds until it was persisted."""
    start = timed()
    client.publish("orders", BODY)
    client.publish_flush(timeout=FLUSH_SECONDS)
    taken = timed() - start
    assert worker.answer() == "all"
    return taken


def _to_connections(room: Room, connections: int) -> Reading:
    count = room.count(200)
    with (
        stage(room.directory) as server,
        workers(("connections", server.uri, "orders", connections)) as (worker,),
        publisher(server) as client,
    ):
        _to_all(client, worker)  # warms up
        before = processor_seconds(server.pid)
        taken = [_to_all(client, worker) for _ in range(count)]
        used = processor_seconds(server.pid) - before
    note = f"publish() to persisted p50 {percentile(taken, 0.5) * 1e3:.2g} ms, all clients in one process"
    return Reading(used / count / connections * 1e6, note)


@bench(
    "live",
    "one message to 500 connections: processor time of the server for each of them",
    unit="us",
    floor=8,
    aim=8,
)
def to_500_connections(room: Room) -> Reading:
    return _to_connections(room, 500)


@bench(
    "live",
    "one message to 1,000 connections: processor time of the server for each of them",
    unit="us",
    floor=8,
    aim=8,
)
def to_1000_connections(room: Room) -> Reading:
    return _to_connections(room, 1_000)
