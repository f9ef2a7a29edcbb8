"""Fixtures of the benches: the message, a server with a log, and a process beside the measured one."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import tickertape as tt
from tests.helpers.processes import source_environment
from tickertape.testing import RunningServer, running_server

BODY = b'{"symbol":"AAPL","price":12.5,"x":"' + b"x" * 163 + b'"}'
assert len(BODY) == 200

FLUSH_SECONDS = 120
A_CALL = 10_000
"""Messages of one `publish_batch`."""
ROOT = Path(__file__).resolve().parent.parent.parent


@contextlib.contextmanager
def stage(directory: Path, *, sync: str = "always", config: str = "") -> Iterator[RunningServer]:
    """Run a server on the log in `directory`, new if missing, with `config` added to its file."""
    config = f'[journal]\nsync = "{sync}"\n{config}'
    with running_server(directory / "data", config=config) as server:
        yield server


def publisher(server: RunningServer, name: str = "bench-publisher") -> tt.Client:
    """Open a client with a memory store."""
    return tt.Client(name, server.uri, publish_store=tt.MemoryPublishStore())


def fill(
    server: RunningServer,
    count: int,
    topic: str = "orders",
    body_of: Callable[[int], bytes] = lambda _: BODY,
) -> None:
    """Publish `count` messages in batches. `body_of(n)` returns the bodies."""
    with publisher(server, "bench-filler") as client:
        for start in range(0, count, A_CALL):
            client.publish_batch(topic, [body_of(n) for n in range(start, min(start + A_CALL, count))])
        client.publish_flush(timeout=FLUSH_SECONDS)


def one_at_a_time(client: tt.Client, count: int, body: object) -> float:
    """Return the seconds of `count` publishes, until the last one is persisted."""
    start = timed()
    for _ in range(count):
        client.publish("orders", body)
    client.publish_flush(timeout=FLUSH_SECONDS)
    return timed() - start


class Worker:
    """A process beside the measured one (workers.py)."""

    def __init__(self, name: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.workers", name, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=source_environment(),
        )

    def ready(self) -> None:
        """Wait until the worker is ready to start."""
        said = self.answer()
        assert said == "ready", f"a worker said {said!r}"

    def tell(self) -> None:
        """Let the worker start, or end."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        """Return its next line."""
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said, f"a worker ended with {self._process.wait()}"
        return said.strip()

    def stand_still(self) -> None:
        """Stop the process where it is."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on after that."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process without waiting for its end."""
        self._process.kill()

    def end(self) -> None:
        """Kill the process."""
        self.kill()
        self._process.communicate()


@contextlib.contextmanager
def workers(*commands: tuple[object, ...]) -> Iterator[list[Worker]]:
    """Run a worker for each command, all of them ready, until the end of the block."""
    started: list[Worker] = []
    try:
        started.extend(Worker(str(name), *arguments) for name, *arguments in commands)
        for worker in started:
            worker.ready()
        yield started
    finally:
        for worker in started:
            worker.end()


def percentile(values: list[float], fraction: float) -> float:
    """Return the value below which `fraction` of `values` are."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * fraction), len(ordered) - 1)]


def timed() -> float:
    """Return the seconds of a clock for intervals."""
    return time.perf_counter()
