"""Stalled subscribers (R14) cost bounded memory, delay no other client, and catch up when they resume."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tickertape as tt
from tests.bench.stage import workers
from tests.helpers.admin import stats_of
from tests.helpers.processes import anonymous_bytes
from tests.helpers.stalled_subscriber import SECONDS, Stalled
from tickertape.base.limits import MIB
from tickertape.engine.limits import outbox_bytes_max
from tickertape.testing import RunningServer, running_server, wait_until

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "live": {"bookmark": "0|1|", "options": "live"},
    "replay": {"bookmark": "0"},
    "plain without credit": {"credit": 200_000},
    "live without credit": {"bookmark": "0|1|", "options": "live", "credit": 200_000},
}
"""Options of stalled subscriptions. The last two block before their socket is full."""
UNRECORDED = ("plain", "plain without credit")
ROUNDS = 5
BEFORE = 50_000
"""Messages published before, so that stalled subscribers block: their socket and outbox are full."""


class Load(NamedTuple):
    """How much is asked of a server."""

    stalled: int
    live: int
    per_second: int
    seconds: float

    @property
    def messages(self) -> int:
        """Return the number of published messages."""
        return int(self.per_second * self.seconds)


def publish_before(server: RunningServer) -> None:
    """Publish like the measured load: each body begins with its publish time."""
    with tt.Client("before", server.uri, timeout=SECONDS) as client:
        for _ in range(0, BEFORE, 500):
            client.publish_batch("paced", [b"%020d" % time.monotonic_ns() + bytes(180)] * 500)
        client.publish_flush(level="processed")


@contextlib.contextmanager
def stalling(server: RunningServer, count: int, *, recorded: bool) -> Iterator[dict[str, list[Stalled]]]:
    """Connect `count` blocked subscribers of all kinds, which read nothing."""
    kinds = [kind for kind in KINDS if recorded or kind in UNRECORDED]
    found: dict[str, list[Stalled]] = {kind: [] for kind in kinds}

    def all_blocked() -> bool:
        sessions = [one for one in stats_of(server).sessions if one.client.startswith("stalled-")]
        blocked = [state.blocked for session in sessions for state in session.subscriptions]
        return len(blocked) == count and all(blocked)

    try:
        for number in range(count):
            kind = kinds[number % len(kinds)]
            found[kind].append(Stalled(server.uri, f"stalled-{number}", "paced", **KINDS[kind]))
        wait_until(lambda: stats_of(server).subscription_count == count, SECONDS)
        publish_before(server)
        wait_until(all_blocked, SECONDS)
        yield found
    finally:
        for stalled in found.values():
            for one in stalled:
                one.close()


class Cost(NamedTuple):
    """The cost of a load."""

    delay: float
    """Of delivery to those who read, microseconds at p99."""
    grown: int
    """Memory of the server, bytes more than before, at most."""
    seconds: float
    """Time of the processor that the server took."""


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(server: RunningServer, load: Load) -> Cost:
    """Publish at the rate of the load, and wait until every reader has everything."""
    with workers(
        ("takers", server.uri, "paced", load.live, load.messages),
        ("paced", server.uri, "paced", load.messages, load.per_second),
    ) as (takers, paced):
        before = highest = anonymous_bytes(server.pid)
        seconds = processor_seconds(server.pid)
        takers.tell()
        paced.tell()
        end = time.monotonic() + load.seconds
        while time.monotonic() < end:
            highest = max(highest, anonymous_bytes(server.pid))
            time.sleep(0.05)
        paced.answer()
        delay = float(takers.answer())
    highest = max(highest, anonymous_bytes(server.pid))
    return Cost(delay, highest - before, processor_seconds(server.pid) - seconds)


def wake(stalled: Stalled, count: int, *, recorded: bool) -> None:
    """Let a subscriber read its remaining messages: all of them, once, in order."""
    last: dict[int, int] = {}
    moment = 0
    for batch in stalled.batches(count):
        moments = [int(body[:20]) for body in batch.bodies_list()]
        assert moments == sorted(moments)
        assert moments[0] >= moment
        moment = moments[-1]
        if recorded:
            assert not batch.has_sequences, "the publishers leave out none"
            for number in range(batch.run_count):
                run = batch.run(number)
                assert run.first_sequence == last.get(run.publisher, run.first_sequence - 1) + 1
                last[run.publisher] = run.first_sequence + run.message_count - 1


def server_of(directory: Path, *, recorded: bool) -> contextlib.AbstractContextManager[RunningServer]:
    config = "" if recorded else '[[journal.topic]]\nname = "other"\n'
    return running_server(directory, config=config)


@pytest.mark.slow
@pytest.mark.parametrize("recorded", [True, pytest.param(False, marks=pytest.mark.full)])
def test_server_with_stalled_subscribers_uses_bounded_memory_and_delivers_all_messages(
    tmp_path: Path, recorded: bool, full: bool
) -> None:
    load = Load(100, 10, 20_000, 60.0) if full else Load(15, 2, 4_000, 1.5)
    with (
        server_of(tmp_path / "data", recorded=recorded) as server,
        stalling(server, load.stalled, recorded=recorded) as stalled,
    ):
        cost = run(server, load)
        print(f"delay at p99 {cost.delay:,.0f} us, grown by {cost.grown / MIB:.1f} MiB")
        assert cost.grown <= load.stalled * outbox_bytes_max + 64 * MIB
        stats = stats_of(server)
        assert stats.totals.ended == {}
        if recorded:
            assert stats.slow_clients.live_fallbacks >= len(stalled["live without credit"])
        for kind in stalled.values():
            for one in kind[:2]:
                wake(one, BEFORE + load.messages, recorded=recorded)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("recorded", [True, False])
def test_server_with_stalled_subscribers_delivers_to_others_without_delay(
    tmp_path: Path, recorded: bool
) -> None:
    """At p99 delivery takes at most twice as long as without them, and the server half as much time again of
    the processor. Others use the machine too: of the rounds, each with and without them in turn, the second
    best is judged."""
    load = Load(100, 10, 20_000, 10.0)
    delays: list[float] = []
    seconds: list[float] = []
    for number in range(ROUNDS):
        costs = []
        for count in (0, load.stalled):
            with (
                server_of(tmp_path / f"{number} {count}", recorded=recorded) as server,
                stalling(server, count, recorded=recorded),
            ):
                costs.append(run(server, load))
        print(*costs)
        delays.append(costs[1].delay / costs[0].delay)
        seconds.append(costs[1].seconds / costs[0].seconds)
    assert sorted(delays)[1] <= 2, delays
    assert sorted(seconds)[1] <= 1.5, seconds
