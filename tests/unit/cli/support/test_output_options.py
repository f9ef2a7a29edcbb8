"""`--output` and `--limit`: the commands that have them."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.unit.cli.support.test_command_group import commands
from tests.unit.cli.test_reference import command_at
from tickertape.cli.support.command_group import cli

LEAVES = [path for path in commands(cli) if not isinstance(command_at(path), click.Group)]

WITHOUT_OUTPUT = {
    ("serve",): "the ready line is the protocol with a supervisor",
    ("publish",): "prints nothing on standard output",
    ("delta-publish",): "prints nothing on standard output",
    ("ack",): "prints nothing on standard output",
    ("completion",): "prints a script",
}
TABLES = {("sow",), ("query",)}
"""Commands that print tables, also as CSV and Arrow."""
WITH_LIMIT = {
    ("subscribe",),
    ("sow",),
    ("query",),
    ("queue", "browse"),
    ("queue", "ls"),
    ("queue", "requeue"),
    ("replication", "compare"),
    ("journal", "dump"),
    ("journal", "grep"),
    ("journal", "ls"),
    ("journal", "verify"),
    ("pipeline", "audit"),
    ("topics",),
    ("filter", "test"),
}


def options(path: tuple[str, ...]) -> dict[str, click.Option]:
    return {
        name: option
        for option in command_at(path).params
        if isinstance(option, click.Option)
        for name in option.opts
    }


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_output_is_text_or_json_in_every_command_that_prints_results(path: tuple[str, ...]) -> None:
    option = options(path).get("--output")
    assert (option is None) is (path in WITHOUT_OUTPUT)
    if option is not None:
        assert isinstance(option.type, click.Choice)
        more = ["csv", "arrow"] if path in TABLES else []
        assert (list(option.type.choices), option.default) == (["text", "json", *more], "text")


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_limit_is_an_option_of_every_command_that_prints_a_list(path: tuple[str, ...]) -> None:
    option = options(path).get("--limit")
    assert (option is not None) is (path in WITH_LIMIT)
    if option is not None:
        assert isinstance(option.type, click.IntRange)
        assert option.type.min == 1


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_options_have_no_second_spelling_of_output_and_limit(path: tuple[str, ...]) -> None:
    given = options(path)
    assert not {"--json", "--format", "--max-count", "--show", "-m", "-n"} & given.keys()
    count = given.get("--count")
    assert count is None or count.is_flag, "--count prints a number, as grep does"


def test_files_of_monitoring_as_json_are_one_object_per_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["monitoring", str(tmp_path / "new"), "--output", "json"])
    files = [json.loads(line)["file"] for line in result.stdout.splitlines()]
    assert sorted(files) == sorted(str(path) for path in (tmp_path / "new").iterdir())
