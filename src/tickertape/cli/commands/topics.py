"""`topics`: list the topics of a running server, read from its admin address."""

from __future__ import annotations

import click
import msgspec

from tickertape.cli.support.admin_client import admin_option, stats_of
from tickertape.cli.support.output_options import limit_option, output_option
from tickertape.cli.support.tables import echo_table, number, safe
from tickertape.server.admin.schema import TopicState

_COLUMNS = ("topic", "persistent", "last bookmark", "last message", "messages", "bytes", "subscriptions")


@click.command(short_help="List the topics of a running server.")
@admin_option
@output_option
@limit_option("Print at most N topics.")
def topics(admin: str, as_json: bool, limit: int | None) -> None:
    """List the topics of a running server.

    Messages, bytes and the last bookmark are those since the server started. The log may have more messages.

    \b
    tickertape topics
    tickertape topics --output json | jq .name
    """
    _, report = stats_of(admin)
    listed = sorted(report.topics, key=lambda topic: topic.name)[:limit]
    if as_json:
        for topic in listed:
            click.echo(msgspec.json.encode(topic))
        return
    if not listed:
        click.echo("no topic received messages since the server started")
        return
    echo_table(_COLUMNS, [_row(topic) for topic in listed], left=4)


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
