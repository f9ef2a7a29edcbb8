"""Simulations of SOW topics: publishers of changes, readers of records, and faults.

Must never decide about correctness: `sow_judge.py` does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple
from unittest.mock import patch

from msgspec.structs import replace

from tests.simulation.journal_world import read_log
from tests.world import judge, sow_judge
from tests.world.apps import App
from tests.world.faults import CLIENT_FAULTS, FAULTS, OF_DISKS, Faults
from tests.world.network import NOTICED_SECONDS
from tests.world.servers import SimServer
from tests.world.sow_log import EXPIRING, EXPLICIT, GENERATED, PATTERN, History
from tests.world.sow_publisher import SowPublisher
from tests.world.sow_reader import SowReader
from tests.world.world import World
from tickertape.engine.limits import (
    few_records_max,
    query_piece_rows_max,
    query_step_keys_max,
    query_step_slots_max,
)
from tickertape.engine.sow.query import few_records, query, record_copy
from tickertape.engine.sow.query.few_records import FewRecords
from tickertape.engine.sow.query.record_copy import RecordCopy
from tickertape.engine.sow.selection import GroupQuery, QuerySelection
from tickertape.engine.sow.state.change import EarlierRows
from tickertape.server.engine_driver import EngineDriver

PACES: Final = (*[0.1] * 5, 1.0)
"""Mean seconds between two faults."""
PATIENCE: Final = 600.0
"""Virtual seconds in which all work must finish after the faults."""
RETAINED_BYTES: Final = 24_000
SEGMENT_BYTES: Final = 8_192
STEP_RECORDS: Final = 2
"""Records that a step of a query copies, or selects, in simulations of queries in several steps."""
STEP_SECONDS: Final = 0.001
"""Seconds before each step of the server in these, so that records change meanwhile."""
RECORDED: Final = f"""
[[journal.topic]]
pattern = "^({GENERATED}|{EXPLICIT}|{EXPIRING}|{PATTERN}(/.*)?)$"
"""
"""Persistent topics of two servers, named. One server has all topics."""


def _config(interval: str) -> str:
    """Return the configuration of a server."""
    topics = (
        (GENERATED, ""),
        (EXPLICIT, ""),
        (PATTERN, f'pattern = "^{PATTERN}/"'),
        (EXPIRING, 'expiration = "1s"'),
    )
    return "".join(
        f'[[sow]]\nname = "{name}"\ncheckpoint_interval = "{interval}"\n{more}\n'
        + 'key = ["/id"]\nindex = [["/even"]]\n' * (name != EXPLICIT)
        for name, more in topics
    )


class SowShape(NamedTuple):
    """The size of a simulation.

    Each third one has two servers, and each second one retention. In three of five, all queries but the
    smallest are executed in several steps, as queries of many records are.
    """

    publishers: int = 2
    changes: int = 25
    readers: int = 2
    queries: int = 3
    faults: int = 4
    kinds: tuple[str, ...] = FAULTS + CLIENT_FAULTS
    fixed: tuple[tuple[str, str], ...] = ()
    """Options that every application uses."""

    def begin(self, seed: int, counts: Counter[str]) -> SowRun:
        """Return a simulation of this shape."""
        return SowRun(seed, self, counts)


class SowRun:
    """One complete simulation. Its trace is equal for equal seeds."""

    def __init__(self, seed: int, shape: SowShape, counts: Counter[str]) -> None:
        self.shape = shape
        number = 2 if seed % 3 == 0 else 1
        self.retains = seed % 2 == 1
        self._stepwise = seed % 5 < 3
        interval = "1s" if seed % 4 else "1h"
        self.world = world = World(
            seed,
            servers=number,
            config=RECORDED * (number - 1) + _config(interval),
            segment_bytes=SEGMENT_BYTES,
            counts=counts,
        )
        world.chooser.fixed = dict(shape.fixed)
        self.servers: list[SimServer] = world.servers
        self.histories = [History() for _ in self.servers]
        for server, history in zip(self.servers, self.histories, strict=True):
            if self.retains:
                journal = replace(server.config.journal, retain_size=RETAINED_BYTES)
                server.config = replace(server.config, journal=journal)
            server.on_open = partial(_opened, server, history)
        uris = [server.uri for server in self.servers]
        self.publishers = [
            SowPublisher(world, uris[n % number :] + uris[: n % number], f"p{n}", shape.changes)
            for n in range(shape.publishers)
        ]
        self.readers = [
            SowReader(world, [uris[n % number]], f"r{n}", shape.queries) for n in range(shape.readers)
        ]
        for n, reader in enumerate(self.readers):
            history = self.histories[n % number]
            reader.persisted = history.has
            reader.has_all = partial(sow_judge.has_all, history=history)
        world.apps = [*self.publishers, *self.readers]
        self.refused: BaseException | None = None
        each_seconds = world.rng.choice(PACES)
        world.pace = each_seconds / PACES[0]
        self.faults = Faults(world, each_seconds=each_seconds, kinds=shape.kinds)

    def live(self) -> str:
        """Run the simulation and return its trace. Raises `AssertionError` for a violation."""
        with self.world.living(), _queries(self.world.counts, stepwise=self._stepwise):
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
        await self.faults.run(self.shape.faults)
        self.faults.heal()
        try:
            async with asyncio.timeout(PATIENCE) as bound:
                await self._finish_all()
        except TimeoutError:
            assert bound.expired()
            still = [app.name for app in world.apps if not app.finished.done()]
            raise AssertionError(f"not finished in {PATIENCE} s, running: {still or 'servers'}") from None
        self._judge()
        await self._restart(minding)
        minding.cancel()

    async def _finish_all(self) -> None:
        await self._finish(self.publishers)
        await self._all_up()
        await asyncio.sleep(NOTICED_SECONDS)  # records expire, and both ends notice half-open connections
        for reader in self.readers:
            reader.enough.set()
        await self._finish(self.readers)
        await self._all_up()

    def _minder_ended(self, minding: asyncio.Task[None]) -> None:
        if not minding.cancelled() and (error := minding.exception()) is not None:
            self.world.loop.stop()
            self.refused = error

    async def _all_up(self) -> None:
        while not all(server.up for server in self.servers):
            await asyncio.sleep(0.1)

    async def _finish(self, apps: Sequence[App]) -> None:
        for app in apps:
            await app.finished

    def _judge(self) -> None:
        world, one = self.world, len(self.servers) == 1
        for server in self.servers:
            world.counts.update(server.struck)
            for name, counted in OF_DISKS.items():
                world.counts[name] += server.struck[counted]
        judge.calls(world.apps, world.wrong)
        for history in self.histories:
            for row in history.rows:
                world.note(row)
        sow_judge.changes(self.publishers, self.histories, one=one)
        for n, history in enumerate(self.histories):
            readers = self.readers[n :: len(self.histories)]
            sow_judge.queries(readers, history, self.publishers, world.counts, one=one)
            world.counts["messages"] += history.end
        world.counts["worlds"] += 1

    async def _restart(self, minding: asyncio.Task[None]) -> None:
        """Compare the records after restarts: with checkpoints, and without them if the log is whole."""
        for server, history in zip(self.servers, self.histories, strict=True):
            await self._check_restarted(server, history, "running")
            server.sigkill()
            await self._check_restarted(server, history, "killed and restarted")
            server.power_lost()
            await self._check_restarted(server, history, "restarted after a power loss")
            if not self.retains:
                server.sigkill()
                for path in [path for path in server.disk.disk.contents() if path.startswith("sow/")]:
                    server.disk.disk.lose(path)
                self.world.counts["checkpoints removed"] += 1
                await self._check_restarted(server, history, "restarted without checkpoints")

    async def _check_restarted(self, server: SimServer, history: History, label: str) -> None:
        deadline = self.world.loop.time() + PATIENCE
        while not server.up or _folded(server) < history.end:
            assert self.world.loop.time() < deadline, f"{label}: the log is not folded"
            await asyncio.sleep(0.1)
        sow_judge.records(_stored(server), history, label)
        self.world.counts["restarts judged"] += 1


@contextmanager
def _queries(counts: Counter[str], *, stepwise: bool) -> Iterator[None]:
    """Count the queries of each kind. `stepwise`: queries of more than `STEP_RECORDS` records are copied in
    steps of as many."""
    begin, undo, work = QuerySelection.begin, RecordCopy._undo, EngineDriver._work

    def begun(selection: QuerySelection, position: int, end: int, holder: object) -> list[GroupQuery]:
        queries = begin(selection, position, end, holder)
        few = sum(isinstance(one.query, FewRecords) for one in queries)
        counts["queries of few records"] += few
        counts["queries copied in steps"] += len(queries) - few
        return queries

    def undone(copy: RecordCopy, earlier: EarlierRows) -> None:
        counts["changes undone for a query"] += 1
        undo(copy, earlier)

    def worked(driver: EngineDriver) -> None:
        if stepwise and any(driver.broker.services.records.pending):
            driver._loop.call_later(STEP_SECONDS, work, driver)
        else:
            work(driver)

    with (
        patch.object(EngineDriver, "_work", worked),
        patch.object(QuerySelection, "begin", begun),
        patch.object(RecordCopy, "_undo", undone),
        patch.object(few_records, "few_records_max", STEP_RECORDS if stepwise else few_records_max),
        patch.object(record_copy, "query_step_slots_max", STEP_RECORDS if stepwise else query_step_slots_max),
        patch.object(record_copy, "query_step_keys_max", STEP_RECORDS if stepwise else query_step_keys_max),
        patch.object(query, "query_piece_rows_max", STEP_RECORDS if stepwise else query_piece_rows_max),
    ):
        yield


def _opened(server: SimServer, history: History, instance: EngineDriver) -> None:
    """Record the persisted messages of a server, now and from now on."""
    journal = instance.broker.journal
    for first, batch in read_log(journal, server.disk, history.end):
        history.record(first, batch)
    persisted = journal.commits.persisted_end
    if persisted != history.end:
        server.world.wrong.append(f"{server.name}: {persisted} messages are persisted, {history.end} were")
    take = journal.take_persisted

    def taking() -> Sequence[object]:
        history.removed_below = max(history.removed_below, journal.view.first_position)
        commits = take()
        for commit in commits:
            history.record(commit.first_position, commit.batch)
        return commits

    journal.take_persisted = taking  # type: ignore[method-assign, assignment]


def _folded(server: SimServer) -> int:
    assert server.instance is not None
    return server.instance.broker.states.fold.folded


def _stored(server: SimServer) -> dict[str, list[bytes]]:
    """Return the bodies of all records of each SOW topic."""
    assert server.instance is not None
    found: dict[str, list[bytes]] = {}
    for topic in server.instance.broker.states.topics:
        table = topic.fold.records
        slots = table.live_slots(0, table.slot_end)
        found[topic.name] = [bytes(body) for body in table.blocks.take(table.rows(slots).views)]
    return found
