"""Real server process for tests: start, stop, kill and restart it, and read its addresses.

It provides only information that a user of the process has.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tickertape.testing.ports import ReservedPort

_START_SECONDS_MAX: Final = 30.0
_STOP_SECONDS_MAX: Final = 30.0
_END_SECONDS_MAX: Final = 2.0
"""Seconds for a failed process to end after it has closed its output."""


class ServerNotReady(RuntimeError):
    """The server process ended, or did not print `ready` in time. The text contains its standard error."""


class RunningServer:
    """A server process on a data directory, created by `running_server`.

    Its default addresses stay the same after `restart()`, and stay reserved while the server is down. Other
    addresses, such as those of the configuration file (`listen=None`), are not reserved.
    """

    def __init__(self, data: Path, config: Path | None = None, *, listen: str | None = "") -> None:
        self.data = data
        """Data directory."""
        self.config = config
        """Configuration file, or None."""
        self.uri = ""
        """Address for clients."""
        self.admin_url = ""
        """Admin address (HTTP)."""
        self._ports = ReservedPort(), ReservedPort()
        self._listen = f"tcp://127.0.0.1:{self._ports[0].number}" if listen == "" else listen
        self._process: subprocess.Popen[str] | None = None
        self._errors = data.parent / f"{data.name}.stderr"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the process and wait up to 30 s for its ready line. Raises `ServerNotReady`."""
        with open(self._errors, "a") as errors:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=_environment(),
            )
        line = self._first_line()
        if not line.startswith("ready "):
            code = self._end_of_start()
            raise ServerNotReady(
                f"The server did not print a ready line (exit code {code}): {line!r}\n{self.errors()[-4000:]}"
            )
        self.uri = line.split()[1]
        self.admin_url = line.split()[-1]

    def _command(self) -> list[str]:
        """Return the command line. Subclasses may prepend a wrapper program."""
        command = [sys.executable, "-m", "tickertape", "serve"]
        if self.config is not None:
            command.append(str(self.config))
        command += ["--data", str(self.data)]
        if self._listen is not None:
            command += ["--listen", self.uri or self._listen]
        return [*command, "--admin", self.admin_url or f"http://127.0.0.1:{self._ports[1].number}"]

    def _end_of_start(self) -> int | None:
        """Reap the process after a failed start. Return its exit code, or None if it had to be killed."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._reap(_END_SECONDS_MAX)
        return None

    def _first_line(self) -> str:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(_START_SECONDS_MAX):
                return ""
        return process.stdout.readline()

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            self._reap()

    def stop(self) -> int:
        """Stop the process with SIGTERM and wait up to 30 s. Return the exit code.

        If it has not ended by then, it is killed, and the call raises `subprocess.TimeoutExpired`.
        """
        process = self._process
        if process is None:
            return 0
        process.send_signal(signal.SIGTERM)
        return self._reap()

    def wait(self, seconds: float = _STOP_SECONDS_MAX) -> int:
        """Wait up to `seconds` (default 30) until the process ends. Return the exit code.

        If it has not ended by then, it is killed, and the call raises `subprocess.TimeoutExpired`.
        """
        assert self._process is not None
        return self._reap(seconds)

    def release(self) -> None:
        """Release the reserved ports. The server must not be started again."""
        for port in self._ports:
            port.release()

    def restart(self) -> None:
        """Stop the server cleanly if it runs, and start it on the same directory and addresses.

        Raises `ServerNotReady`, and `subprocess.TimeoutExpired` as `stop` does.
        """
        if self._process is not None:
            self.stop()
        self.start()

    def errors(self) -> str:
        """Return the standard error of all runs on this data directory, from the file `<data>.stderr`."""
        return self._errors.read_text() if self._errors.exists() else ""

    def _reap(self, seconds: float = _STOP_SECONDS_MAX) -> int:
        process = self._process
        assert process is not None
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            if process.stdout is not None:
                process.stdout.close()
        self._process = None
        return code


@contextlib.contextmanager
def running_server(
    data: str | Path | None = None, config: str | Path | None = None, *, listen: str | None = ""
) -> Iterator[RunningServer]:
    """Start a server, and stop it at the end of the `with` block.

    Args:
        data: Data directory. Default: a temporary directory, which is removed afterwards.
        config: Path of a configuration file, or its text. Default None (the default configuration).
        listen: Address for clients. Default: a reserved port of 127.0.0.1. None: the addresses of the
            configuration. The attribute `uri` is then the first of them.

    Raises:
        ServerNotReady: If the server does not start.
        subprocess.TimeoutExpired: If the server does not stop within 30 s at the end of the block.

    Example:
        >>> with running_server() as server, tt.Client("desk", server.uri) as client:
        ...     client.publish("orders", {"id": 1})
    """
    with tempfile.TemporaryDirectory(prefix="tickertape-") as scratch:
        directory = Path(data) if data is not None else Path(scratch) / "data"
        file = _config_file(config, Path(scratch))
        server = RunningServer(directory, file, listen=listen)
        try:
            server.start()
            yield server
        finally:
            if server._process is not None:
                server.stop()
            server.release()


def _environment() -> dict[str, str]:
    """Return the environment in which the child process can import this package."""
    source = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))}


def _config_file(config: str | Path | None, scratch: Path) -> Path | None:
    if config is None or isinstance(config, Path):
        return config
    if "\n" not in config and Path(config).is_file():
        return Path(config)
    file = scratch / "tickertape.toml"
    file.write_text(config)
    return file


def wait_until(condition: object, seconds: float = 10.0) -> None:
    """Wait until `condition()` is true, for tests with a real process.

    Args:
        condition: Called without arguments every 5 ms.
        seconds: Time limit in seconds. Default 10.

    Raises:
        TimeoutError: If the condition is not true in time.

    Example:
        >>> wait_until(lambda: time.monotonic() > 0)
    """
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"Cannot continue: the condition was not true within {seconds} s. Wait longer."
            )
        time.sleep(0.005)
