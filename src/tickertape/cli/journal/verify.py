"""`journal verify`: verify all checksums of a data directory and report corruption.

The directory is not locked or changed, because a server may run on it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

import click
import msgspec

from tickertape.base.text_format import shown
from tickertape.cli.journal.log_range import directory_argument
from tickertape.cli.support.output_options import limit_option, output_option
from tickertape.cli.support.tables import counted
from tickertape.cli.support.terminal import progress

if TYPE_CHECKING:
    from tickertape.journal.offline.report import VerifyReport


@click.command("verify", short_help="Verify all checksums and report corruption.")
@directory_argument
@limit_option("Print at most N corruptions and N notes.")
@output_option
@click.pass_context
def verify(ctx: click.Context, directory: str, limit: int | None, as_json: bool) -> None:
    """Verify all checksums of the journal in DIR and report corruption.

    The command reads every commit. It checks the checksums of segments, commits and messages, the chain of
    commits and segments, positions and sequences. It reports each corruption with its file and byte offset.
    Other findings (an unfinished write, an unknown file) are notes.

    In the JSON, begun and last of a segment are microseconds since 1970, UTC. Exit code 1 means corruption.

    \b
    tickertape journal verify data
    tickertape journal verify data --output json | jq .damage
    """
    from tickertape.journal.disk import SystemDisk
    from tickertape.journal.offline.verify import segment_bytes, verify

    disk = SystemDisk(directory)
    with progress("verify", segment_bytes(disk)) as advance:
        report = verify(disk, advance, sockets_in(directory))
    if as_json:
        found = {"damage": report.damage[:limit], "notes": report.notes[:limit], "whole": report.whole}
        click.echo(msgspec.json.encode(msgspec.to_builtins(report) | found))
    else:
        print_findings(report, limit)
        click.echo(_total(report))
    if not report.whole:
        places = counted(len(report.damage), "place")
        click.echo(
            f"tickertape: The journal in {shown(directory)} is corrupt in {places}. See "
            "docs/operations/runbook.md.",
            err=True,
        )
        ctx.exit(1)


def sockets_in(directory: str) -> set[str]:
    """Return the names of sockets in a data directory: a server creates those of its unix:// addresses."""
    found = set()
    with os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # a server may rename files meanwhile
                if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                    found.add(entry.name)
    return found


def print_findings(report: VerifyReport, limit: int | None = None, *, err: bool = False) -> None:
    """Print corruption and notes, one finding per line, up to `limit` of each."""
    for finding in report.damage[:limit]:
        click.echo(f"CORRUPT  {finding}", err=err)
    for finding in report.notes[:limit]:
        click.echo(f"note     {finding}", err=err)


def _total(report: VerifyReport) -> str:
    segments = report.segments
    state = "no corruption" if report.whole else f"CORRUPT in {counted(len(report.damage), 'place')}"
    sums = (
        counted(len(segments), "segment"),
        counted(sum(segment.commits for segment in segments), "commit"),
        counted(sum(segment.messages for segment in segments), "message"),
        counted(sum(segment.used for segment in segments), "byte"),
    )
    return f"{state}: {', '.join(sums)}"
