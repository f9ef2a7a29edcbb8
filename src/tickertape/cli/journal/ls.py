"""`journal ls`: list the segments of a data directory.

The directory is not locked or changed, because a server may be running on it. Of a sealed segment only the
header and the seal are read, so damage in its messages is not reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from tickertape.base.timestamps import format_timestamp
from tickertape.cli.journal.log_range import directory_argument
from tickertape.cli.support.tables import counted
from tickertape.cli.support.terminal import progress

if TYPE_CHECKING:
    from tickertape.journal.offline.report import SegmentSummary, VerifyReport

_COLUMNS = ("segment", "state", "epoch", "first", "end", "messages", "publishers", "bytes", "begun", "last")

_as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")


@click.command("ls", short_help="List the segments.")
@directory_argument
@_as_json
def ls(directory: str, as_json: bool) -> None:
    """List the segments of the journal in DIR.

    For each its state, epoch (which start of the server wrote it), the positions of its first message and
    after its last one, messages (control records included), publishers, bytes in use, when it was begun and
    the log time of its last commit. A segment is sealed, active (being written, or left by a killed server),
    reserved (empty, prepared ahead) or unreadable.

    Of a sealed segment only the header and the seal are read, so damage in its messages is not seen here:
    "journal verify" checks them. In the JSON, damage that was seen stands under
    damage_outside_sealed_commits; begun and last are microseconds since 1970, UTC.

    \b
    tickertape journal ls data
    tickertape journal ls data --json | jq '.segments[].messages'
    """
    from tickertape.journal.disk import SystemDisk
    from tickertape.journal.offline.verify import survey

    report = survey(SystemDisk(directory))
    if as_json:
        seen = msgspec.to_builtins(report)
        seen["damage_outside_sealed_commits"] = seen.pop("damage")
        click.echo(msgspec.json.encode(seen))
        return
    rows = [_COLUMNS, *(_row(segment) for segment in report.segments)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    for row in rows:
        click.echo("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    _print_findings(report)


@click.command("verify", short_help="Read everything and tell every damage.")
@directory_argument
@_as_json
@click.pass_context
def verify(ctx: click.Context, directory: str, as_json: bool) -> None:
    """Read every commit of the journal in DIR and check all that can be checked.

    Checksums of segments, commits and of what publishers sent, the chain from commit to commit and from
    segment to segment, positions, sequences. Each damage is told with its file and the byte where it begins;
    what is no damage but not as a clean stop leaves it (an unfinished write, a foreign file) is a note.

    In the JSON, begun and last of a segment are microseconds since 1970, UTC. Exit code 1 when anything is
    damaged.

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
        _print_findings(report)
        click.echo(_total(report))
    if not report.whole:
        places = counted(len(report.damage), "place")
        click.echo(f"tickertape: {directory}: damaged in {places}", err=True)
        ctx.exit(1)


def _print_findings(report: VerifyReport) -> None:
    for finding in report.damage:
        click.echo(f"DAMAGE  {finding}")
    for finding in report.notes:
        click.echo(f"note    {finding}")


def _row(segment: SegmentSummary) -> Sequence[str]:
    if segment.state in ("reserved", "unreadable"):
        return (str(segment.number), segment.state, *["-"] * 5, f"{segment.bytes:,}", "-", "-")
    return (
        str(segment.number),
        segment.state,
        str(segment.epoch),
        str(segment.first_position),
        str(segment.end_position),
        str(segment.messages),
        str(segment.publishers),
        f"{segment.used:,}",
        format_timestamp(segment.begun),
        format_timestamp(segment.last),
    )


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
