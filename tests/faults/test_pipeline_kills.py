"""SIGKILL of Spark's driver, of its Python workers and of the server during a streaming query.

From log to log, the output has exactly the expected rows, each once, and batches are whole. From a queue to
the log, each row is there at least once, and the queue is empty. Only the contents of the log are judged.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import tickertape as tt
from tests.faults.killed_server import Victim
from tests.helpers.java import short_lived_java
from tests.helpers.processes import source_environment

VICTIMS = ("driver", "worker", "server")
KILLS = 30
CLUSTER_KILLS = 3
ROWS = 60_000
CLUSTER_ROWS = 6_000
DRIVER = Path(__file__).with_name("pipeline_driver.py")
SESSION_SECONDS = 180.0
LOOK_SECONDS = 0.3
QUEUE_KILLS = 12
QUEUE_ROWS = 20_000
CONFIG = '[journal]\nsegment_size = "1MB"\n'
QUEUE = '[[queue]]\nname = "work"\nunderlying = "numbers"\nlease_period = "5s"\n'

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(1800)]


class Driver:
    """The Spark driver in a process group of its own. It restarts when it was killed."""

    def __init__(self, uri: str, directory: Path, master: str, kind: str) -> None:
        self._arguments = [uri, str(directory / "checkpoint"), master, kind]
        self._output = directory / "driver.out"
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> None:
        """Start it."""
        environment = source_environment() | dict(short_lived_java())
        environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        with open(self._output, "ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(DRIVER), *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def said(self) -> str:
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def kill(self) -> None:
        """Kill the driver with its children: its Java machine and its workers."""
        process = self._process
        if process is None:
            return
        below = _below(process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        self._process = None

    def kill_worker(self, rng: Random) -> bool:
        """Kill one of Spark's Python processes, if one exists."""
        assert self._process is not None
        workers = [pid for pid in _below(self._process.pid) if "pyspark.daemon" in _command(pid)]
        if not workers:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(workers), signal.SIGKILL)
        return True


def _below(ancestor: int) -> list[int]:
    """Return the descendants of a process: Spark's workers leave its group."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    due = [ancestor]
    while due:
        more = children.get(due.pop(), [])
        found += more
        due += more
    return found


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _until(condition: Callable[[], bool], condition_name: str) -> None:
    """Wait for a slow condition with few checks."""
    deadline = time.monotonic() + SESSION_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {SESSION_SECONDS:g} seconds: {condition_name}")
        time.sleep(LOOK_SECONDS)


class Feeder:
    """Publishes numbers with a store, so that each is in the log once, despite kills."""

    def __init__(self, uri: str, count: int) -> None:
        self._uri = uri
        self._count = count
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._over = threading.Event()
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            with tt.HAClient("feeder", servers=[self._uri], publish_store=tt.MemoryPublishStore()) as client:
                for start in range(0, self._count, 200):
                    client.publish_batch("numbers", [{"n": n} for n in range(start, start + 200)])
                    if self._over.wait(0.02):  # a source that grows, rather than a finished one
                        return
                while client.unpersisted_count() and not self._over.wait(0.05):
                    pass
        except BaseException as error:  # noqa: BLE001 - reported at the end
            self.error = error

    def join(self) -> None:
        self._thread.join(SESSION_SECONDS)
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        self._over.set()


def _doubled(uri: str) -> list[tt.Message]:
    with tt.Client("judge", uri, timeout=60) as client:
        try:
            return list(client.replay("doubled"))
        except tt.TopicNotRecorded:
            return []


def _doubled_numbers(uri: str) -> set[int]:
    return {message.json()["n"] for message in _doubled(uri)}


def _kill(master: str, kills: int, rows: int, seed: int, kind: str) -> Counter[str]:
    """Kill one victim after the other until all rows are processed, and return the kills by victim."""
    rng = Random(seed)
    counts: Counter[str] = Counter()
    directory = Path(tempfile.mkdtemp(prefix="tickertape-pipeline-"))
    config = directory / "tickertape.toml"
    config.write_text(CONFIG + QUEUE if kind == "queue" else CONFIG)
    victim = Victim(directory / "data", config)
    driver = Driver(victim.uri, directory, master, kind)
    feeder = Feeder(victim.uri, rows)
    try:
        victim.spawn()
        victim.wait_ready()
        feeder.start()
        driver.spawn()
        for kill in range(kills):
            before = len(_doubled(victim.uri))

            def progresses(before: int = before) -> bool:
                found = len(_doubled(victim.uri))
                return found > before or found >= rows

            _until(progresses, "the query goes on")
            time.sleep(rng.random() * 2)  # a random time
            victim_name = VICTIMS[kill % len(VICTIMS)]
            if victim_name == "driver":
                driver.kill()
                driver.spawn()
            elif victim_name == "worker":
                _until(lambda: driver.kill_worker(rng), "a worker lives")
            else:
                victim.kill()
                victim.spawn()
                victim.wait_ready()
            counts[victim_name] += 1
        feeder.join()
        _until(lambda: len(_doubled_numbers(victim.uri)) >= rows, "everything was doubled")
        if kind == "queue":
            _judge_queue(victim.uri, rows)
        else:
            _judge(_doubled(victim.uri), rows)
    except BaseException as error:
        error.add_note(driver.said()[-4_000:])
        error.add_note(victim.said()[-2_000:])
        raise
    finally:
        feeder.stop()
        driver.kill()
        victim.kill()
        shutil.rmtree(directory, ignore_errors=True)
    return counts


def _judge_queue(uri: str, rows: int) -> None:
    found = [message.json() for message in _doubled(uri)]
    assert all(row["twice"] == 2 * row["n"] for row in found)
    assert {row["n"] for row in found} == {*range(rows)}

    def is_empty() -> bool:
        with tt.Client("looker", uri, timeout=60) as client:
            return not list(client.subscribe("work", browse=True))

    _until(is_empty, "everything was acknowledged")


def _judge(found: list[tt.Message], rows: int) -> None:
    numbers = [message.json() for message in found]
    assert all(row["twice"] == 2 * row["n"] for row in numbers)
    assert Counter(row["n"] for row in numbers) == Counter(range(rows))
    # A batch took adjacent rows of the source. So whole batches divide the output into ranges that are ranges
    # of the source, in any order.
    highest, begin = -1, 0
    seen: set[int] = set()
    batches = 0
    for at, row in enumerate(numbers):
        seen.add(row["n"])
        highest = max(highest, row["n"])
        if len(seen) == at + 1 == highest + 1:
            batches += 1
            begin = at + 1
    assert begin == rows
    assert batches > 2, "batches can be distinguished"
    assert numbers != sorted(numbers, key=lambda row: int(row["n"])), "rows came in another order"


def test_pipeline_from_log_to_log_with_kills_writes_each_row_once() -> None:
    counts = _kill("local[2]", KILLS, ROWS, seed=7, kind="topic")
    assert min(counts[victim_name] for victim_name in VICTIMS) == KILLS // len(VICTIMS)


def test_pipeline_on_a_local_cluster_with_kills_writes_each_row_once() -> None:
    counts = _kill("local-cluster[2,1,1024]", CLUSTER_KILLS, CLUSTER_ROWS, seed=8, kind="topic")
    assert counts.keys() == {*VICTIMS}


def test_pipeline_from_queue_to_log_with_kills_writes_each_row_at_least_once() -> None:
    counts = _kill("local[2]", QUEUE_KILLS, QUEUE_ROWS, seed=9, kind="queue")
    assert min(counts[victim_name] for victim_name in VICTIMS) == QUEUE_KILLS // len(VICTIMS)
