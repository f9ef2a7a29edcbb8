"""Root command group: lazy commands, one-line errors and exit codes.

A command is imported when it is invoked. So `serve` starts quickly, without the libraries of other commands.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

from tickertape.base.errors import (
    BadBookmark,
    BadFilter,
    BadMessage,
    BadName,
    BadOption,
    BadOrderBy,
    BadQuery,
    BadTopic,
    ConfigurationError,
    MessageTooLarge,
    NotAJournal,
    NotAQueue,
    PublishRejected,
    TickertapeError,
    TimedOut,
    TopicNotRecorded,
    WrongJournal,
)
from tickertape.base.text_format import did_you_mean, listed, near_name, shown
from tickertape.base.version import __version__
from tickertape.cli.support.command_table import ROOT, CommandTable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

EXIT_DONE: Final = 0
EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_TIMED_OUT: Final = 3
EXIT_INTERRUPTED: Final = 130
"""Exit code of a command that Ctrl-C ended, by the convention of shells."""


DEBUG_VARIABLE: Final = "TICKERTAPE_DEBUG"
"""Environment variable that makes a command print the traceback of an unexpected exception."""


_MISTAKES: Final = (
    BadBookmark,
    BadFilter,
    BadMessage,
    BadName,
    BadOption,
    BadOrderBy,
    BadQuery,
    BadTopic,
    ConfigurationError,
    MessageTooLarge,
    NotAJournal,
    NotAQueue,
    TopicNotRecorded,
    WrongJournal,
)
"""Errors that report a mistake of the user, whether this process or the server found it."""

_WRONG_PATH: Final = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)


_CARET: Final = re.compile(r"\n[^\n]*\n *\^\Z")
"""An excerpt and a caret at the end of the text of an error."""


class Failure(click.ClickException):
    """An error that is printed on standard error as one line, and an excerpt with a caret if it has one."""

    exit_code = EXIT_ERROR

    def __init__(self, text: str) -> None:
        place = _CARET.search(text)
        line = " ".join(text[: place.start() if place else None].split())
        super().__init__(line + (place[0] if place else ""))

    def show(self, file: Any = None) -> None:
        """Print the error."""
        click.echo(f"tickertape: {self.message}", file=file or sys.stderr)


class UserMistake(Failure):
    """A `Failure` that is a mistake of the user: a wrong option, argument or file."""

    exit_code = EXIT_USAGE


def end_of_search(matched: int, nothing: str, *, only_count: bool, as_json: bool) -> None:
    """Print the number of matches with `only_count`. End the command with exit code 1 without a match."""
    if not matched and not only_count:
        raise Failure(nothing)
    if only_count:
        click.echo(f'{{"count":{matched}}}' if as_json else matched)
        if not matched:
            raise click.exceptions.Exit(EXIT_ERROR)


class TimedOutFailure(Failure):
    """A `Failure` after a timeout."""

    exit_code = EXIT_TIMED_OUT


def failure_of(error: TickertapeError, text: str = "") -> Failure:
    """Return the failure of a command, with the exit code of `error` and its text, or `text`."""
    kind = Failure
    if isinstance(error, TimedOut):
        kind = TimedOutFailure
    elif isinstance(error.__cause__ if isinstance(error, PublishRejected) else error, _MISTAKES):
        kind = UserMistake
    return kind(text or str(error) or error.code)


@contextmanager
def given_paths() -> Iterator[None]:
    """Report a missing or unsuitable path of an option or argument as a mistake of the user."""
    try:
        yield
    except _WRONG_PATH as error:
        raise UserMistake(_os_text(error)) from error


def _os_text(error: OSError) -> str:
    text = error.strerror or str(error)
    if not error.filename:
        return text
    return f"Cannot use {shown(str(error.filename))}: {text.lower()}. Check the path and its permissions."


_EXTRA: Final = re.compile(r"Got unexpected extra arguments? \((.*)\)", re.DOTALL)
"""Click's text about arguments that a command does not take."""


def _reworded(error: click.UsageError) -> click.UsageError:
    """Return the error with quotes around each value, and with a cure."""
    if isinstance(error, click.NoSuchOption):
        return click.UsageError(f"No such option {error.option_name!r}.{_near_option(error)}", error.ctx)
    if isinstance(error, click.BadParameter) and isinstance(error.param, click.Argument):
        hint = error.param_hint or error.param.human_readable_name
        if isinstance(hint, str):
            name = hint.strip("[]'").removesuffix("|-")
            error.param_hint = f"'{name}'"
    extra = _EXTRA.fullmatch(error.message)
    if extra is not None:
        return click.UsageError(
            f"Too many arguments: {shown(extra[1])}. Remove them, or put quotes around text with spaces.",
            error.ctx,
        )
    return error


_OPTION_SYNONYMS: Final = {
    "--json": ("--output json",), "-o": ("--output",), "--format": ("--output",),
    "-n": ("--limit N",), "--count": ("--limit N",), "--max": ("--limit N",),
    "--from-beginning": ("--bookmark epoch",), "--offset": ("--bookmark", "--from"),
    "--since": ("--bookmark", "--from"), "--start": ("--bookmark", "--from"), "--until": ("--to",),
    "-m": ("--message",), "--data-dir": ("--data",), "--port": ("--listen",), "--bind": ("--listen",),
    "--server": ("--admin",), "-s": ("--server", "--admin"), "--host": ("--server", "--admin"),
    "--url": ("--server", "--admin"), "--bootstrap-server": ("--server", "--admin"),
    "--token": ("--token-file",), "--cacert": ("--ca",), "--cert": ("--certificate",),
    "--where": ("--filter",), "-f": ("--filter",), "--follow": ("--watch",), "-y": ("--yes",),
}  # fmt: skip
"""Options of other programs and commands, and our options for the same purpose."""

