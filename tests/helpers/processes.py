"""Python processes that import this source tree, and their output, memory and processor time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def source_environment() -> dict[str, str]:
    """Return the environment, with this source tree importable without an installed package."""
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def run_tickertape(*arguments: str, seconds: float = 60.0) -> tuple[int, str, str]:
    """Run the command to its end, and return its exit code, standard output and standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "tickertape", *arguments],
        env=source_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def anonymous_bytes(pid: int) -> int:
    """Return the anonymous memory of a process: its own, without mapped files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("this system does not report RssAnon")


def processor_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process, to the nanosecond."""
    return time.clock_gettime(~pid << 3 | 2)  # `clock_getcpuclockid` of the C library, for all its threads


def files_of(directory: Path) -> dict[Path, bytes]:
    """Return every file below `directory` with its content."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
