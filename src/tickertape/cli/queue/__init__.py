"""Command group `queue`: inspect queues of a running server and move their messages."""

from __future__ import annotations

import click

from tickertape.cli.support.command_group import LazyGroup


@click.group(
    cls=LazyGroup,
    modules={
        "browse": "tickertape.cli.queue.browse",
        "ls": "tickertape.cli.queue.ls",
        "purge": "tickertape.cli.queue.purge",
        "requeue": "tickertape.cli.queue.requeue",
    },
    short_help="Look at queues, empty them, put dead letters back.",
)
def queue() -> None:
    """Look at the queues of a running server, empty them, and put dead letters back to work.

    \b
    tickertape queue ls                                       how many messages wait, for how long
    tickertape queue browse work --count 10                   the next ones, taking none
    tickertape queue purge work --filter "/test = TRUE"       those are done with
    tickertape queue requeue work-dead                        dead letters go back where they came from

    The commands subscribe (with --ack) and ack consume a queue and settle single messages.
    """
