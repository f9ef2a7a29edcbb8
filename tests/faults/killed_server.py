"""Real server process that is killed at the worst times: at a segment roll, a stop or a recovery.

Must never judge: tests do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tests.helpers.processes import source_environment
from tickertape.testing.ports import ReservedPort

START_SECONDS_MAX: Final = 30.0
_LOOK_SECONDS: Final = 0.0005


class Victim:
    """A server on `data`. Its standard error, of all runs, goes to a file beside the directory."""

    def __init__(self, data: Path, config: Path) -> None:
        self.data = data
        self.port = ReservedPort()
        self.uri = f"tcp://127.0.0.1:{self.port.number}"
        self.errors = data.parent / "server.stderr"
        self.was_ready = False
        """Whether the present or last process has been ready."""
        self._config = config
        self._process: subprocess.Popen[str] | None = None

    def spawn(self) -> None:
        """Start the process and wait for nothing."""
        command = [sys.executable, "-m", "tickertape", "serve", str(self._config)]
        self.was_ready = False
        command += ["--data", str(self.data), "--listen", self.uri]
        with open(self.errors, "a") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=source_environment(),
            )

    def wait_ready(self) -> None:
        """Wait for its ready line."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.was_ready = True
        assert line.startswith("ready "), f"{line!r}, exit code {self._process.wait()}: {self.said()}"
        assert line.split()[1] == self.uri

    def said(self) -> str:
        """Return the end of its standard error."""
        return self.errors.read_text()[-4000:]

    def terminate(self) -> None:
        """Ask it to stop, and wait for nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> bool:
        """Send SIGKILL, and wait for the end. Return False when the process had ended before."""
        assert self._process is not None
        alive = self._process.poll() is None
        self._process.kill()
        self.was_ready = self._process.communicate()[0] != "" or self.was_ready
        self._process = None
        return alive

    def wait(self) -> int:
        """Wait until the process ends by itself, and return its exit code."""
        assert self._process is not None
        self._process.communicate(timeout=START_SECONDS_MAX)
        code = self._process.returncode
        self._process = None
        return code

    def running(self) -> bool:
        """Return whether a process runs."""
        return self._process is not None

    # -- moments --------------------------------------------------------------------------------------

    def sizes(self) -> tuple[tuple[str, int], ...]:
        """Return names and sizes of the segments, which change with a reservation, a cut or a new file."""
        return tuple((name, status.st_size) for name, status in self._entries())

    def writes(self) -> tuple[tuple[str, int, int], ...]:
        """Return the sizes with the times of the last writes, which change with every write to a segment."""
        return tuple((name, status.st_size, status.st_mtime_ns) for name, status in self._entries())

    def _entries(self) -> list[tuple[str, os.stat_result]]:
        found = []
        with os.scandir(self.data / "journal") as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                    found.append((entry.name, os.stat(entry.path)))
        return sorted(found)

    def wait_change(self, look: str, times: int, seconds: float) -> bool:
        """Wait until `sizes` or `writes` has changed `times` times. Return False at the timeout."""
        state = getattr(self, look)
        deadline, before = time.monotonic() + seconds, state()
        while times and time.monotonic() < deadline:
            if (now := state()) != before:
                before, times = now, times - 1
            time.sleep(_LOOK_SECONDS)
        return times == 0
