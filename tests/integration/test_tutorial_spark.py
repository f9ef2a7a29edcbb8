"""Tutorial about Spark: its blocks run in order and print the documented output."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.helpers.java import short_lived_java
from tests.helpers.processes import source_environment
from tickertape.cli.support.command_group import cli
from tickertape.testing import RunningServer, running_server

PAGE = Path(__file__).parents[2] / "docs/tutorials/spark.md"
ADDRESS = "tcp://127.0.0.1:9007"
LAST_LINE = " | tail -n 1"
TUTORIAL_SECONDS_MAX = 400

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.full,
    pytest.mark.timeout(TUTORIAL_SECONDS_MAX),
]


class Block(NamedTuple):
    """A fenced block, and the text block directly after it, which is its output."""

    language: str
    source: str
    printed: str | None


def blocks() -> list[Block]:
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"^```(\w+)\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", text, re.MULTILINE | re.DOTALL)
    return [Block(language, source, printed or None) for language, source, printed in found]


def run_python(source: str, names: dict[str, Any], server: RunningServer) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(source.replace(ADDRESS, server.uri), names)
    return printed.getvalue()


def run_shell(source: str, server: RunningServer) -> str:
    printed = ""
    for line in source.replace(ADDRESS, server.uri).splitlines():
        command = line.removesuffix(LAST_LINE)
        _, program, *arguments = shlex.split(command)
        assert program == "tickertape"
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == 0, result.output
        lines = result.stdout.splitlines(keepends=True)
        printed += "".join(lines[-1:] if line.endswith(LAST_LINE) else lines)
    return printed


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Yield the names that the blocks define, and stop their session unless it existed before."""
    for name, value in (source_environment() | short_lived_java()).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    existing = SparkSession.getActiveSession()
    defined: dict[str, Any] = {}
    yield defined
    if existing is None and "spark" in defined:
        defined["spark"].stop()


def test_spark_tutorial_blocks_print_the_documented_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = blocks()
    (start,) = [at for at, block in enumerate(page) if "tickertape serve" in block.source]
    rest = page[start + 1 :]
    assert len([block for block in rest if block.language == "python"]) >= 6
    assert all(block.printed for block in rest if "print(" in block.source or block.language == "console")
    with running_server() as server:
        for block in rest:
            run = run_python if block.language == "python" else None
            printed = run(block.source, names, server) if run else run_shell(block.source, server)
            assert printed == (block.printed or ""), block.source
