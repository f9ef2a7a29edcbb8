"""Filters: alone, in a replay, and many of them at the end of the log."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np

import tickertape as tt
from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import A_CALL, FLUSH_SECONDS, fill, publisher, stage, timed, workers
from tests.helpers.engine_parts import make_compiler
from tickertape.batch import batch_from_bodies
from tickertape.engine.sessions.session import Subscriber

SYMBOLS = 10_000
CONNECTIONS = 100
STALLED_CONNECTIONS = 4
MIXED_CONNECTIONS = 10
MIXED = 1_000


def quote(number: int) -> bytes:
    """200 bytes of JSON with one of `SYMBOLS` symbols."""
    fields = {"symbol": f"S{number % SYMBOLS:04}", "price": number % 1000 + 0.5, "venue": f"N{number % 977}"}
    text = json.dumps(fields)
    return (text[:-1] + ', "x": "' + "x" * (200 - len(text) - 9) + '"}').encode()


assert len(quote(7)) == 200


@bench(
    "filters",
    "two fields of a 200-byte JSON body, evaluated in the engine, one core",
    unit="msg/s",
    floor=1_500_000,
    aim=3_000_000,
)
def evaluate(room: Room) -> Reading:
    content = (
        make_compiler()
        .compile("t", "/symbol = 'S0042' AND /price > 10", None, Subscriber(None, "bench"))
        .content
    )
    assert content is not None
    batches = [batch_from_bodies("t", [quote(i + 512 * n) for i in range(512)]) for n in range(20)]
    indices = np.arange(512)
    rounds = room.count(100)
    found = 0
    start = time.process_time()
    for _ in range(rounds):
        for batch in batches:
            found += len(content.matching_rows(batch, indices))
    taken = time.process_time() - start
    assert found == rounds * 2, "two of the 10,240 messages pass"
    return Reading(rounds * 20 * 512 / taken, "processor time, batches of 512")


@bench(
    "filters",
    "replay of 5 million messages through a filter that passes 1 %: messages scanned",
    unit="msg/s",
    repeat=1,
    floor=1_000_000,
    aim=2_500_000,
)
def replay_filtered(room: Room) -> Reading:
    count = room.count(5_000_000)

    def write(path: Path) -> None:
        with stage(path) as server:
            fill(server, count, "quotes", quote)

    with (
        stage(room.shared.get("quotes", write)) as server,
        tt.Client("bench-reader", server.uri) as client,
    ):
        start = timed()
        messages = 0
        for batch in client.replay("quotes", filter="/symbol < 'S0100'").batches():
            messages += len(batch)
        taken = timed() - start
    assert messages == sum(1 for n in range(count) if n % SYMBOLS < 100)
    return Reading(count / taken, f"{messages:,} messages delivered, log in the page cache")


def _publish(client: tt.Client, bodies: list[bytes]) -> None:
    """Publish all of them, until they are persisted."""
    for at in range(0, len(bodies), A_CALL):
        client.publish_batch("quotes", bodies[at : at + A_CALL])
    client.publish_flush(timeout=FLUSH_SECONDS)


def _rate(room: Room, listeners: list[tuple[object, ...]], count: int, name: str) -> float:
    """Return messages a second of one publisher, until all matching ones are delivered."""
    bodies = [quote(n) for n in range(count)]
    (room.directory / name).mkdir()
    with stage(room.directory / name) as server, publisher(server) as client:
        commands = [(kind, server.uri, *arguments) for kind, *arguments in listeners]
        with workers(*commands) as started:
            for worker in started:
                worker.tell()
            start = timed()
            _publish(client, bodies)
            for worker in started:
                worker.answer()
            return count / (timed() - start)


@bench(
    "filters",
    "one publisher, 10,000 subscriptions /symbol = '...' on 100 connections, against one of them",
    unit="x",
    repeat=1,
    floor=0.3,
    aim=0.7,
)
def many_subscriptions(room: Room) -> Reading:
    count = max(SYMBOLS, room.count(400_000) // SYMBOLS * SYMBOLS)
    one = _rate(room, [("symbols", "quotes", 1, 1, count // SYMBOLS)], count, "one")
    per = SYMBOLS // CONNECTIONS
    many = _rate(room, [("symbols", "quotes", CONNECTIONS, per, count)], count, "many")
    return Reading(many / one, f"{many:,.0f} msg/s against {one:,.0f}, all subscribers in one process")


def _all_symbols(room: Room, connections: int) -> Reading:
    count = max(SYMBOLS, room.count(400_000) // SYMBOLS * SYMBOLS)
    listener = ("symbols", "quotes", connections, SYMBOLS // connections, count)
    return Reading(_rate(room, [listener], count, "all"), "all subscribers in one process")


@bench(
    "filters",
    "10,000 subscriptions /symbol = '...' on 100 connections, each message to one of them",
    unit="msg/s",
    floor=250_000,
    aim=350_000,
)
def on_100_connections(room: Room) -> Reading:
    return _all_symbols(room, CONNECTIONS)


@bench(
    "filters",
    "10,000 subscriptions /symbol = '...' on one connection, each message to one of them",
    unit="msg/s",
    floor=180_000,
    aim=250_000,
)
def on_one_connection(room: Room) -> Reading:
    return _all_symbols(room, 1)


@bench(
    "filters",
    "10,000 subscriptions on 4 connections suspended during the publish, until all is delivered",
    unit="msg/s",
    repeat=1,
)
def after_a_stall(room: Room) -> Reading:
    count = max(SYMBOLS, room.count(600_000) // SYMBOLS * SYMBOLS)
    bodies = [quote(n) for n in range(count)]
    per = SYMBOLS // STALLED_CONNECTIONS
    with (
        stage(room.directory) as server,
        publisher(server) as client,
        workers(("symbols", server.uri, "quotes", STALLED_CONNECTIONS, per, count)) as started,
    ):
        (worker,) = started
        worker.tell()
        worker.stand_still()
        _publish(client, bodies)
        worker.go_on()
        start = timed()
        worker.answer()
        taken = timed() - start
    return Reading(count / taken, f"{200 * count >> 20} MiB published meanwhile, subscribers in one process")


@bench(
    "filters",
    "1,000 subscriptions with ranges and LIKE mixed, on 10 connections, until all is delivered",
    unit="msg/s",
    repeat=1,
    floor=60_000,
    aim=100_000,
)
def mixed_subscriptions(room: Room) -> Reading:
    count = room.count(200_000)
    rate = _rate(
        room, [("mixed", "quotes", MIXED_CONNECTIONS, MIXED // MIXED_CONNECTIONS, count)], count, "mixed"
    )
    return Reading(rate, "every other one a range of a hundredth, every other one a LIKE of a prefix")
