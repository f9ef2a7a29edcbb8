"""`queue purge`: acknowledge all messages of a queue, or those that match a filter.

It needs a confirmation: `--yes`, or an answer at the terminal.
"""

from __future__ import annotations

import click

from tickertape.base.text_format import shown
from tickertape.cli.support.admin_client import checked_admin, stats_of
from tickertape.cli.support.command_group import Failure
from tickertape.cli.support.connect_options import Server, server_options
from tickertape.cli.support.option_types import (
    answer_timeout_option,
    client_name,
    filter_option,
    queue_name,
)
from tickertape.cli.support.tables import counted
from tickertape.cli.support.terminal import confirmed

_ALL = "TRUE"
"""The filter that every message passes."""


@click.command(short_help="Empty a queue: acknowledge all messages, or those that pass a filter.")
@click.argument("name", callback=queue_name)
@server_options
@filter_option
@click.option("--yes", is_flag=True, help="Do not ask. Needed where there is no terminal.")
@click.option(
    "--admin",
    metavar="URL",
    callback=checked_admin,
    help="Admin address of the server: how many messages left is asked there.",
)
@answer_timeout_option
def purge(
    name: str, server: Server, filter: str | None, yes: bool, admin: str | None, timeout: float
) -> None:
    """Acknowledge the messages that are in the queue NAME, which leave it for good.

    They are no dead letters, and stay in the log like any message. In a queue with strict leasing only what
    the caller has leased can be acknowledged, in one that delivers at most once only what was delivered:
    nothing leaves these this way. With --admin it is told how many
    left; what consumers acknowledge meanwhile is counted too.

    \b
    tickertape queue purge work
    tickertape queue purge work --filter "/test = TRUE" --yes --admin http://127.0.0.1:9008
    """
    before = None if admin is None else _acknowledged(admin, name)
    if not yes:
        which = "all messages" if filter is None else f"the messages that pass {filter}"
        answer = confirmed(f"Acknowledge {which} of the queue {name}, so that they leave it?")
        if answer is None:
            raise click.UsageError("there is no terminal to ask at: say --yes")
        if not answer:
            raise Failure("nothing was purged")
    from tickertape.client.publish_store import MemoryPublishStore

    with server.client(client_name("purge"), publish_store=MemoryPublishStore(), timeout=timeout) as client:
        client.sow_delete(name, filter=_ALL if filter is None else filter)
        client.publish_flush(timeout)
    if admin is None or before is None:
        click.echo("done")
    else:
        click.echo(f"{counted(_acknowledged(admin, name) - before, 'message')} left the queue")


def _acknowledged(admin: str, name: str) -> int:
    _, report = stats_of(admin)
    for queue in report.queues:
        if queue.name == name:
            return queue.acknowledged
    raise Failure(f"the server at {admin} has no queue {shown(name)}")
