"""`doctor`: check the machine of a server."""

from __future__ import annotations

import os
from typing import Final

import click
import msgspec

from tickertape.base.text_format import shown
from tickertape.base.units import parse_interval
from tickertape.cli.support.command_group import EXIT_ERROR, UserMistake
from tickertape.cli.support.option_types import parsed
from tickertape.cli.support.output_options import output_option
from tickertape.cli.support.tables import safe_whole
from tickertape.cli.support.terminal import progress
from tickertape.server.config.config import load_config
from tickertape.server.diagnosis import Finding, diagnose

SECONDS_DEFAULT: Final = "5s"
SECONDS_MAX: Final = 600.0
_WIDTH: Final = 14


def _seconds(value: str) -> float:
    seconds = parse_interval(value)
    if seconds > SECONDS_MAX:
        raise click.BadParameter(f"Invalid duration {shown(value)}. Use at most {SECONDS_MAX:g} s.")
    return seconds


@click.command(short_help="Check disk, clock, limits and certificates of this machine.")
@click.argument("config", type=click.Path(), required=False, metavar="[CONFIG.toml]")
@click.option("--data", metavar="DIR", help="Data directory. Default: from CONFIG, or ./data.")
@click.option(
    "--seconds",
    callback=parsed(_seconds),
    default=SECONDS_DEFAULT,
    show_default=True,
    metavar="S",
    help="Duration of the write test.",
)
@output_option
@click.pass_context
def doctor(ctx: click.Context, config: str | None, data: str | None, seconds: float, as_json: bool) -> None:
    """Check the machine on which a server with CONFIG runs or will run.

    The command measures the duration of synced writes on the disk of the data directory, and reports the
    publish rate that they allow. It checks free disk space, the limit of open files, the clock, and the
    expiration of certificates and tokens. It lists versions. It is safe while a server runs: it writes only
    to an unnamed temporary file.

    Exit codes: 0 no check failed (warnings do not count), 1 a check failed, 2 bad usage or invalid CONFIG.

    \b
    tickertape doctor
    tickertape doctor tickertape.toml --seconds 30s
    tickertape doctor tickertape.toml --output json | jq '.findings[] | select(.level != "ok")'
    """
    settings = load_config(config, data=data)
    if os.path.exists(settings.instance.data) and not os.path.isdir(settings.instance.data):
        raise UserMistake(
            f"Cannot use data directory {shown(settings.instance.data)}: it is not a directory. "
            "Use another path."
        )
    with progress("measuring synced writes", seconds, timed=True) as advance:
        findings = list(diagnose(settings, seconds, advance))
    failed = any(finding.level == "fail" for finding in findings)
    if as_json:
        click.echo(msgspec.json.encode({"failed": failed, "findings": findings}))
    else:
        for finding in findings:
            for line in _lines(finding):
                click.echo(line)
    ctx.exit(EXIT_ERROR if failed else 0)


def _lines(finding: Finding) -> list[str]:
    text = f"{finding.level:<6}{finding.check:<{_WIDTH}}{safe_whole(finding.text)}"
    return [text, f"{'':<6}{'':<{_WIDTH}}{safe_whole(finding.cure)}."] if finding.cure else [text]
