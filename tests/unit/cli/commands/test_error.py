"""`error`: explanations of error codes, and their agreement with the documentation."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from tickertape.base import errors
from tickertape.cli.commands.error import explanations
from tickertape.cli.support.command_group import cli

DOCS = Path(__file__).resolve().parents[4] / "docs"


def test_every_error_code_is_explained() -> None:
    assert {row.code: row.name for row in explanations().values()} == {
        code: kind.__name__ for code, kind in errors.all_codes().items()
    }
    for row in explanations().values():
        assert row.meaning
        assert row.cause.endswith(".")
        assert row.cure.endswith(".")
        assert not row.see or (DOCS / row.see.partition("#")[0]).is_file()


def test_code_and_class_name_print_the_same_explanation() -> None:
    by_code, by_name = (CliRunner().invoke(cli, ["error", text]) for text in ("slow_client", "SlowClient"))
    assert (by_code.exit_code, by_name.exit_code) == (0, 0)
    assert by_code.stdout == by_name.stdout
    assert by_code.stdout.startswith("slow_client (SlowClient, connection)\n\nMeaning: ")
    assert "\nCause:   " in by_code.stdout
    assert "\nCure:    " in by_code.stdout
    assert "\nSee:     docs/reference/configuration.md#slow_clients\n" in by_code.stdout


def test_error_without_a_code_lists_all_codes() -> None:
    result = CliRunner().invoke(cli, ["error"])
    assert [line.split()[0] for line in result.stdout.splitlines()] == list(explanations())


def test_unknown_code_suggests_a_near_one() -> None:
    result = CliRunner().invoke(cli, ["error", "slow_clint"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Did you mean 'slow_client'?" in result.stderr


def test_codes_as_json_are_one_object_per_line() -> None:
    listed = CliRunner().invoke(cli, ["error", "--output", "json"]).stdout.splitlines()
    rows = [json.loads(line) for line in listed]
    assert [row["code"] for row in rows] == list(explanations())
    one = CliRunner().invoke(cli, ["error", "slow_client", "--output", "json"]).stdout
    assert json.loads(one) == next(row for row in rows if row["code"] == "slow_client")
