"""An instance in this process, on an event loop of a thread of its own.

Must never call the engine or the driver from the thread of the test.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from tests.helpers.peer import PEER_SECONDS
from tickertape.server.config.config import Config, InstanceConfig
from tickertape.server.engine_driver import EngineDriver
from tickertape.server.network import connection as listener
from tickertape.server.network.connection import listen
from tickertape.server.network.inbound_budget import InboundBudget
from tickertape.server.startup import open_instance


class Running:
    """An instance on a separate thread."""

    def __init__(self, instance: EngineDriver, uri: str) -> None:
        self.driver = instance
        self.inbound = instance.inbound
        self.connections = instance.connections
        self.uri = uri

    def until(self, reached: Callable[[InboundBudget], bool]) -> None:
        """Wait until the counts of the instance satisfy a condition."""
        end = time.monotonic() + PEER_SECONDS
        while not reached(self.inbound):
            assert time.monotonic() < end, (self.inbound.bytes, self.inbound.waiting)
            time.sleep(0.001)


@contextmanager
def running(
    data: Path,
    inbound: InboundBudget | None = None,
    config: Config | None = None,
    new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
) -> Iterator[Running]:
    """Yield a listening instance. `config` may not name its data directory."""
    config = Config() if config is None else config
    opened = open_instance(
        Config(instance=InstanceConfig(data=str(data)), topics=config.topics, queues=config.queues)
    )
    ready = threading.Event()
    made: list[Running] = []
    stop: list[Callable[[], object]] = []

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        instance = EngineDriver(opened, loop, inbound)
        server, uri = await listen("tcp://127.0.0.1:0", lambda: listener.ClientConnection(instance))
        instance.flush()
        made.append(Running(instance, uri))
        stop.append(lambda: loop.call_soon_threadsafe(instance.close))
        ready.set()
        assert await instance.stopped is None
        server.close()
        instance.disconnect_all()
        instance.release()
        await instance.empty.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(PEER_SECONDS)
        yield made[0]
    finally:
        stop[0]()
        thread.join(PEER_SECONDS)
        assert not thread.is_alive()
        opened.executor.close()
        opened.disk.close_all()
