"""Whole simulations with applications and faults, from the first start to the checks.

Must never decide about correctness: `judge.py` does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from tests.simulation.journal_world import read_log
from tests.world import judge
from tests.world.apps import JOBS, STRICT, TIMEOUT, TOPICS, App, Labels
from tests.world.faults import CLIENT_FAULTS, DISK_HARMS, FAULTS, OF_DISKS, Faults
from tests.world.judge import Logged
from tests.world.machines import MachineShape
from tests.world.network import NOTICED_SECONDS
from tests.world.publisher import Publisher
from tests.world.reader import Reader
from tests.world.servers import SimServer
from tests.world.sow_life import SowShape
from tests.world.worker import WORK, Worker
from tests.world.world import World
from tickertape.base.errors import TopicNotRecorded

TOPICS_OF: Final = f"""
[[journal.topic]]
pattern = "^([ab]|{JOBS}|{STRICT})$"
[[topic]]
name = "{STRICT}"
message_type = "json"
validate = true
"""
FEWER_TOPICS: Final = """
[[journal.topic]]
name = "a"
"""
"""Of a server that does not record all that the others do."""
QUEUE: Final = f"""
[[queue]]
name = "{WORK}"
underlying = "{JOBS}"
lease_period = "5s"
max_per_subscription_backlog = 20
"""
PACES: Final = (*[0.1] * 10, 1.0, 6.0)
"""Mean seconds between two faults, one value per simulation. With the slow ones, heartbeats, leases and
calls reach their timeouts.
"""
CONNECTED_SECONDS: Final = TIMEOUT + 2.0
"""Seconds in which every application reconnects: an attempt without an answer, and the next one."""
LATE: Final = 4
"""Number of messages for plain subscriptions, to each server, after the faults."""
PATIENCE: Final = 600.0
"""Virtual seconds in which all work must finish after the faults."""


class Shape(NamedTuple):
    """The size of a simulation."""

    publishers: int = 1
    messages: int = 20
    readers: int = 1
    readings: int = 1
    workers: int = 0
    servers: int = 1
    faults: int = 2
    crashes: int = 0
    """Number of further faults that end a server."""
    kinds: tuple[str, ...] = FAULTS
    fixed: tuple[tuple[str, str], ...] = ()
    """Options that every application uses."""
    unlike: bool = False
    """Whether the last server records fewer topics than the others."""

    def begin(self, seed: int, counts: Counter[str]) -> SystemRun:
        """Return a simulation of this shape."""
        return SystemRun(seed, self, counts)


SMALL: Final = Shape()
"""One server, one publisher and one reader."""
TRIO: Final = Shape(workers=1, faults=1, crashes=1, kinds=FAULTS + CLIENT_FAULTS)
"""The same, and a worker at a queue."""
LARGE: Final = Shape(
    publishers=2, messages=30, readers=2, readings=2, workers=2, faults=6, kinds=FAULTS + CLIENT_FAULTS
)
"""Clients of each kind, and a queue."""
PAIR: Final = Shape(publishers=2, readers=2, servers=2, faults=5, kinds=FAULTS + CLIENT_FAULTS)
"""Two servers that know nothing of each other: publishers go to either, readers to one."""
HARMED: Final = Shape(
    publishers=2, messages=30, workers=1, faults=5, kinds=("server killed", "power lost", *DISK_HARMS)
)
"""A server with lost files, a moved directory or a removed lock."""
UNLIKE: Final = Shape(
    publishers=2,
    readers=0,
    servers=2,
    faults=5,
    kinds=FAULTS + CLIENT_FAULTS,
    fixed=(("how", "one"),),
    unlike=True,
)
"""Publishers use two servers, one without some of the persistent topics."""
MACHINES: Final = MachineShape()
"""Only the state machines, without drivers: several of these run in the time of one other simulation."""
RECORDS: Final = SowShape()
"""SOW topics on one or two servers: changes of records, and queries."""
AnyShape = Shape | MachineShape | SowShape
SHAPES: Final[dict[str, AnyShape]] = {
    "machines": MACHINES, "small": SMALL, "trio": TRIO, "large": LARGE, "pair": PAIR,
    "unlike": UNLIKE, "harmed": HARMED, "records": RECORDS,
}  # fmt: skip


def kept(line: str) -> tuple[int, AnyShape]:
    """Return seed and shape of a line such as `7 small; server stopped; how=transaction # why`.

    Only the named faults and options are used.
    """
    first, *rest = (part.strip() for part in line.split("#", maxsplit=1)[0].split(";"))
    seed, name = first.split()
    shape = SHAPES[name]
    if isinstance(shape, Shape | SowShape):
        fixed = tuple((option, value) for option, _, value in (p.partition("=") for p in rest) if value)
        shape = shape._replace(fixed=fixed, kinds=tuple(p for p in rest if "=" not in p) or shape.kinds)
    return int(seed), shape


class SystemRun:
    """One complete simulation. `trace` records its events, equal for equal seeds."""

    def __init__(self, seed: int, shape: Shape, counts: Counter[str]) -> None:
        self.world = World(
            seed,
            servers=shape.servers,
            config=TOPICS_OF + QUEUE * bool(shape.workers),
            last_config=FEWER_TOPICS if shape.unlike else None,
            counts=counts,
        )
        self.world.chooser.fixed = dict(shape.fixed)
        self.shape = shape
        self.servers: list[SimServer] = self.world.servers
        uris = [server.uri for server in self.servers]
        topics = (*TOPICS, JOBS, JOBS) if shape.workers else TOPICS
        self.publishers = [
            Publisher(
                self.world, uris[n % len(uris) :] + uris[: n % len(uris)], f"p{n}", shape.messages, topics
            )
            for n in range(shape.publishers)
        ]
        self.readers = [
            Reader(self.world, [uris[n % len(uris)]], f"r{n}", shape.readings) for n in range(shape.readers)
        ]
        for number, reader in enumerate(self.readers):
            reader.length = partial(self._length, number)
        self.workers = [Worker(self.world, uris, f"w{n}", every=n == 0) for n in range(shape.workers)]
        self.world.apps = [*self.publishers, *self.readers, *self.workers]
        self.refused: BaseException | None = None
        """Why the server could not be started."""
        each_seconds = self.world.rng.choice(PACES)
        self.world.pace = each_seconds / PACES[0]
        self.faults = Faults(self.world, each_seconds=each_seconds, kinds=shape.kinds)

    def live(self) -> str:
        """Run the simulation and return its trace. Raises `AssertionError` for a violation."""
        with self.world.living():
            try:
                self.world.run(self._live())
            except RuntimeError:
                if self.refused is None:
                    raise
                raise AssertionError(f"a start was refused: {self.refused}") from self.refused
        return self.world.trace()

    async def _live(self) -> None:
        world = self.world
        for server in self.servers:
            server.start()
        for app in world.apps:
            app.start()
        minding = world.loop.create_task(self.faults.supervise())
        minding.add_done_callback(self._minder_ended)
        await self.faults.run(self.shape.faults, self.shape.crashes)
        self.faults.heal()
        try:
            async with asyncio.timeout(PATIENCE) as bound:
                await self._finish_all()
        except TimeoutError:
            assert bound.expired()
            still = [app.name for app in world.apps if not app.finished.done()]
            raise AssertionError(f"not finished in {PATIENCE} s, running: {still or 'servers'}") from None
        await self._silence_noticed()
        await self._subscriptions_ended()
        minding.cancel()
        self._judge()

    async def _finish_all(self) -> None:
        await self._finish(self.publishers)
        await self._all_up()
        await self._last_call()
        for number, reader in enumerate(self.readers):
            log = _log(self.servers[number % len(self.servers)])
            reader.has_all = partial(judge.has_all, log=log)
            reader.enough.set()
            reader.last_call.set()
        await self._finish(self.readers)
        if self.workers:
            await self._until_worked_off()
        await self._all_up()

    def _minder_ended(self, minding: asyncio.Task[None]) -> None:
        """Fail the simulation if a start is refused: no fault here damages the disk."""
        if not minding.cancelled() and (error := minding.exception()) is not None:
            self.world.loop.stop()
            self.refused = error

    async def _all_up(self) -> None:
        while not all(server.up for server in self.servers):
            await asyncio.sleep(0.1)

    async def _finish(self, apps: Sequence[App]) -> None:
        for app in apps:
            await app.finished

    async def _last_call(self) -> None:
        """Let plain subscriptions receive the messages published from now on."""
        plain = [reader for reader in self.readers if reader.plain]
        if not plain:
            return
        for reader in self.readers:
            reader.last_call.set()
        await self._silence_noticed()
        await asyncio.sleep(CONNECTED_SECONDS)
        while any(reading.final is None for reader in plain for reading in reader.plain):
            await asyncio.sleep(0.1)
        before = [len(_log(server)) for server in self.servers]
        late = [
            Publisher(self.world, [server.uri], f"late{n} {how}", LATE, TOPICS, how=how)
            for n, server in enumerate(self.servers)
            for how in ("one", "not recorded")
        ]
        for publisher in late:
            publisher.start()
        await self._finish(late)
        self.publishers += late
        self.world.apps += late
        for number, reader in enumerate(self.readers):
            if reader in plain:
                at = number % len(self.servers)
                new = _log(self.servers[at])[before[at] :]
                nowhere = [one.body for one in late[2 * at + 1].nowhere]
                await self._seen_plainly(reader, new, nowhere)

    async def _seen_plainly(self, reader: Reader, new: Sequence[Logged], nowhere: Sequence[bytes]) -> None:
        deadline = self.world.loop.time() + NOTICED_SECONDS
        while not judge.plainly(reader, new, nowhere):
            assert self.world.loop.time() < deadline, (
                f"{reader.name} lacks messages published during its subscription"
            )
            await asyncio.sleep(0.1)
        self.world.counts["plain subscriptions judged"] += 1

    async def _silence_noticed(self) -> None:
        """Wait until both ends have noticed each half-open connection."""
        if any(link.half_open_since is not None and not link.over for link in self.world.network.links):
            await asyncio.sleep(NOTICED_SECONDS + 0.1)

    async def _subscriptions_ended(self) -> None:
        """Wait until the servers have ended the subscriptions of the closed connections."""
        deadline = self.world.loop.time() + NOTICED_SECONDS
        while any(server.has_subscriptions for server in self.servers):
            assert self.world.loop.time() < deadline, "subscriptions of a closed connection continue"
            await asyncio.sleep(0.1)

    async def _until_worked_off(self) -> None:
        """After the publishers have finished, wait until the queue is empty."""
        (server,) = self.servers
        while not server.up or server.queued(WORK):
            await asyncio.sleep(0.3)
        for worker in self.workers:
            worker.enough = True
        await self._finish(self.workers)

    def _length(self, number: int) -> int:
        server = self.servers[number % len(self.servers)]
        return len(_log(server)) if server.up else 0

    def _judge(self) -> None:
        logs = [_log(server) for server in self.servers]
        for server in self.servers:
            self.world.counts.update(server.struck)
            for name, counted in OF_DISKS.items():
                self.world.counts[name] += server.struck[counted]
            self.world.counts["sector unreadable"] += server.sectors_met
            self.world.counts["part unreadable"] += server.struck["unreadable"] - server.sectors_met
        expected = (TopicNotRecorded,) if self.shape.unlike else ()
        judge.calls(self.world.apps, self.world.wrong, *expected)
        self.world.counts["store refused by a server"] += sum(
            isinstance(error, TopicNotRecorded) for app in self.world.apps for error in app.told
        )
        judge.all_there(self.publishers, logs)
        gone = judge.possibly_lost(self.publishers, logs)
        for number, log in enumerate(logs):
            for logged in log:
                self.world.note(number, logged)
            judge.each_once(self.publishers, log)
            readers = self.readers[number :: len(logs)]
            judge.readings(readers, log, gone, self.publishers)
            self.world.counts["readings of the past judged as a whole"] += sum(
                reading.past and reading.whole for reader in readers for reading in reader.readings
            )
            self.world.counts["messages"] += len(log)
        judge.work(self.workers, [logged for log in logs for logged in log if logged.topic == JOBS])
        self.world.counts["worlds"] += 1


def _log(server: SimServer) -> list[Logged]:
    """Return the messages of applications that a server has recorded."""
    assert server.instance is not None
    return [
        Logged(
            batch.topic(i),
            bytes(batch.body(i)),
            Labels(batch.correlation_id(i), batch.key(i), batch.expiration(i) is not None),
        )
        for _, batch in read_log(server.instance.broker.journal, server.disk)
        for i in range(batch.count)
        if not batch.topic(i).startswith("$")
    ]


def live(seed: int, shape: AnyShape, counts: Counter[str]) -> str:
    """Run one simulation and return its trace."""
    try:
        return shape.begin(seed, counts).live()
    except BaseException as error:
        error.add_note(f"simulation {seed} of {shape}")
        raise
