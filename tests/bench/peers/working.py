"""Measures one turn of one contender: starts its load programs and combines their results."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tests.bench.peers import postgres, valkey
from tests.bench.peers.contenders import OURS, Contender
from tests.bench.peers.loading import Result, Task, make_bodies
from tests.bench.peers.rows import (
    BACKLOG,
    DELIVERY_RATE,
    QUEUED_MAX,
    RATE_REACHED_MIN,
    REPLAYED,
    SUBSCRIBERS,
    Row,
)
from tests.bench.peers.serving import LATE_SECONDS_MAX, Load, PeerServer

CALIBRATION: Final = 2_000
"""Messages of a queue that are taken before a turn, to know how many a turn needs."""
FILL_PART: Final = 1.5
"""Longest time of filling a queue, as a part of the turn."""
QUICK_PART: Final = 20


class NotReached(Exception):
    """The contender cannot perform the work of the row."""


@contextlib.contextmanager
def loads(contender: Contender, *programs: tuple[str, Task]) -> Iterator[list[Load]]:
    """Start load programs, all of them ready, and end them at the end of the block."""
    started: list[Load] = []
    try:
        started.extend(Load(contender.interpreter, contender.module, *program) for program in programs)
        for load in started:
            load.ready()
        yield started
    finally:
        for load in started:
            load.end()


def perform(contender: Contender, action: str, task: Task) -> Result:
    """Run one load program to its end."""
    with loads(contender, (action, task)) as (load,):
        load.go()
        return load.result()


class Turn:
    """One turn of a contender in a row."""

    def __init__(
        self, row: Row, contender: Contender, server: PeerServer, seconds: float, number: int
    ) -> None:
        self.row = row
        self.contender = contender
        self.server = server
        self.seconds = seconds
        self.quick = seconds < 2
        self.task = Task(
            server.address,
            topic=f"turn{number}",
            name=f"turn{number}",
            seconds=seconds,
            warm=seconds / 6,
            depth=row.depth,
            call=row.call,
        )

    def prepare(self) -> None:
        """Fill the log of a replay, once for all turns."""
        if self.row.work == "replay":
            perform(self.contender, "fill", self._replayed())

    def measure(self) -> Result:
        """Return the figures of the turn."""
        found: Result = getattr(self, f"_{self.row.work}")()
        if not found["rate"]:
            raise NotReached(f"finishes nothing in {self.seconds:g} s")
        return found

    def _publish(self) -> Result:
        return perform(self.contender, "publish", self.task)

    def _connections(self) -> Result:
        tasks = [
            ("publish", replace(self.task, name=f"{self.task.name}-{n}")) for n in range(self.row.connections)
        ]
        with loads(self.contender, *tasks) as started:
            for load in started:
                load.go()
            results = [load.result() for load in started]
        return {
            "rate": sum(result["rate"] for result in results),
            "p50": statistics.median(result["p50"] for result in results),
            "p99": statistics.median(result["p99"] for result in results),
        }

    def _delivery(self) -> Result:
        task = replace(self.task, stamped=True, rate=DELIVERY_RATE, alone=False)
        with (
            loads(self.contender, ("listen", task)) as (listener,),
            loads(self.contender, ("paced", replace(task, name=f"{task.name}-publisher"))) as (publisher,),
        ):
            listener.go()
            publisher.go()
            sent, found = publisher.result(), listener.result()
        reached = min(sent["rate"], found["rate"])
        if reached < RATE_REACHED_MIN * DELIVERY_RATE:
            raise NotReached(f"delivers {reached:,.0f} msg/s")
        return found

    def _fan_out(self) -> Result:
        task = replace(self.task, alone=False)
        listeners = [("listen", replace(task, name=f"{task.name}-{n}")) for n in range(SUBSCRIBERS)]
        with (
            loads(self.contender, *listeners) as started,
            loads(self.contender, ("publish", replace(task, name=f"{task.name}-publisher"))) as (publisher,),
        ):
            for load in started:
                load.go()
            publisher.go()
            results = [load.result() for load in started]
            published = publisher.result()
        return {"rate": sum(result["rate"] for result in results), "published": published["rate"]}

    def _replayed(self) -> Task:
        return replace(self.task, topic="orders", count=REPLAYED // (QUICK_PART if self.quick else 1))

    def _replay(self) -> Result:
        return perform(self.contender, "replay", self._replayed())

    def _queue(self) -> Result:
        task = replace(self.task, topic="orders", count=CALIBRATION, depth=BACKLOG)
        started = time.perf_counter()
        perform(self.contender, "fill", task)
        filled = CALIBRATION / (time.perf_counter() - started)
        rate = perform(self.contender, "consume", task)["rate"]
        count = int(self.seconds * min(rate, FILL_PART * filled))
        task = replace(task, count=min(QUEUED_MAX, max(CALIBRATION, count)))
        perform(self.contender, "fill", task)
        return perform(self.contender, "consume", task)

    def _native(self) -> Result:
        if self.contender.name == OURS:
            return perform(self.contender, "frames", replace(self.task, count=self.row.connections))
        if self.contender.peer == "valkey":
            return self._valkey_native()
        return self._postgres_native()

    def _valkey_native(self) -> Result:
        if shutil.which(valkey.BENCHMARK) is None:
            raise NotReached("redis-tools is not installed")
        body = make_bodies(count=1)[0]
        row, rate = self.row, 1_000.0
        result: Result = {}
        for part in (0.1, 1.0):  # the first one shows how many messages the turn needs
            count = max(row.depth * 10, int(rate * self.seconds * part))
            command = valkey.benchmark_command(self.server.address, count, row.depth, row.connections, body)
            result = valkey.parse_benchmark(self._output(command))
            rate = result["rate"]
        return result

    def _postgres_native(self) -> Result:
        perform(self.contender, "fill", replace(self.task, topic="orders", count=1))
        script = self.server.directory / "publish.sql"
        script.write_text(postgres.SCRIPT.format(body=make_bodies(count=1)[0].decode().replace("'", "")))
        for old in self.server.directory.glob("publish.*.*"):
            old.unlink()
        command = postgres.benchmark_command(self.server.address, script, self.seconds, self.row.connections)
        text = self._output(command)
        log = "".join(path.read_text() for path in self.server.directory.glob("publish.[0-9]*"))
        return postgres.parse_benchmark(text, log)

    def _output(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=self.seconds * 10 + LATE_SECONDS_MAX,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0].rpartition('/')[2]} failed: {done.stderr.strip()[-300:]}")
        return done.stdout
