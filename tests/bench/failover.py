"""An HA client whose server is killed and started again: how long it is without messages, the wait apart."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import tickertape as tt
from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import fill, percentile, stage, timed

MESSAGES = 1_000
DELAY_SECONDS = 0.005
"""The delay before each attempt, included in the measured time."""
RESTARTS = 20
SECONDS = 60


class Deliveries:
    """A handler that discards nothing, so that every message is redelivered."""

    def __init__(self) -> None:
        self._first = 0.0
        self._count = 0
        self._all = threading.Event()

    def __call__(self, message: tt.Message) -> None:
        if not self._count:
            self._first = timed()
        self._count += 1
        if self._count == MESSAGES:
            self._count = 0
            self._all.set()

    def first(self) -> float:
        """Return the arrival time of the first message, once all have arrived."""
        assert self._all.wait(SECONDS), "not everything came"
        self._all.clear()
        return self._first


def options() -> dict[str, Any]:
    """Return the options of the clients, with a store that tracks undiscarded messages."""
    return {"reconnect_delay": DELAY_SECONDS, "bookmark_store": tt.MemoryBookmarkStore()}


def _measured(room: Room, serve: Callable[[str, Deliveries, Callable[[], None]], None]) -> Reading:
    """`serve(uri, handler, restarts)` keeps a client connected while `restarts()` runs."""
    taken: list[float] = []
    with stage(room.directory) as server:
        fill(server, MESSAGES)
        deliveries = Deliveries()

        def restarts() -> None:
            deliveries.first()
            for _ in range(room.count(RESTARTS)):
                server.kill()
                server.start()
                ready = timed()
                taken.append(deliveries.first() - ready)

        serve(server.uri, deliveries, restarts)
    milliseconds = [seconds * 1e3 for seconds in taken]
    note = f"{DELAY_SECONDS * 1e3:g} ms of delay included, worst of {len(taken)}: {max(milliseconds):.3g} ms"
    return Reading(max(0.0, percentile(milliseconds, 0.5)), note)


@bench(
    "failover",
    "HAClient: from the server's ready to the first message delivered again, p50",
    unit="ms",
    floor=200,
    aim=50,
)
def blocking(room: Room) -> Reading:
    def serve(uri: str, deliveries: Deliveries, restarts: Callable[[], None]) -> None:
        with tt.HAClient("bench", servers=uri, **options()) as client:
            client.bookmark_subscribe("orders", tt.EPOCH, sub_id="s", on_message=deliveries)
            restarts()

    return _measured(room, serve)


@bench(
    "failover",
    "AsyncHAClient: from the server's ready to the first message delivered again, p50",
    unit="ms",
    floor=200,
    aim=50,
)
def awaited(room: Room) -> Reading:
    def serve(uri: str, deliveries: Deliveries, restarts: Callable[[], None]) -> None:
        async def run() -> None:
            async with tt.AsyncHAClient("bench", servers=uri, **options()) as client:
                await client.bookmark_subscribe("orders", tt.EPOCH, sub_id="s", on_message=deliveries)
                await asyncio.to_thread(restarts)

        asyncio.run(run())

    return _measured(room, serve)
