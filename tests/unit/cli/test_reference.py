"""Examples of the reference pages and of the help. `tests/test_site.py` has the rest."""

from __future__ import annotations

import re
from pathlib import Path

import click
from click.testing import CliRunner

from tests.unit.cli.support.test_command_group import commands
from tickertape.cli.support.command_group import cli
from tickertape.server.config.config import examine, load_config

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference"


def command_at(path: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return command


def test_configuration_page_examples_are_valid(tmp_path: Path) -> None:
    page = (REFERENCE / "configuration.md").read_text(encoding="utf-8")
    first, sow, replication, second = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "tickertape.toml").write_text(first)
    (tmp_path / "topics.toml").write_text(second)
    (tmp_path / "sow.toml").write_text(sow)
    (tmp_path / "ny-2.token").touch(mode=0o600)
    (tmp_path / "pair.toml").write_text(replication)
    assert load_config(tmp_path / "pair.toml").replication is not None
    assert [one.name for one in load_config(tmp_path / "sow.toml").sow] == ["positions", "settings", "desks"]
    config, problems = examine(
        tmp_path / "tickertape.toml", environment={"SEGMENT_SIZE": "2MB", "CREATE": "false"}
    )
    assert problems == []
    assert config is not None
    assert config.journal.topics == ["orders", "^fills/"]


def test_examples_of_the_help_parse() -> None:
    """Each `tickertape ...` line of a help text has an existing command and options."""
    shown = 0
    for path in [(), *commands(cli)]:
        help_text = CliRunner().invoke(cli, [*path, "--help"]).stdout
        for line in re.findall(r"^  .*?\btickertape ((?:[a-z]+ ?)+.*)$", help_text, re.MULTILINE):
            words = re.split(r"\s{2,}| [|>] ", line)[0].split()
            depth = 2 if words[0] in {"journal", "filter", "queue", "pipeline", "replication", "token"} else 1
            options = {o for p in command_at(tuple(words[:depth])).params for o in p.opts}
            assert {word for word in words if word.startswith("--")} <= options, line
            shown += 1
    assert shown >= 15
