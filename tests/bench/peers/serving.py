"""Servers of the comparison: start, pause and stop of a process group, and the processes of load programs."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Final

from tests.bench.peers.installed import ROOT
from tests.bench.peers.loading import Result, Task

START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 20.0
LATE_SECONDS_MAX: Final = 60.0
"""How long after the end of its turn a load program may print its result."""
ERROR_CHARACTERS_MAX: Final = 300


class PeerServer(ABC):
    """One server on loopback, with its data in a directory of its own.

    A server runs in a process group, which is paused while other servers are measured.
    """

    name: ClassVar[str]
    counted: ClassVar[bool] = True
    """Whether it is a contender with a version."""

    def __init__(self, directory: Path, setting: str) -> None:
        self.directory = directory.absolute()
        self.setting = setting
        """Value of the option that decides about the durability of an acknowledgement."""
        self.address = ""
        """The text that load programs connect with."""
        self.prepared = False
        """Whether the first turn has filled its log."""
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @abstractmethod
    def missing(cls) -> str:
        """Return the missing package, or an empty text."""

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """Return the name and the version of server and client."""

    @abstractmethod
    def _start(self) -> None:
        """Start the process and set the address."""

    def start(self) -> None:
        """Start with an empty directory. Raises an exception if the server is not ready in time."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def run(
        self, command: list[str], environment: dict[str, str] | None = None, directory: Path | None = None
    ) -> None:
        """Start the process of the server, with its output in a file of the directory."""
        with open(self.directory / "output", "ab") as output:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **(environment or {})},
                cwd=directory or self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def end_process(self, *, kill: bool) -> None:
        """Kill the process, or stop it, and keep its directory."""
        process = self._process
        assert process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL if kill else signal.SIGTERM)
        process.wait(STOP_SECONDS_MAX)
        self._process = None

    def start_process(self) -> None:
        """Start the process again with its directory."""
        self._start()

    def reserve_port(self) -> int:
        """Return a port that is free now."""
        with socket.create_server(("127.0.0.1", 0)) as found:
            return int(found.getsockname()[1])

    def ended(self) -> bool:
        """Return whether the process has ended."""
        return self._process is not None and self._process.poll() is not None

    def output(self) -> str:
        """Return the end of the output."""
        path = self.directory / "output"
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        return text[-ERROR_CHARACTERS_MAX:].strip()

    def pause(self) -> None:
        """Stop all processes of the server until `resume()`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def stop(self) -> None:
        """End the processes of the server and remove its directory."""
        process = self._process
        if process is not None:
            self.resume()
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS_MAX)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._process = None
        shutil.rmtree(self.directory, ignore_errors=True)


def wait_for_port(port: int, server: PeerServer) -> None:
    """Wait until a server accepts connections. Raises `RuntimeError` with its output."""
    end = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if server.ended() or time.monotonic() > end:
                raise RuntimeError(f"{server.name} did not start: {server.output()}") from None
            time.sleep(0.05)


class Load:
    """A process with one load program (loading.py)."""

    def __init__(self, interpreter: Path, module: str, action: str, task: Task) -> None:
        self._what = f"{module.rpartition('.')[2]} {action}"
        self._seconds = task.seconds
        self._process = subprocess.Popen(
            [str(interpreter), "-m", module, action, task.to_json()],
            cwd=ROOT,
            env=load_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._buffer = b""

    def ready(self) -> None:
        """Wait until the program is ready."""
        said = self._line(START_SECONDS_MAX)
        if said != "ready":
            raise RuntimeError(f"{self._what} printed {said!r} before its start")

    def go(self) -> None:
        """Let the program start."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def result(self) -> Result:
        """Return the result of the program."""
        found = json.loads(self._line(self._seconds + LATE_SECONDS_MAX))
        assert isinstance(found, dict)
        return {str(key): float(value) for key, value in found.items()}

    def _line(self, seconds: float) -> str:
        assert self._process.stdout is not None
        end = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise TimeoutError(f"{self._what} printed nothing for {seconds:.0f} s")
            data = os.read(self._process.stdout.fileno(), 65_536)
            if not data:
                raise RuntimeError(f"{self._what} failed: {self._errors()}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def _errors(self) -> str:
        assert self._process.stderr is not None
        text = self._process.stderr.read().decode(errors="replace").strip()
        return text.rpartition("\n")[2][-ERROR_CHARACTERS_MAX:] or f"exit code {self._process.wait()}"

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()


def load_environment() -> dict[str, str]:
    """Return the environment of load programs: this source tree, and bytecode that is kept."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(ROOT / "build" / "peers-bytecode")}


def our_interpreter() -> Path:
    """Return the interpreter that has Tickertape."""
    return Path(sys.executable)
