"""Stage of the SOW benches: a server with records, updates, and alternate turns of two stores."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import tickertape as tt
from tests.bench.record_bodies import body_of, numbers_of
from tests.bench.registry import Room
from tests.bench.stage import FLUSH_SECONDS, fill, stage, timed
from tests.helpers.admin import stats_of
from tickertape.testing import RunningServer

TOPIC: Final = "orders"
CONFIG: Final = f"""
[[sow]]
name = "{TOPIC}"
key = ["/id"]
index = [["/symbol"]]

[[topic]]
name = "{TOPIC}"
message_type = "json"
"""
WITHOUT_INDEX: Final = CONFIG.replace('index = [["/symbol"]]\n', "")
TURNS: Final = 5
UPDATES: Final = 200_000
"""Updates of one turn."""


class Medians(NamedTuple):
    """Medians of the turns."""

    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        """Return how many times as long theirs takes."""
        return self.theirs / self.ours


def in_turn(ours: Callable[[int], float], theirs: Callable[[int], float], turns: int) -> Medians:
    """Return the medians of alternate turns. Both are called with the number of the turn, from 1 on."""
    taken = [(ours(turn), theirs(turn)) for turn in range(1, turns + 1)]
    first, second = zip(*taken, strict=True)
    return Medians(statistics.median(first), statistics.median(second))


def turns_of(room: Room) -> int:
    return 2 if room.quick else TURNS


def fill_records(server: RunningServer, keys: int) -> None:
    """Publish all records, and wait until queries return them."""
    fill(server, keys, TOPIC, lambda number: body_of(number, keys))
    expect_records(server, keys)


def expect_records(server: RunningServer, keys: int) -> None:
    """Fail unless the topic has this number of records."""
    with tt.Client("bench-counter", server.uri) as client:
        result = client.sow(TOPIC, top_n=0)
        assert not list(result)
        assert result.topic_matches == keys


@contextlib.contextmanager
def filled(room: Room, keys: int) -> Iterator[RunningServer]:
    """Run a server with records that no bench changes."""

    def write(path: Path) -> None:
        with stage(path, config=CONFIG) as server:
            fill_records(server, keys)

    with stage(room.shared.get("records", write), config=CONFIG) as server:
        yield server


def update(client: tt.Client, topic: str, turn: int, count: int, keys: int) -> float:
    """Return the seconds of `count` publishes, until the last one is persisted."""
    bodies = [body_of(number, keys, turn) for number in numbers_of(turn, count, keys)]
    start = timed()
    for body in bodies:
        client.publish(topic, body)
    client.publish_flush(timeout=FLUSH_SECONDS)
    return timed() - start


def record_bytes(server: RunningServer) -> int:
    """Return the memory of all records as the server counts it."""
    state = stats_of(server).sow
    assert state is not None
    return state.memory_bytes
