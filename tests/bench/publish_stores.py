"""Publishing with a publish store until the last message is persisted, and its remaining size on disk."""

from __future__ import annotations

from pathlib import Path

import tickertape as tt
from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import A_CALL, BODY, FLUSH_SECONDS, one_at_a_time, stage


def _publish(room: Room, store: tt.MemoryPublishStore | tt.FilePublishStore, note: str) -> Reading:
    count = room.count(500_000)
    with (
        stage(room.directory) as server,
        tt.HAClient("bench", servers=server.uri, publish_store=store) as client,
    ):
        return Reading(count / one_at_a_time(client, count, BODY), note)


@bench(
    "publish stores",
    "HAClient.publish() with MemoryPublishStore, until persisted",
    unit="msg/s",
    floor=300_000,
    aim=800_000,
)
def publish_memory_store(room: Room) -> Reading:
    return _publish(room, tt.MemoryPublishStore(), "sync always on the server")


@bench(
    "publish stores",
    "HAClient.publish() with FilePublishStore, until persisted",
    unit="msg/s",
    floor=150_000,
    aim=500_000,
)
def publish_file_store(room: Room) -> Reading:
    with tt.FilePublishStore(room.directory / "store") as store:
        return _publish(room, store, "published messages are in the mapped file, sync always on the server")


@bench(
    "publish stores",
    "FilePublishStore after 10 million publishes, all acknowledged",
    unit="MB",
    repeat=1,
    floor=64,
    aim=16,
)
def file_store_left_on_disk(room: Room) -> Reading:
    count = room.count(10_000_000)
    path, bodies = room.directory / "store", [BODY] * A_CALL
    with (
        tt.FilePublishStore(path) as store,
        stage(room.directory) as server,
        tt.HAClient("bench", servers=server.uri, publish_store=store) as client,
    ):
        for _ in range(max(1, count // A_CALL)):
            client.publish_batch("orders", bodies)
        client.publish_flush(timeout=FLUSH_SECONDS)
        assert store.unpersisted_count() == 0
    return Reading(_disk_bytes(path) / 1e6, "blocks of its directory, after close")


def _disk_bytes(path: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in path.iterdir())
