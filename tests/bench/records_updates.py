"""Updates of the records of SOW topics: rates, the fold, memory, and a publisher beside hand-overs.

Ratios are above 1 if ours is better. Both sides are measured in turn.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Final

import numpy as np

import tickertape as tt
from tests.bench.mixed_load import TimedStore, delays
from tests.bench.record_bodies import KEYS, body_of, chunks, numbers_of
from tests.bench.record_peers import SqliteRecords, valkey_records
from tests.bench.record_stage import (
    TOPIC,
    UPDATES,
    WITHOUT_INDEX,
    fill_records,
    in_turn,
    record_bytes,
    turns_of,
    update,
)
from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import A_CALL, FLUSH_SECONDS, percentile, publisher, stage, timed, workers
from tests.helpers.processes import anonymous_bytes
from tickertape.batch import MessageBatch, batch_from_bodies
from tickertape.batch.format import I8
from tickertape.engine.sow.state.fold import Source, StateFold
from tickertape.engine.sow.state.keys import KeyReader
from tickertape.testing import RunningServer

PLAIN: Final = "plain"
RATE: Final = 20_000
SECONDS: Final = 8
SECONDS_MIN: Final = 2
FOLDED: Final = 512
"""Messages of one commit of the fold alone."""
ROUNDS: Final = 10
"""Updates of each record while the memory is measured."""


def _updates(room: Room, theirs: Callable[[int], float], name: str) -> Reading:
    """Return our rate of updates divided by the other one."""
    keys, count = room.count(KEYS), room.count(UPDATES)
    with stage(room.directory, config=WITHOUT_INDEX) as server:
        fill_records(server, keys)
        with publisher(server) as client:
            found = in_turn(lambda turn: update(client, TOPIC, turn, count, keys), theirs, turns_of(room))
    rates = f"{count / found.ours:,.0f} msg/s, {name} {count / found.theirs:,.0f}"
    return Reading(found.ratio, f"{rates}, {keys:,} records")


def _updates_beside_valkey(room: Room, action: str) -> Reading:
    keys, count = room.count(KEYS), room.count(UPDATES)
    with valkey_records(room, keys) as valkey:
        valkey.turn(action)
        return _updates(room, lambda turn: valkey.turn(action, turn, count), valkey.name)


@bench(
    "SOW topics",
    "updates by publish(), sync always, against HSET of 512 fields in Valkey with appendfsync everysec",
    unit="x",
    repeat=1,
    floor=1,
    aim=1.5,
)
def updates_against_hset(room: Room) -> Reading:
    return _updates_beside_valkey(room, "hset")


@bench(
    "SOW topics",
    "updates by publish(), sync always, against pipelines of 512 SET in Valkey with appendfsync everysec",
    unit="x",
    repeat=1,
    floor=3,
    aim=5,
)
def updates_against_set(room: Room) -> Reading:
    return _updates_beside_valkey(room, "set")


@bench(
    "SOW topics",
    "updates by publish(), sync always, against SQLite, WAL, synchronous FULL, 512 in a transaction",
    unit="x",
    repeat=1,
    floor=10,
    aim=20,
)
def updates_against_sqlite(room: Room) -> Reading:
    count = room.count(UPDATES)
    with contextlib.closing(SqliteRecords(room.directory / "records.db", room.count(KEYS))) as sqlite:
        return _updates(room, lambda turn: sqlite.upsert(turn, count), sqlite.name)


@bench(
    "SOW topics",
    "updates by publish(), sync always, against publish() to a topic without SOW",
    unit="x",
    repeat=1,
    floor=0.4,
    aim=0.6,
)
def updates_against_plain(room: Room) -> Reading:
    keys, count = room.count(KEYS), room.count(UPDATES)
    with stage(room.directory, config=WITHOUT_INDEX) as server:
        fill_records(server, keys)
        with publisher(server) as client:
            found = in_turn(
                lambda turn: update(client, TOPIC, turn, count, keys),
                lambda turn: update(client, PLAIN, turn, count, keys),
                turns_of(room),
            )
    rates = f"{count / found.ours:,.0f} msg/s, without SOW {count / found.theirs:,.0f}"
    return Reading(found.ratio, f"{rates}, {keys:,} records")


@bench("SOW topics", "new values in the fold alone, one core", unit="us/msg", floor=2, aim=1)
def fold_messages(room: Room) -> Reading:
    keys = room.count(KEYS)
    reader, fold = KeyReader(("/id",), "json"), StateFold(b"bench secret 16.")
    position = 0

    def apply(batch: MessageBatch) -> None:
        nonlocal position
        end = position + len(batch)
        read = reader.read(batch.bodies_list())
        assert not read.bad
        fold.publish(read.keys, Source(batch, position, end), np.arange(len(batch), dtype=I8))
        position = end
        while fold.has_care:
            fold.care()

    def batches(turn: int, numbers: list[int]) -> list[MessageBatch]:
        bodies = [body_of(number, keys, turn) for number in numbers]
        return [batch_from_bodies(TOPIC, part) for part in chunks(bodies, FOLDED)]

    for first in range(0, keys, A_CALL):
        for batch in batches(0, list(range(first, min(first + A_CALL, keys)))):
            apply(batch)
    taken = []
    count = room.count(UPDATES)
    for turn in range(1, turns_of(room) + 1):
        updates = batches(turn, numbers_of(turn, count, keys))
        start = time.process_time()
        for batch in updates:
            apply(batch)
        taken.append((time.process_time() - start) / sum(map(len, updates)))
    assert fold.records.record_count == keys
    note = f"processor time, {keys:,} records, {FOLDED} messages a commit, with their keys and compaction"
    return Reading(statistics.median(taken) * 1e6, note)


@bench(
    "SOW topics",
    "highest memory during 10 updates of each record, against the memory of the records",
    unit="x",
    repeat=1,
    floor=0.5,
    aim=0.67,
)
def memory_of_updates(room: Room) -> Reading:
    keys = room.count(KEYS)
    with stage(room.directory, config=WITHOUT_INDEX) as server:
        empty = anonymous_bytes(server.pid)
        fill_records(server, keys)
        live = record_bytes(server)
        highest = 0
        with publisher(server) as client:
            for turn in range(1, ROUNDS + 1):
                numbers = numbers_of(turn, keys, keys)
                for first in range(0, keys, A_CALL):
                    part = numbers[first : first + A_CALL]
                    client.publish_batch(TOPIC, [body_of(number, keys, turn) for number in part])
                    highest = max(highest, anonymous_bytes(server.pid))
                client.publish_flush(timeout=FLUSH_SECONDS)
        highest = max(highest, anonymous_bytes(server.pid)) - empty
    note = f"{live / keys:.0f} bytes a record, process {highest / keys:.0f} bytes above an empty server"
    return Reading(live / highest, f"{note}, {keys:,} records")


def _paced(server: RunningServer, keys: int, turn: int, seconds: int) -> float:
    """Return p99 of the seconds from the planned time of a publish until it is persisted."""
    store = TimedStore()
    bodies = [body_of(number, keys, turn) for number in numbers_of(turn, RATE, keys)]
    planned: list[float] = []
    last: int | None = None
    with tt.Client("bench-paced", server.uri, publish_store=store) as client:
        begun = timed()
        for number in range(seconds * RATE):
            planned.append(begun + number / RATE)
            while (ahead := planned[-1] - timed()) > 0:
                time.sleep(ahead)
            last = client.publish(TOPIC, bodies[number % len(bodies)])
        client.publish_flush(timeout=FLUSH_SECONDS)
    assert last is not None
    return percentile(delays(planned, last, store.persisted), 0.99)


@bench(
    "SOW topics",
    "20,000 updates/s alone, publish() to persisted, p99, against the same while a client reads all records",
    unit="x",
    repeat=1,
    floor=0.5,
    aim=0.77,
)
def hand_over(room: Room) -> Reading:
    keys, seconds = room.count(KEYS), max(SECONDS_MIN, room.count(SECONDS))
    taken: list[int] = []

    def beside(turn: int) -> float:
        with workers(("handovers", server.uri, TOPIC, keys)) as (worker,):
            worker.tell()
            latency = _paced(server, keys, turn, seconds)
            worker.tell()
            taken.append(int(worker.answer()))
        return latency

    with stage(room.directory, config=WITHOUT_INDEX) as server:
        fill_records(server, keys)
        found = in_turn(beside, lambda turn: _paced(server, keys, turn, seconds), turns_of(room))
    assert all(taken), f"a turn had no complete hand-over: {taken}"
    times = f"{found.theirs * 1e3:.3g} ms alone, {found.ours * 1e3:.3g} ms beside it"
    return Reading(
        found.ratio, f"{times}, {min(taken)} to {max(taken)} times {keys:,} records in {seconds} s"
    )
