"""`journal prune`: remove archived segments of a stopped server.

Segments are compared with the archive before they are removed, and each removal is reported.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import click
import msgspec

from tickertape.base.units import parse_size
from tickertape.cli.journal.log_range import directory_argument
from tickertape.cli.support.archive_options import (
    archive_location,
    existing_archive,
    require_deltalake,
    storage_option,
)
from tickertape.cli.support.option_types import interval, parsed
from tickertape.cli.support.output_options import output_option
from tickertape.cli.support.tables import counted
from tickertape.cli.support.terminal import progress

if TYPE_CHECKING:
    from tickertape.archive.archive_writer import ArchiveWriter
    from tickertape.archive.schema import Coverage
    from tickertape.server.offline_prune import PrunePlan


@click.command(short_help="Remove archived segments of a stopped server.")
@directory_argument
@click.option(
    "--archived",
    "location",
    required=True,
    metavar="LOCATION",
    help="The archive of this journal: a directory, or a URI such as s3://B/P.",
)
@click.option(
    "--keep-age", callback=interval, metavar="S", help="Keep messages younger than this age, such as 7d."
)
@click.option(
    "--keep-size",
    callback=parsed(parse_size),
    metavar="SIZE",
    help="Keep the newest segments up to this total size, such as 10GB.",
)
@click.option(
    "--forget-sow",
    "forget",
    multiple=True,
    metavar="NAME",
    help="Ignore the checkpoint of this SOW topic, which otherwise keeps the segments that it needs (may be "
    "repeated). A later start with this topic needs --rebuild-sow.",
)
@click.option("--dry-run", is_flag=True, help="Compare and report, but remove nothing.")
@storage_option
@output_option
def prune(
    directory: str,
    location: str,
    keep_age: float | None,
    keep_size: int | None,
    forget: Sequence[str],
    dry_run: bool,
    storage: dict[str, str],
    as_json: bool,
) -> None:
    """Remove old segments of the journal in DIR whose messages are in the archive at LOCATION.

    The command removes complete sealed segments, oldest first. It keeps the segment with the last message,
    and segments that a queue or a SOW topic needs. First it compares all messages of these segments with the
    archive. With --keep-age or --keep-size it also keeps the segments within these limits. The server must
    be stopped. A running server removes archived segments itself, with [archive], and retain in [journal].

    \b
    tickertape journal prune data --archived /srv/archive --dry-run
    tickertape journal prune data --archived s3://bucket/log --keep-age 7d
    """
    require_deltalake()
    from tickertape.archive.archive_writer import ArchiveWriter
    from tickertape.journal.retention import RetentionPolicy
    from tickertape.server.offline_prune import OfflinePrune

    where = archive_location(location, storage)

    def opened(journal: str) -> ArchiveWriter:
        with existing_archive():
            return ArchiveWriter(where, journal)

    with closing(OfflinePrune(directory, opened, frozenset(forget))) as pruning:
        plan = pruning.plan(RetentionPolicy(keep_age, keep_size), time.time_ns() // 1000)
        with progress("compare", plan.bytes) as advance:
            pruning.compare(plan, advance)
        if not dry_run:
            pruning.remove(plan)
        coverage = pruning.archive.coverage
    if as_json:
        click.echo(msgspec.json.encode(_fields(plan, coverage) | {"removed": not dry_run}))
    else:
        _echo(plan, coverage, directory, location, dry_run=dry_run)


def _begin(plan: PrunePlan) -> int:
    """Return the first position of the log without the segments of `plan`."""
    return plan.segments[-1].end_position if plan.segments else plan.first_position


def _fields(plan: PrunePlan, coverage: Coverage) -> dict[str, object]:
    return {
        "segments": [segment.number for segment in plan.segments],
        "bytes": plan.bytes,
        "first_position": _begin(plan),
        "end_position": plan.end_position,
        "archived_segments": plan.archived,
        "archive_begin": coverage.begin,
        "archive_end": coverage.end,
        "kept_by": plan.kept_by,
    }


def _echo(plan: PrunePlan, coverage: Coverage, directory: str, location: str, *, dry_run: bool) -> None:
    click.echo(f"{location} has {coverage}")
    count, verb = len(plan.segments), "would be removed" if dry_run else "removed"
    if count:
        numbers = f"{plan.segments[0].number} to {plan.segments[-1].number}"
        click.echo(f"{verb}: {counted(count, 'segment')} ({numbers}), {counted(plan.bytes, 'byte')}")
    else:
        click.echo(f"{verb}: nothing")
    if plan.kept_by:
        click.echo(f"archived but kept: {counted(plan.archived - count, 'segment')}, by {plan.kept_by}")
    elif not plan.archived and coverage.begin > plan.first_position:
        click.echo(f"the log starts at position {plan.first_position}, before the start of this archive")
    click.echo(f"the log in {directory} has positions {_begin(plan)} to {plan.end_position} (exclusive)")
