"""A simulated system: its time, its random numbers, its servers and links, and its records.

Must never judge. Equal seeds give equal simulations, in every process.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch
from uuid import UUID

from tests.simulation.journal_world import PowerLost
from tests.world.choices import Chooser
from tests.world.network import Factory, Network
from tests.world.process import Process, make_task
from tests.world.servers import SimServer
from tests.world.shelf import SEGMENT_BYTES, Shelf
from tickertape.base.errors import Disconnected
from tickertape.batch import MessageBatch
from tickertape.client.aio.driver import AsyncioDriver
from tickertape.client.common.waiting import Timeout
from tickertape.client.limits import republish_bytes_max
from tickertape.client.protocol import transactions
from tickertape.client.publish_store import file
from tickertape.client.publishing import resend
from tickertape.server.storage.disk_worker import DiskWorker
from tickertape.testing.clock import VirtualClock, VirtualLoop
from tickertape.wire.connection import Connection, Event, Received

if TYPE_CHECKING:
    from tests.world.apps import App
    from tests.world.worker import Held

Receive = Callable[[Connection, int], list[Event]]
Ask = Callable[..., Coroutine[Any, Any, object]]
PORT: Final = 9001
STAGE_FRAME_BYTES: Final = 400
"""Of a transaction, in one frame: one large message, or a few small ones."""
DAWDLING_SECONDS: Final = (0.0, 0.0, 0.01, 0.3)
"""Between two commands of a transaction, one of these."""
MEMORY: Final = Path("/dev/shm")
"""Directory of files in memory, if the machine has one."""


def _take_turn(_worker: DiskWorker, _bytes: int) -> None:
    """Write the next piece of a checkpoint at once: a wait on a thread would let no virtual time pass."""


class WorldLoop(VirtualLoop):
    """The event loop of a simulation, with links as connections."""

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
    """Servers, links and time. `run` runs a coroutine in it."""

    def __init__(
        self,
        seed: int,
        *,
        servers: int = 1,
        config: str = "",
        last_config: str | None = None,
        segment_bytes: int = 32_768,
        counts: Counter[str] | None = None,
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.counts: Counter[str] = Counter() if counts is None else counts
        self.chooser = Chooser(seed, self.rng, self.counts)
        self._republished = self.rng.choice((1, 2_000, republish_bytes_max))
        """Bytes that a client resends from its store at a time."""
        self._between = Random(f"behind the first {seed}")
        self.clock = VirtualClock()
        self.loop = WorldLoop(self.clock)
        self._own = contextvars.copy_context()
        self._trace = sha256()
        self._moments = 0
        self.errors: list[dict[str, Any]] = []
        """Uncaught errors."""
        self.loop.set_exception_handler(lambda _, context: self._uncaught(context))
        self.wrong: list[str] = []
        """Violations seen by applications."""
        self.network = self.loop.network = Network(
            self.loop, self.rng, self.counts, self.at, self.note, self.wrong
        )
        configs = [config] * (servers - 1) + [config if last_config is None else last_config]
        """For each server. The last one may differ."""
        self.servers = [
            SimServer(self, f"s{n}", PORT + n, text, segment_bytes) for n, text in enumerate(configs)
        ]
        self.apps: list[App] = []
        self.pace = 1.0
        """Factor of the pauses of all applications."""
        self.held: dict[bytes, Held] = {}
        """Messages held by workers."""
        self.done: dict[bytes, str] = {}
        """Jobs that must not be redelivered, and the reason."""
        self.bodies: dict[tuple[str, int], bytes] = {}
        """Published bodies by publisher and number."""
        self._room: Path | None = None
        """The directory of the applications' files."""
        self.dead: list[Process] = []
        """Kept until the end of the simulation, so that no step of them runs, not even a finalizer."""

    def shelf(self, name: str) -> Shelf:
        """Return the disk of an application."""
        if self._room is None:
            self._room = Path(tempfile.mkdtemp(prefix="world-", dir=MEMORY if MEMORY.is_dir() else None))
        return Shelf(self._room, name, self.rng)

    def at(self, moment: float, function: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call of the simulation itself."""
        self.loop.call_at(moment, function, *arguments, context=self._own)

    def note(self, *what: object) -> None:
        """Record an event that a simulation of the same seed must repeat at the same time."""
        self._trace.update(repr((round(self.clock.mono, 9), *what)).encode())

    def moment(self) -> int:
        """Return the number of this call: a later event has a higher one."""
        self._moments += 1
        return self._moments

    def trace(self) -> str:
        """Return a digest of all noted events."""
        return self._trace.hexdigest()

    @contextmanager
    def living(self) -> Iterator[None]:
        """Install the simulated clock in the product."""
        log = logging.getLogger("tickertape")
        level = log.level
        log.setLevel(logging.CRITICAL + 1)  # events are counted and noted, log lines are not read
        gc.disable()  # saves a tenth of the time, garbage is collected between two simulations
        try:
            with (
                self.clock.installed(),
                patch.object(file, "publish_segment_bytes", SEGMENT_BYTES),
                patch.object(resend, "republish_bytes_max", self._republished),
                patch.object(transactions, "uuid4", self._uuid4),
                patch.object(transactions, "stage_frame_bytes", STAGE_FRAME_BYTES),
                patch.object(DiskWorker, "_await_turn", _take_turn),
                patch.object(AsyncioDriver, "ask", self._dawdling(AsyncioDriver.ask)),
                patch.object(Connection, "received", self._counting(Connection.received)),
            ):
                yield
        finally:
            log.setLevel(level)
            self._forget()
            gc.enable()

    def _counting(self, receive: Receive) -> Receive:
        """Return `receive` with a count of the arriving commands."""

        def received(connection: Connection, size: int) -> list[Event]:
            events = receive(connection, size)
            for event in events:
                if isinstance(event, Received):
                    self.counts[f"command: {type(event.command).__name__}"] += 1
            return events

        return received

    def _dawdling(self, ask: Ask) -> Ask:
        """Return `ask` with time between two commands of a transaction, as in a busy process.

        The connection may be lost there, and another one opened.
        """

        async def asked(
            client: AsyncioDriver,
            make: transactions.Make,
            batch: MessageBatch | None,
            timeout: Timeout,
            same: transactions.ConnectionPin | None = None,
        ) -> object:
            later = same is not None and same._first is not None
            if later:
                await asyncio.sleep(self._between.choice(DAWDLING_SECONDS))
            self.counts["frames behind the first of a transaction"] += later and batch is not None
            try:
                return await ask(client, make, batch, timeout, same)
            except Disconnected:
                self.counts["connection lost between two frames"] += later and batch is not None
                raise

        return asked

    def _uuid4(self) -> UUID:
        return UUID(int=self.rng.getrandbits(128), version=4)

    def run(self, life: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine to its end, and raise uncaught errors."""
        self.loop.run_until_complete(life)
        if self.errors:
            context = self.errors[0]
            raise AssertionError(f"uncaught: {context}") from context.get("exception")

    def _uncaught(self, context: dict[str, Any]) -> None:
        """Record an uncaught exception. In a disk operation on the event loop, a server loses power."""
        error = context.get("exception")
        if isinstance(error, PowerLost):
            (server,) = [server for server in self.servers if server.disk is error.args[0]]
            self.counts["power lost in a disk operation"] += 1
            server.power_lost()
        else:
            self.errors.append(context)

    def _forget(self) -> None:
        for handle in self.loop.handles():
            handle.cancel()
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.loop.close()
        if self._room is not None:
            shutil.rmtree(self._room)
