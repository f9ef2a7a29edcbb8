"""`publish` and `delta-publish`: publish lines of a file or of standard input, or `--message` texts.

Exit code 0 means that the server has persisted every message, or accepted it for a non-persistent topic.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

import click
import msgspec
from click.core import ParameterSource

from tickertape.base.errors import (
    BadTopic,
    Disconnected,
    PeerError,
    PublishRejected,
    Refused,
    TickertapeError,
)
from tickertape.base.limits import message_bytes_max
from tickertape.base.names import check_topic
from tickertape.base.text_format import shown
from tickertape.cli.support.command_group import Failure, failure_of
from tickertape.cli.support.connect_options import Server, server_options
from tickertape.cli.support.json_lines import NOT_JSON
from tickertape.cli.support.option_types import InputFile, PositiveRate, answer_timeout_option, client_name
from tickertape.cli.support.tables import counted
from tickertape.cli.support.terminal import progress, remark


@click.command(short_help="Publish lines, and wait until they are persisted.")
@click.argument("topic")
@click.argument(
    "file", type=InputFile(" To publish a text, pass --message."), default="-", metavar="[FILE|-]"
)
@server_options
@click.option(
    "--message",
    "texts",
    multiple=True,
    metavar="TEXT",
    help="Publish this text as one message, instead of FILE or standard input (may be repeated).",
)
@click.option(
    "--name",
    metavar="NAME",
    help="Client name, which determines the publisher id. Default: a unique name.",
)
@click.option(
    "--rate",
    type=PositiveRate(),
    metavar="N",
    help="Maximum number of messages per second.",
)
@click.option("--require-json", is_flag=True, help="Stop at a message that is not JSON.")
@answer_timeout_option
@click.pass_context
def publish(
    ctx: click.Context,
    topic: str,
    file: BinaryIO,
    server: Server,
    texts: tuple[str, ...],
    name: str | None,
    rate: float | None,
    require_json: bool,
    timeout: float,
) -> None:
    """Publish each line of FILE, or of standard input, as a message to TOPIC.

    Line ends are not part of a message. Empty lines are skipped. With --message, each TEXT is a message, and
    an empty TEXT is a message with an empty body. The command ends when the server has persisted all
    messages. The server does not store messages of a non-persistent topic: it delivers them to live
    subscribers.

    \b
    echo '{"id": 1}' | tickertape publish orders
    tickertape publish orders --message '{"id": 1}' --message '{"id": 2}'
    tickertape publish orders orders.jsonl --require-json --name loader-1
    tail -f access.log | tickertape publish access --rate 1000
    """
    try:
        check_topic(topic)
    except BadTopic as error:
        raise click.BadParameter(str(error), param_hint="'TOPIC'") from None
    if texts and ctx.get_parameter_source("file") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--message excludes FILE. Remove one of them.")
    bodies = _bodies(texts, json=require_json)
    messages = iter(bodies) if bodies else _messages(file, json=require_json)
    source = _Source(topic, _name(file), _paced(messages, rate), None if bodies else _size(file))
    _send(source, server, client_name("publish") if name is None else name, timeout)


@click.command(short_help="Publish changed fields of records.")
@click.argument("topic")
@click.argument("file", type=InputFile(), default="-", metavar="[FILE|-]")
@server_options
@click.option(
    "--name",
    metavar="NAME",
    help="Client name, which determines the publisher id. Default: a unique name.",
)
@answer_timeout_option
def delta_publish(topic: str, file: BinaryIO, server: Server, name: str | None, timeout: float) -> None:
    """Merge each line of FILE, or of standard input, into a record of the SOW topic TOPIC.

    A line is a JSON object with the key fields of the record and the fields to change. Objects are merged by
    name at every depth, other values replace the old ones, and all other fields stay. Without a record, the
    line becomes the record. The command ends when the server has persisted all merged messages.

    \b
    echo '{"id": 7, "price": 12.5}' | tickertape delta-publish positions
    tickertape delta-publish positions changes.jsonl
    """
    try:
        check_topic(topic)
    except BadTopic as error:
        raise click.BadParameter(str(error), param_hint="'TOPIC'") from None
    source = _Source(topic, _name(file), _messages(file, json=True), _size(file))
    _send(source, server, client_name("delta-publish") if name is None else name, timeout, delta=True)


class _Source(NamedTuple):
    """Messages to publish, and their place."""

    topic: str
    file: str
    messages: Iterator[bytes]
    size: int | None
    """Size of the file in bytes, or None."""


def _send(source: _Source, server: Server, name: str, timeout: float, *, delta: bool = False) -> None:
    """Publish all messages, and wait until they are persisted. Report the outcome."""
    from tickertape.client.publish_store import MemoryPublishStore

    topic = source.topic
    with (
        server.client(name, publish_store=MemoryPublishStore(), timeout=timeout) as client,
        progress(f"publish {topic}", source.size) as advance,
    ):
        publish_one = client.delta_publish if delta else client.publish
        published, bad_line, sequence = 0, "", None
        try:
            try:
                for message in source.messages:
                    sequence = publish_one(topic, message)
                    published += 1
                    advance(len(message) + 1)
                    if not client.connected:
                        break  # the publish store would accept more, but cannot send it
            except _BadLineError as error:
                bad_line = f"Cannot publish {source.file!r}: {error}"
            client.publish_flush(timeout=timeout)
        except (Disconnected, PublishRejected) as error:
            client.set_exception_listener(_ignore)  # this command reports unsent messages itself
            text = _reason(error, server.uri)
            if left := client.unpersisted_count():
                text = f"{text.rstrip('.')}. {left} of {published} messages may not be persisted."
            raise failure_of(error, text) from error
    if bad_line:
        raise Failure(f"{bad_line}. Correct it. Messages published before this line: {published}.")
    stored = sequence is not None or not published
    outcome = "persisted" if stored else f"published, not stored: the topic {shown(topic)} is not persistent"
    remark(f"{counted(published, 'message')} {outcome}")


def _ignore(error: BaseException) -> None:
    """Ignore an exception of `close`, because the command reports unsent messages itself."""


class _BadLineError(ValueError):
    """A line that is not a valid message."""


def _reason(error: TickertapeError, server: str) -> str:
    """Return the server and its error, without the advice that is for programs only."""
    from tickertape.client.common.address import parse_uri

    text, lost = str(error), error.__cause__
    if isinstance(error, Disconnected) and isinstance(lost, Disconnected | Refused | PeerError):
        closed = f"the server closed the connection ({lost.code}): {lost}"
        text = str(lost) if lost.code == Disconnected.code else closed
    uri = parse_uri(server).uri
    return text if uri in text else f"Cannot publish to {uri!r}: {text[:1].lower()}{text[1:]}"


def _bodies(texts: tuple[str, ...], *, json: bool) -> list[bytes]:
    """Return the bodies of `--message`. Raises `click.BadParameter` before anything is published."""
    bodies = [text.encode("utf-8", "surrogateescape") for text in texts]
    for text, body in zip(texts, bodies, strict=True):
        if len(body) > message_bytes_max:
            raise click.BadParameter(
                f"The message has {len(body)} bytes. Use at most {message_bytes_max} bytes.",
                param_hint="'--message'",
            )
        if json:
            try:
                msgspec.json.decode(body)
            except NOT_JSON as error:
                raise click.BadParameter(
                    f"The message {shown(text)} is not JSON: {error}. Correct it, or omit --require-json.",
                    param_hint="'--message'",
                ) from None
    return bodies


def _messages(file: BinaryIO, *, json: bool) -> Iterator[bytes]:
    number = 0
    while line := file.readline(message_bytes_max + 3):
        number += 1
        message = line[:-1] if line.endswith(b"\n") else line
        message = message.removesuffix(b"\r")
        if len(message) > message_bytes_max:
            raise _BadLineError(f"line {number} is too long (limit {message_bytes_max} bytes)")
        if not message:
            continue
        if json:
            try:
                msgspec.json.decode(message)
            except NOT_JSON as error:
                raise _BadLineError(f"line {number} is not JSON: {error}") from None
        yield message


def _paced(
    messages: Iterator[bytes],
    rate: float | None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[bytes]:
    """Yield the messages at most at `rate` per second. A delay is not followed by a burst."""
    if rate is None:
        yield from messages
        return
    due = clock()
    for message in messages:
        wait = due - clock()
        if wait > 0:
            sleep(wait)
        due = max(due, clock() - 1 / rate) + 1 / rate
        yield message


def _name(file: BinaryIO) -> str:
    return getattr(file, "name", "<stdin>")


def _size(file: BinaryIO) -> int | None:
    """Return the size of a regular file in bytes. None for any other file."""
    try:
        status = os.fstat(file.fileno())
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
