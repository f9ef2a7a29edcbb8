"""An HA client whose server is killed and started again: how long it is without messages, the wait apart."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any

import tickertape as tt
from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import FLUSH_SECONDS, fill, percentile, stage, timed, workers

MESSAGES = 1_000
DELAY_SECONDS = 0.005
"""The delay before each attempt, included in the measured time."""
RESTARTS = 20
SUBSCRIPTIONS = 10_000
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


@bench(
    "failover",
    "HAClient: from the server's ready until its 10,000 subscriptions are active again",
    unit="s",
    floor=2,
    aim=1,
)
def resubscribe(room: Room) -> Reading:
    count = room.count(SUBSCRIPTIONS)
    ended: queue.SimpleQueue[float] = queue.SimpleQueue()
    received: list[tt.Message] = []

    def listen(state: tt.ConnectionState) -> None:
        if state is tt.ConnectionState.RESUBSCRIBED:
            ended.put(timed())

    with (
        stage(room.directory) as server,
        workers(("probe", server.uri)) as (probe,),
        tt.HAClient("bench", servers=server.uri, timeout=FLUSH_SECONDS, **options()) as client,
    ):
        for number in range(count):
            client.subscribe("orders", filter=f"/symbol = 'S{number:04}'", on_message=received.append)
        client.add_connection_state_listener(listen)
        server.kill()
        server.start()
        ready = timed()
        probe.tell()
        taken = ended.get(timeout=FLUSH_SECONDS) - ready
        probe.tell()
        longest = float(probe.answer())
    assert not received, "the topic is empty"
    note = f"{count:,} filters, longest answer to a flush every 5 ms meanwhile {longest:.3g} ms"
    return Reading(taken, note)
