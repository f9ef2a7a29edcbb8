"""Root command group: lazy commands, one-line errors and exit codes.

A command is imported when it is invoked, because `serve` must be ready quickly and most commands need
libraries that it does not.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import click

from tickertape.base.errors import TickertapeError, TimedOut
from tickertape.base.version import __version__

EXIT_DONE: Final = 0
EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_TIMED_OUT: Final = 3
EXIT_INTERRUPTED: Final = 130
"""What shells expect of a command that Ctrl-C ended."""


DEBUG_VARIABLE: Final = "TICKERTAPE_DEBUG"
"""Environment variable: if it is set, an unexpected exception ends a command with its traceback."""


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
        """Print the line."""
        click.echo(f"tickertape: {self.message}", file=file or sys.stderr)


def end_of_search(matched: int, only_count: bool, nothing: str) -> None:
    """Print how many were found, if only that is asked for, and end the command as failed if none was."""
    if not matched and not only_count:
        raise Failure(nothing)
    if only_count:
        click.echo(matched)
        if not matched:
            raise click.exceptions.Exit(EXIT_ERROR)


class TimedOutFailure(Failure):
    """The same for what did not come in time."""

    exit_code = EXIT_TIMED_OUT


class LazyGroup(click.Group):
    """A group whose commands are imported when they are looked at; errors of ours become exit codes."""

    def __init__(self, *args: Any, modules: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names of the commands, in the order in which a user meets them."""
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return the command, its module imported."""
        module = self._modules.get(cmd_name)
        if module is None:
            return None
        command = getattr(import_module(module), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begin with, or suggest one with a name like it."""
        if args and args[0] not in self._modules and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0].lower(), self.list_commands(ctx), n=1)
            if near:
                ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; errors become one line and an exit code."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except TimedOut as error:
            raise TimedOutFailure(str(error)) from error
        except TickertapeError as error:
            raise Failure(str(error) or error.code) from error
        except BrokenPipeError:
            # Whoever read our output has had enough. Nothing more can be written, not even what is buffered.
            _forget_stdout()
            raise click.exceptions.Exit(EXIT_DONE) from None
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise Failure(f"{where}{error.strerror or error}") from error
        except KeyboardInterrupt:
            raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            # the log of a server is where its traceback is looked for
            if os.environ.get(DEBUG_VARIABLE) or ctx.invoked_subcommand == "serve":
                raise
            raise Failure(
                f"unexpected {type(error).__name__}: {error}. This is a defect of tickertape: set "
                f"{DEBUG_VARIABLE}=1 to see where it happened, and report it"
            ) from error
        return result


def modules_in(package: str, *names: str) -> dict[str, str]:
    """The commands of a group, each with its module in `package`."""
    return {name: f"{package}.{name}" for name in names}


def _forget_stdout() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _show_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"tickertape {__version__}")
        ctx.exit()


_COMMANDS: Final = (
    "serve", "check", "doctor", "publish", "subscribe", "ack", "queue", "journal", "pipeline", "token",
    "health", "stats", "topics", "monitoring", "filter", "error", "completion",
)  # fmt: skip


@click.group(
    cls=LazyGroup,
    modules=modules_in("tickertape.cli.commands", *_COMMANDS)
    | {"journal": "tickertape.cli.journal", "pipeline": "tickertape.cli.pipeline"},
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
    """A message server that records what is published and replays it from any point.

    \b
    tickertape serve                                         start a server, its log in ./data
    echo '{"id": 1}' | tickertape publish orders             publish a line
    tickertape subscribe orders --bookmark epoch             everything so far, then live
    tickertape journal verify data                           is the log whole?
    tickertape stats                                         what does the server do?

    Exit codes: 0 done, 1 an error, told in one line on standard error, 2 bad usage, 3 timed out, 130
    interrupted. "tickertape COMMAND --help" explains each command.
    """
