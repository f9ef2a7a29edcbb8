"""Start of a process: help, import of a client, and a server in an empty directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import percentile, timed
from tests.helpers.processes import source_environment

RUNS = 15
HELP = ("-m", "tickertape", "--help")
CLIENT = ("-c", "import tickertape; tickertape.Client; print(0)")
SERVE = ("-m", "tickertape", "serve", "--listen", "tcp://127.0.0.1:0", "--admin", "http://127.0.0.1:0")


def _environment(room: Room) -> dict[str, str]:
    """Return an environment in which processes write and use bytecode, like those of an installed package."""
    bytecode = room.shared.get("bytecode", lambda _: None)
    environment = {**source_environment(), "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def _first_line(arguments: tuple[str, ...], environment: dict[str, str], directory: Path) -> float:
    """Return the seconds until a new process prints its first line. It is terminated afterwards."""
    directory.mkdir()
    start = timed()
    with subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = timed() - start
        assert line, "the process ended without a line"
        process.terminate()
        process.stdout.read()
    return seconds


def _start(room: Room, *arguments: str) -> Reading:
    environment = _environment(room)
    _first_line(arguments, environment, room.directory / "unmeasured")  # it writes the bytecode
    runs = max(3, room.count(RUNS))
    taken = [_first_line(arguments, environment, room.directory / str(number)) for number in range(runs)]
    nothing = [
        _first_line(("-c", "print(0)"), environment, room.directory / f"python-{number}")
        for number in range(runs)
    ]
    note = f"{percentile(nothing, 0.5) * 1e3:.0f} ms of them Python alone, {os.cpu_count()} cores"
    return Reading(percentile(taken, 0.5) * 1e3, note)


@bench("start", "tickertape --help, p50", unit="ms", floor=200, aim=105)
def help_text(room: Room) -> Reading:
    return _start(room, *HELP)


@bench("start", "import tickertape; tickertape.Client, p50", unit="ms", floor=300, aim=200)
def client_import(room: Room) -> Reading:
    return _start(room, *CLIENT)


@bench("start", "serve until ready in an empty directory, p50", unit="ms", floor=450, aim=300)
def server_ready(room: Room) -> Reading:
    return _start(room, *SERVE)
