"""TLS against a plain connection: two addresses of one server, in turn."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator

import tickertape as tt
from tests.bench.one_in_flight import BLOCK, publish_singly
from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import BODY, fill, percentile, timed
from tests.helpers.certificates import Authority, transport
from tickertape.testing import RunningServer, running_server
from tickertape.testing.ports import ReservedPort

HOST = "127.0.0.1"
TURNS = 5


@contextlib.contextmanager
def _server(room: Room) -> Iterator[tuple[RunningServer, str, tt.TLS]]:
    """Run a server, and return its TLS address and the certificates for it too."""
    authority = Authority(room.directory)
    port = ReservedPort()
    plain = '[journal]\nsync = "always"\n[[transport]]\nlisten = "tcp://127.0.0.1:0"\n'
    config = plain + transport(authority.issue(HOST), port=port.number)
    try:
        with running_server(room.directory / "data", config, listen=None) as server:
            yield server, f"tls://{HOST}:{port.number}", tt.TLS(ca=authority.ca)
    finally:
        port.release()


def _replay(client: tt.Client, count: int) -> float:
    """Return the seconds of a replay through `batches()`."""
    start = timed()
    assert sum(len(batch) for batch in client.replay("orders").batches()) == count
    return timed() - start


@bench("tls", "replay through batches(), tls:// against tcp://", unit="x", repeat=1, floor=0.5, aim=0.5)
def replay(room: Room) -> Reading:
    count = room.count(2_000_000)
    with _server(room) as (server, uri, tls):
        fill(server, count)
        with tt.Client("bench-plain", server.uri) as plain, tt.Client("bench-tls", uri, tls=tls) as encrypted:
            taken = [(_replay(plain, count), _replay(encrypted, count)) for _ in range(TURNS)]
    seconds, seconds_tls = map(statistics.median, zip(*taken, strict=True))
    note = f"{count * len(BODY) / seconds_tls / 1e6:,.0f} MB/s of bodies, plain "
    return Reading(seconds / seconds_tls, f"{note}{count * len(BODY) / seconds / 1e6:,.0f} MB/s, in turn")


@bench(
    "tls",
    "publish() to persisted, one in flight, p50, sync always: tls:// above tcp://",
    unit="us",
    floor=40,
    aim=40,
)
def one_in_flight(room: Room) -> Reading:
    count = room.count(2_000)
    taken: list[float] = []
    with _server(room) as (server, uri, tls), tt.Client("bench-tls", uri, tls=tls) as encrypted:

        def block() -> None:
            taken.extend(publish_singly(encrypted, BLOCK))

        with tt.Client("bench-plain", server.uri) as plain:
            ours = publish_singly(plain, count, block)
    middle, middle_tls = (percentile(values, 0.5) * 1e6 for values in (ours, taken))
    return Reading(middle_tls - middle, f"{middle_tls:.0f} us less {middle:.0f} us, in turn")
