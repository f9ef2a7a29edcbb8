"""Connections without a logon (R15) cost bounded memory, delay no client, and are closed in time."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.test_slow_consumers import Load, run
from tests.helpers.peer import frame
from tests.helpers.processes import anonymous_bytes
from tickertape.base.limits import MIB, frame_bytes_before_logon_max
from tickertape.server.limits import logon_seconds_max
from tickertape.testing import RunningServer, running_server
from tickertape.wire.commands import PREFACE, Logon

SAID = (
    b"",
    PREFACE[:3],
    PREFACE,
    PREFACE + frame(Logon(name="stranger"))[:-1],
    PREFACE + struct.pack("<IIII", frame_bytes_before_logon_max, 32, 0, 0),
    PREFACE + struct.pack("<IIII", frame_bytes_before_logon_max, 32, 0, 0) + bytes(4_000),
)
"""Bytes that each of them sends before it falls silent."""
GROWN_BYTES_MAX = 32 * MIB
CONNECTIONS = 300
CONNECTIONS_FULL = 2_000
ROUNDS = 5
SLACK_SECONDS = 5.0
"""Seconds that a busy machine may add to the time limit of a logon."""

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def silent_connections(server: RunningServer, count: int) -> Iterator[list[socket.socket]]:
    """Open `count` connections that do not log on."""
    host, port = server.uri.removeprefix("tcp://").split(":")
    with contextlib.ExitStack() as opened:
        found = []
        for number in range(count):
            one = opened.enter_context(socket.create_connection((host, int(port)), timeout=20))
            one.sendall(SAID[number % len(SAID)])
            found.append(one)
        yield found


def seconds_until_closed(connections: list[socket.socket], begun: float) -> float:
    """Until the server has closed the last of them."""
    with selectors.DefaultSelector() as selector:
        for one in connections:
            one.setblocking(False)
            selector.register(one, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(logon_seconds_max + SLACK_SECONDS)
            assert ready, f"{len(selector.get_map())} are still there"
            for key, _ in ready:
                assert isinstance(key.fileobj, socket.socket)
                with contextlib.suppress(ConnectionResetError):
                    if key.fileobj.recv(65_536):
                        continue  # the goodbye
                selector.unregister(key.fileobj)
    return time.monotonic() - begun


def test_connections_without_logon_use_bounded_memory_and_are_closed_in_time(
    tmp_path: Path, full: bool
) -> None:
    with running_server(tmp_path / "data") as server:
        before = anonymous_bytes(server.pid)
        begun = time.monotonic()
        with silent_connections(server, CONNECTIONS_FULL if full else CONNECTIONS) as connections:
            highest = 0
            while time.monotonic() - begun < (logon_seconds_max - 1 if full else 0.2):
                highest = max(highest, anonymous_bytes(server.pid))
                time.sleep(0.05)
            print(f"grown by {(highest - before) / MIB:.1f} MiB")
            assert highest - before < GROWN_BYTES_MAX
            if full:
                seconds = seconds_until_closed(connections, begun)
                print(f"gone after {seconds:.1f} s")
                assert seconds < logon_seconds_max + SLACK_SECONDS


@pytest.mark.full
def test_connections_without_logon_do_not_delay_delivery(tmp_path: Path) -> None:
    """At p99, delivery takes at most twice as long while the connections are opened, stay and are closed.

    Other programs use the machine too. So each round measures with and without them, and the second best is
    judged.
    """
    load = Load(0, 10, 10_000, 12.0)
    delays = []
    for number in range(ROUNDS):
        costs = []
        for count in (0, CONNECTIONS_FULL):
            with (
                running_server(tmp_path / f"{number} {count}") as server,
                silent_connections(server, count),
            ):
                costs.append(run(server, load))
        print(*costs)
        delays.append(costs[1].delay / costs[0].delay)
    assert sorted(delays)[1] <= 2, delays
