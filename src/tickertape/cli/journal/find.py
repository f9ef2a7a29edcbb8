"""`journal find`: locate a message on disk, or report the reason why it does not exist."""

from __future__ import annotations

import contextlib

import click
import msgspec

from tickertape.base.bookmarks import AtBookmarks, AtTime, Epoch, StartPoint, format_timestamp
from tickertape.cli.journal.log_range import Point, Role, directory_argument
from tickertape.cli.support.command_group import Failure
from tickertape.cli.support.output_options import output_option
from tickertape.cli.support.tables import counted


@click.command(short_help="Locate a message in the journal.")
@directory_argument
@click.argument("point", type=Point(Role.SINGLE))
@output_option
@click.option("--unsynced", is_flag=True, help="Include data that may not be synced yet.")
def find(directory: str, point: int | StartPoint, as_json: bool, unsynced: bool) -> None:
    """Print file, commit and position of a message of the journal in DIR.

    POINT is a bookmark, a position (a number), a timestamp (UTC), or epoch (the first position, which may
    be a control record of the server). A timestamp
    finds the first message with that log time or a later one. If the message does not exist, the exit code is
    1 and an error line states the reason: before the first message, after the last message, or a gap.

    \b
    tickertape journal find data '4031722713208431|1700000000000|'
    tickertape journal find data 20261120T090000
    tickertape journal find data 1000000 --output json
    """
    from tickertape.journal.disk import SystemDisk
    from tickertape.journal.offline.snapshot import (
        Absent,
        SnapshotReader,
        locate,
        locate_bookmark,
        locate_time,
        take_snapshot,
    )

    disk = SystemDisk(directory)
    snapshot = take_snapshot(disk, unsynced=unsynced)
    with contextlib.closing(SnapshotReader(disk, snapshot.view)) as reader:
        if isinstance(point, int):
            found = locate(reader, point)
        elif isinstance(point, AtTime):
            found = locate_time(reader, point.micros)
        elif isinstance(point, Epoch):
            found = locate(reader, reader.view.first_position)
        else:
            assert isinstance(point, AtBookmarks)
            found = locate_bookmark(reader, point.bookmarks[0])
    if isinstance(found, Absent):
        if snapshot.damage is not None:
            raise Failure(f"Cannot find the message: {found.reason}. {snapshot.damage}")
        unseen = f" ({counted(snapshot.unproven, 'later message')} may not be synced yet)"
        raise Failure(f"Cannot find the message: {found.reason}{unseen if snapshot.unproven else ''}.")
    fields = found._asdict() | {"timestamp": format_timestamp(found.timestamp)}
    if as_json:
        click.echo(msgspec.json.encode(fields))
        return
    width = max(map(len, fields))
    fields["control"] = "yes" if found.control else "no"
    for name, value in fields.items():
        click.echo(f"{name.replace('_', ' '):{width}}  {value}")
