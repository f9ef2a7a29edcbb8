"""Rate-limited replays, and the effect of stalled subscribers on others."""

from __future__ import annotations

import time

import tickertape as tt
from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import fill, stage, timed, workers
from tests.helpers.peer import Peer, frame
from tests.helpers.processes import anonymous_bytes
from tickertape.wire.commands import Ack, Subscribe

RATE = 10_000
STALLED = 100
LIVE = 10
STALLED_RATE = 20_000


@bench("replay control", "rate=10000 over 10 s: deviation of the delivered rate", unit="%", floor=1, aim=0.2)
def rate_deviation(room: Room) -> Reading:
    seconds = 2 if room.quick else 10
    with stage(room.directory) as server, tt.Client("bench-reader", server.uri) as client:
        fill(server, RATE * (seconds + 3))
        stream = client.bookmark_subscribe("orders", tt.EPOCH, rate=RATE)
        taken = 0
        batches = stream.batches()
        taken += len(next(batches))
        begun, before = timed(), taken
        last = begun
        while last - begun < seconds:
            taken += len(next(batches))
            last = timed()
        rate = (taken - before) / (last - begun)
    return Reading(abs(rate / RATE - 1) * 100, f"{rate:,.1f} msg/s over {last - begun:.1f} s")


def _stalled(room: Room, *, recorded: bool) -> Reading:
    """Highest growth of anonymous memory, in MiB."""
    seconds = 3 if room.quick else 60
    count = STALLED_RATE * seconds
    config = "" if recorded else '[[journal.topic]]\nname = "other"\n'
    with stage(room.directory, config=config) as server:
        stalled = [Peer(server.uri, f"bench-stalled-{number}") for number in range(STALLED)]
        for peer in stalled:
            peer.send(frame(Subscribe(id=1, sub_id="s", topic="paced", credit=1 << 30)))
            peer.until(Ack)
        with workers(
            ("listeners", server.uri, "paced", LIVE, count),
            ("paced", server.uri, "paced", count, STALLED_RATE),
        ) as (listeners, paced):
            before = highest = anonymous_bytes(server.pid)
            listeners.tell()
            paced.tell()
            end = timed() + seconds
            while timed() < end:
                highest = max(highest, anonymous_bytes(server.pid))
                time.sleep(0.05)
            reached, delay = paced.answer(), listeners.answer()
        highest = max(highest, anonymous_bytes(server.pid))
        for peer in stalled:
            peer.__exit__(None, None, None)
    return Reading(
        (highest - before) / (1 << 20),
        f"{before / (1 << 20):.0f} MiB before, {int(reached):,} msg/s, "
        f"delivery to the {LIVE} at p99 {int(delay):,} us",
    )


@bench(
    "slow readers",
    "100 stalled and 10 live subscribers at 20,000 msg/s for 60 s: growth of the server's memory",
    unit="MiB",
    repeat=1,
    floor=164,
    aim=82,
)
def stalled_readers(room: Room) -> Reading:
    return _stalled(room, recorded=True)


@bench(
    "slow readers",
    "the same on a non-persistent topic",
    unit="MiB",
    repeat=1,
    floor=164,
    aim=82,
)
def stalled_readers_non_persistent(room: Room) -> Reading:
    return _stalled(room, recorded=False)
