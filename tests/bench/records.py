"""Queries, memory and starts of SOW topics, beside other stores.

Ratios are above 1 if ours is better. Both sides are measured in turn.
"""

from __future__ import annotations

import contextlib
import statistics
from typing import Final

import tickertape as tt
from tests.bench.record_bodies import (
    HITS,
    KEYS,
    PRICE_ABOVE,
    QTY_BELOW,
    body_of,
    key_of,
    matches_of,
    numbers_of,
    symbols_of,
)
from tests.bench.record_peers import DuckRecords, SqliteRecords, valkey_records
from tests.bench.record_stage import (
    TOPIC,
    TURNS,
    UPDATES,
    WITHOUT_INDEX,
    Medians,
    expect_records,
    fill_records,
    filled,
    in_turn,
    record_bytes,
    turns_of,
    update,
)
from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import FLUSH_SECONDS, publisher, stage, timed
from tests.helpers.processes import anonymous_bytes
from tickertape.testing import RunningServer

EXPLICIT: Final = f"""
[[sow]]
name = "{TOPIC}"
"""
FILTER: Final = f"/price > {PRICE_ABOVE} AND /qty < {QTY_BELOW}"
QUERIES: Final = 400
"""Queries of one turn, if each returns few records."""
SEARCHES: Final = 4
"""Queries of one turn, if each examines all records."""


@bench(
    "SOW topics",
    "all records in batches, against HGETALL of Valkey",
    unit="x",
    repeat=1,
    floor=2,
    aim=4,
)
def read_all(room: Room) -> Reading:
    keys = room.count(KEYS)

    def read(client: tt.Client) -> float:
        start = timed()
        records = sum(len(batch) for batch in client.sow(TOPIC).batches())
        taken = timed() - start
        assert records == keys
        return taken

    with valkey_records(room, keys) as valkey, filled(room, keys) as server:
        valkey.turn("hset")
        with tt.Client("bench-reader", server.uri) as client:
            found = in_turn(lambda _: read(client), lambda _: valkey.turn("hgetall"), turns_of(room))
    rates = f"{keys / found.ours:,.0f} records/s, {valkey.name} {keys / found.theirs:,.0f}"
    return Reading(found.ratio, rates)


def _query(client: tt.Client, matches: int) -> float:
    """Return the seconds of a query with conditions on two fields."""
    start = timed()
    found = sum(len(batch) for batch in client.sow(TOPIC, FILTER).batches())
    taken = timed() - start
    assert found == matches
    return taken


@bench(
    "SOW topics",
    "filter on 2 fields, first query of a server, against json_extract in SQLite",
    unit="x",
    repeat=1,
    floor=1,
    aim=1.5,
)
def filter_cold(room: Room) -> Reading:
    keys = room.count(KEYS)
    matches = matches_of(keys)

    def first(server: RunningServer) -> float:
        server.restart()
        with tt.Client("bench-reader", server.uri) as client:
            return _query(client, matches)

    with (
        contextlib.closing(SqliteRecords(room.directory / "records.db", keys)) as sqlite,
        filled(room, keys) as server,
    ):
        found = in_turn(lambda _: first(server), lambda _: sqlite.scan(matches), turns_of(room))
    return Reading(found.ratio, _scan_note(found, sqlite.name, matches, keys))


@bench(
    "SOW topics",
    "filter on 2 fields, later queries, against json_extract on a table of DuckDB",
    unit="x",
    repeat=1,
    floor=5,
    aim=15,
)
def filter_warm(room: Room) -> Reading:
    keys = room.count(KEYS)
    matches = matches_of(keys)
    with (
        contextlib.closing(DuckRecords(keys)) as duck,
        filled(room, keys) as server,
        tt.Client("bench-reader", server.uri) as client,
    ):
        _query(client, matches)
        duck.scan(matches)
        found = in_turn(lambda _: _query(client, matches), lambda _: duck.scan(matches), turns_of(room))
    return Reading(found.ratio, _scan_note(found, duck.name, matches, keys))


def _scan_note(found: Medians, name: str, matches: int, keys: int) -> str:
    times = f"{found.ours * 1e3:.3g} ms, {name} {found.theirs * 1e3:.3g} ms in this process"
    return f"{times}, {matches:,} of {keys:,} records"


def _latencies(found: Medians, name: str) -> str:
    return f"{found.ours * 1e6:.0f} us, {name} {found.theirs * 1e6:.0f} us"


@bench(
    "SOW topics",
    "50 records by an indexed field, p50, against an index of SQLite (RediSearch is not installed)",
    unit="x",
    repeat=1,
    floor=0.5,
    aim=1,
)
def indexed_field(room: Room) -> Reading:
    keys, count = room.count(KEYS), room.count(QUERIES)

    def symbols(turn: int) -> list[str]:
        return [f"S{number:05}" for number in numbers_of(turn, count, symbols_of(keys))]

    def ours(client: tt.Client, turn: int) -> float:
        taken = []
        for symbol in symbols(turn):
            start = timed()
            records = sum(len(batch) for batch in client.sow(TOPIC, f"/symbol = '{symbol}'").batches())
            taken.append(timed() - start)
            assert records == HITS
        return statistics.median(taken)

    def theirs(sqlite: SqliteRecords, turn: int) -> float:
        taken, records = zip(*map(sqlite.by_symbol, symbols(turn)), strict=True)
        assert set(records) == {HITS}
        return float(statistics.median(taken))

    with (
        contextlib.closing(SqliteRecords(room.directory / "records.db", keys)) as sqlite,
        filled(room, keys) as server,
        tt.Client("bench-reader", server.uri) as client,
    ):
        sqlite.add_index()
        found = in_turn(lambda turn: ours(client, turn), lambda turn: theirs(sqlite, turn), turns_of(room))
    return Reading(found.ratio, f"{_latencies(found, sqlite.name)} in this process, without a server")


