"""Getting started: runs all blocks of the tutorial in order, in three terminals, and compares the output.

A block with `title="NAME.py"` is a file. Blocks of `console` are commands of the terminal in their title, and
blocks of `text` are the next lines of that terminal. `^C` interrupts the command of a terminal.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import tickertape
from tests.helpers.processes import source_environment
from tickertape.testing.ports import ReservedPort

PAGE = Path(__file__).parents[2] / "docs/getting-started.md"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
SERVER = "tcp://127.0.0.1:9007"
ADMIN = "http://127.0.0.1:9008"
VERSION = "0.1.0.dev0"
STEP_SECONDS_MAX = 60


class Block(NamedTuple):
    """A fenced block of the page."""

    language: str
    title: str
    source: str


def blocks() -> list[Block]:
    """Return the blocks of the page in their order."""
    return [Block(*found) for found in BLOCK.findall(PAGE.read_text(encoding="utf-8"))]


class Terminal:
    """A terminal: runs one command at a time and reads its output line by line."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._directory = directory
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting = b""
        self._command = ""

    def run(self, command: str) -> None:
        """Start a command after the end of the previous one."""
        self.finish()
        self._command = command
        self._process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def expect(self, lines: list[str]) -> None:
        """Check the next lines of the command."""
        assert [self._line() for _ in lines] == lines, self._command

    def interrupt(self) -> None:
        """Press Ctrl-C. The command must succeed."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGINT)
        self.finish()

    def finish(self) -> None:
        """Wait for the end of the command, which has no further output."""
        if self._process is not None:
            rest, _ = self._process.communicate(timeout=STEP_SECONDS_MAX)
            assert self._waiting + rest == b"", self._command
            allowed = {0, 1} if self._command == "python bill.py 2" else {0}
            assert self._process.returncode in allowed, self._command
            self._process = None

    def kill(self) -> None:
        """End the command at once."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()

    def _line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + STEP_SECONDS_MAX
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._waiting:
                assert selector.select(max(deadline - time.monotonic(), 0)), self._command
                read = os.read(self._process.stdout.fileno(), 65536)
                assert read, f"{self._command} ended early"
                self._waiting += read
        line, _, self._waiting = self._waiting.partition(b"\n")
        return line.decode()


class Tutorial:
    """The directory and the terminals of the reader, with separate ports."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = ReservedPort(), ReservedPort()
        self._server = f"tcp://127.0.0.1:{self._ports[0].number}"
        self._admin = f"http://127.0.0.1:{self._ports[1].number}"
        bin_directory = directory.parent / "bin"
        bin_directory.mkdir()
        for name, arguments in {"python": "", "tickertape": "-m tickertape "}.items():
            script = bin_directory / name
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
            script.chmod(0o755)
        environment = source_environment()
        environment["PATH"] = f"{bin_directory}:{environment['PATH']}"
        self.terminals = {f"terminal {n}": Terminal(directory, environment) for n in (1, 2, 3)}

    def run(self, block: Block) -> None:
        """Carry out a block of the page."""
        if block.title == "setup":
            return
        source = block.source.replace(SERVER, self._server).replace(ADMIN, self._admin)
        if block.language in {"python", "toml"}:
            (self._directory / block.title).write_text(source)
            return
        terminal = self.terminals[block.title]
        if source == "^C\n":
            terminal.interrupt()
        elif block.language == "text":
            terminal.expect(source.replace(VERSION, tickertape.__version__).splitlines())
        else:
            for line in source.splitlines():
                terminal.run(self._with_addresses(line.removeprefix("$ ")))

    def _with_addresses(self, command: str) -> str:
        if command.startswith("tickertape serve"):
            return f"exec {command} --listen {self._server} --admin {self._admin}"
        if command.startswith(("tickertape subscribe", "tickertape sow")):
            return f"{command} --server {self._server}"
        return command

    def close(self) -> None:
        """End all commands."""
        for terminal in self.terminals.values():
            terminal.kill()
        for port in self._ports:
            port.release()


@pytest.fixture
def tutorial(tmp_path: Path) -> Iterator[Tutorial]:
    directory = tmp_path / "shop"
    directory.mkdir()
    started = Tutorial(directory)
    try:
        yield started
    finally:
        started.close()


def test_getting_started_titles_are_known() -> None:
    for block in blocks():
        if block.language in {"console", "text"}:
            assert re.fullmatch(r"terminal [123]|setup", block.title), block
        else:
            assert block.title.endswith({"python": ".py", "toml": ".toml"}[block.language]), block


@pytest.mark.slow
@pytest.mark.timeout(5 * STEP_SECONDS_MAX)
def test_getting_started_blocks_print_the_output_of_the_page(tutorial: Tutorial, tmp_path: Path) -> None:
    for block in blocks():
        tutorial.run(block)
    for terminal in tutorial.terminals.values():
        terminal.finish()
    assert not (tmp_path / "shop").exists()
