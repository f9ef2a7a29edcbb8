"""`queue requeue`: republish dead letters to their original topics.

A dead letter is acknowledged after its copy was persisted.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import click
import msgspec

from tickertape.base.errors import BadTopic, TimedOut
from tickertape.base.names import check_topic
from tickertape.base.text_format import shown
from tickertape.cli.support.command_group import Failure
from tickertape.cli.support.connect_options import Server, server_options
from tickertape.cli.support.json_lines import NOT_JSON
from tickertape.cli.support.option_types import answer_timeout_option, client_name, interval, queue_name
from tickertape.cli.support.tables import counted

if TYPE_CHECKING:
    from tickertape.batch import Message, MessageBatch
    from tickertape.client.blocking.client import Client

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


def _target(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    return None if value is None else queue_name(ctx, param, value)


@click.command(short_help="Publish dead letters again to the topics they came from.")
@click.argument("name", callback=queue_name)
@server_options
@click.option(
    "--to", callback=_target, metavar="TOPIC", help="Publish all of them to TOPIC. Default: each to its own."
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
