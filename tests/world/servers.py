"""Servers of a simulation: connections, engine and journal of the product, on a strict disk and links.

Must never know the published messages, nor decide the outcome of a start: the product does.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from tests.simulation.journal_world import FailingDisk, PowerLost
from tests.world.process import Process
from tickertape.base.errors import JournalError, JournalFailed, JournalLocked, TickertapeError
from tickertape.base.interfaces import SyncDone
from tickertape.server.config.config import Config, load_config
from tickertape.server.engine_driver import EngineDriver
from tickertape.server.network.connection import ClientConnection
from tickertape.server.startup import OpenedInstance, open_on, record_end
from tickertape.server.storage.worker_thread import Workers
from tickertape.testing.disk import StrictDisk

if TYPE_CHECKING:
    from tests.world.world import World

HOST: Final = "sim"
ENDING: Final = ("fault_sync", "fault_write", "no_space")
"""Disk faults that end a server."""
READ: Final = ("identity.json", "begun.bin", "end.json", "queues.bin")
"""Files that a start reads beside the segments."""
STOP_SECONDS_MAX: Final = 17.0
"""Seconds of a clean stop. Unsynced messages have no acknowledgement then."""
JOB_SECONDS: Final = 0.003
"""Maximum seconds of a disk job, unless the disk is slow."""


@lru_cache(maxsize=64)
def config_of(text: str, segment_bytes: int) -> Config:
    """Return the configuration of a file with `text`. Segments may be smaller than a file allows."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        config = load_config(Path(file.name), data="memory")
    return replace(
        config,
        journal=replace(config.journal, segment_size=segment_bytes),
        slow_clients=replace(config.slow_clients, disk_limit=0),
    )


class SimWorker:
    """A worker queue without a thread: items run in order, each after a delay."""

    def __init__(self, server: SimServer, work: Callable[[Any], None]) -> None:
        self._server = server
        self._work = work
        self._items: deque[Any] = deque()

    def submit(self, item: Any) -> None:
        self._items.append(item)
        if len(self._items) == 1:
            self._next()

    def stop(self) -> None:
        while self._items:
            self._work(self._items.popleft())

    def _next(self) -> None:
        server = self._server
        server.world.loop.call_later(server.job_seconds(), self._do)

    def _do(self) -> None:
        if not self._items:
            return  # it was stopped meanwhile
        try:
            self._work(self._items[0])
        except PowerLost:
            self._server.world.counts["power lost in a disk operation"] += 1
            self._server.power_lost()
            return
        self._items.popleft()
        if self._items:
            self._next()


class SimSyncs:
    """Background syncs: each takes its time, and inputs and crashes may come before its end."""

    def __init__(self, server: SimServer) -> None:
        self._server = server
        self._disk = server.disk
        self._waiting: deque[tuple[int, SyncDone]] = deque()

    def begin(self, handle: int, done: SyncDone) -> None:
        self._server.world.counts["background syncs"] += 1
        self._waiting.append((handle, done))
        self._server.world.loop.call_later(self._server.job_seconds(), self._complete)

    def stop(self) -> None:
        while self._waiting:
            self._disk.sync(self._waiting.popleft()[0])

    def _complete(self) -> None:
        if not self._waiting:
            return  # it was stopped meanwhile
        handle, done = self._waiting.popleft()
        error: OSError | None = None
        try:
            self._disk.sync(handle)
        except PowerLost:
            self._server.world.counts["power lost in a disk operation"] += 1
            self._server.power_lost()
            return
        except OSError as failed:
            error = failed
        done(error)


