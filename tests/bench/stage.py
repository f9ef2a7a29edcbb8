"""Owns what the benches share: the message, a server with a log, and a process beside the measured one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

import tickertape as tt
from tests.helpers.processes import source_environment
from tickertape.testing import RunningServer, running_server

BODY = b'{"symbol":"AAPL","price":12.5,"x":"' + b"x" * 163 + b'"}'
assert len(BODY) == 200

FLUSH_SECONDS = 120


@contextlib.contextmanager
def stage(room_directory: object, *, sync: str = "always") -> Iterator[RunningServer]:
    """A server on a fresh directory of the bench's room."""
    config = f'[journal]\nsync = "{sync}"\n'
    with running_server(f"{room_directory}/data", config=config) as server:
        yield server


def publisher(server: RunningServer, name: str = "bench-publisher") -> tt.Client:
    """A client with a memory store."""
    return tt.Client(name, server.uri, publish_store=tt.MemoryPublishStore())


def fill(server: RunningServer, count: int, topic: str = "orders") -> None:
    """A log of `count` messages, published in batches."""
    with publisher(server, "bench-filler") as client:
        for start in range(0, count, 10_000):
            client.publish_batch(topic, [BODY] * min(10_000, count - start))
        client.publish_flush(timeout=FLUSH_SECONDS)


@contextlib.contextmanager
def other_process(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Another Python process that runs `code`, ended with the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=source_environment(),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def percentile(values: list[float], fraction: float) -> float:
    """The value below which `fraction` of `values` lie."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * fraction), len(ordered) - 1)]


def timed() -> float:
    """Seconds of a clock for intervals."""
    return time.perf_counter()
