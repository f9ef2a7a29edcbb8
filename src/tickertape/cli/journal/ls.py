"""`journal ls`: list the segments of a data directory.

The directory is not locked or changed, because a server may run on it. For a sealed segment only the header
and the seal are read, so corruption of its messages is not reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from tickertape.base.bookmarks import format_timestamp
from tickertape.cli.journal.log_range import directory_argument
from tickertape.cli.journal.verify import print_findings, sockets_in
from tickertape.cli.support.output_options import limit_option, output_option
from tickertape.cli.support.tables import echo_table

if TYPE_CHECKING:
    from tickertape.journal.offline.report import SegmentSummary

_COLUMNS = ("segment", "state", "epoch", "first", "end", "messages", "publishers", "bytes", "begun", "last")


@click.command("ls", short_help="List the segments.")
@directory_argument
@limit_option("List only the N newest segments.")
@output_option
def ls(directory: str, limit: int | None, as_json: bool) -> None:
    """List the segments of the journal in DIR.

    The columns are: state, epoch (number of the server start that wrote it), positions of the first message
    and after the last message, messages (with control records), publishers, bytes in use, time of its start,
    and log time of its last commit. A segment is sealed, active (in use, or left by a killed server),
    reserved (preallocated and empty) or unreadable.

    For a sealed segment only the header and the seal are read. "journal verify" also checks its messages. In
    the JSON, begun and last are microseconds since 1970, UTC. With --output json, corruption and notes are
    printed on standard error.

    \b
    tickertape journal ls data
    tickertape journal ls data --output json | jq .messages
    """
    from tickertape.journal.disk import SystemDisk
    from tickertape.journal.offline.verify import survey

    report = survey(SystemDisk(directory), sockets_in(directory))
    listed = report.segments if limit is None else report.segments[-limit:]
    if as_json:
        for segment in listed:
            click.echo(msgspec.json.encode(segment))
    else:
        echo_table(_COLUMNS, [_row(segment) for segment in listed], left=0)
    print_findings(report, err=as_json)


def _row(segment: SegmentSummary) -> Sequence[str]:
    if segment.state in ("reserved", "unreadable"):
        return (str(segment.number), segment.state, *["-"] * 5, f"{segment.bytes:,}", "-", "-")
    positions = segment.first_position, segment.end_position
    numbers = map(str, (segment.epoch, *positions, segment.messages, segment.publishers))
    times = format_timestamp(segment.begun), format_timestamp(segment.last)
    return (str(segment.number), segment.state, *numbers, f"{segment.used:,}", *times)
