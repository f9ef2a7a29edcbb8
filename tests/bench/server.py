"""The server itself: its memory under slow readers, its start on a large log."""

from __future__ import annotations

import time
from pathlib import Path

from tests.bench.logs import large_log
from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import BODY, fill, timed, workers
from tests.helpers.processes import anonymous_bytes

RATES = (0, 20e6, 2e6, 200e3)
"""Bytes a second. 0: unlimited."""
CLIENTS = 20
SECONDS = 20.0
OPEN_BYTES = 450_000_000
"""Published before a SIGKILL: segments double up to 256 MB, so that the one that is open then holds much."""


@bench(
    "server",
    "anonymous memory, highest, while 20 clients replay the large log at different speeds",
    unit="MB",
    repeat=1,
    floor=150,
    aim=80,
)
def memory_under_replays(room: Room) -> Reading:
    seconds = SECONDS / 10 if room.quick else SECONDS
    with large_log(room) as server:
        before = highest = anonymous_bytes(server.pid)
        commands = [("replays", server.uri, "orders", RATES[n % len(RATES)]) for n in range(CLIENTS)]
        with workers(*commands) as started:
            for worker in started:
                worker.tell()
            end = timed() + seconds
            while timed() < end:
                highest = max(highest, anonymous_bytes(server.pid))
                time.sleep(0.02)
            for worker in started:
                worker.tell()
            delivered = [int(worker.answer()) for worker in started]
        highest = max(highest, anonymous_bytes(server.pid))
    assert all(delivered), f"some of the replays got nothing: {delivered}"
    total = sum(delivered) * len(BODY) / 1e9
    return Reading(
        highest / 1e6,
        f"{before / 1e6:.0f} MB before, in {seconds:.0f} s {total:.1f} GB went to {CLIENTS} processes, "
        f"{min(delivered):,} to {max(delivered):,} messages each",
    )


@bench("server", "start on the large log until ready, after a clean stop", unit="s", floor=1, aim=0.5)
def start_after_stop(room: Room) -> Reading:
    with large_log(room) as server:
        server.stop()
        start = timed()
        server.start()
        return Reading(timed() - start, f"{_size(server.data):.1f} GB of segments, in the page cache")


@bench("server", "start on the large log until ready, after SIGKILL", unit="s", floor=5, aim=1)
def start_after_kill(room: Room) -> Reading:
    size = OPEN_BYTES * room.log_bytes // (4 << 30)
    with large_log(room) as server:
        fill(server, size // len(BODY), "tail")
        server.kill()
        start = timed()
        server.start()
        taken = timed() - start
        return Reading(
            taken,
            f"{_size(server.data):.1f} GB of segments, {size / 1e6:.0f} MB published since the last start",
        )


def _size(data: Path) -> float:
    return sum(path.stat().st_size for path in (data / "journal").iterdir()) / 1e9
