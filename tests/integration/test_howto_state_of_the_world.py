"""How-to about the state of the world: its blocks run in order and print the documented output."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from tickertape.cli.support.command_group import cli
from tickertape.testing import RunningServer, running_server

PAGE = Path(__file__).parents[2] / "docs/howto/state-of-the-world.md"
ADDRESS = "tcp://127.0.0.1:9007"
SERVE = "$ tickertape serve tickertape.toml\n"

pytestmark = pytest.mark.slow


class Block(NamedTuple):
    """A fenced block, and the text block directly after it, which is its output."""

    language: str
    source: str
    printed: str | None


def blocks() -> list[Block]:
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"^```(\w+)\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", text, re.MULTILINE | re.DOTALL)
    return [Block(language, source, printed or None) for language, source, printed in found]


@pytest.fixture
def server() -> Iterator[RunningServer]:
    (config,) = [block.source for block in blocks() if block.language == "toml"]
    with running_server(config=config) as running:
        yield running


def run_python(source: str, names: dict[str, Any], server: RunningServer) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(source.replace(ADDRESS, server.uri), names)
    return printed.getvalue()


def run_shell(source: str, server: RunningServer) -> str:
    """Run the commands of a block. A line may start with `echo TEXT |`, which is the standard input."""
    printed = ""
    for line in source.splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        text = ""
        if words[0] == "echo":
            text, words = f"{words[1]}\n", words[3:]
        arguments = words[1:]
        where = ["--admin", server.admin_url] if arguments[0] == "topics" else ["--server", server.uri]
        result = CliRunner().invoke(cli, [*arguments, *where], input=text)
        assert result.exit_code == 0, result.output
        printed += result.stdout
    return printed


def test_state_of_the_world_howto_blocks_print_the_documented_output(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    compared = 0
    for block in blocks():
        if block.language == "python":
            printed = run_python(block.source, names, server)
        elif block.source == SERVE:  # the page stops and starts the server
            server.restart()
            continue
        elif block.language == "console" and SERVE not in block.source:
            printed = run_shell(block.source, server)
        else:
            continue
        if block.printed is not None:
            assert printed == block.printed, block.source
            compared += 1
        elif block.language == "python":
            assert printed == "", block.source
    assert compared >= 17
