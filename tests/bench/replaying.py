"""Replaying a log to one consumer."""

from __future__ import annotations

import tickertape as tt
from tests.bench.logs import RARE, large_count, large_log, singles_count, singles_log
from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import BODY, fill, stage, timed
from tickertape.testing import RunningServer

CACHED = "log in the page cache"


def _messages(server: RunningServer, count: int) -> Reading:
    with tt.Client("bench-reader", server.uri) as client:
        start = timed()
        total = 0
        for message in client.replay("orders"):
            total += len(message.data)
        taken = timed() - start
        assert total == count * len(BODY)
        return Reading(count / taken, CACHED)


def _batches(server: RunningServer, topic: str, count: int) -> float:
    """Return the seconds of a replay."""
    with tt.Client("bench-reader", server.uri) as client:
        start = timed()
        messages = size = 0
        for batch in client.replay(topic).batches():
            messages += len(batch)
            size += int(batch.offsets[-1])
        taken = timed() - start
        assert (messages, size) == (count, count * len(BODY))
        return taken


@bench("replay", "one consumer that touches message.data of each", unit="msg/s", floor=800_000, aim=1_800_000)
def replay_messages(room: Room) -> Reading:
    count = room.count(1_000_000)
    with stage(room.directory) as server:
        fill(server, count)
        return _messages(server, count)


@bench("replay", "one consumer through batches()", unit="msg/s", floor=3_000_000, aim=5_000_000)
def replay_batches(room: Room) -> Reading:
    count = room.count(2_000_000)
    with stage(room.directory) as server:
        fill(server, count)
        taken = _batches(server, "orders", count)
        return Reading(count / taken, f"{count * len(BODY) / taken / 1e6:,.0f} MB/s of bodies, {CACHED}")


@bench(
    "replay",
    "messages, of a log written one message a frame by 100 publishers",
    unit="msg/s",
    floor=500_000,
    aim=1_500_000,
)
def singles_messages(room: Room) -> Reading:
    with singles_log(room) as server:
        return _messages(server, singles_count(room))


@bench(
    "replay",
    "batches(), of a log written one message a frame by 100 publishers",
    unit="msg/s",
    floor=2_000_000,
    aim=4_000_000,
)
def singles_batches(room: Room) -> Reading:
    count = singles_count(room)
    with singles_log(room) as server:
        return Reading(count / _batches(server, "orders", count), CACHED)


def _rare(room: Room, topic: str) -> Reading:
    count = large_count(room)
    with large_log(room) as server:
        full = _batches(server, "orders", count)
        rare = _batches(server, topic, count // RARE)
    return Reading(full / rare, f"{rare:.3f} s, the full scan {full:.2f} s for {count:,} messages")


@bench("rare topic", "1 message in 1,000, spread evenly, against the full scan", unit="x", floor=5, aim=50)
def rare_even(room: Room) -> Reading:
    return _rare(room, "even")


@bench("rare topic", "1 message in 1,000, in 8 places, against the full scan", unit="x", floor=5, aim=50)
def rare_bursts(room: Room) -> Reading:
    return _rare(room, "burst")
