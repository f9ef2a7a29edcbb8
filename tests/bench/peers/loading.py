"""Load programs: task, meter and start signal. Imports the standard library only.

A load program runs as `python -m tests.bench.peers.NAME ACTION TASK`. It prepares its work, prints `ready`,
waits for a line on standard input, works for the seconds of its task, and prints its result as JSON.
Every action ends by itself, because all waits have a limit.
"""

from __future__ import annotations

import json
import random
import sys
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Final

BODY_BYTES: Final = 200
BODIES: Final = 1_000
STAMP_BYTES: Final = 20
"""Length of the publish time at the start of a body, in rows that measure a delivery."""
WAIT_SECONDS_MAX: Final = 60.0
"""Longest wait for one answer of a server."""

Result = dict[str, float]


@dataclass(frozen=True)
class Task:
    """The work of a load program."""

    address: str
    topic: str = "orders"
    seconds: float = 1.0
    warm: float = 0.0
    """Seconds at the start that are not measured."""
    depth: int = 1
    """Most messages without an acknowledgement."""
    call: int = 1
    """Messages of one call, in a batch if the client has batches."""
    rate: float = 0.0
    count: int = 0
    name: str = "peers"
    stamped: bool = False
    """Whether bodies start with their publish time."""
    alone: bool = True
    """Whether nothing but this program reads or stores the messages, so that it creates their queue."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Meter:
    """Counts finished messages of the measured part of a turn, and their times."""

    def __init__(self, task: Task, start: float | None = None) -> None:
        start = time.perf_counter() if start is None else start
        self.begin = start + task.warm
        self.end = start + task.seconds
        self.count = 0
        self.taken = array("d")

    def running(self) -> bool:
        """Return whether the turn goes on."""
        return time.perf_counter() < self.end

    def done(self, count: int, started: float | None = None) -> None:
        """Count messages that are finished now. `started`: time of their call."""
        now = time.perf_counter()
        if self.begin <= now < self.end:
            self.count += count
            if started is not None:
                self.taken.append(now - started)

    def result(self) -> Result:
        """Return rate, count, and the percentiles in microseconds if times were given."""
        found: Result = {"rate": self.count / (self.end - self.begin), "count": float(self.count)}
        if self.taken:
            ordered = sorted(self.taken)
            found["p50"] = at(ordered, 0.5) * 1e6
            found["p99"] = at(ordered, 0.99) * 1e6
        return found


def at(ordered: list[float], fraction: float) -> float:
    """Return the value of a sorted list below which `fraction` of the values are."""
    return ordered[min(int(len(ordered) * fraction), len(ordered) - 1)]


def make_bodies(size: int = BODY_BYTES, count: int = BODIES) -> list[bytes]:
    """Return different bodies of `size` bytes: flights as JSON, the same in every process."""
    chance = random.Random(1)
    bodies = []
    for number in range(count):
        flight = {
            "time": f"{number:018}",
            "carrier": chance.choice(["AA", "B6", "DL", "UA", "WN"]),
            "flight": chance.randrange(1, 9_999),
            "tail": f"N{chance.randrange(100, 999)}{chance.choice('ABCDEFGH')}{chance.choice('JKLMNPQR')}",
            "origin": chance.choice(["EWR", "JFK", "LGA"]),
            "destination": chance.choice(["ATL", "BOS", "LAX", "MIA", "ORD", "SFO"]),
            "delay": chance.randrange(-20, 300),
            "distance": chance.randrange(80, 4_983),
            "note": "",
        }
        missing = size - len(json.dumps(flight))
        flight["note"] = "".join(chance.choices("abcdefghijklmnopqrstuvwxyz ", k=max(0, missing)))
        bodies.append(json.dumps(flight).encode()[:size])
    return bodies


def stamp(body: bytes) -> bytes:
    """Return the body with the time of now at its start."""
    return b"%020d" % time.monotonic_ns() + body[STAMP_BYTES:]


def age(body: bytes) -> float:
    """Return the seconds since the time in a stamped body."""
    return (time.monotonic_ns() - int(body[:STAMP_BYTES])) / 1e9


class Arrivals:
    """Counts arrived messages, and their ages if they are stamped."""

    def __init__(self, task: Task) -> None:
        self._meter = Meter(task)
        self._stamped = task.stamped

    def running(self) -> bool:
        return self._meter.running()

    def add(self, bodies: list[bytes]) -> None:
        meter = self._meter
        if self._stamped:
            now = time.perf_counter()
            for body in bodies:
                meter.done(1, now - age(body))
        else:
            meter.done(len(bodies))

    def result(self) -> Result:
        return self._meter.result()


class Schedule:
    """Messages that are due at a rate, counted from the start."""

    def __init__(self, task: Task) -> None:
        self._rate = task.rate
        self._start = time.perf_counter()
        self.sent = 0

    def due(self) -> int:
        """Return the number of messages to send now, and count them as sent."""
        due = int((time.perf_counter() - self._start) * self._rate) - self.sent
        self.sent += due
        return due


def go() -> None:
    """Report that the program is ready, and wait for the start."""
    print("ready", flush=True)
    sys.stdin.readline()


Action = Callable[[Task], Result]


def run(actions: Mapping[str, Action], arguments: list[str]) -> None:
    """Perform the action of a command line and print its result."""
    name, text = arguments
    print(json.dumps(actions[name](Task(**json.loads(text)))), flush=True)
