"""`queue browse`: print waiting messages without taking a lease."""

from __future__ import annotations

import click

from tickertape.cli.support.connect_options import Server, server_options
from tickertape.cli.support.json_lines import message_output, output_option, print_batches
from tickertape.cli.support.option_types import (
    answer_timeout_option,
    client_name,
    filter_option,
    queue_name,
)


@click.command(short_help="Print what waits in a queue, taking nothing.")
@click.argument("name", callback=queue_name)
@server_options
@filter_option
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@output_option
@answer_timeout_option
def browse(
    name: str, server: Server, filter: str | None, count: int | None, output: str, timeout: float
) -> None:
    """Print the messages that wait in the queue NAME: those that nobody has leased, and then stop.

    Nothing is leased or acknowledged, so all stay where they are, and a consumer may get one meanwhile.

    \b
    tickertape queue browse work --count 10 --output json
    tickertape queue browse work-dead --output json | jq '.correlation_id | fromjson | .reason'
    """

    with server.client(client_name("browse"), timeout=timeout) as client:
        stream = client.subscribe(name, filter=filter, browse=True, options="timestamp")
        batches = stream.batches(timeout)
        whole = print_batches(batches, count, message_output(), as_json=output == "json")
        if not whole and stream.end_error is not None:
            raise stream.end_error
