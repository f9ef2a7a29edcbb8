"""Owns a simulated world: its time, its chance, its servers and links, and what is remembered of it.

Must never judge. Equal seeds give equal worlds, in every process.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from hashlib import sha256
from random import Random
from typing import Any, Final

from tests.world.network import Factory, Network
from tests.world.process import make_task
from tests.world.servers import SimServer
from tickertape.testing.clock import VirtualClock, VirtualLoop

PORT: Final = 9001


class WorldLoop(VirtualLoop):
    """The loop of a world: connections are its links."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.network: Network | None = None
        self.set_task_factory(make_task)  # type: ignore[arg-type]

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        assert self.network is not None
        factory: Factory = protocol_factory
        return await self.network.connect(factory, host, port)


class World:
    """Servers, links, time. `run` lets a coroutine live in it."""

    def __init__(
        self,
        seed: int,
        *,
        servers: int = 1,
        config: str = "",
        segment_bytes: int = 32_768,
        counts: Counter[str] | None = None,
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.counts: Counter[str] = Counter() if counts is None else counts
        self.clock = VirtualClock()
        self.loop = WorldLoop(self.clock)
        self._own = contextvars.copy_context()
        self._trace = sha256()
        self.errors: list[dict[str, Any]] = []
        """What nobody caught."""
        self.loop.set_exception_handler(lambda _, context: self.errors.append(context))
        self.network = self.loop.network = Network(self.loop, self.rng, self.counts, self.at)
        self.servers = [SimServer(self, f"s{n}", PORT + n, config, segment_bytes) for n in range(servers)]

    def at(self, moment: float, function: Callable[..., None], *arguments: Any) -> None:
        """Have the world itself do something then."""
        self.loop.call_at(moment, function, *arguments, context=self._own)

    def note(self, *what: object) -> None:
        """Something happened that a world of the same seed must do at the same moment."""
        self._trace.update(repr((round(self.clock.mono, 9), *what)).encode())

    def trace(self) -> str:
        """A digest of everything noted."""
        return self._trace.hexdigest()

    @contextmanager
    def living(self) -> Iterator[None]:
        """While it lasts the product reads the clock of this world."""
        log = logging.getLogger("tickertape")
        level = log.level
        log.setLevel(logging.CRITICAL + 1)  # what happens is counted and noted; nobody reads lines of it
        try:
            with self.clock.installed():
                yield
        finally:
            log.setLevel(level)
            self._forget()

    def run(self, life: Coroutine[Any, Any, None]) -> None:
        """Live it to its end; what nobody caught is raised."""
        self.loop.run_until_complete(life)
        if self.errors:
            context = self.errors[0]
            raise AssertionError(f"nobody caught this: {context}") from context.get("exception")

    def _forget(self) -> None:
        loop: Any = self.loop
        for handle in [*loop._ready, *loop._scheduled]:
            handle.cancel()
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.loop.close()
