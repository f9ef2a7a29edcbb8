"""`pipeline archive` writes the log to a Delta table. `pipeline compact` merges its small files.

The command checks that the archive belongs to the log before it starts Spark. Compaction needs no Spark.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click
import msgspec

from tickertape.archive.limits import batch_messages_default, keep_seconds_min
from tickertape.base.errors import BadOption
from tickertape.base.text_format import shown
from tickertape.base.units import parse_interval
from tickertape.cli.limits import keep_seconds_default
from tickertape.cli.pipeline.session import require_spark, session_options, spark_session, stop_signals_to
from tickertape.cli.support.archive_options import (
    archive_location,
    existing_archive,
    require_deltalake,
    storage_option,
)
from tickertape.cli.support.connect_options import Server, server_options
from tickertape.cli.support.name_hints import warn_of_wildcard
from tickertape.cli.support.option_types import Count, answer_timeout_option, interval, parsed
from tickertape.cli.support.output_options import output_option
from tickertape.cli.support.tables import counted
from tickertape.cli.support.terminal import progress, remark

if TYPE_CHECKING:
    from tickertape.archive.compact import Compacted
    from tickertape.spark.archive.job import ArchiveJobReport


_INTERVAL_SECONDS_DEFAULT: Final = 30.0


@click.command(short_help="Write the log to a Delta table, exactly once.")
@server_options
@click.option(
    "--to", "location", required=True, metavar="LOCATION", help="A directory, or a URI such as s3://B/P."
)
@click.option(
    "--topics",
    default="",
    metavar="PATTERN",
    help="A topic, or a pattern of topics. Default: all persistent topics.",
)
@click.option("--once", is_flag=True, help="Stop at the current end of the log.")
@click.option(
    "--interval",
    "interval_seconds",
    callback=interval,
    metavar="S",
    help=f"Polling interval.  [default: {_INTERVAL_SECONDS_DEFAULT:g}s]",
)
@click.option(
    "--journal",
    "directory",
    metavar="DIR",
    help="Data directory of the server. Spark tasks read its files directly, without the server.",
)
@click.option(
    "--batch",
    "batch_messages",
    type=Count(),
    default=batch_messages_default,
    show_default=True,
    metavar="N",
    help="Maximum number of messages in a commit.",
)
@click.option("--compact", "compacting", is_flag=True, help="Merge small files while archiving.")
@storage_option
@session_options
@answer_timeout_option
@output_option
def archive(
    server: Server,
    location: str,
    topics: str,
    once: bool,
    interval_seconds: float | None,
    directory: str | None,
    batch_messages: int,
    compacting: bool,
    storage: dict[str, str],
    master: str,
    driver_memory: str,
    timeout: float,
    as_json: bool,
) -> None:
    """Write the messages of the log to a Delta table at LOCATION, exactly once.

    The command runs a Spark streaming query. Its tasks write Parquet files by day and topic. The driver
    commits them together with the position that they reach. Each run continues at the end of the archive,
    also after a crash, and needs no checkpoint. Without --once it runs until Ctrl-C or SIGTERM.

    \b
    tickertape pipeline archive --to /srv/archive --once
    tickertape pipeline archive --to s3://bucket/log --storage-option AWS_REGION=eu-west-1 --compact
    """
    if once and interval_seconds is not None:
        raise click.UsageError("--once excludes --interval. Remove one of them.")
    warn_of_wildcard(topics)
    require_spark()
    require_deltalake()
    from tickertape.spark.archive.job import ArchiveJobOptions, archive_log, prepare

    options = ArchiveJobOptions(
        servers=(server.for_spark(),),
        place=archive_location(location, storage),
        topics=topics,
        directory=None if directory is None else os.path.abspath(directory),
        batch_messages_max=batch_messages,
        timeout_seconds=timeout,
    )
    ready = prepare(options)
    remark(f"{location} has {ready.archive.coverage}. {ready.behind:,} messages are not archived yet.")
    every = None if once else _INTERVAL_SECONDS_DEFAULT if interval_seconds is None else interval_seconds
    # Install signal handlers last: Spark installs its own handler for Ctrl-C.
    with spark_session("archive", master=master, driver_memory=driver_memory) as spark, stop_flag() as stop:
        report = archive_log(
            spark, options, interval_seconds=every, compacting=compacting, on_commit=_show_commit, stop=stop
        )
    if as_json:
        click.echo(msgspec.json.encode(report))
        return
    size = f"{counted(report.rows, 'message')}, {counted(report.bytes, 'byte')}"
    click.echo(f"archived {size}, {counted(report.files, 'file')}, {counted(report.commits, 'commit')}")
    if compacting:
        echo_compacted(report.compacted)
    click.echo(f"{location} has positions {report.begin} to {report.end} (exclusive)")


def _show_commit(report: ArchiveJobReport) -> None:
    remark(f"archived to position {report.end:,}: {counted(report.rows, 'message')} in this run")


class StopFlag:
    """A flag that signal handlers set.

    An event would deadlock: a signal that arrives during the handling of another one would wait for the lock
    of the event.
    """

    def __init__(self) -> None:
        self._signalled = False

    def is_set(self) -> bool:
        """Return whether a signal was received."""
        return self._signalled

    def note(self, *_: object) -> None:
        """Set the flag: a signal handler."""
        self._signalled = True


@contextlib.contextmanager
def stop_flag() -> Iterator[StopFlag]:
    """Provide a flag that Ctrl-C and SIGTERM set instead of ending the process."""
    stop = StopFlag()
    with stop_signals_to(stop.note):
        yield stop


# -- compact ------------------------------------------------------------------------------------------


def _kept(value: str) -> float:
    seconds = parse_interval(value)
    if seconds < keep_seconds_min:
        raise BadOption(f"Invalid duration {shown(value)}. Use at least {keep_seconds_min / 3600:g}h.")
    return seconds


@click.command(short_help="Merge small files of an archive, and remove unused files.")
@click.argument("location")
@click.option(
    "--keep",
    callback=parsed(_kept),
    default=f"{keep_seconds_default / 86_400:.0f}d",
    show_default=True,
    metavar="S",
    help="Time to keep unused files for readers of an older version, at least 1h. Uncommitted files are kept "
    "for at least a day.",
)
@storage_option
@output_option
def compact(location: str, keep: float, storage: dict[str, str], as_json: bool) -> None:
    """Merge the small files of the archive at LOCATION, and remove unused files.

    Rows and their order do not change. Readers and writers can use the archive meanwhile: one commit replaces
    the old files by the new files. Old files, and files of failed attempts, are removed after --keep. The
    command needs no Spark.

    \b
    tickertape pipeline compact /srv/archive
    tickertape pipeline compact s3://bucket/log --keep 1d
    """
    require_deltalake()
    from tickertape.archive.archive_writer import ArchiveWriter
    from tickertape.archive.compact import compact as merge
    from tickertape.archive.compact import vacuum

    place = archive_location(location, storage)
    with existing_archive():
        opened = ArchiveWriter(place)
    with progress("compact", None) as advance:
        done = merge(opened, wrote=advance)
    removed = vacuum(opened, keep)
    if as_json:
        click.echo(msgspec.json.encode(msgspec.to_builtins(done) | {"removed": removed}))
        return
    echo_compacted(done)
    click.echo(f"removed {counted(removed, 'unused file')}")


def echo_compacted(done: Compacted) -> None:
    """Print the files and bytes that a compaction merged."""
    click.echo(
        f"compacted {counted(done.files_before, 'file')} into {done.files_after:,}, "
        f"{counted(done.bytes_before, 'byte')} into {done.bytes_after:,}"
    )
