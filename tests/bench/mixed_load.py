"""Latency of one publisher while others replay, subscribe, compile filters and drop a connection."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

import tickertape as tt
from tests.bench.filtering import SYMBOLS, quote
from tests.bench.logs import large_log
from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import FLUSH_SECONDS, percentile, timed, workers
from tests.helpers.admin import stats_of
from tickertape.server.admin.schema import Durations

RATE = 5_000
SECONDS = 20
SECONDS_MIN = 4
REPLAYS = 5
LIVE = 100


class TimedStore(tt.MemoryPublishStore):
    """A publish store that records when the server has persisted which messages."""

    def __init__(self) -> None:
        super().__init__()
        self.persisted: list[tuple[int, float]] = []
        """Last persisted sequence, and the time of its acknowledgement."""

    def discard(self, sequence: int) -> None:
        self.persisted.append((sequence, timed()))
        super().discard(sequence)


def delays(planned: list[float], last: int, persisted: list[tuple[int, float]]) -> list[float]:
    """Return the seconds from the planned time of each message until it is persisted.

    `last`: sequence of the last message. Those of the others precede it without a gap.
    """
    sequences, times = zip(*persisted, strict=True)
    wanted = np.arange(last + 1 - len(planned), last + 1)
    acknowledgements = np.searchsorted(np.array(sequences), wanted)
    return list(np.array(times)[acknowledgements] - np.array(planned))


def quantile(durations: Durations, share: float) -> float:
    """Return the upper bound of the bucket with this quantile, in seconds, or the longest if it is less."""
    wanted = durations.count * share
    bounds = (bound for bound, count in durations.buckets if count >= wanted)
    return min(next(bounds, durations.highest_seconds), durations.highest_seconds)


class Load(NamedTuple):
    """Latencies of a run."""

    seconds: list[float]
    """From the planned time of each publish until it is persisted."""
    longest_answer: float
    """Longest answer to a flush every 5 ms on a connection that only flushes, in milliseconds."""
    steps: Durations
    """Steps of the event loop of the server, which serves nothing but this load."""
    note: str


def _run(room: Room) -> Load:
    seconds = max(SECONDS_MIN, room.count(SECONDS))
    count = seconds * RATE
    bodies = [quote(number) for number in range(SYMBOLS)]
    store = TimedStore()
    last: int | None = None
    with (
        large_log(room) as server,
        tt.Client("bench-mixed", server.uri, publish_store=store) as client,
        workers(
            ("probe", server.uri),
            ("symbols", server.uri, "quotes", 1, room.count(SYMBOLS), count),
            ("filters", server.uri, "quotes"),
            ("ranges", server.uri, "quotes", LIVE, count),
            *[("replays", server.uri, "orders", 0)] * REPLAYS,
        ) as (probe, dropped, compiling, live, *replays),
    ):
        for worker in (probe, dropped, compiling, live, *replays):
            worker.tell()
        planned: list[float] = []
        begun = timed()
        for number in range(count):
            planned.append(begun + number / RATE)
            while (ahead := planned[-1] - timed()) > 0:
                time.sleep(ahead)
            last = client.publish("quotes", bodies[number % SYMBOLS])
            if number == count // 2:
                dropped.kill()
        client.publish_flush(timeout=FLUSH_SECONDS)
        took = timed() - begun
        for worker in (probe, compiling, *replays):
            worker.tell()
        assert live.answer() == "all"
        longest, compiled = float(probe.answer()), int(compiling.answer())
        delivered = [int(worker.answer()) for worker in replays]
        steps = stats_of(server).event_loop
    assert all(delivered), f"some of the replays got nothing: {delivered}"
    assert compiled, "no filter was compiled"
    note = f"{count / took:,.0f} msg/s for {seconds} s, replays {sum(delivered) / took:,.0f} msg/s"
    assert last is not None
    return Load(delays(planned, last, store.persisted), longest, steps, note)


@bench(
    "mixed load",
    "publish() to persisted at 5,000 msg/s, p99.9, sync always",
    unit="ms",
    floor=50,
    aim=15,
)
def publish_p999(room: Room) -> Reading:
    load = _run(room)
    middle = percentile(load.seconds, 0.5) * 1e3
    return Reading(percentile(load.seconds, 0.999) * 1e3, f"p50 {middle:.2g} ms, {load.note}")


@bench(
    "mixed load",
    "longest answer to a flush every 5 ms on a second connection",
    unit="ms",
    floor=20,
    aim=5,
)
def longest_answer(room: Room) -> Reading:
    load = _run(room)
    middle = percentile(load.seconds, 0.5) * 1e3
    return Reading(load.longest_answer, f"publish p50 {middle:.2g} ms, {load.note}")


@bench(
    "mixed load",
    "steps of the event loop, p99.9",
    unit="ms",
    floor=20,
    aim=5,
)
def loop_step_p999(room: Room) -> Reading:
    load = _run(room)
    longest = load.steps.highest_seconds * 1e3
    note = f"upper bound of the bucket, {load.steps.count:,} steps, longest {longest:.3g} ms, {load.note}"
    return Reading(quantile(load.steps, 0.999) * 1e3, note)
