"""Command group `queue`: inspect and empty queues of a running server, and requeue dead letters.

`purge` needs a confirmation: `--yes`, or an answer on the terminal. `requeue` acknowledges a dead letter
after its copy is persisted.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import click
import msgspec

from tickertape.base.errors import BadTopic, TimedOut
from tickertape.base.names import check_topic
from tickertape.base.text_format import did_you_mean, shown
from tickertape.cli.support.admin_client import admin_option, count_admin_option, names_admin_option, stats_of
from tickertape.cli.support.command_group import Failure, LazyGroup, UserMistake
from tickertape.cli.support.command_table import QUEUE
from tickertape.cli.support.connect_options import Server, server_options
from tickertape.cli.support.json_lines import NOT_JSON, message_output, print_batches
from tickertape.cli.support.name_hints import consuming, no_queue, suggesting
from tickertape.cli.support.option_types import (
    answer_timeout_option,
    client_name,
    filter_option,
    interval,
    topic_name,
)
from tickertape.cli.support.output_options import limit_option, output_option
from tickertape.cli.support.tables import counted, echo_table, number, safe, safe_whole
from tickertape.cli.support.terminal import confirmed

if TYPE_CHECKING:
    from tickertape.batch import Message, MessageBatch
    from tickertape.client.blocking.client import Client
    from tickertape.engine.queues.snapshot import QueueSnapshot


@click.group(
    cls=LazyGroup,
    table=QUEUE,
    short_help="Inspect and empty queues, and requeue dead letters.",
)
def queue() -> None:
    """Inspect and empty the queues of a running server, and requeue dead letters.

    \b
    tickertape queue ls                                       list queues with their number of messages
    tickertape queue browse work --limit 10                   list waiting messages
    tickertape queue purge work --filter "/test = TRUE"       acknowledge matching messages
    tickertape queue requeue work-dead                        republish dead letters

    The command "subscribe --ack" consumes a queue. The command "ack" acknowledges single messages.
    """


# -- browse -------------------------------------------------------------------------------------------


@click.command(short_help="List waiting messages without consuming them.")
@click.argument("name", callback=topic_name)
@server_options
@names_admin_option
@filter_option
@limit_option("Stop after N messages.")
@output_option
@answer_timeout_option
def browse(
    name: str,
    server: Server,
    admin: str | None,
    filter: str | None,
    limit: int | None,
    as_json: bool,
    timeout: float,
) -> None:
    """List the waiting (not leased) messages of the queue NAME without consuming them.

    The messages stay in the queue. A consumer may get them meanwhile.

    \b
    tickertape queue browse work --limit 10 --output json
    tickertape queue browse work-dead --output json | jq '.correlation_id | fromjson | .reason'
    """
    with consuming(name, admin), server.client(client_name("browse"), timeout=timeout) as client:
        stream = client.subscribe(name, filter=filter, browse=True, options="timestamp")
        batches = stream.batches(timeout)
        whole = print_batches(batches, limit, message_output(), as_json=as_json)
        if not whole and stream.end_error is not None:
            raise stream.end_error


# -- ls -----------------------------------------------------------------------------------------------


_COLUMNS = (
    "queue", "topics", "ready", "leased", "inactive", "consumers", "oldest", "entered", "acknowledged",
    "returned", "expired",
)  # fmt: skip


@click.command("ls", short_help="List the queues of a running server.")
@admin_option
@limit_option("Print at most N queues.")
@output_option
def ls(admin: str, limit: int | None, as_json: bool) -> None:
    """List the queues of a running server with their numbers of messages.

    Ready messages wait for a consumer, leased messages are with a consumer, and inactive messages are beyond
    the target depth of the queue. The columns entered, acknowledged (or delivered, with at-most-once),
    returned and expired are counts since the server started. The column oldest is the age of the oldest
    message in seconds. A queue that has stopped after a read error is reported below the table. The JSON of a
    queue has all its statistics of /stats.

    \b
    tickertape queue ls
    tickertape queue ls --output json | jq 'select(.depth > 1000) | .name'
    """
    _, report = stats_of(admin)
    listed = sorted(report.queues, key=lambda queue: queue.name)[:limit]
    if as_json:
        for queue in listed:
            click.echo(msgspec.json.encode(queue))
        return
    if not listed:
        click.echo("no queues (queues are configured in [[queue]])")
        return
    echo_table(_COLUMNS, [_row(queue) for queue in listed], left=2)
    for queue in listed:
        if queue.failure is not None:
            click.echo(f"queue {safe(queue.name)} has stopped: {safe_whole(queue.failure)}", err=True)


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
"""A filter that matches every message."""


@click.command(short_help="Acknowledge all messages of a queue, or all that match a filter.")
@click.argument("name", callback=topic_name)
@server_options
@filter_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation. Required without a terminal.")
@count_admin_option
@output_option
@answer_timeout_option
def purge(
    name: str,
    server: Server,
    filter: str | None,
    yes: bool,
    admin: str | None,
    as_json: bool,
    timeout: float,
) -> None:
    """Acknowledge all messages of the queue NAME, or all that match --filter.

    The messages leave the queue without becoming dead letters. They stay in the log. The command has no
    effect on a queue with strict leasing or at-most-once semantics. With --admin it prints the number of
    messages that left the queue, including messages that consumers acknowledged meanwhile.

    \b
    tickertape queue purge work
    tickertape queue purge work --filter "/test = TRUE" --yes --admin http://127.0.0.1:9008
    """
    before = None if admin is None else _acknowledged(admin, name)
    if not yes:
        which = "all messages" if filter is None else f"the messages that match {filter}"
        answer = confirmed(f"Acknowledge {which} of the queue {name}, so that they leave it?")
        if answer is None:
            raise click.UsageError("Confirmation needed. Pass --yes when not on a terminal.")
        if not answer:
            raise Failure("Nothing was purged.")
    from tickertape.client.publish_store import MemoryPublishStore

    with (
        consuming(name, admin),
        server.client(client_name("purge"), publish_store=MemoryPublishStore(), timeout=timeout) as client,
    ):
        client.sow_delete(name, filter=_ALL if filter is None else filter)
        client.publish_flush(timeout)
    purged = None if admin is None or before is None else _acknowledged(admin, name) - before
    if as_json:
        click.echo(msgspec.json.encode({"queue": name, "purged": purged}))
    else:
        click.echo("done" if purged is None else f"{counted(purged, 'message')} left the queue")


def _acknowledged(admin: str, name: str) -> int:
    _, report = stats_of(admin)
    for queue in report.queues:
        if queue.name == name:
            return queue.acknowledged
    raise no_queue(name, did_you_mean(name, [queue.name for queue in report.queues]))


# -- requeue ------------------------------------------------------------------------------------------


_BACKLOG: Final = 1_000
"""Prefetch of dead letters."""


class DeadLetterLabel(msgspec.Struct):
    """Original topic and correlation id of a dead letter, from its correlation id."""

    topic: str
    correlation_id: str | None = None


class Moved(NamedTuple):
    """Result of a requeue."""

    published: int
    unlabelled: int
    """Messages left in the queue, because they have no label with a topic."""


@click.command(short_help="Republish dead letters to their original topics.")
@click.argument("name", callback=topic_name)
@server_options
@names_admin_option
@click.option(
    "--to",
    callback=topic_name,
    metavar="TOPIC",
    help="Publish all messages to TOPIC. Default: each to its original topic.",
)
@limit_option("Requeue at most the N oldest messages.")
@click.option(
    "--idle",
    callback=interval,
    default="5s",
    show_default=True,
    metavar="S",
    help="Stop after this time without a message, for example if other consumers have the messages.",
)
@output_option
@answer_timeout_option
def requeue(
    name: str,
    server: Server,
    admin: str | None,
    to: str | None,
    limit: int | None,
    idle: float,
    as_json: bool,
    timeout: float,
) -> None:
    """Republish the dead letters in the queue NAME to their original topics, or to --to TOPIC.

    NAME is a queue of the topic that other queues have as dead_letter. The command acknowledges each dead
    letter after its copy is persisted. It stops after the messages that were in the queue at its start. The
    original topic is in the label that the server stores in the correlation id. Without --to, a message
    without a label stays in the queue and the exit code is 1. The copy has the body and key of the dead
    letter, and the correlation id of the original message.

    After a crash between publish and acknowledgement, the next run publishes the message a second time.

    \b
    tickertape queue requeue work-dead
    tickertape queue requeue work-dead --to orders --limit 100
    """
    from tickertape.client.publish_store import MemoryPublishStore

    store = MemoryPublishStore()
    with (
        suggesting(name, admin),
        server.client(client_name("requeue"), publish_store=store, timeout=timeout) as client,
    ):
        with consuming(name, admin):
            wanted = _waiting(client, name, limit)
        moved = _move(client, name, to, wanted, idle) if wanted else Moved(0, 0)
    if as_json:
        click.echo(
            msgspec.json.encode({"queue": name, "requeued": moved.published, "unlabelled": moved.unlabelled})
        )
    else:
        click.echo(f"{counted(moved.published, 'message')} requeued")
    if moved.unlabelled:
        left = counted(moved.unlabelled, "message")
        raise Failure(
            f"Cannot requeue {left} of {shown(name)}: the original topic is unknown. Pass "
            "a topic with --to TOPIC."
        )


def _waiting(client: Client, name: str, limit: int | None) -> int:
    """Return the number of waiting messages in the queue, up to `limit`, without consuming them."""
    found = 0
    with client.subscribe(name, browse=True) as stream:
        for batch in stream.batches():
            _check_leases(batch, name)
            found += batch.count
            if limit is not None and found >= limit:
                return limit
        if stream.end_error is not None:
            raise stream.end_error
    return found


def _check_leases(batch: MessageBatch, name: str) -> None:
    lease = None if batch.context is None else batch.context.lease
    if lease is not None and lease.once:
        raise UserMistake(
            f"Cannot requeue messages of {shown(name)}: the queue is at-most-once, so a crash would lose "
            "messages. Configure it as at-least-once."
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
    """Publish the message again. Return False if its original topic is unknown."""
    label = label_of(message.correlation_id)
    topic = to if to is not None else None if label is None else label.topic
    if topic is None:
        return False
    correlation_id = message.correlation_id if label is None else label.correlation_id
    client.publish(topic, message.data, correlation_id=correlation_id, sow_key=message.sow_key)
    return True


def label_of(correlation_id: str | None) -> DeadLetterLabel | None:
    """Return the label of a dead letter. None for any other text."""
    try:
        label = msgspec.json.decode(correlation_id or "", type=DeadLetterLabel)
        check_topic(label.topic)
    except (*NOT_JSON, BadTopic):
        return None
    return label
