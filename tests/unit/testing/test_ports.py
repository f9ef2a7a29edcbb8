"""Ports for tests: nobody else's while they are held, and not among those the system gives away."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.processes import source_environment
from tickertape.testing import ports
from tickertape.testing.ports import NoPort, ReservedPort


def test_a_port_is_held_by_one_until_it_is_released() -> None:
    held = [ReservedPort() for _ in range(20)]
    numbers = [port.number for port in held]
    assert len(set(numbers)) == 20
    assert ports._hold(numbers[0]) is None
    held[0].release()
    held[0].release()
    again = ports._hold(numbers[0])
    assert again is not None
    again.close()


def test_a_port_is_not_given_again_at_once() -> None:
    """A client that lost its server may still try to come back."""
    first = ReservedPort()
    first.release()
    assert ReservedPort().number != first.number


def test_it_is_below_the_ports_the_system_gives_away() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert 1024 < ReservedPort().number < first


def test_it_can_be_listened_on() -> None:
    with socket.create_server(("127.0.0.1", ReservedPort().number)):
        pass


def test_a_port_somebody_listens_on_is_passed_over() -> None:
    first = ReservedPort()
    first.release()
    with socket.create_server(("127.0.0.1", first.number)):
        assert ports._hold(first.number) is None


def test_nothing_free_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_hold", lambda _: None)
    with pytest.raises(NoPort, match="every port from 10240"):
        ReservedPort()


def test_another_process_is_refused_what_is_held_here() -> None:
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
