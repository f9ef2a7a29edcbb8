"""Command group `queue`: inspect queues of a running server, empty them and move their messages.

`purge` needs a confirmation: `--yes`, or an answer at the terminal. `requeue` acknowledges a dead letter
after its copy was persisted.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import click
import msgspec

from tickertape.base.errors import BadTopic, TimedOut
from tickertape.base.names import check_topic
from tickertape.base.text_format import shown
from tickertape.cli.support.admin_client import admin_option, checked_admin, stats_of
from tickertape.cli.support.command_group import Failure, LazyGroup
from tickertape.cli.support.connect_options import Server, server_options
from tickertape.cli.support.json_lines import NOT_JSON, message_output, output_option, print_batches
from tickertape.cli.support.option_types import (
    answer_timeout_option,
    client_name,
    filter_option,
    interval,
    topic_name,
)
from tickertape.cli.support.tables import counted, echo_table, number, safe
from tickertape.cli.support.terminal import confirmed

if TYPE_CHECKING:
    from tickertape.batch import Message, MessageBatch
    from tickertape.client.blocking.client import Client
    from tickertape.engine.queues.snapshot import QueueSnapshot


@click.group(
    cls=LazyGroup,
    modules=dict.fromkeys(("browse", "ls", "purge", "requeue"), __name__),
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


# -- browse -------------------------------------------------------------------------------------------


@click.command(short_help="Print what waits in a queue, taking nothing.")
@click.argument("name", callback=topic_name)
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


# -- ls -----------------------------------------------------------------------------------------------


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


# -- purge --------------------------------------------------------------------------------------------


_ALL = "TRUE"
"""The filter that every message passes."""


@click.command(short_help="Empty a queue: acknowledge all messages, or those that pass a filter.")
@click.argument("name", callback=topic_name)
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


# -- requeue ------------------------------------------------------------------------------------------


_BACKLOG: Final = 1_000
"""Dead letters that are under way at a time."""


class DeadLetterLabel(msgspec.Struct):
    """Identity of the original message, from the correlation id of a dead letter."""

    topic: str
    correlation_id: str | None = None


class Moved(NamedTuple):
    """What became of dead letters."""

    published: int
    unlabelled: int
    """Left where they are, because nothing says where they belong."""


@click.command(short_help="Publish dead letters again to the topics they came from.")
@click.argument("name", callback=topic_name)
@server_options
@click.option(
    "--to",
    callback=topic_name,
    metavar="TOPIC",
    help="Publish all of them to TOPIC. Default: each to its own.",
)
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="At most N messages, the oldest ones.")
@click.option(
    "--idle",
    callback=interval,
    default="5s",
    show_default=True,
    metavar="S",
    help="Stop when no message comes for that long, because somebody else has them.",
)
@answer_timeout_option
def requeue(
    name: str, server: Server, to: str | None, count: int | None, idle: float, timeout: float
) -> None:
    """Consume the queue NAME, whose topic is the dead_letter of others: each message is published again to
    the topic that its label names, or to TOPIC, and acknowledged when that is persisted.

    It ends with the messages that were there at the begin; what dies again meanwhile stays. The label is what
    the server wrote into the correlation id; a message without one stays too, unless --to says where it goes,
    and makes the exit code 1. Body and key are those of the dead letter, the correlation id is that of the
    message that died.

    A crash between publishing and acknowledging leaves both: run again, the message is published twice.

    \b
    tickertape queue requeue work-dead
    tickertape queue requeue work-dead --to orders --count 100
    """
    from tickertape.client.publish_store import MemoryPublishStore

    store = MemoryPublishStore()
    with server.client(client_name("requeue"), publish_store=store, timeout=timeout) as client:
        wanted = _waiting(client, name, count)
        moved = _move(client, name, to, wanted, idle) if wanted else Moved(0, 0)
    click.echo(f"{counted(moved.published, 'message')} requeued")
    if moved.unlabelled:
        what = f"{counted(moved.unlabelled, 'message')} without the label of a dead letter"
        raise Failure(f"{what} left in {shown(name)}: say with --to where they go")


def _waiting(client: Client, name: str, count: int | None) -> int:
    """Return how many messages wait in the queue, up to `count`; nothing is taken."""
    found = 0
    with client.subscribe(name, browse=True) as stream:
        for batch in stream.batches():
            _check_leases(batch, name)
            found += batch.count
            if count is not None and found >= count:
                return count
        if stream.end_error is not None:
            raise stream.end_error
    return found


def _check_leases(batch: MessageBatch, name: str) -> None:
    lease = None if batch.context is None else batch.context.lease
    if lease is not None and lease.once:
        raise Failure(
            f"the queue {shown(name)} is at-most-once: a message would be gone before it is published again; "
            "make it at-least-once"
        )


def _move(client: Client, name: str, to: str | None, wanted: int, idle: float) -> Moved:
    published = unlabelled = 0
    with client.subscribe(name, max_backlog=min(wanted, _BACKLOG)) as stream:
        batches = stream.batches(idle)
        while published + unlabelled < wanted:
            try:
                batch = next(batches, None)
            except TimedOut:
                break
            if batch is None:
                if stream.end_error is not None:
                    raise stream.end_error
                break
            taken = list(islice(batch, wanted - published - unlabelled))
            done = [batch.bookmark(message.index) for message in taken if _publish(client, message, to)]
            unlabelled += len(taken) - len(done)
            if done:
                client.publish_flush()
                client.ack(name, done)
                published += len(done)
        client.publish_flush()
    return Moved(published, unlabelled)


def _publish(client: Client, message: Message, to: str | None) -> bool:
    """Return whether the message was published again; False when nothing says where it belongs."""
    label = label_of(message.correlation_id)
    topic = to if to is not None else None if label is None else label.topic
    if topic is None:
        return False
    correlation_id = message.correlation_id if label is None else label.correlation_id
    client.publish(topic, message.data, correlation_id=correlation_id, sow_key=message.sow_key)
    return True


def label_of(correlation_id: str | None) -> DeadLetterLabel | None:
    """Return the label of a dead letter, None for any other text."""
    try:
        label = msgspec.json.decode(correlation_id or "", type=DeadLetterLabel)
        check_topic(label.topic)
    except (*NOT_JSON, BadTopic):
        return None
    return label
