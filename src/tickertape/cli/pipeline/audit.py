"""`pipeline audit`: audit logs, print the report and set the exit code.

Spark counts on the executors. The driver gets only the printed rows.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from tickertape.base.errors import BadOption
from tickertape.base.text_format import shown
from tickertape.cli.pipeline.session import session_options, spark_session
from tickertape.cli.support.command_group import EXIT_ERROR
from tickertape.cli.support.connect_options import SERVER_VARIABLE, access_options
from tickertape.cli.support.name_hints import warn_of_wildcard
from tickertape.cli.support.option_types import answer_timeout_option, parsed, start
from tickertape.cli.support.output_options import limit_option, output_option

if TYPE_CHECKING:
    from tickertape.spark.audit import AuditReport

LISTED_DEFAULT: Final = 20
_PIPE_CHARACTERS: Final = 300


def _log(value: str) -> str:
    """Return the address of a server or the location of an archive, if it can be one."""
    if value.startswith(("http://", "https://")):
        raise BadOption(
            f"Invalid log {shown(value)}. Use tcp://HOST:PORT of a server, or the location of an archive."
        )
    if "://" not in value and not os.path.isdir(value):
        raise BadOption(
            f"Directory {shown(value)} does not exist. Use tcp://HOST:PORT of a server, or the location "
            "of an archive."
        )
    return value


@click.command(short_help="Find gaps and duplicates of each publisher, or compare two logs.")
@click.argument("log", envvar=SERVER_VARIABLE, callback=parsed(_log))
@click.option(
    "--against",
    metavar="OTHER",
    callback=parsed(_log),
    help="Also compare with this log, message by message: another server or an archive.",
)
@click.option(
    "--bookmark",
    metavar="START",
    default="epoch",
    show_default=True,
    callback=start,
    help="epoch, a bookmark, a timestamp, or a range such as [20260101T000000:20260102T000000).",
)
@click.option("--topic", metavar="TOPIC", help="Only publishers of this topic or pattern.")
@limit_option("List at most N publishers, N findings and N differences.", LISTED_DEFAULT)
@output_option
@access_options
@answer_timeout_option
@session_options
@click.pass_context
def audit(
    ctx: click.Context,
    log: str,
    against: str | None,
    bookmark: str,
    topic: str | None,
    limit: int,
    as_json: bool,
    access: dict[str, str],
    timeout: float,
    master: str,
    driver_memory: str,
) -> None:
    """Find gaps, duplicates and broken order in the sequences of each publisher in LOG, with Spark.

    LOG is a server (tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH, several separated by commas) or the
    location of an archive. Default: the environment variable TICKERTAPE_SERVER. A publisher numbers its
    messages over all topics, so the audit reads all topics, also with --topic. A jump in the
    numbering is not a gap if a server or publish store started a new numbering at the current time.

    --against compares the messages of two logs: topic, body, key, correlation id and expiration for each
    publisher and sequence. For two logs of the same journal (a server and its archive) it compares the common
    range.

    Exit code 1 means missing, duplicate, out-of-order or different messages.

    \b
    tickertape pipeline audit tcp://127.0.0.1:9007
    tickertape pipeline audit tcp://127.0.0.1:9007 --bookmark '[20260101T000000:20260102T000000)'
    tickertape pipeline audit tcp://127.0.0.1:9007 --against /srv/archive --output json
    """
    if topic is not None:
        warn_of_wildcard(topic)
    with spark_session("audit", master=master, driver_memory=driver_memory) as spark:
        from tickertape.spark.audit import examine

        report = examine(
            spark,
            log,
            against=against,
            start=bookmark,
            topic=topic,
            show=limit,
            access=access,
            timeout_seconds=timeout,
        )
    if as_json:
        click.echo(msgspec.json.encode(msgspec.to_builtins(report) | {"in_order": report.in_order}))
    else:
        _print(report)
    if not report.in_order:
        ctx.exit(EXIT_ERROR)


# -- text ---------------------------------------------------------------------------------------------


def _print(report: AuditReport) -> None:
    from rich.console import Console

    # In a pipe, a row must not be wrapped.
    width = None if sys.stdout.isatty() else _PIPE_CHARACTERS
    console = Console(file=sys.stdout, highlight=False, emoji=False, markup=False, width=width)
    for log in report.logs:
        console.print(f"{log.name}: journal {log.journal}, positions {log.start} to {log.end} (exclusive)")
    _print_publishers(console, report)
    if report.findings:
        columns = ("publisher", "what", "first", "last", "count", "position")
        _table(console, columns, [(*_cells(row, report.finding_columns),) for row in report.findings])
    if report.equality is not None:
        _print_equality(console, report)
    console.print(report.verdict)


def _print_publishers(console: Any, report: AuditReport) -> None:
    columns = ("publisher", "first", "last", "messages", "missing", "twice", "out of order", "begun anew")
    rows = [_cells(row, report.publisher_columns) for row in report.publishers]
    _table(console, columns, rows)
    left = report.totals["publishers"] - len(rows)
    if left > 0:
        console.print(f"and {left:,} more publishers")
    if not report.gaps_judged:
        console.print(
            f"gaps were not checked: {report.logs[0].name} has the topics {report.logs[0].topics!r} only"
        )


def _print_equality(console: Any, report: AuditReport) -> None:
    assert report.equality is not None
    if report.equality.differences:
        columns = ("publisher", "sequence", "difference", "what", "here", "there")
        names = ("publisher", "sequence", "kind", "what", "here", "there")
        _table(console, columns, [_cells(row, names) for row in report.equality.differences])


def _cells(row: dict[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("" if row[name] is None else str(row[name]) for name in names)


def _table(console: Any, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in columns:
        text = name in ("publisher", "what", "difference", "here", "there")
        table.add_column(name, justify="left" if text else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
