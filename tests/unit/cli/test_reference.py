"""The reference pages name every command, option and key, and nothing that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.unit.cli.support.test_command_group import commands
from tickertape.cli.support.command_group import cli
from tickertape.server.config.config import examine

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference"


def sections(page: str) -> dict[str, str]:
    """Headings of a page and what stands below each."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    parts = re.split(r"^##+ (.*)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def first_cells(section: str) -> dict[str, str]:
    """First and second cell of each row of its table."""
    return dict(re.findall(r"^\| `([^|`]*(?:\\\|[^|`]*)*)` \| ([^|]*) \|", section, re.MULTILINE))


def command_at(path: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return command


LEAVES = [path for path in commands(cli) if not isinstance(command_at(path), click.Group)]


def test_every_command_has_its_section() -> None:
    documented = [heading.strip("`").split() for heading in sections("command-line.md")]
    assert [tuple(words[1 : 1 + len(path)]) for words, path in zip(documented, LEAVES, strict=True)] == LEAVES


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_option_is_documented_and_exists(path: tuple[str, ...]) -> None:
    heading = f"`tickertape {' '.join(path)}"
    section = next(text for title, text in sections("command-line.md").items() if title.startswith(heading))
    documented = {name.split()[0]: default for name, default in first_cells(section).items()}
    options = {p.opts[0]: p for p in command_at(path).params if isinstance(p, click.Option)}
    assert documented.keys() == options.keys()
    for name, option in options.items():
        if option.show_default and isinstance(option.default, str):
            assert documented[name] == f"`{option.default}`"


@pytest.mark.parametrize(
    ("heading", "text"),
    [
        ("`[instance]`", "[instance]\nzzz = 1"),
        ("`[[transport]]`", "[[transport]]\nzzz = 1"),
        ("`[authentication]`", "[authentication]\nzzz = 1"),
        ("`[journal]`", "[journal]\nzzz = 1"),
        ("`[[journal.topic]]`", "[[journal.topic]]\nzzz = 1"),
        ("`[[topic]]`", "[[topic]]\nzzz = 1"),
        ("`[[queue]]`", "[[queue]]\nzzz = 1"),
        ("`[slow_clients]`", "[slow_clients]\nzzz = 1"),
        ("`[transactions]`", "[transactions]\nzzz = 1"),
        ("`[admin]`", "[admin]\nzzz = 1"),
        ("`[logging]`", "[logging]\nzzz = 1"),
    ],
)
def test_every_key_of_the_configuration_is_documented_and_exists(
    tmp_path: Path, heading: str, text: str
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    _, problems = examine(file)
    takes = next(p.text for p in problems if p.text.startswith("unknown key. ")).rpartition(" takes ")[2]
    assert set(first_cells(sections("configuration.md")[heading])) == set(takes.split(", "))


def test_the_example_of_the_page_is_in_order(tmp_path: Path) -> None:
    page = (REFERENCE / "configuration.md").read_text(encoding="utf-8")
    first, second = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "tickertape.toml").write_text(first)
    (tmp_path / "topics.toml").write_text(second)
    config, problems = examine(
        tmp_path / "tickertape.toml", environment={"SEGMENT_SIZE": "2MB", "CREATE": "false"}
    )
    assert problems == []
    assert config is not None
    assert config.journal.topics == ["orders", "^fills/"]


def test_examples_of_the_help_parse() -> None:
    """Each `tickertape ...` line of a help names a command and options that exist."""
    shown = 0
    for path in [(), *commands(cli)]:
        help_text = CliRunner().invoke(cli, [*path, "--help"]).stdout
        for line in re.findall(r"^  .*?\btickertape ((?:[a-z]+ ?)+.*)$", help_text, re.MULTILINE):
            words = re.split(r"\s{2,}| [|>] ", line)[0].split()
            depth = 2 if words[0] in {"journal", "filter", "queue", "pipeline", "token"} else 1
            options = {o for p in command_at(tuple(words[:depth])).params for o in p.opts}
            assert {word for word in words if word.startswith("--")} <= options, line
            shown += 1
    assert shown >= 15
