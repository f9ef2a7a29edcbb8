"""`journal verify`: verify all checksums of a data directory and report corruption.

The directory is not locked or changed, because a server may run on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from tickertape.cli.journal.log_range import directory_argument
from tickertape.cli.support.tables import counted
from tickertape.cli.support.terminal import progress

if TYPE_CHECKING:
    from tickertape.journal.offline.report import VerifyReport

report_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object instead of text."
)


@click.command("verify", short_help="Verify all checksums and report corruption.")
@directory_argument
@report_json_option
@click.pass_context
def verify(ctx: click.Context, directory: str, as_json: bool) -> None:
    """Verify all checksums of the journal in DIR and report corruption.

    The command reads every commit. It checks the checksums of segments, commits and messages, the chain of
    commits and segments, positions and sequences. It reports each corruption with its file and byte offset.
    Other findings (an unfinished write, an unknown file) are notes.

    In the JSON, begun and last of a segment are microseconds since 1970, UTC. Exit code 1 means corruption.

    \b
    tickertape journal verify data
    tickertape journal verify data --json | jq .damage
    """
    from tickertape.journal.disk import SystemDisk
    from tickertape.journal.offline.verify import segment_bytes, verify

    disk = SystemDisk(directory)
    with progress("verify", segment_bytes(disk)) as advance:
        report = verify(disk, advance)
    if as_json:
        click.echo(msgspec.json.encode(msgspec.to_builtins(report) | {"whole": report.whole}))
    else:
        print_findings(report)
        click.echo(_total(report))
    if not report.whole:
        places = counted(len(report.damage), "place")
        click.echo(f"tickertape: {directory}: damaged in {places}", err=True)
        ctx.exit(1)


def print_findings(report: VerifyReport) -> None:
    """Print corruption and notes, one finding per line."""
    for finding in report.damage:
        click.echo(f"DAMAGE  {finding}")
    for finding in report.notes:
        click.echo(f"note    {finding}")


def _total(report: VerifyReport) -> str:
    segments = report.segments
    state = "whole" if report.whole else f"DAMAGED in {len(report.damage)}"
    sums = (
        counted(len(segments), "segment"),
        counted(sum(segment.commits for segment in segments), "commit"),
        counted(sum(segment.messages for segment in segments), "message"),
        counted(sum(segment.used for segment in segments), "byte"),
    )
    return f"{state}: {', '.join(sums)}"
