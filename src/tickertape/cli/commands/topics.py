"""`topics`: list the topics of a running server, read from its admin address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from tickertape.cli.support.admin_client import admin_option, stats_of
from tickertape.cli.support.output_options import limit_option, output_option
from tickertape.cli.support.tables import echo_table, number, safe
from tickertape.server.admin.schema import TopicState

if TYPE_CHECKING:
    from tickertape.engine.sow.snapshot import SowSnapshot

_COLUMNS = ("topic", "persistent", "last bookmark", "last message", "messages", "bytes", "subscriptions")
_SOW_COLUMNS = ("topic", "pattern", "key", "records", "bytes", "position", "checkpoint", "complete")


@click.command(short_help="List the topics of a running server.")
@admin_option
@output_option
@limit_option("Print at most N topics.")
@click.option("--sow", is_flag=True, help="List the SOW topics, with their keys and records.")
def topics(admin: str, as_json: bool, limit: int | None, sow: bool) -> None:
    """List the topics of a running server.

    Messages, bytes and the last bookmark are those since the server started. The log may have more messages.

    With --sow the columns are: topic, pattern of further topics, key fields, records, memory in bytes,
    position (the records include the log below it), position of the newest checkpoint, and whether the
    records include all messages of the topic.

    \b
    tickertape topics
    tickertape topics --sow
    tickertape topics --output json | jq .name
    """
    _, report = stats_of(admin)
    if sow:
        found = [] if report.sow is None else report.sow.topics
        rows = sorted(found, key=lambda topic: topic.name)[:limit]
        _list(rows, [_sow_row(row) for row in rows], _SOW_COLUMNS, "no SOW topic is configured", as_json)
        return
    listed = sorted(report.topics, key=lambda topic: topic.name)[:limit]
    empty = "no topic received messages since the server started"
    _list(listed, [_row(topic) for topic in listed], _COLUMNS, empty, as_json)


def _list(
    listed: Sequence[TopicState | SowSnapshot],
    rows: Sequence[tuple[str, ...]],
    columns: tuple[str, ...],
    empty: str,
    as_json: bool,
) -> None:
    """Print topics as JSON lines or as a table."""
    if as_json:
        for topic in listed:
            click.echo(msgspec.json.encode(topic))
    elif rows:
        echo_table(columns, rows, left=3 if columns is _SOW_COLUMNS else 4)
    else:
        click.echo(empty)


def _row(topic: TopicState) -> tuple[str, ...]:
    return (
        safe(topic.name),
        "yes" if topic.recorded else "no",
        topic.last_bookmark or "-",
        topic.last_time or "-",
        number(topic.messages),
        number(topic.bytes),
        number(topic.subscriptions),
    )


def _sow_row(topic: SowSnapshot) -> tuple[str, ...]:
    checkpoint = topic.checkpoint.position
    return (
        safe(topic.name),
        "-" if topic.pattern is None else safe(topic.pattern),
        safe(", ".join(topic.key)) if topic.key else "explicit",
        number(topic.records),
        number(topic.memory_bytes),
        str(topic.position),
        "-" if checkpoint is None else str(checkpoint),
        "yes" if topic.complete else "no",
    )
