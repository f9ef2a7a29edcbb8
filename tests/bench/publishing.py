"""Publishing until the last message is persisted."""

from __future__ import annotations

from collections.abc import Callable

from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import A_CALL, BODY, FLUSH_SECONDS, one_at_a_time, publisher, stage, timed


@bench(
    "publish", "publish(), bytes, one at a time, until persisted", unit="msg/s", floor=400_000, aim=1_000_000
)
def publish_bytes(room: Room) -> Reading:
    count = room.count(500_000)
    with stage(room.directory) as server, publisher(server) as client:
        return Reading(count / one_at_a_time(client, count, BODY), "sync always, one blocking client")


@bench("publish", "publish(), dict, one at a time, until persisted", unit="msg/s", floor=200_000, aim=500_000)
def publish_dicts(room: Room) -> Reading:
    count = room.count(300_000)
    order = {"symbol": "AAPL", "price": 12.5, "x": "x" * 163}
    with stage(room.directory) as server, publisher(server) as client:
        return Reading(count / one_at_a_time(client, count, order), "encoded as JSON by the client")


def _calls(room: Room, publish: Callable[[], object], flush: Callable[[], object]) -> Reading:
    calls = max(1, room.count(2_000_000) // A_CALL)
    start = timed()
    for _ in range(calls):
        publish()
    flush()
    return Reading(calls * A_CALL / (timed() - start), f"{A_CALL:,} a call, sync always")


@bench("publish", "publish_batch(), until persisted", unit="msg/s", floor=1_000_000, aim=3_000_000)
def publish_batches(room: Room) -> Reading:
    bodies = [BODY] * A_CALL
    with stage(room.directory) as server, publisher(server) as client:
        return _calls(
            room,
            lambda: client.publish_batch("orders", bodies),
            lambda: client.publish_flush(timeout=FLUSH_SECONDS),
        )


@bench("publish", "publish_arrow(), until persisted", unit="msg/s", floor=1_000_000, aim=3_000_000)
def publish_arrow(room: Room) -> Reading:
    import pyarrow as pa

    table = pa.table({"data": pa.array([BODY] * A_CALL, pa.binary())})
    with stage(room.directory) as server, publisher(server) as client:
        return _calls(
            room,
            lambda: client.publish_arrow("orders", table),
            lambda: client.publish_flush(timeout=FLUSH_SECONDS),
        )
