"""Fuzz targets of claims: logons and publishes of a client at a server whose log may lack messages.

Must never repair an input.
"""

from __future__ import annotations

from typing import Final

from tests.fuzz.mutations import mended_frames
from tests.fuzz.target import Target
from tests.helpers.replicating_world import ReplicatingWorld
from tickertape.base.limits import last_persisted_max
from tickertape.base.names import publisher_id
from tickertape.batch import batch_from_bodies
from tickertape.wire.commands import PREFACE, Logon, Publish
from tickertape.wire.connection import Connection, Violation
from tickertape.wire.frames import encode_frame

_CONN: Final = 77
_CLAIMS: Final = (0, 1, 40, 90, last_persisted_max, last_persisted_max + 1, 2**64 - 1)


def claims(data: bytes) -> str:
    """Feed an engine: no exception, and its holes stay disjoint and at or below the highest sequence."""
    world = ReplicatingWorld(1)
    connection = Connection("server")
    connection.logged_on()
    world.broker.connected(_CONN)
    for event in connection.feed(data):
        if isinstance(event, Violation):
            world.broker.goodbye(_CONN, event.error)
        else:
            world.broker.received(_CONN, event.command, event.batch, world.now())
        world.collect()
    world.settle()
    assert world.fatal is None
    exact = world.broker._writer.exact
    assert exact is not None
    for publisher, highest in world.broker.journal.highest.items():
        edges = [edge for hole in exact.known.holes(publisher) for edge in (hole.first, hole.last + 1)]
        assert edges == sorted(edges)
        assert max(edges, default=0) <= highest + 1
    return "stays" if _CONN in world.broker.connections else "sent away"


def _logons() -> list[bytes]:
    """Return logons with claims, each with publishes above and below its claim."""
    publisher = publisher_id("fuzzer")
    batches = [
        batch_from_bodies("orders", [b"1", b"2", b"3"], publisher=publisher, first_sequence=first)
        for first in (50, 95, 96)
    ]
    publishes = b"".join(
        b"".join(bytes(part) for part in encode_frame(Publish(frame=at + 1, sequenced=True), batch))
        for at, batch in enumerate(batches)
    )
    logons = [Logon(name="fuzzer", persisted=claim, session=at + 1) for at, claim in enumerate(_CLAIMS)]
    return [PREFACE + b"".join(bytes(p) for p in encode_frame(logon)) + publishes for logon in logons]


CLAIM_TARGETS: Final = {"claims": Target(claims, _logons, mended_frames, cost=20)}
