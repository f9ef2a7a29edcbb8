"""Logs that several benches read, each written once a run."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

from tests.bench.registry import Room
from tests.bench.stage import BODY, FLUSH_SECONDS, fill, publisher, stage
from tests.helpers.peer import Peer, frame
from tickertape.batch import batch_from_bodies
from tickertape.testing import RunningServer
from tickertape.wire.commands import Ack, Flush, Publish

RARE = 1_000
"""One message in this number has the topic `even`, and one has `burst`."""
BURSTS = 8
PUBLISHERS = 100
SINGLES = 1_000_000
ROWS = 5_000_000


@contextlib.contextmanager
def large_log(room: Room) -> Iterator[RunningServer]:
    """Run a server on the large log: `orders`, and one message in 1,000 each of `even` and `burst`."""
    with stage(room.shared.get("large", lambda path: _write_large(path, room.log_bytes))) as server:
        yield server


def large_count(room: Room) -> int:
    """Return the number of `orders` in the large log. `even` and `burst` have a thousandth each."""
    step = RARE * BURSTS
    return max(step, room.log_bytes // len(BODY) // step * step)


def _write_large(path: Path, log_bytes: int) -> None:
    """Write the large log: single messages of `even` between the others, and 8 bursts of `burst`."""
    step = RARE * BURSTS
    count = max(step, log_bytes // len(BODY) // step * step)
    bodies = [BODY] * RARE
    with stage(path) as server, publisher(server) as client, publisher(server, "bench-rare") as rare:
        for number in range(count // RARE):
            client.publish_batch("orders", bodies)
            rare.publish("even", BODY)
            if number % (count // RARE // BURSTS) == 0:
                rare.publish_batch("burst", [BODY] * (count // step))
        client.publish_flush(timeout=FLUSH_SECONDS)
        rare.publish_flush(timeout=FLUSH_SECONDS)


@contextlib.contextmanager
def singles_log(room: Room) -> Iterator[RunningServer]:
    """Run a server on a log that 100 publishers wrote one message a frame, in turn."""
    count = singles_count(room)
    with stage(room.shared.get("singles", lambda path: _write_singles(path, count))) as server:
        yield server


def singles_count(room: Room) -> int:
    """Return the number of messages in that log."""
    return room.count(SINGLES) // PUBLISHERS * PUBLISHERS


def _write_singles(path: Path, count: int) -> None:
    chance = random.Random(1)
    with stage(path) as server, contextlib.ExitStack() as open_peers:
        peers = [open_peers.enter_context(Peer(server.uri, f"single-{n}")) for n in range(PUBLISHERS)]
        for number in range(1, count // PUBLISHERS + 1):
            for peer in peers:
                batch = batch_from_bodies("orders", [chance.randbytes(len(BODY))])
                peer.send(frame(Publish(frame=number), batch))
            if number % 1_000 == 0:
                _flush(peers, number)
        _flush(peers, count)


def _flush(peers: list[Peer], number: int) -> None:
    """Wait until everything is persisted, which also reads the server's answers."""
    for peer in peers:
        peer.send(frame(Flush(id=number)))
    for peer in peers:
        peer.until(Ack)


@contextlib.contextmanager
def rows_log(room: Room) -> Iterator[RunningServer]:
    """Run a server on a log of incompressible bodies: Parquet would store a constant once."""
    with stage(room.shared.get("rows", lambda path: _write_rows(path, room.count(ROWS)))) as server:
        yield server


def _write_rows(path: Path, count: int) -> None:
    chance = random.Random(1)
    with stage(path) as server:
        fill(server, count, body_of=lambda _: chance.randbytes(len(BODY)))
