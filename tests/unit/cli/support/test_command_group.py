"""The command group: exit codes, one line of error, help with examples, and lazy imports."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tests.helpers.processes import source_environment
from tickertape.base.errors import Disconnected, NotAJournal, TimedOut
from tickertape.base.version import __version__
from tickertape.cli.support.command_group import Failure, LazyGroup, cli

COMMANDS = [
    "serve", "check", "doctor", "publish", "subscribe", "sow", "sow-delete", "delta-publish", "query", "ack",
    "queue", "journal", "pipeline", "token", "health", "stats", "topics", "replication", "monitoring",
    "filter", "error",
    "completion",
]  # fmt: skip


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the names of all commands and groups."""
    context = click.Context(group)
    for name in group.list_commands(context):
        yield (*path, name)
        inner = group.get_command(context, name)
        if isinstance(inner, click.Group):
            yield from commands(inner, (*path, name))


def raising(error: BaseException) -> click.Command:
    def callback() -> None:
        raise error

    return click.Command("fail", callback=callback)


class OneCommand(LazyGroup):
    """The real group with one more command."""

    def __init__(self, command: click.Command) -> None:
        super().__init__("cli", table={})
        self._command = command

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        return self._command


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (Disconnected("server\n  closed"), 1, "tickertape: server closed\n"),
        (TimedOut("nothing came"), 3, "tickertape: nothing came\n"),
        (NotAJournal(), 2, "tickertape: not_a_journal\n"),
        (
            PermissionError(13, "Permission denied", "data"),
            1,
            "tickertape: Cannot use 'data': permission denied. Check the path and its permissions.\n",
        ),
        (OSError("something"), 1, "tickertape: something\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_error_is_one_line_and_an_exit_code(error: BaseException, code: int, line: str) -> None:
    result = CliRunner().invoke(OneCommand(raising(error)), ["fail"])
    assert (result.exit_code, result.stderr, result.stdout) == (code, line, "")


def test_unexpected_exception_is_one_line_that_names_the_debug_variable() -> None:
    result = CliRunner().invoke(OneCommand(raising(ZeroDivisionError("by 0"))), ["fail"])
    assert result.exit_code == 1
    assert result.stderr.startswith("tickertape: Unexpected ZeroDivisionError: by 0. ")
    assert "TICKERTAPE_DEBUG=1" in result.stderr
    assert result.stderr.count("\n") == 1


def test_unexpected_exception_is_raised_with_the_debug_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKERTAPE_DEBUG", "1")
    result = CliRunner().invoke(OneCommand(raising(ZeroDivisionError())), ["fail"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_command_list_is_the_public_one() -> None:
    assert [name for name, *rest in commands(cli) if not rest] == COMMANDS
    assert sorted(words[1] for words in commands(cli) if words[0] == "journal" and len(words) > 1) == [
        "dump",
        "find",
        "grep",
        "ls",
        "prune",
        "verify",
    ]


@pytest.mark.parametrize("path", [(), *commands(cli)], ids=" ".join)
def test_help_of_each_command_has_an_example(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*path, "--help"])
    assert result.exit_code == 0
    assert re.search(rf"^  .*tickertape {' '.join(path)}", result.stdout, re.MULTILINE), result.stdout
    assert max(map(len, result.stdout.splitlines())) < 110


def test_command_list_shows_whole_sentences() -> None:
    listed = CliRunner().invoke(cli, ["--help"]).stdout.split("Commands:\n")[1].splitlines()
    assert [line.split()[0] for line in listed] == COMMANDS
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)


def groups(group: LazyGroup) -> Iterator[LazyGroup]:
    """Yield a group and all groups in it."""
    yield group
    for name in group.table:
        inner = group.get_command(click.Context(group), name)
        if isinstance(inner, LazyGroup):
            yield from groups(inner)


def test_command_tables_repeat_the_summaries_that_the_commands_declare() -> None:
    assert isinstance(cli, LazyGroup)
    names = []
    for group in groups(cli):
        names.append(group.name)
        declared = {name: group.get_command(click.Context(group), name) for name in group.table}
        assert {name: entry.summary for name, entry in group.table.items()} == {
            name: command and command.short_help for name, command in declared.items()
        }
        assert not any(command and (command.hidden or command.deprecated) for command in declared.values())
    assert names == ["cli", "queue", "journal", "pipeline", "token", "replication", "filter"]


def test_version_option_prints_the_version() -> None:
    assert CliRunner().invoke(cli, ["--version"]).stdout == f"tickertape {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["serve", "--admin", "x"], ["journal", "burn"], ["check"]]
)
def test_bad_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(cli, arguments).exit_code == 2


def imported(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=source_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return set(done.stdout.split())


@pytest.mark.slow
def test_serve_imports_no_slow_modules_before_ready() -> None:
    modules = imported(
        "from tickertape.cli.support.command_group import cli; import click;"
        "cli.get_command(click.Context(cli), 'serve'); import tickertape.server.app"
    )
    assert "tickertape.server.engine_driver" in modules
    slow = {"rich", "pyarrow", "pandas", "pyspark", "difflib", "tickertape.client"}
    assert modules & slow == set()


@pytest.mark.slow
def test_command_does_not_import_other_commands() -> None:
    modules = imported(
        "from tickertape.cli.support.command_group import cli; import click; "
        "cli.get_command(click.Context(cli), 'journal')"
    )
    assert modules & {"tickertape.server", "tickertape.client", "numpy", "rich"} == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["publish", "subscribe", "ack"])
def test_hints_import_no_module_before_first_use(name: str) -> None:
    modules = imported(
        "from tickertape.cli.support.command_group import cli; import click; "
        f"cli.get_command(click.Context(cli), {name!r})"
    )
    slow = {"difflib", "http.client", "email", "re2", "tickertape.server.admin", "tickertape.engine"}
    assert modules & slow == set()


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["publsh", "t"], "publish"),
        (["journal", "verfy"], "verify"),
        (["queue", "brows"], "browse"),
        (["pipeline", "adit"], "audit"),
        (["filter", "explian"], "explain"),
        (["token", "nw"], "new"),
        (["queue", "list"], "ls"),
    ],
)
def test_unknown_command_suggests_a_near_name(arguments: list[str], near: str) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert f"Did you mean '{near}'?" in result.stderr


def test_failure_keeps_line_ends_only_around_excerpt_and_caret() -> None:
    assert Failure("one\ntwo  three").message == "one two three"
    assert (
        Failure("Invalid\nfilter.\n  /a  = x\n        ^").message == "Invalid filter.\n  /a  = x\n        ^"
    )
