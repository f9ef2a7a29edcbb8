"""`queue ls`: list the queues of a running server, read from its admin address."""

from __future__ import annotations

import click
import msgspec

from tickertape.cli.support.admin_client import admin_option, stats_of
from tickertape.cli.support.tables import echo_table, number, safe
from tickertape.engine.queues.snapshot import QueueSnapshot

_COLUMNS = (
    "queue", "topics", "ready", "leased", "inactive", "consumers", "oldest", "entered", "acknowledged",
    "returned", "expired",
)  # fmt: skip


@click.command("ls", short_help="List the queues of a running server.")
@admin_option
@click.option(
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="table: for people. json: one document, with all that /stats tells of queues.",
)
def ls(admin: str, output: str) -> None:
    """List the queues of a running server: what is in them, and what became of what was.

    Ready messages wait for a consumer with room, leased ones are with a consumer, inactive ones are beyond
    the queue's target depth. What entered, was acknowledged (or taken, at most once), went back and expired
    is counted since the server started. The oldest is the age of the oldest message, in seconds. A queue that
    cannot read what it needs has stopped: that is told below, with the reason.

    \b
    tickertape queue ls
    tickertape queue ls --output json | jq '.queues[] | select(.depth > 1000) | .name'
    """
    _, report = stats_of(admin)
    listed = sorted(report.queues, key=lambda queue: queue.name)
    if output == "json":
        click.echo(msgspec.json.encode({"queues": listed}))
        return
    if not listed:
        click.echo("no queues: a server has those that its configuration names under [[queue]]")
        return
    echo_table(_COLUMNS, [_row(queue) for queue in listed], left=2)
    for queue in listed:
        if queue.failure is not None:
            click.echo(f"queue {safe(queue.name)} has stopped: {safe(queue.failure)}", err=True)


def _row(queue: QueueSnapshot) -> tuple[str, ...]:
    return (
        safe(queue.name),
        safe(queue.underlying),
        number(queue.ready),
        number(queue.leased),
        number(queue.inactive),
        number(queue.consumers),
        number(queue.oldest_seconds),
        number(queue.entered),
        number(queue.acknowledged + queue.taken),
        number(sum(queue.returned.values())),
        number(sum(queue.expired.values())),
    )