class SimPool(Executor):
    """A pool without threads: each thing takes its time, and any may be done first."""

    def __init__(self, server: SimServer) -> None:
        self._server = server

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._server.world.loop.call_later(
            self._server.job_seconds(), self._do, future, function, arguments, named
        )
        return future

    def _do(
        self, future: Future[Any], function: Callable[..., Any], arguments: Any, named: dict[str, Any]
    ) -> None:
        try:
            future.set_result(function(*arguments, **named))
        except OSError as error:
            future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Drop the submitted items."""


class SimServer:
    """One server, through any number of starts."""

    def __init__(self, world: World, name: str, port: int, text: str, segment_bytes: int) -> None:
        self.world = world
        self.name = name
        self.port = port
        self.uri = f"tcp://{HOST}:{port}"
        self.config = config_of(text, segment_bytes)
        self.struck: Counter[str] = Counter()
        """Counters of its disks, including faults that took effect."""
        self.disk = FailingDisk(StrictDisk(Random(world.rng.getrandbits(64)), counts=self.struck))
        self.process: Process | None = None
        self.instance: EngineDriver | None = None
        self._opened: OpenedInstance | None = None
        self.slow_until = 0.0
        """Until then its disk takes long."""
        self.slow_awaited = False
        """It has not taken long yet."""
        self._faults_before = 0
        """Of its disks, when it was started."""
        self.starts = 0
        self.sectors_met = 0
        """How often a start met a sector that cannot be read."""
        self.failed: TickertapeError | None = None
        """Why it ended by itself."""
        self.on_open: Callable[[EngineDriver], None] = lambda _: None
        """Called after each start, before the first connection."""

    @property
    def place(self) -> tuple[str, int]:
        """Return the listen address."""
        return HOST, self.port

    @property
    def up(self) -> bool:
        """Return whether the server is ready."""
        return self.instance is not None

    def queued(self, name: str) -> int:
        """Return the number of ready or leased messages of a queue."""
        assert self.instance is not None
        state = self.instance.broker.queues._workers[name].queue.state
        return len(state.ready) + len(state.inactive) + len(state.leased)

    @property
    def has_subscriptions(self) -> bool:
        """Return whether a connection has subscriptions."""
        return self.instance is not None and len(self.instance.broker.subscriptions.held) > 0

    def job_seconds(self) -> float:
        """Return the seconds that the next job takes."""
        slow = self.world.loop.time() < self.slow_until
        if slow and self.slow_awaited:
            self.slow_awaited = False
            self.world.counts["disk slow"] += 1
        return self.world.rng.random() * (0.5 if slow else JOB_SECONDS)

    # -- its life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start on the contents of the disk. Power may fail during the start."""
        assert self.process is None, f"{self.name} runs"
        world = self.world
        self.starts += 1
        self.failed = None
        self._faults_before = self._disk_faults()
        self.process = process = Process(self.name, world.loop)
        try:
            process.run(self._open)
        except PowerLost:
            world.counts.update(("power lost in a start", "power lost in a disk operation"))
            self.power_lost()
        except (OSError, JournalFailed) as error:  # the process ends, and a supervisor restarts it
            world.counts["a disk ended a start"] += 1
            world.note("start", self.name, str(error))
            self.sigkill()

    def _open(self) -> None:
        world = self.world
        rng = world.rng
        opened = self._opened = open_on(
            self.disk,
            self.config,
            owner=self.name,
            new_id=rng.randbytes(16),
            salt=lambda: rng.getrandbits(64),
        )
        for line in opened.report:
            world.counts["reports of starts"] += 1
            world.note("start", self.name, line)
        in_background = self.starts % 2 == 1
        workers = Workers(
            lambda work, _: SimWorker(self, work),
            SimPool(self),
            lambda _loop, _disk: SimSyncs(self) if in_background else None,
        )
        instance = self.instance = EngineDriver(opened, world.loop, workers=workers)
        self.on_open(instance)
        assert self.process is not None
        instance.stopped.add_done_callback(lambda _: self._stopped(instance))
        world.network.listen(HOST, self.port, self.process, lambda: ClientConnection(instance))

    def _stopped(self, instance: EngineDriver) -> None:
        """Handle the end of the server: after a clean stop, or because its disk failed."""
        if self.instance is not instance:
            return
        error = instance.stopped.result()
        if error is None:
            self._end_cleanly(instance)
            return
        self.failed = error
        if self._disk_faults() == self._faults_before:
            self.world.wrong.append(f"{self.name} ended though its disk worked: {error!r}")
        self.world.counts["a disk ended a server"] += 1
        self.sigkill()

    def _end_cleanly(self, instance: EngineDriver) -> None:
        assert self._opened is not None
        instance.disconnect_all()
        try:
            instance.release()
            self._opened.executor.close()
            with contextlib.suppress(OSError):
                record_end(self._opened)
        except PowerLost:
            self.world.counts["power lost in a disk operation"] += 1
            self.power_lost()
            return
        self.world.counts["stopped cleanly"] += 1
        self._end_process()

    def _disk_faults(self) -> int:
        return sum(number for name, number in self.struck.items() if name in ENDING)

    def stop(self, patience_seconds: float) -> None:
        """Start a clean stop, as `server/app.py` does. It takes some time, and is cut short at
        `patience_seconds`.
        """
        if self.instance is not None and self.process is not None:
            self.world.network.close(HOST, self.port)
            try:
                self.process.run(self.instance.close)
            except PowerLost:
                self.world.counts["power lost in a disk operation"] += 1
                self.power_lost()
                return
            self.world.at(self.world.loop.time() + patience_seconds, self._stops_at_once, self.instance)

    def _stops_at_once(self, instance: EngineDriver) -> None:
        if self.instance is instance:
            self.world.counts["a stop was cut short"] += 1
            self.sigkill()

    def sigkill(self) -> None:
        """End the process. Its written data is in the page cache."""
        self._end_process()
        self.disk = FailingDisk(self.disk.disk.kill_clone())

    def harmed(self, how: str) -> bool:
        """End the process, and let the medium lose a file that a start reads.

        The start is refused, and succeeds when a copy is restored, unless the file has no part of the log.
        """
        disk = self.disk.disk
        if self.process is None or disk.faults_left or disk.space_bytes is not None:
            return False
        self.sigkill()
        disk = self.disk.disk
        contents = disk.contents()
        path = self.world.rng.choice(
            [path for path in contents if path.startswith("journal/") or path in READ]
        )
        begun = path.startswith("journal/") and contents[path][:6] == b"TKTSEG"
        sector = self.world.rng.randrange(0, len(contents[path]) + 1, 512)
        disk.harm(path, how, *(() if how != "unreadable" else (sector, sector + 512)))
        met = self.struck["unreadable"]
        try:
            self.start()
        except JournalError as error:
            self.world.counts["a start refused lost files"] += 1
            self.world.note("start", self.name, str(error))
            self.sigkill()
        else:
            if begun and how != "unreadable":
                self.world.wrong.append(f"{self.name} started though {path} was lost")
        self.disk.disk.mend()
        self.sectors_met += self.struck["unreadable"] - met
        return True

    def renamed(self) -> bool:
        """Rename the directory of a running server, and start another server on the new one in its place."""
        if not self.up:
            return False
        there = self.disk.disk.move_away()
        self._another(there)
        if self.disk.disk.contents().keys() & there.contents().keys() == set():
            self.world.wrong.append("the other server made no log")
        there.close_all()
        return True

    def lock_removed(self) -> bool:
        """Remove the lock of the running server, and start another server on its directory."""
        disk = self.disk.disk
        if not self.up or "lock" not in disk.names("."):
            return False
        disk.lose("lock")
        beside = disk.second_process()
        try:
            self._another(beside)
        except JournalLocked:
            return True
        finally:
            beside.close_all()
        self.world.wrong.append(f"a second server got into the directory of {self.name}")
        return True

    def _another(self, disk: StrictDisk) -> None:
        rng = self.world.rng
        beside = Process("beside", self.world.loop)
        try:
            opened = beside.run(
                lambda: open_on(
                    FailingDisk(disk),
                    self.config,
                    owner="beside",
                    new_id=rng.randbytes(16),
                    salt=lambda: rng.getrandbits(64),
                )
            )
            opened.executor.close()
        finally:
            beside.kill()

    def power_lost(self) -> None:
        """End the machine, with the loss of all or some unsynced data."""
        if self.process is not None:
            for link in self.world.network.links:
                if link.server.owner is self.process:
                    link.silent_end = self.world.rng.random() < 0.5
        self._end_process()
        rng = Random(self.world.rng.getrandbits(64))
        self.disk = FailingDisk(self.disk.disk.crash_clone(rng))

    def _end_process(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.world.dead.append(self.process)
        self.disk.close_all()
        self.process = self.instance = self._opened = None