def _by_key(client: tt.Client, topic: str, sow_keys: list[str]) -> float:
    """Return the median of the seconds of a query for one record."""
    taken = []
    for sow_key in sow_keys:
        start = timed()
        records = list(client.sow(topic, keys=[sow_key]))
        taken.append(timed() - start)
        assert len(records) == 1
    return statistics.median(taken)


@bench(
    "SOW topics",
    "one record by its explicit key, p50, against GET of Valkey",
    unit="x",
    repeat=1,
    floor=0.4,
    aim=0.67,
)
def one_by_explicit_key(room: Room) -> Reading:
    keys, count = room.count(KEYS), room.count(QUERIES)
    with (
        valkey_records(room, keys) as valkey,
        stage(room.directory, config=EXPLICIT) as server,
        publisher(server) as client,
    ):
        valkey.turn("set")
        for number in range(keys):
            client.publish(TOPIC, body_of(number, keys), sow_key=key_of(number))
        client.publish_flush(timeout=FLUSH_SECONDS)
        found = in_turn(
            lambda turn: _by_key(client, TOPIC, [key_of(n) for n in numbers_of(turn, count, keys)]),
            lambda turn: valkey.turn("get", turn, count),
            turns_of(room),
        )
    return Reading(found.ratio, _latencies(found, valkey.name))


@bench(
    "SOW topics",
    "one record by its generated key, p50, against GET of Valkey",
    unit="x",
    repeat=1,
    floor=0.4,
    aim=0.67,
)
def one_by_generated_key(room: Room) -> Reading:
    keys, count = room.count(KEYS), SEARCHES
    with (
        valkey_records(room, keys) as valkey,
        filled(room, keys) as server,
        tt.Client("bench-reader", server.uri) as client,
    ):
        valkey.turn("set")
        some = client.sow(TOPIC, order_by="/id", top_n=count * TURNS)
        known = [str(message.sow_key) for message in some]
        found = in_turn(
            lambda turn: _by_key(client, TOPIC, known[(turn - 1) * count : turn * count]),
            lambda turn: valkey.turn("get", turn, room.count(QUERIES)),
            turns_of(room),
        )
    return Reading(found.ratio, f"{_latencies(found, valkey.name)}, {count} queries a turn")


@bench(
    "SOW topics",
    "memory of a record, against a string of SET in Valkey",
    unit="x",
    repeat=3,
    floor=0.71,
    aim=1,
)
def memory_of_a_record(room: Room) -> Reading:
    keys = room.count(KEYS)
    with valkey_records(room, keys) as valkey, stage(room.directory, config=WITHOUT_INDEX) as server:
        ours, theirs = -anonymous_bytes(server.pid), -anonymous_bytes(valkey.pid)
        valkey.turn("set")
        fill_records(server, keys)
        ours += anonymous_bytes(server.pid)
        theirs += anonymous_bytes(valkey.pid)
        accounted = record_bytes(server)
    note = f"{ours / keys:.0f} bytes of the process ({accounted / keys:.0f} of records), "
    return Reading(theirs / ours, f"{note}{valkey.name} {theirs / keys:.0f} bytes, {keys:,} records")


def _starts(room: Room, *, kill: bool) -> Reading:
    """Return the seconds of Valkey until it has loaded its file, divided by ours until the ready line."""
    keys, count = room.count(KEYS), room.count(UPDATES)
    with valkey_records(room, keys) as valkey, stage(room.directory, config=WITHOUT_INDEX) as server:
        valkey.turn("set")
        fill_records(server, keys)

        def ours(turn: int) -> float:
            with publisher(server) as client:
                update(client, TOPIC, turn, count, keys)
            end = server.kill if kill else server.stop
            end()
            start = timed()
            server.start()
            taken = timed() - start
            expect_records(server, keys)
            return taken

        def theirs(turn: int) -> float:
            valkey.turn("set", turn, count)
            return valkey.start_again(kill=kill)

        found = in_turn(ours, theirs, turns_of(room))
    times = f"{found.ours:.2f} s, {valkey.name} {found.theirs:.2f} s"
    return Reading(found.ratio, f"{times}, {keys:,} records, {count:,} updates before each start")


@bench(
    "SOW topics",
    "start until ready, after a clean stop, against Valkey with its append-only file",
    unit="x",
    repeat=1,
    floor=1,
    aim=2,
)
def start_after_stop(room: Room) -> Reading:
    return _starts(room, kill=False)


@bench(
    "SOW topics",
    "start until ready, after SIGKILL, against Valkey with its append-only file",
    unit="x",
    repeat=1,
    floor=1,
    aim=2,
)
def start_after_kill(room: Room) -> Reading:
    return _starts(room, kill=True)