_ARGUMENT_OPTIONS: Final = ("--topic", "-t", "--queue", "--config", "-c", "--file", "--dir", "--name")
"""Options of other programs that are arguments here."""


def _near_option(error: click.NoSuchOption) -> str:
    """Return a question with the option that was probably meant, or an empty text."""
    params = error.ctx.command.params if error.ctx is not None else []
    names = [name for param in params if isinstance(param, click.Option) for name in param.opts]
    given = error.option_name
    for synonym in _OPTION_SYNONYMS.get(given, ()):
        if synonym.partition(" ")[0] in names:
            return f" Did you mean {synonym!r}?"
    arguments = [param for param in params if isinstance(param, click.Argument)]
    if given in _ARGUMENT_OPTIONS and arguments and error.ctx is not None:
        forms = [argument.make_metavar(error.ctx).strip("[]").removesuffix("|-") for argument in arguments]
        default = None if given == "--name" else forms[0]  # the name of a client, not of a topic
        form = next((form for form in forms if given.strip("-").upper() in form), default)
        if form is not None:
            return f" Pass {form} as an argument, without an option."
    word = given.lstrip("-").lower()
    begun = [name for name in names if len(word) > 2 and name.startswith(f"--{word}")]
    near = begun or [name for name in names if near_name(word, [name.lstrip("-")])]
    return f" Did you mean {' or '.join(map(repr, near[:2]))}?" if near else ""


_SYNONYMS: Final = {
    "send": "publish", "produce": "publish", "put": "publish",
    "consume": "subscribe", "receive": "subscribe", "tail": "subscribe", "get": "subscribe",
    "start": "serve", "run": "serve", "broker": "serve",
    "status": "health", "ping": "health", "ready": "health", "info": "stats", "metrics": "stats",
    "log": "journal", "logs": "journal", "config": "check", "validate": "check",
    "list": "ls", "peek": "browse", "delete": "purge", "clear": "purge", "drain": "purge",
    "redrive": "requeue", "retry": "requeue", "cat": "dump", "print": "dump", "search": "grep",
    "locate": "find", "fsck": "verify", "clean": "prune", "truncate": "prune",
    "sql": "query", "select": "query",
    "create": "new", "add": "new", "merge": "compact", "version": "--version", "help": "--help",
}  # fmt: skip
"""Names of commands in other programs, and our commands for the same purpose."""


def _near_command(name: str, commands: list[str]) -> str:
    """Return a question with the command or option that was probably meant, or an empty text."""
    word = name.lower()
    longer = [command for command in commands if command.startswith(word)]
    synonym = _SYNONYMS.get(word, "")
    if len(longer) == 1:
        return f" Did you mean {longer[0]!r}?"
    if synonym in commands or synonym.startswith("--"):
        return f" Did you mean {synonym!r}?"
    return did_you_mean(word, commands)


class LazyGroup(click.Group):
    """A command group that imports a command when it is invoked, and turns errors into exit codes.

    Help and completion list the commands from their table, without an import.
    """

    def __init__(self, *args: Any, table: CommandTable, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of the commands, in the order of the help text."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return a command."""
        entry = self.table.get(cmd_name)
        if entry is None:
            return None
        command = getattr(import_module(entry.module), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.table.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that start with `incomplete`, and the options."""
        from click.shell_completion import CompletionItem

        commands = [
            CompletionItem(name, help=entry.summary)
            for name, entry in self.table.items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of `args`, or suggest one with a similar name."""
        if args and args[0] not in self.table and not args[0].startswith("-"):
            hint = _near_command(args[0], self.list_commands(ctx))
            if not hint and ctx.parent is not None:  # the root has too many commands for one line
                hint = f" Use {listed(self.list_commands(ctx))}."
            if hint:
                ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Print an error as one line, and set the exit code."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except TickertapeError as error:
            raise failure_of(error) from error
        except BrokenPipeError:
            # The reader has closed the pipe. Drop buffered output, too.
            _forget_stdout()
            raise click.exceptions.Exit(EXIT_DONE) from None
        except OSError as error:
            raise Failure(_os_text(error)) from error
        except KeyboardInterrupt:
            raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
        except click.UsageError as error:
            raise _reworded(error) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            # the traceback of a server belongs in its log
            if os.environ.get(DEBUG_VARIABLE) or ctx.invoked_subcommand == "serve":
                raise
            raise Failure(
                f"Unexpected {type(error).__name__}: {error}. This is a bug in Tickertape. Set "
                f"{DEBUG_VARIABLE}=1 to print the traceback, and report it."
            ) from error
        return result


def _forget_stdout() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _show_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"tickertape {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    table=ROOT,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version.",
)
def cli() -> None:
    """A message server that stores published messages in a log and replays them from any point.

    \b
    tickertape serve                                         start a server, with its log in ./data
    echo '{"id": 1}' | tickertape publish orders             publish a line
    tickertape subscribe orders --bookmark epoch             replay all messages, then live
    tickertape journal verify data                           verify all checksums
    tickertape stats                                         show server statistics

    Exit codes: 0 done, 1 error (one line on standard error), 2 bad usage, 3 timed out, 130 interrupted.
    "tickertape COMMAND --help" explains each command.
    """
