"""Examples of clients that lose nothing, run like a user does, killed and restarted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import tickertape as tt
from examples.demo.flights import read_flights
from tests.helpers.admin import stats_of
from tests.helpers.processes import source_environment
from tickertape.engine.queues.snapshot import QueueSnapshot
from tickertape.testing import FaultProxy, RunningServer, running_server, wait_until

ROOT = Path(__file__).parents[2]
SECONDS = 60


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with running_server() as running:
        yield running


@contextlib.contextmanager
def started(
    example: str, server: RunningServer, state: Path, *arguments: str
) -> Iterator[subprocess.Popen[str]]:
    """Yield a running example, and kill it at the end."""
    with running(example, "--servers", server.uri, "--state", str(state), *arguments) as process:
        yield process


@contextlib.contextmanager
def running(example: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a running example with the given arguments."""
    with subprocess.Popen(
        [sys.executable, "-m", f"examples.{example}", *arguments],
        cwd=ROOT,
        env=source_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run(example: str, server: RunningServer, state: Path, *arguments: str) -> list[str]:
    """Run an example to its end, and return its output."""
    with started(example, server, state, *arguments) as process:
        output, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, output
    return output.splitlines()


def log_of(server: RunningServer) -> list[bytes]:
    with tt.Client("auditor", server.uri) as client:
        return [message.data for message in client.replay("trades")]


def publish(server: RunningServer, bodies: list[bytes]) -> None:
    with tt.Client("source", server.uri) as client:
        client.publish_batch("trades", bodies)
        client.publish_flush()


@pytest.mark.slow
def test_reliable_publisher_example_loses_and_duplicates_nothing(
    server: RunningServer, tmp_path: Path
) -> None:
    lines = [b"trade %d" % n for n in range(2_000)]
    with started("reliable_publisher", server, tmp_path) as process:
        assert process.stdin is not None
        process.stdin.write("".join(f"{line.decode()}\n" for line in lines[:1_000]))
        process.stdin.flush()
        wait_until(lambda: len(log_of(server)) > 100, SECONDS)
        server.kill()
        process.stdin.write("".join(f"{line.decode()}\n" for line in lines[1_000:]))
        process.stdin.flush()
        wait_until(lambda: files_have(tmp_path, b"trade 1500"), SECONDS)
        process.kill()
    server.start()
    with tt.FilePublishStore(tmp_path / "publish") as store:
        assert store.unpersisted_count() > 400
        given = store.last_sequence
    outputs = run("reliable_publisher", server, tmp_path)
    assert outputs[-1] == "0 lines published, 0 not persisted"
    found = log_of(server)
    assert found == lines[: len(found)]
    assert len(found) > 1_500
    with tt.FilePublishStore(tmp_path / "publish") as store:
        assert store.last_sequence == given


def files_have(state: Path, text: bytes) -> bool:
    return any(text in path.read_bytes() for path in state.rglob("*.segment"))


@pytest.mark.slow
def test_resumable_consumer_example_skips_and_repeats_nothing(server: RunningServer, tmp_path: Path) -> None:
    bodies = [b"trade %d" % n for n in range(600)]
    publish(server, bodies[:400])
    printed = run("resumable_consumer", server, tmp_path, "--count", "150")
    with started("resumable_consumer", server, tmp_path) as process:
        assert process.stdout is not None
        for _ in range(250):
            printed.append(process.stdout.readline().rstrip("\n"))
        server.kill()
        server.start()
        publish(server, bodies[400:500])
        for _ in range(100):
            printed.append(process.stdout.readline().rstrip("\n"))
        process.kill()
    publish(server, bodies[500:])
    with started("resumable_consumer", server, tmp_path) as process:
        assert process.stdout is not None
        again = [process.stdout.readline().rstrip("\n") for _ in range(100)]
        if again[0] == printed[-1]:  # printed, and killed before it was discarded
            again = [*again[1:], process.stdout.readline().rstrip("\n")]
        process.kill()
    assert [line.split(" ", 1)[1].encode() for line in printed + again] == bodies


@pytest.mark.slow
def test_windowed_consumer_example_replays_only_open_windows(server: RunningServer, tmp_path: Path) -> None:
    rng = Random(1)
    trades = [{"minute": minute, "price": rng.randrange(100)} for minute in (1, 2, 3) for _ in range(40)]
    rng.shuffle(trades)
    average = {
        minute: sum(prices) / len(prices)
        for minute in (1, 2, 3)
        if (prices := [trade["price"] for trade in trades if trade["minute"] == minute] + [50])
    }

    def outputs(minute: int) -> str:
        return f"minute {minute}: 41 trades, average {average[minute]:.2f}"

    def last(minute: int) -> bytes:
        return json.dumps({"minute": minute, "price": 50, "last": True}).encode()

    publish(server, [*(json.dumps(trade).encode() for trade in trades), last(2)])
    assert run("windowed_consumer", server, tmp_path, "--closing", "1") == [outputs(2)]
    publish(server, [last(3)])
    with started("windowed_consumer", server, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == outputs(3) + "\n"
        server.kill()
        server.start()
        publish(server, [last(1)])
        assert process.stdout.readline() == outputs(1) + "\n"
        publish(server, [json.dumps({"minute": 4, "price": 1}).encode()])
        process.kill()


class Delays:
    """The database that workers write to."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def ask(self, question: str) -> list[tuple[Any, ...]]:
        try:
            with contextlib.closing(sqlite3.connect(self._file, timeout=SECONDS)) as database:
                return database.execute(question).fetchall()
        except sqlite3.OperationalError:  # no table yet
            return []

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Block all other writers."""
        with contextlib.closing(sqlite3.connect(self._file, timeout=SECONDS)) as database:
            database.execute("BEGIN IMMEDIATE")
            yield

    def done(self) -> int:
        return len(self.ask("SELECT bookmark FROM done"))

    def totals(self) -> dict[str, tuple[int, int]]:
        return {name: (count, minutes) for name, count, minutes in self.ask("SELECT * FROM delays")}


def late(flights: list[bytes]) -> dict[str, tuple[int, int]]:
    """Return the number of late flights and their total delay in minutes, by carrier."""
    found: dict[str, tuple[int, int]] = {}
    for flight in map(json.loads, flights):
        if (flight["dep_delay"] or 0) > 60:
            count, minutes = found.get(flight["carrier"], (0, 0))
            found[flight["carrier"]] = count + 1, minutes + flight["dep_delay"]
    return found


def how_many(totals: dict[str, tuple[int, int]]) -> int:
    return sum(count for count, _ in totals.values())


@pytest.mark.slow
def test_killed_worker_example_loses_and_counts_twice_no_message(tmp_path: Path) -> None:
    """One worker is killed after its writes, but before the server has the acknowledgements. Its messages are
    redelivered and count once. Another worker is killed while the database is locked, and must not have
    acknowledged the messages it could not write."""
    flights = [flight.body for flight in read_flights(3_000)]
    early, later = flights[:1_500], flights[1_500:]
    delays = Delays(tmp_path / "delays.sqlite")
    backlog = 20
    assert min(how_many(late(early)), how_many(late(later))) > 2 * backlog
    with (
        running_server(tmp_path / "data", ROOT / "examples" / "worker.toml") as server,
        FaultProxy(server.uri) as proxy,
        tt.Client("source", server.uri) as source,
        contextlib.ExitStack() as stack,
    ):

        def worker(number: int, uri: str, *arguments: str) -> subprocess.Popen[str]:
            given = ("--servers", uri, "--database", str(tmp_path / "delays.sqlite"), *arguments)
            return stack.enter_context(running("worker", "--name", f"worker-{number}", *given))

        unheard, busy = worker(1, proxy.uri), worker(2, server.uri)
        wait_until(lambda: queue_of(server).consumers == 2, SECONDS)
        proxy.stall(to_client=False)  # acknowledgements of the first worker do not arrive
        os.kill(busy.pid, signal.SIGSTOP)  # until both workers have a full backlog
        source.publish_batch("flights", early)
        wait_until(lambda: queue_of(server).leased == 2 * backlog, SECONDS)
        os.kill(busy.pid, signal.SIGCONT)
        wait_until(lambda: delays.done() == how_many(late(early)), SECONDS)
        received = how_many(late(early)) - backlog
        wait_until(lambda: queue_of(server).acknowledged == received, SECONDS)
        with delays.locked():
            source.publish_batch("flights", later)
            wait_until(lambda: queue_of(server).leased == 2 * backlog, SECONDS)
            time.sleep(0.5)  # a worker that acknowledges before the write would do it now
            assert queue_of(server).acknowledged == received
            unheard.kill()
            busy.kill()
            busy.wait(SECONDS)
            proxy.cut()
        outputs = [
            process.communicate(timeout=SECONDS)[0]
            for process in [worker(number, server.uri, "--idle", "3") for number in (3, 4)]
        ]
        assert queue_of(server).depth == 0
    assert delays.totals() == late(flights)
    assert delays.done() == how_many(late(flights))
    lines = [line.split() for text in outputs for line in text.splitlines()]
    assert sum(int(line[2]) for line in lines) >= backlog  # redelivered messages


def queue_of(server: RunningServer) -> QueueSnapshot:
    """Return the statistics of the only queue."""
    (queue,) = stats_of(server).queues
    return queue


SMALL_EXAMPLES = {
    "commit_once": ["committed before: False", "committed before: True", "2 messages are stored"],
    "dead_letters": ["unknown@example.com expire", "anna@example.com max_deliveries"],
    "failover_subscriber": [
        "connection: connected",
        "connection: logged_on",
        "connection: publish_replayed",
        "connection: resubscribed",
        "received [1, 2]",
        "connection: disconnected",
        "connection: shutdown",
    ],
    "filtered_replay": ["sales/books {'item': 'atlas'}", "sales/tools {'item': 'drill'}"],
    "live_table": ["IBM 100", "MSFT 40", "IBM 120", "1 removed", "1 position left"],
    "live_subscription": ["prices 10.5", "prices 11.0", "prices 10.75"],
    "out_of_order_processing": ["redelivered [2, 4]"],
    "positions": [
        "sow anna IBM 120",
        "sow bert IBM 70",
        "2 of 3 records",
        "sow bert IBM 70",
        "publish bert IBM 75",
        "1 record deleted",
    ],
    "publish_while_disconnected": [
        "3 messages wait in the publish store",
        "0 messages wait after the flush",
    ],
    "replay_from_bookmark": ["the log ends with [20, 21, 22, 23]", "after the bookmark [22, 23]"],
    "replay_then_live": ["caught up", "trade 1", "trade 2", "trade 3"],
    "resume_after_restart": ["first process [1, 2]", "second process [3, 4, 5]"],
    "work_queue": [
        "worker 1 holds task 1",
        "worker 2 finished task 1",
        "worker 2 finished task 2",
        "worker 2 finished task 3",
    ],
}
"""Output of each small example on a new server."""

EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("[!_]*.py"))
EXAMPLE_LINES_MAX = 60
LONG_EXAMPLES = {
    "windowed_consumer": "has a class for its windows, and options for a run in parts",
    "worker": "has a database, and options for a run with several workers",
}
"""Examples above this limit, and why."""


@pytest.fixture(scope="module")
def example_server() -> Iterator[RunningServer]:
    """Yield a server with the queues and SOW topics of the small examples."""
    config = [(ROOT / "examples" / name).read_text() for name in ("queues.toml", "positions.toml")]
    with running_server(config="\n".join(config)) as running:
        yield running


def run_small(name: str, server: RunningServer) -> list[str]:
    """Return the output of a small example, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}"],
        cwd=ROOT,
        env=source_environment() | {"TICKERTAPE_SERVER": server.uri},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL_EXAMPLES)
def test_small_example_prints_the_documented_output_and_runs_twice(
    name: str, example_server: RunningServer, full: bool
) -> None:
    """Every run has the first time only."""
    assert run_small(name, example_server) == SMALL_EXAMPLES[name]
    if full:
        run_small(name, example_server)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_small_and_linked_from_a_concept(name: str) -> None:
    source = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    assert (len(source.splitlines()) < EXAMPLE_LINES_MAX) == (name not in LONG_EXAMPLES)
    assert source.partition('"""')[2].partition("\n")[0].endswith(".")
    concepts = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "concepts").glob("*.md")]
    assert any(f"](../../examples/{name}.py)" in text for text in concepts)


def test_examples_that_use_the_server_variable_are_in_the_list() -> None:
    examples = (ROOT / "examples").glob("*.py")
    using = {path.stem for path in examples if "TICKERTAPE_SERVER" in path.read_text(encoding="utf-8")}
    assert using == SMALL_EXAMPLES.keys()
