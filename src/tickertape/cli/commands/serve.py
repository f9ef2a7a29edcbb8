"""`serve`: start a server from a configuration file and options.

The server is imported after the configuration was checked, and slow modules only after it is ready.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from tickertape.base.errors import ConfigurationError
from tickertape.cli.commands.check import counted_problems, printable, problem_lines
from tickertape.server.config.config import COMMAND_LINE, Config, examine
from tickertape.server.config.document import ConfigProblem


@click.command(short_help="Start a server.")
@click.argument("config", required=False, type=click.Path(), metavar="[CONFIG.toml]")
@click.option("--data", metavar="DIR", help="Directory of the log. Default: data.")
@click.option(
    "--listen",
    multiple=True,
    metavar="URI",
    help="Address to listen on, tcp://HOST:PORT or unix:///PATH; port 0 takes a free one. May be given more "
    "than once, and replaces the addresses of the file. Default: tcp://127.0.0.1:9007.",
)
@click.option(
    "--admin",
    metavar="URL",
    help="Where to answer over HTTP about the server, http://HOST:PORT, or off; port 0 takes a free one. "
    "Default: http://127.0.0.1:9008, and nowhere when that is taken.",
)
@click.option("--name", metavar="NAME", help="Name of the instance. Default: tickertape.")
@click.pass_context
def serve(
    ctx: click.Context,
    config: str | None,
    data: str | None,
    listen: Sequence[str],
    admin: str | None,
    name: str | None,
) -> None:
    """Start a server and serve until Ctrl-C or SIGTERM.

    Without a configuration file every topic is recorded, and acknowledged when it is synced to disk. Options
    win over the file. When the log is recovered and the ports are open, one line says so on standard output:

    \b
    ready tcp://127.0.0.1:9007 admin http://127.0.0.1:9008

    What happens is told on standard error, an event a line. After SIGTERM or Ctrl-C what was accepted is
    persisted and subscribers get it; a second signal ends the process at once.

    \b
    tickertape serve
    tickertape serve tickertape.toml
    tickertape serve --data /var/lib/tickertape --listen tcp://127.0.0.1:0 --listen unix:///run/tt.sock

    Exit codes: 0 stopped as asked; 1 a configuration or an address that cannot be used; 4 the disk failed,
    at the start or later, and nothing more was acknowledged; 5 the data directory is damaged, in use, not
    ours, or of another instance, and nothing in it was changed.
    """
    settings = _settings(config, data, listen, admin, name)
    from tickertape.server.app import run_server

    ctx.exit(run_server(settings, _say_ready))


def _settings(
    config: str | None, data: str | None, listen: Sequence[str], admin: str | None, name: str | None
) -> Config:
    settings, problems = examine(config, name=name, data=data, listen=listen, admin=admin)
    given = [problem for problem in problems if problem.location.file == COMMAND_LINE]
    if settings is not None and not given:
        return settings
    lines = [_of_option(problem) for problem in given]
    lines += problem_lines(problem for problem in problems if problem not in given)
    if len(lines) > 1:
        for line in lines:
            click.echo(line, err=True)
        what = f"{counted_problems(problems)}; nothing was started"
    else:
        what = lines[0]
    if given:
        raise click.UsageError(what)
    raise ConfigurationError(what if len(lines) == 1 else f"{config}: {what}")


def _of_option(problem: ConfigProblem) -> str:
    table, _, key = problem.key.rpartition(".")
    return printable(f"--{table if table == 'admin' else key}: {problem.text}")


def _say_ready(uris: list[str], admin: str | None) -> None:
    print("ready", *uris, *(() if admin is None else ("admin", admin)), flush=True)
