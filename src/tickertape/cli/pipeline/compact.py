"""`pipeline compact`: merge small files of an archive and delete files that it no longer uses.

Spark is not needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from tickertape.cli.limits import keep_seconds_default
from tickertape.cli.support.archive_options import (
    archive_location,
    report_json_option,
    require_deltalake,
    storage_option,
)
from tickertape.cli.support.option_types import interval
from tickertape.cli.support.tables import counted
from tickertape.cli.support.terminal import progress

if TYPE_CHECKING:
    from tickertape.archive.compact import Compacted


@click.command(short_help="Merge small files of an archive, and remove those it no longer has.")
@click.argument("location")
@click.option(
    "--keep",
    callback=interval,
    default=f"{keep_seconds_default / 86_400:.0f}d",
    show_default=True,
    metavar="S",
    help="How long files stay that are no part of the archive any more, for who reads an older version: an "
    "hour or longer. Files that no commit names stay for a day at least.",
)
@storage_option
@report_json_option
def compact(location: str, keep: float, storage: dict[str, str], as_json: bool) -> None:
    """Merge the small files of the archive at LOCATION, and remove files that are no part of it any more.

    Rows and their order stay as they are. Whoever reads or writes the archive meanwhile is not disturbed: the
    new files take the place of the old ones in one commit, and the old ones stay for a while (--keep), as do
    files of attempts that failed. Needs no Spark.

    \b
    tickertape pipeline compact /srv/archive
    tickertape pipeline compact s3://bucket/log --keep 1d
    """
    require_deltalake()
    from tickertape.archive.commit import ArchiveWriter
    from tickertape.archive.compact import compact as merge
    from tickertape.archive.compact import vacuum

    opened = ArchiveWriter(archive_location(location, storage))
    with progress("compact", None) as advance:
        done = merge(opened, wrote=advance)
    removed = vacuum(opened, keep)
    if as_json:
        click.echo(msgspec.json.encode(msgspec.to_builtins(done) | {"removed": removed}))
        return
    echo_compacted(done)
    click.echo(f"{counted(removed, 'file')} removed that {'was' if removed == 1 else 'were'} no part of it")


def echo_compacted(done: Compacted) -> None:
    """Print how many files and bytes a compaction merged."""
    click.echo(
        f"compacted {counted(done.files_before, 'file')} into {done.files_after:,}, "
        f"{counted(done.bytes_before, 'byte')} into {done.bytes_after:,}"
    )
