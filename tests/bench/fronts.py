"""The asyncio client beside the blocking one, in turns on one server: its messages a second as a multiple."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

import tickertape as tt
from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import BODY, FLUSH_SECONDS, fill, stage, timed

TURNS = 5

Blocking = Callable[[tt.Client, int], None]
Awaited = Callable[[tt.AsyncClient, int], Coroutine[Any, Any, None]]


def _ratio(room: Room, count: int, blocking: Blocking, awaited: Awaited) -> Reading:
    """Return the ratio of medians of several alternating runs on asyncio's own loop. The note has uvloop."""

    async def main(uri: str) -> float:
        async with tt.AsyncClient("bench-asyncio", uri) as client:
            start = timed()
            await awaited(client, count)
            return timed() - start

    taken: dict[str, list[float]] = {"blocking": [], "asyncio": [], "uvloop": []}
    with stage(room.directory) as server:
        fill(server, count)
        for _ in range(TURNS):
            with tt.Client("bench-blocking", server.uri) as client:
                start = timed()
                blocking(client, count)
                taken["blocking"].append(timed() - start)
            taken["asyncio"].append(asyncio.run(main(server.uri)))
            taken["uvloop"].append(uvloop.run(main(server.uri)))
    seconds = {name: statistics.median(values) for name, values in taken.items()}
    on_uvloop = seconds["blocking"] / seconds["uvloop"]
    note = f"blocking {count / seconds['blocking']:,.0f} msg/s, on uvloop {on_uvloop:.2f} x"
    return Reading(seconds["blocking"] / seconds["asyncio"], note)


@bench("fronts", "publish(), AsyncClient against Client", unit="x", repeat=1, floor=0.8, aim=1)
def publish(room: Room) -> Reading:
    def blocking(client: tt.Client, count: int) -> None:
        for _ in range(count):
            client.publish("other", BODY)
        client.publish_flush(timeout=FLUSH_SECONDS)

    async def awaited(client: tt.AsyncClient, count: int) -> None:
        for _ in range(count):
            await client.publish("other", BODY)
        await client.publish_flush(timeout=FLUSH_SECONDS)

    return _ratio(room, room.count(200_000), blocking, awaited)


@bench("fronts", "publish_batch(), AsyncClient against Client", unit="x", repeat=1, floor=0.8, aim=1)
def publish_batch(room: Room) -> Reading:
    def blocking(client: tt.Client, count: int) -> None:
        client.publish_batch("other", [BODY] * count)
        client.publish_flush(timeout=FLUSH_SECONDS)

    async def awaited(client: tt.AsyncClient, count: int) -> None:
        await client.publish_batch("other", [BODY] * count)
        await client.publish_flush(timeout=FLUSH_SECONDS)

    return _ratio(room, room.count(400_000), blocking, awaited)


@bench(
    "fronts", "replay, message.data of each, AsyncClient against Client", unit="x", repeat=1, floor=0.8, aim=1
)
def replay(room: Room) -> Reading:
    def blocking(client: tt.Client, count: int) -> None:
        assert sum(len(message.data) for message in client.replay("orders")) == count * len(BODY)

    async def awaited(client: tt.AsyncClient, count: int) -> None:
        total = 0
        async for message in await client.replay("orders"):
            total += len(message.data)
        assert total == count * len(BODY)

    return _ratio(room, room.count(400_000), blocking, awaited)


@bench("fronts", "replay through batches(), AsyncClient against Client", unit="x", repeat=1, floor=0.8, aim=1)
def batches(room: Room) -> Reading:
    def blocking(client: tt.Client, count: int) -> None:
        assert sum(len(batch) for batch in client.replay("orders").batches()) == count

    async def awaited(client: tt.AsyncClient, count: int) -> None:
        total = 0
        async for batch in (await client.replay("orders")).batches():
            total += len(batch)
        assert total == count

    return _ratio(room, room.count(1_000_000), blocking, awaited)
