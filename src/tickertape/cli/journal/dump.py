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

if TYPE_CHECKING:
    from tickertape.journal.format.segment import CommitHeader
    from tickertape.journal.offline.snapshot import SelectedMessages


@click.command(short_help="Print messages or commit headers.")
@directory_argument
@extent_options
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@click.option(
    "--output",
    type=click.Choice(["json", "data"]),
    default="json",
    show_default=True,
    help="json: one object per line, with position and header fields. data: the message and a line end.",
)
@click.option("--commits", is_flag=True, help="Print commit headers as JSON instead of messages.")
def dump(
    directory: str,
    first: int | StartPoint | Range | None,
    last: int | StartPoint | None,
    topic: str | None,
    unsynced: bool,
    count: int | None,
    output: str,
    commits: bool,
) -> None:
    """Print the messages of the journal in DIR, in the order of the log.

    POINT is a position (a number), a bookmark or a timestamp (UTC). --from also accepts epoch or a range.
    Both ends are included. Control records of the server are left out, so positions may have gaps. At
    corruption the command stops with an error that names file and byte. It prints the messages before it.

    \b
    tickertape journal dump data > log.jsonl
    tickertape journal dump data --topic orders --from 20261120T090000 --to 20261120T100000
    tickertape journal dump data --from 1000000 --count 10 --output data
    tickertape journal dump data --commits | jq -r .kind | sort | uniq -c
    """
    if commits:
        if first is not None or last is not None or topic is not None or unsynced:
            raise click.UsageError("--commits accepts no other option except --count. Remove the others.")
        if output != "json":
            raise click.UsageError("--commits always prints JSON. Remove --output.")
        _dump_commits(directory, count, message_output())
        return
    extent = LogExtent(directory, first, last, topic, unsynced)
    _dump(extent.selected("dump"), count, message_output(), as_json=output == "json")


def _dump(parts: Iterator[SelectedMessages], count: int | None, out: Output, *, as_json: bool) -> None:
    left = count
    for positions, batch in parts:
        lines = _numbered(positions.tolist(), json_lines(batch)) if as_json else batch.bodies_list()
        taken = lines if left is None else lines[:left]
        out.write(b"\n".join([*taken, b""]))
        if left is not None:
            left -= len(taken)
            if not left:
                return


def _numbered(positions: list[int], lines: Iterator[bytes]) -> list[bytes]:
    return [b'{"position":%d,%b' % (at, line[1:]) for at, line in zip(positions, lines, strict=True)]


def _dump_commits(directory: str, count: int | None, out: Output) -> None:
    from tickertape.journal.disk import SystemDisk
    from tickertape.journal.offline.snapshot import commit_headers

    for number, (file, header) in enumerate(commit_headers(SystemDisk(directory))):
        if number == count:
            return
        out.write(_commit_line(file, header))


def _commit_line(file: str, header: CommitHeader) -> bytes:
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
    return msgspec.json.encode(fields) + b"\n"
