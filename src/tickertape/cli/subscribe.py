"""Owns `subscribe`: messages of a topic on standard output, from any point of the log on.

Must never hold a message back: what has arrived is written out before the next is waited for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO

import click

from tickertape.base.limits import client_timeout_seconds
from tickertape.cli.lines import json_lines
from tickertape.cli.options import client_name, interval, server_option, start

if TYPE_CHECKING:
    from tickertape.batch import MessageBatch
    from tickertape.client.blocking import Client
    from tickertape.client.streams import MessageStream


@click.command(short_help="Print the messages of a topic: live, or from any point of the log.")
@click.argument("topic")
@server_option
@click.option(
    "--bookmark",
    callback=start,
    metavar="START",
    help="Where to start in the log: epoch, now, a bookmark, a timestamp or a range. Default: no replay.",
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
@click.option(
    "--output",
    type=click.Choice(["data", "json"]),
    default="data",
    show_default=True,
    help="data: the message and a line end. json: an object a line, with the header fields.",
)
def subscribe(
    topic: str,
    server: str,
    bookmark: str | None,
    count: int | None,
    until_caught_up: bool,
    timeout: float | None,
    output: str,
) -> None:
    """Print the messages of TOPIC: what is published from now on, or the log from START and then live.

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

    A line of --output json has topic, bookmark, publisher, sequence, timestamp, what the publisher gave of
    expiration (milliseconds), correlation_id and sow_key, and the message: as data when it is JSON, else as
    text, and as base64 when it is not even text.
    """
    if until_caught_up and bookmark is None:
        raise click.UsageError(
            "--until-caught-up says where a replay stops: say with --bookmark where it starts"
        )
    from tickertape.client.blocking import Client

    waiting = client_timeout_seconds if timeout is None else timeout
    with Client(client_name("subscribe"), server, timeout=waiting) as client:
        stream = _open(client, topic, bookmark, until_caught_up=until_caught_up)
        whole = _print(stream.batches(timeout), count, sys.stdout.buffer, as_json=output == "json")
        if not whole and stream.end_error is not None:
            raise stream.end_error


def _open(client: Client, topic: str, bookmark: str | None, *, until_caught_up: bool) -> MessageStream:
    if bookmark is None:
        return client.subscribe(topic, options="bookmark,timestamp")
    if until_caught_up:
        return client.replay(topic, bookmark)
    return client.bookmark_subscribe(topic, bookmark, timestamp=True)


def _print(batches: Iterable[MessageBatch], count: int | None, out: BinaryIO, *, as_json: bool) -> bool:
    """Write every batch as soon as it is there, up to `count` messages; False when they ended before."""
    left = count
    for batch in batches:
        lines = json_lines(batch) if as_json else iter(batch.bodies_list())
        taken = list(lines)[:left]
        taken.append(b"")
        out.write(b"\n".join(taken))
        out.flush()
        if left is not None:
            left -= len(taken) - 1
            if left == 0:
                return True
    return False
