"""`subscribe`: print the messages of a topic, from any point of the log.

The command writes received messages before it waits for the next ones.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import click

from tickertape.base.bookmarks import AtTime, Range, parse_bookmark
from tickertape.base.errors import BookmarkUnknown, NotAQueue, TimedOut
from tickertape.base.text_format import shown
from tickertape.cli.support.admin_client import names_admin_option
from tickertape.cli.support.command_group import failure_of
from tickertape.cli.support.connect_options import Server, server_options
from tickertape.cli.support.json_lines import Written, message_output, print_batches
from tickertape.cli.support.name_hints import missing_topic, suggesting, warn_of_wildcard
from tickertape.cli.support.option_types import (
    Count,
    NamedChoice,
    client_name,
    conflation_text,
    filter_option,
    interval,
    interval_text,
    start,
    timeout_value,
)
from tickertape.cli.support.output_options import limit_option, output_option
from tickertape.cli.support.terminal import remark
from tickertape.client.limits import client_timeout_seconds

if TYPE_CHECKING:
    from tickertape.batch import MessageBatch
    from tickertape.client.blocking.client import Client
    from tickertape.client.blocking.streams import MessageStream


@click.command(short_help="Print the messages of a topic, live or from the log.")
@click.argument("topic")
@server_options
@names_admin_option
@click.option(
    "--bookmark",
    callback=start,
    metavar="START",
    help="Start point in the log: epoch, now, a bookmark, a timestamp or a range. Default: no replay.",
)
@click.option(
    "--bookmark-not-found",
    type=NamedChoice(("fail", "now", "epoch")),
    help="With --bookmark: action if the log does not have the bookmark. Default: fail.",
)
@filter_option
@click.option("--select", metavar="FIELDS", help="Fields to send, such as -/,+/symbol,+/price. Default: all.")
@click.option(
    "--rate",
    metavar="RATE",
    help="With --bookmark: maximum rate, in messages/s (1000), bytes/s (500KB), or as a multiple of the "
    "recorded rate (2x).",
)
@click.option(
    "--rate-max-gap",
    callback=interval_text,
    metavar="S",
    help="With a multiple as --rate: maximum wait between two messages, such as 10s.",
)
@click.option(
    "--conflation",
    callback=conflation_text,
    metavar="S",
    help="Send at most one message (the last) for each key and interval, such as 1s. A replay uses recorded "
    "time.",
)
@click.option(
    "--conflation-key",
    metavar="FIELDS",
    help="Fields of the conflation key, such as /symbol or /a,/b. Default: the topic.",
)
@click.option(
    "--live",
    is_flag=True,
    help="With --bookmark: after the replay, deliver messages before they are persisted.",
)
@click.option(
    "--pause",
    is_flag=True,
    help="With --bookmark: before the replay, wait for a line on standard input, or for its end.",
)
@click.option(
    "--resume-after",
    callback=interval,
    metavar="S",
    help="With --bookmark: before the replay, wait for this time.",
)
@limit_option("Stop after N messages.")
@click.option("--until-caught-up", is_flag=True, help="With --bookmark: stop at the current end of the log.")
@click.option(
    "--timeout",
    callback=timeout_value,
    metavar="S",
    help="Timeout (exit code 3) for answers of the server and for the next message: seconds, or text such as "
    "500ms. Default: 10 s for answers, no limit for messages.",
)
@output_option
@click.option(
    "--ack",
    is_flag=True,
    help="For a queue: acknowledge each message after it is written. Without it, messages return to the "
    "queue at the end.",
)
@click.option(
    "--max-backlog",
    type=Count(),
    metavar="N",
    help="For a queue: maximum number of unacknowledged messages. Default: 1.",
)
def subscribe(
    topic: str,
    server: Server,
    admin: str | None,
    bookmark: str | None,
    pause: bool,
    resume_after: float | None,
    limit: int | None,
    until_caught_up: bool,
    timeout: float | None,
    as_json: bool,
    ack: bool,
    max_backlog: int | None,
    **options: str | bool | None,
) -> None:
    """Print the messages of TOPIC: new messages, or with --bookmark the log from START and then new messages.

    TOPIC is a name, or a regular expression that selects all matching topics, such as "^orders/".

    START is one of

    \b
    epoch                                the first message of the log
    now                                  after the last message of the log
    4031722713208431|1700000000000|      after the message with this bookmark
    20261120T090000                      after this time (UTC)
    [20261120T090000:20261120T100000)    a range, which stops at its end

    \b
    tickertape subscribe orders --bookmark epoch --until-caught-up > orders.jsonl
    tickertape subscribe orders --bookmark 20261120T090000 --output json | jq .data.symbol
    tickertape subscribe orders --limit 1 --timeout 10s
    tickertape subscribe '^orders/' --filter "/symbol = 'IBM' AND /price > 10"
    tickertape subscribe orders --bookmark epoch --rate 10x --rate-max-gap 5s
    tickertape subscribe prices --bookmark epoch --conflation 1s --conflation-key /symbol
    tickertape subscribe prices --select "[-/,+/symbol,+/price]"
    tickertape subscribe work --ack --max-backlog 100 >> done.jsonl

    A line of --output json has the fields topic, bookmark, publisher, sequence and timestamp, and if set
    expiration (milliseconds), correlation_id and sow_key. The body is in data if it is JSON, in text if it is
    other UTF-8 text, else in base64. For a queue, topic is the name of the queue, with the additional fields
    underlying_topic and lease_expires.

    With --ack a message is acknowledged after this command has written it. The reader of the output may not
    have processed it yet.
    """
    if resume_after is not None and bookmark is None:
        raise click.UsageError("--resume-after requires --bookmark. Add one, such as --bookmark epoch.")
    _check(bookmark, until_caught_up=until_caught_up, consumes=ack or max_backlog is not None)
    paused = pause or resume_after is not None
    if ack and max_backlog is None:
        max_backlog = 1  # the default, which a server refuses at once for a topic that is not a queue
    wanted = _client_options(replays=bookmark is not None, pause=paused, max_backlog=max_backlog, **options)
    warn_of_wildcard(topic)
    from tickertape.client.publish_store import MemoryPublishStore

    waiting = client_timeout_seconds if timeout is None else timeout
    # With a publish store, `publish_flush` waits for acknowledgements.
    store = MemoryPublishStore() if ack else None
    with (
        suggesting(topic, admin),
        server.client(client_name("subscribe"), publish_store=store, timeout=waiting) as client,
    ):
        try:
            stream = _open(client, topic, bookmark, wanted, until_caught_up=until_caught_up, ack=ack)
        except BookmarkUnknown as error:
            raise failure_of(error, _unknown_bookmark(str(bookmark))) from None
        if paused:
            _wait_to_resume(resume_after)
            client.resume(stream.sub_id)
        with _acknowledgements(client) if ack else nullcontext() as acknowledge:
            batches = stream.batches(timeout)
            first = _first(batches, topic, admin)
            if first is not None:
                batches = chain((first,), batches)
            _print(stream, batches, limit, as_json=as_json, written=acknowledge)
    if first is None and bookmark is not None:
        hint = _backwards(bookmark)
        if not hint:
            hint = missing_topic(topic, admin)
            if hint and options.get("filter"):
                hint += " Check the filter: `tickertape filter test` tests it on a file."
        if hint:
            click.echo(f"tickertape: No messages of {shown(topic)} were replayed. {hint}", err=True)


def _backwards(bookmark: str) -> str:
    """Return the hint for a range of times whose end is before its start, or ""."""
    point = parse_bookmark(bookmark)
    if (
        isinstance(point, Range)
        and isinstance(point.begin, AtTime)
        and isinstance(point.end, AtTime)
        and point.end.micros < point.begin.micros
    ):
        return f"The end {str(point.end)!r} of the range is before its start {str(point.begin)!r}. Swap them."
    return ""


def _first(batches: Iterator[MessageBatch], topic: str, admin: str | None) -> MessageBatch | None:
    """Return the first batch, or None at the end of the stream. A timeout suggests similar topics."""
    try:
        return next(batches, None)
    except TimedOut as error:
        hint = "" if admin is None else missing_topic(topic, admin)
        raise TimedOut(f"{error} {hint}".rstrip()) from None


def _print(
    stream: MessageStream,
    batches: Iterable[MessageBatch],
    limit: int | None,
    *,
    as_json: bool,
    written: Written | None,
) -> None:
    whole = print_batches(batches, limit, message_output(), as_json=as_json, written=written)
    if not whole and stream.end_error is not None:
        raise stream.end_error


@contextmanager
def _acknowledgements(client: Client) -> Iterator[Written]:
    """Provide a callback that acknowledges written messages.

    At the end, and after a timeout, wait until the acknowledgements are persisted."""
    try:
        yield _acknowledge
    except TimedOut:
        client.publish_flush()
        raise
    client.publish_flush()


def _check(bookmark: str | None, *, until_caught_up: bool, consumes: bool) -> None:
    if until_caught_up and bookmark is None:
        raise click.UsageError("--until-caught-up requires --bookmark. Add one, such as --bookmark epoch.")
    if consumes and bookmark is not None:
        raise click.UsageError("--ack and --max-backlog exclude --bookmark. Remove --bookmark.")


def _acknowledge(batch: MessageBatch, count: int) -> None:
    if count == batch.count:
        batch.ack()
        return
    for message in islice(batch, count):
        message.ack()


_OF_A_REPLAY: Final = ("rate", "rate_max_gap", "live", "pause", "bookmark_not_found")


def _client_options(*, replays: bool, **options: str | int | None) -> dict[str, Any]:
    """Return the keyword arguments of the client call. Raises `click.UsageError` for replay-only options."""
    wanted = {name: value for name, value in options.items() if value is not None and value is not False}
    for name in _OF_A_REPLAY:
        if name in wanted and not replays:
            raise click.UsageError(
                f"--{name.replace('_', '-')} requires --bookmark. Add one, such as --bookmark epoch."
            )
    if "rate_max_gap" in wanted and not str(wanted.get("rate", "")).lower().endswith("x"):
        raise click.UsageError("--rate-max-gap requires a multiple as --rate. Add one, such as --rate 2x.")
    if "conflation_key" in wanted and "conflation" not in wanted:
        raise click.UsageError("--conflation-key requires --conflation. Add one, such as --conflation 1s.")
    return wanted


def _open(
    client: Client,
    topic: str,
    bookmark: str | None,
    wanted: dict[str, Any],
    *,
    until_caught_up: bool,
    ack: bool,
) -> MessageStream:
    if bookmark is None:
        try:
            return client.subscribe(topic, options="bookmark,timestamp", **wanted)
        except NotAQueue:
            option = "--ack" if ack else "--max-backlog"
            raise NotAQueue(
                f"Cannot use {option}: {shown(topic)} is not a queue. Remove the option, or name a queue."
            ) from None
    if until_caught_up:
        flags = ",".join(name for name in ("live", "pause") if wanted.pop(name, False))
        return client.replay(topic, bookmark, options=flags, **wanted)
    return client.bookmark_subscribe(topic, bookmark, timestamp=True, **wanted)


def _unknown_bookmark(bookmark: str) -> str:
    return (
        f"Cannot find the bookmark {shown(bookmark)} in the log. Start from epoch or now, or pass "
        "--bookmark-not-found now."
    )


def _wait_to_resume(seconds: float | None) -> None:
    if seconds is not None:
        time.sleep(seconds)
        return
    remark("paused at START, press Enter to start")
    sys.stdin.buffer.readline()
