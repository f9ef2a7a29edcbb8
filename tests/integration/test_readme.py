"""Quick start of the README: its blocks run in order and print the documented output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers.java import java_that_runs, short_lived_java

README = Path(__file__).resolve().parent.parent.parent / "README.md"
ADDRESS = "tcp://127.0.0.1:9007"
STEP_SECONDS_MAX = 45
SPARK_STEP_SECONDS_MAX = 200
LINES_MAX = 120


class Block(NamedTuple):
    """A fenced block, and the text block directly after it, which is its output."""

    language: str
    source: str
    printed: str | None

    @property
    def needs_spark(self) -> bool:
        return "pyspark" in self.source


def blocks_of(name: str) -> list[Block]:
    """Return the blocks of a section in order."""
    section = README.read_text(encoding="utf-8").split(f"\n## {name}\n")[1].split("\n## ")[0]
    found = re.findall(r"^```(\w+)\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", section, re.MULTILINE | re.DOTALL)
    return [Block(kind, source, printed or None) for kind, source, printed in found]


def environment() -> dict[str, str]:
    """Return an environment with the commands of this interpreter first on the path."""
    return (
        os.environ
        | short_lived_java()
        | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
        }
    )


class Terminal:
    """A directory and a running server, in which blocks run."""

    def __init__(self, directory: Path, serve: Block) -> None:
        self._directory = directory
        self._address = ADDRESS
        self.server = subprocess.Popen(
            serve.source.replace(ADDRESS, "tcp://127.0.0.1:0").split(),
            cwd=directory,
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        """Wait for the ready line of the server, and take the address from it."""
        assert self.server.stdout is not None
        ready = self.server.stdout.readline()
        match = re.match(r"ready (tcp://\S+)", ready)
        assert match, f"the server said {ready!r}"
        self._address = match[1]

    def close(self) -> None:
        """Stop the server like Ctrl-C, and check the exit code."""
        self.server.terminate()
        try:
            assert self.server.wait(timeout=20) == 0
        finally:
            self.server.kill()
            self.server.wait()
            if self.server.stdout is not None:
                self.server.stdout.close()

    def paste(self, block: Block, **more: str) -> str:
        """Run a block with additional environment variables, check its success, and return its output."""
        command = [sys.executable, "-c"] if block.language == "python" else ["bash", "-euo", "pipefail", "-c"]
        done = subprocess.run(
            [*command, block.source.replace(ADDRESS, self._address)],
            cwd=self._directory,
            env=environment() | more,
            capture_output=True,
            text=True,
            timeout=SPARK_STEP_SECONDS_MAX if block.needs_spark else STEP_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{block.source}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def blocks() -> list[Block]:
    return [block for block in blocks_of("Quick start") if block.language != "console"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(scope="module")
def terminal(directory: Path, blocks: list[Block]) -> Iterator[Terminal]:
    opened = Terminal(directory, blocks[0])
    try:
        opened.wait_until_ready()
        yield opened
    finally:
        opened.close()


@pytest.fixture(scope="module")
def printed(terminal: Terminal, blocks: list[Block]) -> list[str]:
    """Return the output of the quick start, which runs once for all tests."""
    return [terminal.paste(block) for block in blocks[1:]]


def test_readme_has_ordered_blocks_and_at_most_120_lines(blocks: list[Block]) -> None:
    assert blocks[0].source.startswith("tickertape serve ")
    assert [block.language for block in blocks] == ["bash", "python"]
    assert [block.language for block in blocks_of("The log as a table")] == ["python"]
    assert [block.language for block in blocks_of("A work queue")] == ["toml", "bash", "python"]
    assert len(README.read_text(encoding="utf-8").splitlines()) <= LINES_MAX


@pytest.mark.slow
@pytest.mark.timeout(3 * STEP_SECONDS_MAX)
def test_quick_start_prints_the_documented_output(blocks: list[Block], printed: list[str]) -> None:
    assert printed == [block.printed for block in blocks[1:]]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(SPARK_STEP_SECONDS_MAX + 3 * STEP_SECONDS_MAX)
@pytest.mark.usefixtures("printed")
def test_spark_block_prints_the_documented_output(terminal: Terminal, full: bool) -> None:
    """With --full, Spark starts a separate Java process. Otherwise it uses the one of the Spark tests."""
    (block,) = blocks_of("The log as a table")
    assert terminal.paste(block, **({} if full else java_that_runs())) == block.printed


@pytest.mark.slow
@pytest.mark.timeout(4 * STEP_SECONDS_MAX)
def test_queue_section_continues_with_the_log_of_the_quick_start(tmp_path: Path, blocks: list[Block]) -> None:
    config, serve, work = blocks_of("A work queue")
    first = Terminal(tmp_path, blocks[0])
    try:
        first.wait_until_ready()
        first.paste(blocks[1])
    finally:
        first.close()
    (tmp_path / "tickertape.toml").write_text(config.source, encoding="utf-8")
    second = Terminal(tmp_path, serve)
    try:
        second.wait_until_ready()
        assert second.paste(work) == work.printed
    finally:
        second.close()
