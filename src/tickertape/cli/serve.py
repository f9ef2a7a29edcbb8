"""Owns `serve` and `check`: a server from a configuration file and a few options.

Must never import the server before the configuration is in order, nor anything slow before it is ready.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import click

from tickertape.server.config import COMMAND_LINE, Config, examine, load_config


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
@click.option("--name", metavar="NAME", help="Name of the instance. Default: tickertape.")
@click.pass_context
def serve(
    ctx: click.Context, config: str | None, data: str | None, listen: Sequence[str], name: str | None
) -> None:
    """Start a server and serve until Ctrl-C or SIGTERM.

    Without a configuration file every topic is recorded, and acknowledged when it is synced to disk. Options
    win over the file. When the log is recovered and the ports are open, one line says so on standard output:

    \b
    ready tcp://127.0.0.1:9007

    \b
    tickertape serve
    tickertape serve tickertape.toml
    tickertape serve --data /var/lib/tickertape --listen tcp://127.0.0.1:0 --listen unix:///run/tt.sock

    Exit codes: 0 stopped as asked; 1 a configuration or an address that cannot be used; 4 the disk failed,
    and nothing more was acknowledged; 5 the data directory is damaged, in use, or not ours, and nothing in it
    was changed.
    """
    settings = _settings(config, data, listen, name)
    logging.basicConfig(
        level=logging.WARNING, format="tickertape: %(levelname)s: %(message)s", stream=sys.stderr
    )
    from tickertape.server.app import run_server

    ctx.exit(run_server(settings, _say_ready))


@click.command(short_help="Check a configuration file, starting nothing.")
@click.argument("config", type=click.Path(), metavar="CONFIG.toml")
@click.pass_context
def check(ctx: click.Context, config: str) -> None:
    """Check a configuration file and say what is wrong with it, line by line. Starts nothing.

    \b
    tickertape check tickertape.toml
    """
    settings, problems = examine(config)
    for problem in problems:
        click.echo(str(problem))
    if settings is None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        click.echo(f"tickertape: {config}: {count}", err=True)
        ctx.exit(1)
    click.echo(f"{config}: in order")
    for line in _summary(settings):
        click.echo(line)


def _settings(config: str | None, data: str | None, listen: Sequence[str], name: str | None) -> Config:
    settings, problems = examine(config, name=name, data=data, listen=listen)
    given = [problem for problem in problems if problem.place.file == COMMAND_LINE]
    if given:
        raise click.UsageError(f"--{given[0].key.rpartition('.')[2]}: {given[0].text}")
    if settings is None:
        return load_config(config, name=name, data=data, listen=listen)  # raises, in its words
    return settings


def _summary(settings: Config) -> list[str]:
    journal = settings.journal
    sync = f"every {journal.sync_interval:g} s" if journal.sync == "interval" else journal.sync
    topics = "every topic" if journal.topics is None else ", ".join(journal.topics) or "nothing"
    return [
        f"  instance  {settings.instance.name}",
        f"  data      {settings.instance.data}" + ("" if journal.create else " (must exist)"),
        *(f"  listen    {transport.listen}" for transport in settings.transports),
        f"  records   {topics}, synced {sync}, in segments of {journal.segment_size:,} bytes",
    ]


def _say_ready(uris: list[str]) -> None:
    print("ready", *uris, flush=True)
