"""`TICKERTAPE_SERVER` and `TICKERTAPE_ADMIN`: commands that use them, and errors for invalid values."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner, Result

from tests.unit.cli.support.test_output_options import LEAVES, options
from tests.unit.cli.test_reference import command_at
from tickertape.cli.support.command_group import cli

ADMIN, SERVER = "TICKERTAPE_ADMIN", "TICKERTAPE_SERVER"
LISTENING = {("serve",)}
"""`serve` listens on its addresses. A variable for clients must not change them."""


def run(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), env=variables)


@pytest.mark.parametrize(("name", "variable"), [("--server", SERVER), ("--admin", ADMIN)])
@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_address_options_have_a_variable_shown_in_the_help(
    path: tuple[str, ...], name: str, variable: str
) -> None:
    option = options(path).get(name)
    if option is None:
        return
    assert option.envvar == (None if path in LISTENING else variable)
    shown = f"env var: {variable}" in " ".join(run(*path, "--help").stdout.split())
    assert shown is (path not in LISTENING)


def test_both_variables_are_used() -> None:
    for name in ("--server", "--admin"):
        assert len([path for path in LEAVES if name in options(path)]) >= 5


@pytest.mark.parametrize(
    ("arguments", "variable", "value", "says"),
    [
        (["publish", "t", "--message", "x"], SERVER, "http://a", "Invalid server address 'http://a'"),
        (["subscribe", "t"], SERVER, "localhost", "Invalid server address 'localhost'"),
        (["pipeline", "init", "x"], SERVER, "localhost", "Invalid server address 'localhost'"),
        (["topics"], ADMIN, "tcp://a:1", "Invalid admin address 'tcp://a:1'"),
        (["queue", "purge", "q"], ADMIN, "tcp://a:1", "Invalid admin address 'tcp://a:1'"),
    ],
)
def test_invalid_value_is_reported_with_the_name_of_the_variable(
    arguments: list[str], variable: str, value: str, says: str
) -> None:
    result = run(*arguments, **{variable: value})
    assert result.exit_code == 2
    assert f"Invalid value for {variable}: {says}" in " ".join(result.stderr.split())


def test_option_overrides_the_variable_and_the_error_names_the_option() -> None:
    result = run("topics", "--admin", "http://127.0.0.1:0/x", **{ADMIN: "http://127.0.0.1:1"})
    assert result.exit_code == 2
    assert "Invalid value for '--admin': " in result.stderr
    assert ADMIN not in result.stderr
    result = run("subscribe", "t", "--server", "unix:///none", **{SERVER: "invalid"})
    assert (result.exit_code, result.stdout) == (1, "")
    assert "unix:///none" in result.stderr


def test_variable_is_the_server_that_a_command_connects_to() -> None:
    result = run("publish", "t", "--message", "x", **{SERVER: "unix:///of-variable"})
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("tickertape: Cannot connect to 'unix:///of-variable': ")
    result = run("topics", **{ADMIN: "http://127.0.0.1:1"})
    assert result.exit_code == 1
    assert result.stderr.startswith("tickertape: Cannot connect to 'http://127.0.0.1:1': ")


def test_audit_uses_the_variable_instead_of_the_argument() -> None:
    (log,) = [param for param in command_at(("pipeline", "audit")).params if param.name == "log"]
    assert isinstance(log, click.Argument)
    assert log.envvar == SERVER
