"""Simulations per second of one processor: each is complete, with a crash and its checks."""

from __future__ import annotations

import time
from collections import Counter

from tests.bench.registry import Reading, Room, bench
from tests.world.life import MACHINES, TRIO, Shape, live
from tests.world.machines import MachineShape

BEFORE = 10
"""Simulations before the measurement, so that imports and compilation do not count."""


def _lived(shape: Shape | MachineShape, worlds: int) -> Reading:
    counts: Counter[str] = Counter()
    for seed in range(BEFORE):
        live(seed, shape, Counter())
    began = time.process_time()
    for seed in range(worlds):
        live(seed, shape, counts)
    taken = time.process_time() - began
    ends = ("power lost", "power lost in a disk operation", "server killed", "a disk ended a server")
    crashes = sum(counts[name] for name in ends)
    each = f"{counts['messages'] / worlds:.0f} messages and {crashes / worlds:.1f} crashes of the server each"
    return Reading(worlds / taken, note=each)


@bench("simulations", "one server, publisher and reader, machines alone", unit="runs/s", floor=150, aim=500)
def worlds_of_machines(room: Room) -> Reading:
    return _lived(MACHINES, room.count(600))


@bench("simulations", "one server, a queue, three asyncio clients", unit="runs/s", floor=10, aim=50)
def worlds_of_three_clients(room: Room) -> Reading:
    return _lived(TRIO, room.count(100))
