"""Publishing until the last message is persisted, and one message in flight."""

from __future__ import annotations

import os

from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import BODY, FLUSH_SECONDS, percentile, publisher, stage, timed


@bench("publish", "publish(), bytes, one at a time, until persisted", unit="msg/s")
def publish_bytes(room: Room) -> Reading:
    count = room.count(500_000)
    with stage(room.directory) as server, publisher(server) as client:
        start = timed()
        for _ in range(count):
            client.publish("orders", BODY)
        client.publish_flush(timeout=FLUSH_SECONDS)
        return Reading(count / (timed() - start), "sync always, one blocking client")


@bench("publish", "publish(), dict, one at a time, until persisted", unit="msg/s")
def publish_dicts(room: Room) -> Reading:
    count = room.count(300_000)
    order = {"symbol": "AAPL", "price": 12.5, "x": "x" * 163}
    with stage(room.directory) as server, publisher(server) as client:
        start = timed()
        for _ in range(count):
            client.publish("orders", order)
        client.publish_flush(timeout=FLUSH_SECONDS)
        return Reading(count / (timed() - start), "encoded as JSON by the client")


@bench("publish", "publish_batch(), until persisted", unit="msg/s")
def publish_batches(room: Room) -> Reading:
    count = room.count(1_000_000)
    bodies = [BODY] * 10_000
    with stage(room.directory) as server, publisher(server) as client:
        start = timed()
        for _ in range(max(1, count // len(bodies))):
            client.publish_batch("orders", bodies)
        client.publish_flush(timeout=FLUSH_SECONDS)
        return Reading(max(1, count // len(bodies)) * len(bodies) / (timed() - start), "10,000 a call")


def _one_in_flight(room: Room, sync: str, fraction: float) -> Reading:
    taken: list[float] = []
    with stage(room.directory, sync=sync) as server, publisher(server) as client:
        for _ in range(room.count(2_000)):
            start = timed()
            client.publish("orders", BODY)
            client.publish_flush(timeout=FLUSH_SECONDS)
            taken.append(timed() - start)
    return Reading(percentile(taken, fraction) * 1e6, f"sync {sync}")


@bench("one in flight", "publish() to persisted, p50, sync always", unit="us")
def one_always_p50(room: Room) -> Reading:
    return _one_in_flight(room, "always", 0.5)


@bench("one in flight", "publish() to persisted, p99, sync always", unit="us")
def one_always_p99(room: Room) -> Reading:
    return _one_in_flight(room, "always", 0.99)


@bench("one in flight", "publish() to persisted, p50, sync never", unit="us")
def one_never_p50(room: Room) -> Reading:
    return _one_in_flight(room, "never", 0.5)


@bench("one in flight", "raw pwrite + fdatasync of 300 bytes, p50", unit="us")
def raw_sync_p50(room: Room) -> Reading:
    path = room.directory / "raw"
    taken: list[float] = []
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, 4 << 20)
        os.fsync(fd)
        for number in range(room.count(2_000)):
            start = timed()
            os.pwrite(fd, BODY + BODY[:100], 304 * number)
            os.fdatasync(fd)
            taken.append(timed() - start)
    finally:
        os.close(fd)
    return Reading(percentile(taken, 0.5) * 1e6, "what the disk itself takes")
