"""`error`: explanations of error codes, and their agreement with the documentation."""

from __future__ import annotations

import re

from click.testing import CliRunner

from tests.test_documentation import documented_errors
from tickertape.base import errors
from tickertape.cli.commands.error import explanations
from tickertape.cli.support.command_group import cli

_LINK = re.compile(r"\[((?:`[^`]*`|[^\]`])*)\]\([^)]*\)")


def test_explanations_equal_the_documented_table_without_links() -> None:
    documented = {
        code: (name, *(_LINK.sub(r"\1", text).replace("\\|", "|") for text in texts))
        for code, (name, *texts) in documented_errors().items()
    }
    assert {row.code: (row.name, row.meaning, row.cure) for row in explanations().values()} == documented


def test_every_error_code_is_explained() -> None:
    assert {row.code: row.name for row in explanations().values()} == {
        code: kind.__name__ for code, kind in errors.all_codes().items()
    }


def test_code_and_class_name_print_the_same_explanation() -> None:
    by_code, by_name = (CliRunner().invoke(cli, ["error", text]) for text in ("slow_client", "SlowClient"))
    assert (by_code.exit_code, by_name.exit_code) == (0, 0)
    assert by_code.stdout == by_name.stdout
    assert by_code.stdout.startswith("slow_client (SlowClient, connection)\n\nMeaning: ")
    assert "\nCure:    " in by_code.stdout


def test_without_a_code_all_are_listed() -> None:
    result = CliRunner().invoke(cli, ["error"])
    assert [line.split()[0] for line in result.stdout.splitlines()] == list(explanations())


def test_unknown_code_suggests_a_near_one() -> None:
    result = CliRunner().invoke(cli, ["error", "slow_clint"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Did you mean 'slow_client'?" in result.stderr
