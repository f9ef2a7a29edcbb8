"""`subscribe`: print the messages of a topic, from any point of the log.

Received messages are written out before the command waits for the next ones.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from tickertape.base.errors import TimedOut
from tickertape.cli.support.connect_options import Server, server_options
from tickertape.cli.support.json_lines import Written, message_output, output_option, print_batches
from tickertape.cli.support.option_types import client_name, filter_option, interval, start
from tickertape.cli.support.terminal import remark
from tickertape.client.limits import client_timeout_seconds

if TYPE_CHECKING:
    from tickertape.batch import MessageBatch
    from tickertape.client.blocking.client import Client
    from tickertape.client.blocking.streams import MessageStream


@click.command(short_help="Print the messages of a topic: live, or from any point of the log.")
@click.argument("topic")
@server_options
@click.option(
    "--bookmark",
    callback=start,
    metavar="START",
    help="Where to start in the log: epoch, now, a bookmark, a timestamp or a range. Default: no replay.",
)
@click.option(
    "--bookmark-not-found",
    type=click.Choice(["fail", "now", "epoch"]),
    help="With --bookmark: what happens when the log does not hold it. Default: fail.",
)
@filter_option
@click.option(
    "--select", metavar="FIELDS", help="Which fields are sent, such as -/,+/symbol,+/price. Default: all."
)
@click.option(
    "--rate",
    metavar="RATE",
    help="With --bookmark: at most so fast: messages a second (1000), bytes a second (500KB), or a multiple "
    "of the original pace (2x).",
)
@click.option(
    "--rate-max-gap",
    metavar="S",
    help="With a multiple as --rate: wait no longer than this between two messages, such as 10s.",
)
@click.option(
    "--conflation",
    metavar="S",
    help="At most one message, the last, of a key in an interval such as 1s: of recorded time in a replay.",
)
@click.option(
    "--conflation-key",
    metavar="FIELDS",
    help="The fields that make a key, such as /symbol or /a,/b. Default: the topic.",
)
@click.option("--live", is_flag=True, help="With --bookmark: after the replay, deliver before it is on disk.")
@click.option(
    "--pause",
    is_flag=True,
    help="With --bookmark: stand at START and begin when a line, or the end, comes on standard input.",
)
@click.option(
    "--resume-after",
    callback=interval,
    metavar="S",
    help="As --pause, but begin after this time; standard input is left alone.",
)
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@click.option(
    "--until-caught-up", is_flag=True, help="With --bookmark: stop at the end of the log as it stands now."
)
@click.option(
    "--timeout",
    callback=interval,
    metavar="S",
    help="Give up (exit code 3) when the server does not answer, or nothing comes, for that long: seconds, "
    "or text such as 500ms.",
)
@output_option
@click.option(
    "--ack",
    is_flag=True,
    help="TOPIC is a queue: acknowledge each message when it was written out. Without, what was printed goes "
    "back to the queue at the end.",
)
@click.option(
    "--max-backlog",
    type=click.IntRange(min=1),
    metavar="N",
    help="TOPIC is a queue: how many messages may be under way at a time, unacknowledged. Default: 1.",
)
def subscribe(
    topic: str,
    server: Server,
    bookmark: str | None,
    pause: bool,
    resume_after: float | None,
    count: int | None,
    until_caught_up: bool,
    timeout: float | None,
    output: str,
    ack: bool,
    max_backlog: int | None,
    **options: str | bool | None,
) -> None:
    """Print the messages of TOPIC: what is published from now on, or the log from START and then live.

    TOPIC is a name, or a pattern, a regular expression, for all topics that it is found in: "^orders/".

    START is one of

    \b
    epoch                                the first message of the log
    now                                  what comes from now on
    4031722713208431|1700000000000|      after the message with this bookmark
    20261120T090000                      after this moment, UTC
    [20261120T090000:20261120T100000)    a range: stops at its end

    \b
    tickertape subscribe orders --bookmark epoch --until-caught-up > orders.jsonl
    tickertape subscribe orders --bookmark 20261120T090000 --output json | jq .data.symbol
    tickertape subscribe orders --count 1 --timeout 10s
    tickertape subscribe '^orders/' --filter "/symbol = 'IBM' AND /price > 10"
    tickertape subscribe orders --bookmark epoch --rate 10x --rate-max-gap 5s
    tickertape subscribe prices --bookmark epoch --conflation 1s --conflation-key /symbol
    tickertape subscribe prices --select "[-/,+/symbol,+/price]"
    tickertape subscribe work --ack --max-backlog 100 >> done.jsonl

    A line of --output json has topic, bookmark, publisher, sequence, timestamp, what the publisher gave of
    expiration (milliseconds), correlation_id and sow_key, and the message: as data when it is JSON, else as
    text, and as base64 when it is not even text. Of a queue, topic is its name, and underlying_topic and
    lease_expires are there too.

    With --ack a message is acknowledged when this command has written it out, not when it was dealt with.
    """
    _check(bookmark, until_caught_up=until_caught_up, consumes=ack or max_backlog is not None)
    paused = pause or resume_after is not None
    wanted = _client_options(replays=bookmark is not None, pause=paused, max_backlog=max_backlog, **options)
    from tickertape.client.publish_store import MemoryPublishStore

    waiting = client_timeout_seconds if timeout is None else timeout
    # With a store, acknowledgements can be waited for.
    store = MemoryPublishStore() if ack else None
    with server.client(client_name("subscribe"), publish_store=store, timeout=waiting) as client:
        stream = _open(client, topic, bookmark, wanted, until_caught_up=until_caught_up)
        if paused:
            _wait_to_resume(resume_after)
            client.resume(stream.sub_id)
        with _acknowledgements(client) if ack else nullcontext() as acknowledge:
            _print(stream, timeout, count, as_json=output == "json", written=acknowledge)


def _print(
    stream: MessageStream, timeout: float | None, count: int | None, *, as_json: bool, written: Written | None
) -> None:
    batches = stream.batches(timeout)
    whole = print_batches(batches, count, message_output(), as_json=as_json, written=written)
    if not whole and stream.end_error is not None:
        raise stream.end_error


@contextmanager
def _acknowledgements(client: Client) -> Iterator[Written]:
    """What acknowledges the first messages of a batch. At the end, and when no more come in time, that is
    persisted."""
    try:
        yield _acknowledge
    except TimedOut:
        client.publish_flush()
        raise
    client.publish_flush()


def _check(bookmark: str | None, *, until_caught_up: bool, consumes: bool) -> None:
    if until_caught_up and bookmark is None:
        raise click.UsageError(
            "--until-caught-up says where a replay stops: say with --bookmark where it starts"
        )
    if consumes and bookmark is not None:
        raise click.UsageError("--ack and --max-backlog consume a queue, and --bookmark replays its topic")


def _acknowledge(batch: MessageBatch, count: int) -> None:
    if count == batch.count:
        batch.ack()
        return
    for message in islice(batch, count):
        message.ack()


_OF_A_REPLAY: Final = ("rate", "rate_max_gap", "live", "pause", "bookmark_not_found")


def _client_options(*, replays: bool, **options: str | int | None) -> dict[str, Any]:
    """Return the keywords of the client's call. Raises `click.UsageError` for what only a replay has."""
    wanted = {name: value for name, value in options.items() if value is not None and value is not False}
    for name in _OF_A_REPLAY:
        if name in wanted and not replays:
            raise click.UsageError(
                f"--{name.replace('_', '-')} is of a replay: say with --bookmark where it starts"
            )
    return wanted


def _open(
    client: Client, topic: str, bookmark: str | None, wanted: dict[str, Any], *, until_caught_up: bool
) -> MessageStream:
    if bookmark is None:
        return client.subscribe(topic, options="bookmark,timestamp", **wanted)
    if until_caught_up:
        flags = ",".join(name for name in ("live", "pause") if wanted.pop(name, False))
        return client.replay(topic, bookmark, options=flags, **wanted)
    return client.bookmark_subscribe(topic, bookmark, timestamp=True, **wanted)


def _wait_to_resume(seconds: float | None) -> None:
    if seconds is not None:
        time.sleep(seconds)
        return
    remark("paused at START: press Enter to begin")
    sys.stdin.buffer.readline()
