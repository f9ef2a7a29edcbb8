"""Application of a simulation: a restartable process with an asyncio client of the product.

Must never look behind the client's calls, nor know anything about other applications.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import tickertape as tt
import tickertape.client.aio.ha_client  # imported early, so that it reads the simulated clock
from tests.world.process import Process

if TYPE_CHECKING:
    from tests.world.world import World

T = TypeVar("T")
TOPICS: Final = ("a", "b")
JOBS: Final = "jobs"
UNRECORDED: Final = "u"
"""A topic that no log has."""
STRICT: Final = "strict"
"""A topic that accepts only JSON."""
TIMEOUT: Final = 5.0
"""Timeout of a call, in seconds of virtual time, as everywhere here."""
GRACE: Final = 2.0
"""Seconds after its timeout within which a call must end."""
RETRIES: Final = (
    tt.Disconnected, tt.TimedOut, tt.NotReady, tt.JournalFull, tt.StagingFailed, tt.StagingFull,
    tt.TransactionBusy,
)  # fmt: skip
"""Errors after which an application retries: the server, its connection or its answer is lost."""


class Labels(NamedTuple):
    """Attributes of a message beside its body."""

    correlation_id: str | None = None
    key: str | None = None
    expires: bool = False


class Seen(NamedTuple):
    """A message as a reader got it."""

    topic: str
    body: bytes
    bookmark: str
    labels: Labels


class App(ABC):
    """A process with one client."""

    def __init__(self, world: World, name: str, uris: list[str]) -> None:
        self.world = world
        self.rng = world.rng
        self.name = name
        self.uris = uris
        self.chooser = world.chooser
        self.shelf = world.shelf(name)
        self.process: Process | None = None
        self.finished: asyncio.Future[None] = world.loop.create_future()
        self.told: list[BaseException] = []

    # -- its life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, or go on after an end, in a process of its own."""
        assert self.process is None, f"{self.name} runs"
        self.process = Process(self.name, self.world.loop)
        self.process.spawn(self._live())  # type: ignore[unused-awaitable]

    async def _live(self) -> None:
        try:
            await self.run()
        except Exception as error:  # noqa: BLE001 - it is the end of this world
            self.finished.set_exception(error)
        else:
            self.finished.set_result(None)

    @property
    def down(self) -> bool:
        """Return whether the process is to be restarted."""
        return self.process is None and not self.finished.done()

    @property
    def restartable(self) -> bool:
        """Return whether the process runs and has work."""
        return self.process is not None and not self.finished.done()

    @property
    def may_lose_power(self) -> bool:
        """Return whether the stores of the application simulate a power loss."""
        return self.restartable

    def killed(self) -> None:
        """End the process."""
        self._process_gone()
        self.shelf.killed()

    def power_lost(self) -> None:
        """End the machine."""
        for link in self.world.network.links:
            if link.client.owner is self.process:
                link.silent_end = self.rng.random() < 0.5
        self._process_gone()
        self.shelf.power_lost()

    def _process_gone(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.world.dead.append(self.process)
        self.process = None
        self.forget()

    @abstractmethod
    async def run(self) -> None:
        """Run the application until it is finished. Called again after each end of its process."""

    @abstractmethod
    def forget(self) -> None:
        """Discard the state of the ended process."""

    # -- actions of the application -------------------------------------------------------------------

    @asynccontextmanager
    async def client(self, **more: Any) -> AsyncIterator[tt.AsyncHAClient]:
        """Open a client that reconnects to its servers."""
        rng = self.rng
        client = tt.AsyncHAClient(
            self.name,
            servers=self.uris,
            reconnect_delay=rng.choice((0.01, 0.3)),
            heartbeat=rng.choice((0.5, 3.0)),
            timeout=TIMEOUT,
            **more,
        )
        client.set_exception_listener(self.told.append)
        await client.connect_and_logon()
        yield client
        await self.ends(client.close())
        for store in (more.get("publish_store"), more.get("bookmark_store")):
            if store is not None:
                store.close()

    async def ends(self, call: Awaitable[T]) -> T:
        """Return the outcome of a call, which must end within its timeout."""
        began = self.world.loop.time()
        try:
            async with asyncio.timeout(TIMEOUT + GRACE) as bound:
                return await call
        except tt.TimedOut:
            self.world.counts["call timed out"] += 1
            raise
        except TimeoutError:
            assert bound.expired()
            taken = self.world.loop.time() - began
            raise AssertionError(
                f"{self.name}: a call of {TIMEOUT} s has no end after {taken:.1f} s"
            ) from None

    async def pause(self) -> None:
        """Let others do something."""
        await asyncio.sleep(self.rng.choice((0.0, 0.001, 0.02)) * self.rng.random() * self.world.pace)

    async def again(self) -> None:
        """Wait before a retry: immediate retries would never let time pass."""
        await asyncio.sleep((0.02 + 0.1 * self.rng.random()) * min(self.world.pace, 10.0))
