"""State of the world (SOW): the last flight of each aircraft, by its tail number.

Flights without a tail number have no key, so the server refuses them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

import tickertape as tt
from examples.demo.checking import CheckFailed
from tickertape.testing import RunningServer

TOPIC: Final = "aircraft"
CONFIG: Final = '[[sow]]\nname = "aircraft"\nkey = ["/tailnum"]\n'
SECONDS_MAX: Final = 120.0
_BATCH: Final = 5_000


class Aircraft(NamedTuple):
    """The records of the topic, after they were checked."""

    published: int
    refused: int
    records: int
    carriers: list[tuple[str, int]]
    """Carriers and their number of records, most records first."""


class _Own(msgspec.Struct):
    tailnum: str | None
    carrier: str


_own = msgspec.json.Decoder(_Own).decode


def last_flights(flights: Iterable[bytes]) -> dict[str, bytes]:
    """Return the last flight of each tail number, computed in plain Python."""
    return {own.tailnum: body for body in flights if (own := _own(body)).tailnum is not None}


def carriers_of(records: Iterable[bytes]) -> list[tuple[str, int]]:
    """Return the carriers of records and their numbers, most records first, then by name."""
    counts = Counter(_own(body).carrier for body in records)
    return sorted(counts.items(), key=lambda one: (-one[1], one[0]))


def query(uri: str) -> dict[str, bytes]:
    """Return all records, by tail number. Raises `CheckFailed` if a key has two records."""
    found: dict[str, bytes] = {}
    with tt.Client("demo-hangar", uri, timeout=SECONDS_MAX) as client:
        for message in client.sow(TOPIC):
            tailnum = _own(message.data).tailnum
            if tailnum is None or tailnum in found:
                raise CheckFailed(f"A record has no tail number, or the number of another one: {tailnum}.")
            found[tailnum] = message.data
    return found


def refused_keys(error: tt.TickertapeError, batch: tt.MessageBatch | None) -> int:
    """Return the number of messages that were refused for their key. Raises any other error."""
    if not str(error).startswith("bad_sow_key:") or batch is None:
        raise error
    return len(batch)


def publish(uri: str, flights: Sequence[bytes]) -> int:
    """Publish all flights in order, and return how many were refused."""
    refused: list[int] = []
    store = tt.MemoryPublishStore()
    with tt.Client("demo-tower", uri, publish_store=store, timeout=SECONDS_MAX) as client:
        client.set_failed_write_handler(lambda error, batch: refused.append(refused_keys(error, batch)))
        for first in range(0, len(flights), _BATCH):
            client.publish_batch(TOPIC, flights[first : first + _BATCH])
        client.publish_flush(timeout=SECONDS_MAX)
    return sum(refused)


def keep_last_flights(server: RunningServer, flights: Sequence[bytes]) -> Aircraft:
    """Publish all flights, kill the server, and compare the records with plain Python.

    Raises `CheckFailed`."""
    refused = publish(server.uri, flights)
    server.kill()
    server.restart()
    found, expected = query(server.uri), last_flights(flights)
    without = sum(_own(body).tailnum is None for body in flights)
    if found != expected or refused != without:
        raise CheckFailed(
            f"{len(found):,} records and {refused:,} refused flights, but expected {len(expected):,} and "
            f"{without:,}, or a record differs."
        )
    return Aircraft(len(flights), refused, len(found), carriers_of(found.values()))
