"""Servers with failing system calls: strace injects an error into the n-th call of each thread.

Must never judge: reports the failed call, its file, and the offset. Needs strace (5.3 or later) and the
permission to trace a child process. `why_not` returns the missing requirement.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from tickertape.testing import RunningServer, wait_until

_SECONDS: Final = 10.0
_TRACED: Final = "pwritev,pwritev2,fdatasync,fsync,ftruncate,fallocate"
_LINE: Final = re.compile(r"^(\d+) +(.*)$")
_BEGUN: Final = re.compile(r"^(.*) <unfinished \.\.\.>$")
_RESUMED: Final = re.compile(r"^<\.\.\. \w+ resumed>(.*)$")
_CALL: Final = re.compile(r"^(\w+)\(\d+<(.*?)>(.*)\) += (-?\d+)(.*)$")
_ENDED: Final = "+++ "


class Call(NamedTuple):
    """A system call of a server, in the order in which they ended."""

    thread: int
    name: str
    path: str
    offset: int
    """Offset in the file of a write, 0 for all others."""
    result: int
    injected: bool
    """The kernel never saw it."""


class TracedServer(RunningServer):
    """A server process under strace while a `fault` is set, without one a normal server.

    The tracer is a child of the server, so that signals and exit codes are those of the server.
    """

    def __init__(self, data: Path, config: Path | None = None) -> None:
        super().__init__(data, config)
        self.fault = ""
        """The injection for strace: `fdatasync:error=EIO:when=3`."""
        self._trace = data.parent / f"{data.name}.trace"

    def _command(self) -> list[str]:
        command = super()._command()
        return [*_strace(self._trace, self.fault), *command] if self.fault else command

    def calls(self) -> list[Call]:
        """Return the system calls of the traced process after its end."""
        wait_until(lambda: _all_ended(self._trace.read_text()), _SECONDS)
        return _calls(self._trace.read_text())


def why_not() -> str | None:
    """Return the reason why such servers cannot run here, or None."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    with tempfile.TemporaryDirectory(prefix="strace-") as scratch:
        trace = Path(scratch) / "trace"
        probe = ["sync", "-d", scratch]  # exits with 1 when its fdatasync fails
        try:
            done = subprocess.run(
                [*_strace(trace, "fdatasync:error=EIO:when=1"), *probe],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"strace cannot be run: {error}"
        if done.returncode == 1 and trace.exists() and any(c.injected for c in _calls(trace.read_text())):
            return None
        said = done.stderr.strip().splitlines() or ["it changes nothing"]
        return f"strace may not make system calls fail here: {said[0]}"


def _strace(trace: Path, fault: str) -> list[str]:
    options = ["-D", "-f", "--seccomp-bpf", "-q", "-y", "-s", "0", "-o", str(trace)]
    return ["strace", *options, "-e", f"trace={_TRACED}", "-e", "signal=none", "-e", f"inject={fault}"]


def _all_ended(text: str) -> bool:
    threads = {match[1]: match[2] for line in text.splitlines() if (match := _LINE.match(line))}
    return bool(threads) and all(last.startswith(_ENDED) for last in threads.values())


def _calls(text: str) -> list[Call]:
    found: list[Call] = []
    begun: dict[str, str] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        thread, said = match[1], match[2]
        if half := _BEGUN.match(said):
            begun[thread] = half[1]
            continue
        if rest := _RESUMED.match(said):
            said = begun.pop(thread) + rest[1]
        if call := _CALL.match(said):
            name, path, arguments, result, more = call.groups()
            offset = _offset(name, arguments)
            found.append(Call(int(thread), name, path, offset, int(result), "(INJECTED)" in more))
    return found


def _offset(name: str, arguments: str) -> int:
    last = {"pwritev": -1, "pwritev2": -2}.get(name)  # the flags follow it
    return int(arguments.split(", ")[last]) if last is not None else 0
