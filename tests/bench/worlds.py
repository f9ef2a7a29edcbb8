"""Simulated worlds in a second of one processor: each lived to its end, with a crash and a judgement."""

from __future__ import annotations

import time
from collections import Counter

from tests.bench.registry import Reading, Room, bench
from tests.world.life import MACHINES, TRIO, Shape, live
from tests.world.machines import MachineShape

BEFORE = 10
"""Worlds that are lived first: what is imported and compiled once is no part of it."""


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


@bench("worlds", "one server, publisher and reader, machines alone", unit="worlds/s", floor=150, aim=500)
def worlds_of_machines(room: Room) -> Reading:
    return _lived(MACHINES, room.count(600))


@bench("worlds", "one server, a queue, three asyncio clients", unit="worlds/s", floor=10, aim=50)
def worlds_of_three_clients(room: Room) -> Reading:
    return _lived(TRIO, room.count(100))
