"""`sow` and `sow-delete`: print and delete the records of a SOW topic.

`sow-delete` needs a confirmation: `--yes`, or an answer on the terminal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

import click
import msgspec

from tickertape.base.text_format import shown
from tickertape.cli.support.arrow_output import check_output, print_table
from tickertape.cli.support.command_group import Failure
from tickertape.cli.support.connect_options import Server, server_options
from tickertape.cli.support.json_lines import message_output, print_batches
from tickertape.cli.support.name_hints import warn_of_wildcard
from tickertape.cli.support.option_types import (
    InputFile,
    answer_timeout_option,
    client_name,
    topic_name,
)
from tickertape.cli.support.output_options import Command, limit_option, output_option, table_output_option
from tickertape.cli.support.tables import counted
from tickertape.cli.support.terminal import confirmed

if TYPE_CHECKING:
    from tickertape.client.blocking.client import Client
    from tickertape.client.blocking.streams import SowResult

_filter_option = click.option(
    "--filter", metavar="F", help="Only records that match this filter, such as \"/symbol = 'IBM'\"."
)


_ANY_KEY = "AAAAAAAAAAAAAAAAAAAAAA"
"""A valid key. Whether it has a record does not matter."""


def _keys_option(text: str) -> Callable[[Command], Command]:
    return click.option("--sow-key", "keys", multiple=True, metavar="KEY", help=text)


# -- sow ----------------------------------------------------------------------------------------------


@click.command(short_help="Print the records of a SOW topic, or the messages of a queue.")
@click.argument("topic")
@server_options
@_filter_option
@_keys_option("Only the record with this key, as in sow_key of --output json (may be repeated).")
@click.option("--order-by", metavar="O", help='Fields to sort by, such as "/price DESC, /symbol".')
@click.option("--top", type=click.IntRange(min=0), metavar="N", help="Query at most N records.")
@click.option("--skip", type=click.IntRange(min=0), metavar="N", help="With --top: skip N records first.")
@click.option("--follow", is_flag=True, help="After the records, print new messages as they are published.")
@limit_option("Stop after N records, or with --follow N records and messages.")
@table_output_option
@answer_timeout_option
def sow(
    topic: str,
    server: Server,
    filter: str | None,
    keys: tuple[str, ...],
    order_by: str | None,
    top: int | None,
    skip: int | None,
    follow: bool,
    limit: int | None,
    output: str,
    timeout: float,
) -> None:
    """Print the records of the SOW topic TOPIC: the last message of each key, at one position of the log.

    TOPIC is a name, or a regular expression that selects all matching SOW topics, such as "^positions/".
    With the name of a queue, print its available messages without consuming them. A regular expression also
    selects matching queues, except with --follow or --sow-key.

    \b
    tickertape sow positions
    tickertape sow positions --filter "/desk = 'fx'" --order-by "/qty DESC" --top 10
    tickertape sow positions --output json | jq .sow_key
    tickertape sow positions --output csv > positions.csv
    tickertape sow positions --follow

    The text of a record is its body. A line of --output json is as in the command subscribe, with command
    "sow" and sow_key. CSV and Arrow have a column for each field of the JSON bodies, and _sow_key, _topic,
    _bookmark, _timestamp and _correlation_id.

    With --follow no message is lost or printed twice between the records and the new messages. The timeout
    does not apply to new messages. Deleted and expired records are not reported.
    """
    _check(output, skip=skip, top=top, follow=follow, keys=keys)
    warn_of_wildcard(topic)
    if limit is not None and not follow:
        top = limit if top is None else min(top, limit)
    wanted: dict[str, Any] = {"order_by": order_by, "top_n": top, "skip_n": skip, "timestamp": True}
    with server.client(client_name("sow"), timeout=timeout) as client:
        if follow:
            stream: Any = client.sow_and_subscribe(topic, filter, **wanted)
        else:
            stream = client.sow(topic, filter, keys=keys or None, **wanted)
        if output in ("csv", "arrow"):
            _print_columns(topic, stream, output)
            return
        batches = stream.batches()
        whole = print_batches(batches, limit, message_output(), as_json=output == "json")
        if not whole and stream.end_error is not None:
            raise stream.end_error


def _check(output: str, *, skip: int | None, top: int | None, follow: bool, keys: tuple[str, ...]) -> None:
    if skip is not None and top is None:
        raise click.UsageError("--skip requires --top. Add one, such as --top 10.")
    if follow and keys:
        raise click.UsageError("--follow excludes --sow-key. Remove one of them, or use --filter.")
    if follow and output in ("csv", "arrow"):
        raise click.UsageError(f"--follow excludes --output {output}. Use --output json.")
    check_output(output)


def _print_columns(topic: str, records: SowResult, output: str) -> None:
    from tickertape.client.sql.query import METADATA, SOURCES, table_of_records

    table = records.to_arrow(SOURCES)
    print_table(table_of_records(topic, table, METADATA), output)


# -- sow-delete ---------------------------------------------------------------------------------------


@click.command(short_help="Delete records of a SOW topic.")
@click.argument("topic", callback=topic_name)
@server_options
@_keys_option("Delete the record with this key (may be repeated).")
@click.option("--filter", metavar="F", help='Delete the records that match this filter. "TRUE": all records.')
@click.option(
    "--data",
    type=InputFile(),
    metavar="FILE",
    help="Delete the record that a publish of this file would replace. - reads standard input.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation. Required without a terminal.")
@output_option
@answer_timeout_option
def sow_delete(
    topic: str,
    server: Server,
    keys: tuple[str, ...],
    filter: str | None,
    data: BinaryIO | None,
    yes: bool,
    as_json: bool,
    timeout: float,
) -> None:
    """Delete records of the SOW topic TOPIC: those with a key, those that match a filter, or one by its data.

    The deleted messages stay in the log, for replays. Without --yes the command asks for confirmation with
    the number of matching records.

    \b
    tickertape sow-delete positions --sow-key 6Gemf7avP2ika6hNimIFkA
    tickertape sow-delete positions --filter "/qty = 0" --yes
    echo '{"id": 7}' | tickertape sow-delete positions --data - --yes
    """
    if bool(keys) + (filter is not None) + (data is not None) != 1:
        raise click.UsageError("Pass exactly one of --sow-key, --filter and --data.")
    from tickertape.client.publish_store import MemoryPublishStore

    wanted: dict[str, Any] = {"filter": filter} if filter is not None else {"keys": list(keys)}
    if data is not None:
        wanted = {"data": _body(data.read())}
    store = MemoryPublishStore()
    with server.client(client_name("sow-delete"), publish_store=store, timeout=timeout) as client:
        _refuse_queue(client, topic)  # also with --yes: a delete on a queue acknowledges messages
        matches = _matches(client, topic, {} if data is not None else wanted)
        if not yes:
            _confirm(topic, None if data is not None else matches)
        answer: Any = client.sow_delete(topic, **wanted)
    if as_json:
        counts = {"topic": topic, "matches": answer.matches, "deleted": answer.records}
        click.echo(msgspec.json.encode(counts))
    elif answer.records is None:
        click.echo("deleted, and the number of records is unknown")
    else:
        click.echo(f"{counted(answer.records, 'record')} deleted")


def _body(data: bytes) -> bytes:
    """Return text without the ends of its last lines, and binary data unchanged."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return data
    return data.rstrip(b"\r\n")


def _confirm(topic: str, matches: int | None) -> None:
    """Ask whether to delete the records. Raises `Failure` for any answer except yes."""
    which = "the record that the data would replace" if matches is None else counted(matches, "record")
    answer = confirmed(f"Delete {which} in {shown(topic)}?")
    if answer is None:
        raise click.UsageError("Confirmation needed. Pass --yes when not on a terminal.")
    if not answer:
        raise Failure("Nothing was deleted.")


def _refuse_queue(client: Client, topic: str) -> None:
    """Raise `UsageError` for a queue: the server refuses a query of its messages by keys."""
    from tickertape.base.errors import BadOption

    try:
        with client.sow(topic, keys=[_ANY_KEY], top_n=0) as result:
            for _ in result:
                """No record is sent."""
    except BadOption:
        raise click.UsageError(
            f"Cannot delete records of {shown(topic)}: it is not a SOW topic but a queue. Use the name of a "
            "SOW topic."
        ) from None


def _matches(client: Client, topic: str, wanted: dict[str, Any]) -> int:
    """Return the number of records that match."""
    with client.sow(topic, **wanted, top_n=0) as result:
        for _ in result:
            """No record is sent."""
    return result.matches or 0
