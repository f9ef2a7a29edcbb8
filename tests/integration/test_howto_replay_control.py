"""The how-to about replays: its Python blocks run in order, and its prices are conflated as shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tickertape.cli.support.command_group import cli
from tickertape.testing import running_server

PAGE = Path(__file__).parents[2] / "docs/howto/replay-control.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow


def session(source: str, server: str) -> str:
    """Run the commands of a block. Return the block with their actual output."""
    shown = ""
    for command in re.findall(r"^\$ ((?:.*\\\n)*.*)\n", source, re.MULTILINE):
        shown += f"$ {command}\n"
        sent, _, after = command.replace("\\\n", "").rpartition("|")
        _, *arguments = shlex.split(after)
        body = shlex.split(sent)[1] if sent else None
        result = CliRunner().invoke(cli, [*arguments, "--server", server], input=body)
        assert result.exit_code == 0, result.output
        shown += result.stdout
    return shown


def test_howto_replay_control_blocks_run_in_order() -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    (prices,) = [source for language, source in blocks if language == "console" and "echo" in source]
    names: dict[str, Any] = {}
    with running_server() as server:
        for language, source in blocks:
            if language == "python":
                exec(source.replace("tcp://127.0.0.1:9007", server.uri), names)
        assert session(prices, server.uri) == prices
