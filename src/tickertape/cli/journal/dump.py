"""`journal dump`: print the messages or the commit headers of a data directory.

Messages with an invalid checksum are not printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
import msgspec

from tickertape.base.bookmarks import Range, StartPoint, format_timestamp
from tickertape.cli.journal.log_range import LogExtent, directory_argument, extent_options
from tickertape.cli.support.json_lines import Output, json_lines, message_output
from tickertape.cli.support.output_options import limit_option, output_option

if TYPE_CHECKING:
    from tickertape.journal.format.segment import CommitHeader
    from tickertape.journal.offline.snapshot import SelectedMessages


@click.command(short_help="Print messages or commit headers.")
@directory_argument
@extent_options
@limit_option("Stop after N messages, or with --commits after N commits.")
@output_option
@click.option("--commits", is_flag=True, help="Print commit headers instead of messages.")
def dump(
    directory: str,
    first: int | StartPoint | Range | None,
    last: int | StartPoint | None,
    topic: str | None,
    unsynced: bool,
    limit: int | None,
    as_json: bool,
    commits: bool,
) -> None:
    """Print the messages of the journal in DIR, in the order of the log.

    POINT is a position (a number), a bookmark or a timestamp (UTC). --from also accepts epoch, now or a
    range. Both ends are included. Control records of the server are left out, so positions may have gaps. At
    corruption the command stops with an error that names file and byte. It prints the messages before it.

    With --commits, each line has the fields of its JSON, separated by tabs.

    \b
    tickertape journal dump data --output json > log.jsonl
    tickertape journal dump data --topic orders --from 20261120T090000 --to 20261120T100000
    tickertape journal dump data --from 1000000 --limit 10
    tickertape journal dump data --commits --output json | jq -r .kind | sort | uniq -c
    """
    if commits:
        if first is not None or last is not None or topic is not None or unsynced:
            raise click.UsageError("--commits accepts only --limit and --output. Remove the others.")
        _dump_commits(directory, limit, message_output(), as_json=as_json)
        return
    extent = LogExtent(directory, first, last, topic, unsynced)
    _dump(extent.selected("dump"), limit, message_output(), as_json=as_json)


def _dump(parts: Iterator[SelectedMessages], limit: int | None, out: Output, *, as_json: bool) -> None:
    left = limit
    for positions, batch in parts:
        lines = numbered(positions.tolist(), json_lines(batch)) if as_json else batch.bodies_list()
        taken = lines if left is None else lines[:left]
        out.write(b"\n".join([*taken, b""]))
        if left is not None:
            left -= len(taken)
            if not left:
                return


def numbered(positions: list[int], lines: Iterator[bytes]) -> list[bytes]:
    """Return JSON lines with the position of each message as first field."""
    return [b'{"position":%d,%b' % (at, line[1:]) for at, line in zip(positions, lines, strict=True)]


def _dump_commits(directory: str, limit: int | None, out: Output, *, as_json: bool) -> None:
    from tickertape.journal.disk import SystemDisk
    from tickertape.journal.offline.snapshot import commit_headers

    for number, (file, header) in enumerate(commit_headers(SystemDisk(directory))):
        if number == limit:
            return
        out.write(_commit_line(file, header, as_json=as_json))


def _commit_line(file: str, header: CommitHeader, *, as_json: bool) -> bytes:
    fields = {
        "file": file,
        "offset": header.offset,
        "commit": header.number,
        "kind": header.kind.name.lower(),
        "first_position": header.first_position,
        "messages": header.messages,
        "body_bytes": header.body_bytes,
        "synced_through": header.synced_through,
        "timestamp": format_timestamp(header.timestamp),
        "epoch": header.epoch,
    }
    line = msgspec.json.encode(fields) if as_json else "\t".join(map(str, fields.values())).encode()
    return line + b"\n"
