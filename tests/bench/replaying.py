"""Replaying a log to one consumer, and delivery of what is being published."""

from __future__ import annotations

import tickertape as tt
from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import BODY, fill, other_process, percentile, stage, timed
from tickertape.testing import RunningServer


def _replay_messages(server: RunningServer, count: int) -> float:
    with tt.Client("bench-reader", server.uri) as client:
        start = timed()
        total = 0
        for message in client.replay("orders"):
            total += len(message.data)
        assert total == count * len(BODY)
        return count / (timed() - start)


@bench("replay", "one consumer that touches message.data of each", unit="msg/s")
def replay_messages(room: Room) -> Reading:
    count = room.count(1_000_000)
    with stage(room.directory) as server:
        fill(server, count)
        return Reading(_replay_messages(server, count), "log in the page cache")


@bench("replay", "one consumer through batches()", unit="msg/s")
def replay_batches(room: Room) -> Reading:
    count = room.count(2_000_000)
    with stage(room.directory) as server:
        fill(server, count)
        with tt.Client("bench-reader", server.uri) as client:
            start = timed()
            total = sum(len(batch) for batch in client.replay("orders").batches())
            assert total == count
            return Reading(count / (timed() - start), "log in the page cache")


_PACED = """
import sys, time
import tickertape as tt
uri, count, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
with tt.Client("bench-paced", uri, publish_store=tt.MemoryPublishStore()) as client:
    print("ready", flush=True)
    sys.stdin.readline()
    begun = time.monotonic()
    for number in range(count):
        while (ahead := begun + number / rate - time.monotonic()) > 0:
            time.sleep(ahead)
        client.publish("paced", b"%020d" % time.monotonic_ns() + b"x" * 180)
    client.publish_flush(timeout=60)
"""


def _delivery(room: Room, fraction: float) -> Reading:
    count, rate = room.count(30_000), 10_000
    taken: list[float] = []
    with (
        stage(room.directory) as server,
        other_process(_PACED, server.uri, str(count), str(rate)) as paced,
        tt.Client("bench-reader", server.uri) as client,
    ):
        stream = client.subscribe("paced")
        assert paced.stdout is not None
        assert paced.stdin is not None
        assert paced.stdout.readline() == "ready\n"
        paced.stdin.write("go\n")
        paced.stdin.flush()
        from time import monotonic_ns

        for message in stream:
            taken.append((monotonic_ns() - int(message.data[:20])) / 1e3)
            if len(taken) == count:
                break
    return Reading(percentile(taken[count // 10 :], fraction), f"{rate:,} msg/s from another process")


@bench("live", "publish() to delivery at another client, p50, sync always", unit="us")
def delivery_p50(room: Room) -> Reading:
    return _delivery(room, 0.5)


@bench("live", "publish() to delivery at another client, p99, sync always", unit="us")
def delivery_p99(room: Room) -> Reading:
    return _delivery(room, 0.99)
