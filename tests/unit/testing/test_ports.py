"""Reserved test ports: exclusive while held, and below the ephemeral ports of the system."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.processes import source_environment
from tickertape.testing import ports
from tickertape.testing.ports import NoPort, ReservedPort


def test_reserved_port_is_exclusive_until_release() -> None:
    held = [ReservedPort() for _ in range(20)]
    numbers = [port.number for port in held]
    assert len(set(numbers)) == 20
    assert ports._hold(numbers[0]) is None
    held[0].release()
    held[0].release()
    again = ports._hold(numbers[0])
    assert again is not None
    again.close()


def test_released_port_is_not_reserved_next() -> None:
    """A client that lost its server may still try to reconnect."""
    first = ReservedPort()
    first.release()
    assert ReservedPort().number != first.number


def test_reserved_port_is_below_the_ephemeral_ports() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert 1024 < ReservedPort().number < first


def test_reserved_port_accepts_a_listener() -> None:
    with socket.create_server(("127.0.0.1", ReservedPort().number)):
        pass


def test_port_in_use_by_a_listener_is_skipped() -> None:
    first = ReservedPort()
    first.release()
    with socket.create_server(("127.0.0.1", first.number)):
        assert ports._hold(first.number) is None


def test_reservation_without_free_port_raises_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_hold", lambda _: None)
    with pytest.raises(NoPort, match="every port from 10240"):
        ReservedPort()


def test_reserved_port_is_refused_to_another_process() -> None:
    ask = "import sys; from tickertape.testing import ports; print(ports._hold(int(sys.argv[1])))"
    held = ReservedPort()

    def other() -> str:
        command = [sys.executable, "-c", ask, str(held.number)]
        return subprocess.run(
            command, env=source_environment(), capture_output=True, text=True, check=True
        ).stdout

    assert other() == "None\n"
    held.release()
    assert "socket" in other()
