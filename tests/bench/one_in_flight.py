"""One message in flight: from publish() until it is persisted."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import tickertape as tt
from tests.bench.logs import large_log
from tests.bench.registry import Reading, Room, Skipped, bench
from tests.bench.stage import BODY, FLUSH_SECONDS, percentile, publisher, stage, timed, workers
from tests.helpers.processes import processor_seconds
from tests.helpers.redis_server import (
    PROGRAMS,
    RedisConnection,
    encode_command,
    find_redis,
    redis_server,
    version_of,
)
from tickertape.testing import RunningServer

REPLAYS = 20
BLOCK = 50
"""Publishes of a turn. As many syncs of the disk alone follow, so that both see the same load of the
machine.
"""


def publish_singly(client: tt.Client, count: int, between: Callable[[], object] = bool) -> list[float]:
    """Return the seconds of each publish. `between()` runs before each block of them."""
    taken: list[float] = []
    for number in range(count):
        if number % BLOCK == 0:
            between()
        start = timed()
        client.publish("one", BODY)
        client.publish_flush(timeout=FLUSH_SECONDS)
        taken.append(timed() - start)
    return taken


def _publishing(server: RunningServer, count: int, between: Callable[[], object] = bool) -> list[float]:
    with publisher(server) as client:
        return publish_singly(client, count, between)


class RawDisk:
    """pwrite + fdatasync of 300 bytes into a file of its own that has its size already."""

    def __init__(self, path: Path) -> None:
        self.taken: list[float] = []
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(self._fd, 0, 4 << 20)
        os.fsync(self._fd)

    def block(self) -> None:
        for _ in range(BLOCK):
            start = timed()
            os.pwrite(self._fd, BODY + BODY[:100], 304 * len(self.taken))
            os.fdatasync(self._fd)
            self.taken.append(timed() - start)

    def close(self) -> None:
        os.close(self._fd)


@bench(
    "one in flight",
    "publish() to persisted, p50, sync always, above raw pwrite + fdatasync",
    unit="us",
    floor=250,
    aim=150,
)
def always_above_raw_p50(room: Room) -> Reading:
    with stage(room.directory) as server:
        raw = RawDisk(room.directory / "raw")
        try:
            ours = percentile(_publishing(server, room.count(2_000), raw.block), 0.5) * 1e6
        finally:
            raw.close()
        disk = percentile(raw.taken, 0.5) * 1e6
    return Reading(ours - disk, f"{ours:.0f} us less {disk:.0f} us of the disk alone, in turn")


class RedisBlock:
    """XADD of the same body, as many as we publish in a block, each synced before its answer."""

    def __init__(self, connection: RedisConnection) -> None:
        self.taken: list[float] = []
        self._connection = connection
        self._command = encode_command(b"XADD", b"one", b"*", b"body", BODY)

    def __call__(self) -> None:
        for _ in range(BLOCK):
            start = timed()
            self._connection.call(self._command)
            self.taken.append(timed() - start)


@bench(
    "one in flight",
    "publish() to persisted, p50, sync always, against XADD of Redis or Valkey with appendfsync always",
    unit="x",
    floor=0.8,
    aim=1,
)
def always_against_redis(room: Room) -> Reading:
    program = find_redis()
    if program is None:
        raise Skipped(f"Install {' or '.join(PROGRAMS)} to measure this row.")
    with stage(room.directory) as server, redis_server(program, room.directory) as connection:
        redis = RedisBlock(connection)
        ours = percentile(_publishing(server, room.count(2_000), redis), 0.5) * 1e6
    theirs = percentile(redis.taken, 0.5) * 1e6
    note = f"{ours:.0f} us, {version_of(program)} {theirs:.0f} us without a client library, in turn"
    return Reading(theirs / ours, note)


@bench(
    "one in flight",
    "processor time of the server for a message alone in its frame, sync always",
    unit="us/msg",
)
def server_processor_time(room: Room) -> Reading:
    count = room.count(2_000)
    with stage(room.directory) as server, publisher(server) as client:
        publish_singly(client, BLOCK)
        before = processor_seconds(server.pid)
        taken = publish_singly(client, count)
        used = processor_seconds(server.pid) - before
    return Reading(used / count * 1e6, f"all its threads, p50 {percentile(taken, 0.5) * 1e6:.0f} us")


@bench("one in flight", "publish() to persisted, p99, sync always", unit="us")
def always_p99(room: Room) -> Reading:
    with stage(room.directory) as server:
        return Reading(percentile(_publishing(server, room.count(2_000)), 0.99) * 1e6, "nothing subtracted")


@bench("one in flight", "publish() to persisted, p50, sync never", unit="us", floor=80, aim=40)
def never_p50(room: Room) -> Reading:
    with stage(room.directory, sync="never") as server:
        return Reading(percentile(_publishing(server, room.count(2_000)), 0.5) * 1e6)


@bench(
    "one in flight",
    "publish() to persisted, p99, sync always, while 20 replays run at full speed",
    unit="ms",
    floor=15,
    aim=8,
)
def p99_beside_replays(room: Room) -> Reading:
    with large_log(room) as server:
        commands = [("replays", server.uri, "orders", 0)] * REPLAYS
        with workers(*commands) as started:
            for worker in started:
                worker.tell()
            start = timed()
            taken = _publishing(server, room.count(1_000))
            seconds = timed() - start
            for worker in started:
                worker.tell()
            delivered = [int(worker.answer()) for worker in started]
    assert all(delivered), f"some of the replays got nothing: {delivered}"
    rate = sum(delivered) / seconds
    note = f"{REPLAYS} processes read {rate:,.0f} msg/s meanwhile, p50 {percentile(taken, 0.5) * 1e3:.2g} ms"
    return Reading(percentile(taken, 0.99) * 1e3, note)
