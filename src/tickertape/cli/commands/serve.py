"""`serve`: start a server from a configuration file and options.

The command imports the configuration package when it runs, the server after it has checked the configuration,
and slow modules when the server is ready.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from tickertape.base.errors import ConfigurationError
from tickertape.base.text_format import did_you_mean, shown
from tickertape.cli.support.command_group import UserMistake

if TYPE_CHECKING:
    from tickertape.server.config.config import Config
    from tickertape.server.config.document import ConfigProblem

_BLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"
"""Environment variable: number of threads that numpy starts for linear algebra, one per core by default."""


@click.command(short_help="Start a server.")
@click.argument("config", required=False, type=click.Path(), metavar="[CONFIG.toml]")
@click.option("--data", metavar="DIR", help="Data directory. Default: data.")
@click.option(
    "--listen",
    multiple=True,
    metavar="URI",
    help="Listen address, tcp://HOST:PORT or unix:///PATH (may be repeated). Port 0 picks a free port. "
    "Replaces the addresses of the file. Default: tcp://127.0.0.1:9007.",
)
@click.option(
    "--admin",
    metavar="URL",
    help="Admin address, http://HOST:PORT, or off. Port 0 picks a free port. Default: http://127.0.0.1:9008, "
    "or off if that port is in use.",
)
@click.option("--name", metavar="NAME", help="Name of the instance. Default: tickertape.")
@click.option(
    "--rebuild-sow",
    "rebuild",
    multiple=True,
    metavar="NAME",
    help="Restore the records of this SOW topic from the log, without its checkpoint (may be repeated). "
    "Records whose last message retention has removed are lost. For one start only.",
)
@click.pass_context
def serve(
    ctx: click.Context,
    config: str | None,
    data: str | None,
    listen: Sequence[str],
    admin: str | None,
    name: str | None,
    rebuild: Sequence[str],
) -> None:
    """Start a server that runs until Ctrl-C or SIGTERM.

    Without a configuration file every topic is persistent, and messages are acknowledged after they are
    synced to disk. Options override the file. When the log is recovered and the ports are open, the server
    prints one line on standard output:

    \b
    ready tcp://127.0.0.1:9007 admin http://127.0.0.1:9008

    The server logs events on standard error, one per line. After SIGTERM or Ctrl-C it persists accepted
    messages and delivers them to subscribers, then stops. A second signal ends the process at once.

    \b
    tickertape serve
    tickertape serve tickertape.toml
    tickertape serve --data /var/lib/tickertape --listen tcp://127.0.0.1:0 --listen unix:///run/tt.sock

    Exit codes: 0 clean stop, 1 unusable address, 2 bad usage or invalid configuration, 4 disk failure at the
    start, or later (the server then acknowledges nothing more and stops), 5 data directory corrupt, in use,
    not a journal, of another instance, or without a checkpoint that a SOW topic needs (the directory is not
    changed).
    """
    # The server computes no linear algebra, and each thread for it spins for 50 ms after its start.
    os.environ.setdefault(_BLAS_THREADS, "1")
    gc.disable()  # the imports leave nothing to collect, and `run_server` enables it
    try:
        settings = _settings(config, data, listen, admin, name)
        _check_rebuild(settings, rebuild)
        ctx.exit(_run(settings, frozenset(rebuild)))
    finally:
        gc.enable()


def _run(settings: Config, rebuild: frozenset[str]) -> int:
    """Run the server and return its exit code."""
    from tickertape.server.app import run_server

    try:
        return run_server(settings, _say_ready, rebuild)
    except OSError as error:
        if error.filename != settings.instance.data:
            raise
        raise UserMistake(
            f"Cannot open data directory {shown(error.filename)}: {error.strerror}. Use another directory."
        ) from error


def _settings(
    config: str | None, data: str | None, listen: Sequence[str], admin: str | None, name: str | None
) -> Config:
    from tickertape.cli.commands.check import counted_problems, problem_lines
    from tickertape.server.config.config import COMMAND_LINE, examine

    settings, problems = examine(config, name=name, data=data, listen=listen, admin=admin)
    given = [problem for problem in problems if problem.location.file == COMMAND_LINE]
    if settings is not None and not given:
        return settings
    lines = [_of_option(problem) for problem in given]
    lines += problem_lines(problem for problem in problems if problem not in given)
    if len(lines) > 1:
        for line in lines:
            click.echo(line, err=True)
        text = f"{counted_problems(problems)}, server not started"
    else:
        text = lines[0]
    if given:
        raise click.UsageError(text)
    raise ConfigurationError(text if len(lines) == 1 else f"{config}: {text}")


def _check_rebuild(settings: Config, names: Sequence[str]) -> None:
    """Refuse names that are not SOW topics: the topic that was meant would not be rebuilt."""
    known = [definition.name for definition in settings.sow]
    for name in names:
        if name not in known:
            raise click.UsageError(
                f"Invalid value for '--rebuild-sow': no [[sow]] has the name {shown(name)}."
                f"{did_you_mean(name, known)} Use the name of a SOW topic."
            )


def _of_option(problem: ConfigProblem) -> str:
    from tickertape.cli.commands.check import printable

    table, _, key = problem.key.rpartition(".")
    return printable(f"Invalid value for '--{table if table == 'admin' else key}': {problem.text}")


def _say_ready(uris: list[str], admin: str | None) -> None:
    # One write: log events on the same terminal must not split the line.
    click.echo(" ".join(["ready", *uris, *([] if admin is None else ["admin", admin])]))
