"""`filter`: explain a filter, and test it on the lines of a file, without a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO, Final

import click

from tickertape.base.limits import message_bytes_max
from tickertape.cli.support.command_group import Failure, end_of_search
from tickertape.cli.support.json_lines import message_output
from tickertape.cli.support.tables import counted
from tickertape.filter import Filter, compile_filter
from tickertape.filter.compiler.explain import explain as explain_filter
from tickertape.payload.registry import MESSAGE_TYPE_ALIASES, MESSAGE_TYPES, message_type

_LINES_AT_A_TIME: Final = 512

type_option = click.option(
    "--type",
    "kind",
    type=click.Choice([*MESSAGE_TYPES, *MESSAGE_TYPE_ALIASES]),
    default="json",
    show_default=True,
    help="Message type of the bodies.",
)


@click.group(short_help="Explain a filter, or test it on lines.")
def filter() -> None:  # noqa: A001 - the group finds a command by its name
    """Explain and test filters without a server.

    \b
    tickertape filter explain "/symbol = 'IBM' AND /price > 10"
    tickertape filter test "/price > 10" orders.jsonl
    """


def _compiled(text: str, kind: str) -> Filter:
    return compile_filter(text, message_type(kind))


@filter.command(short_help="Explain the meaning, fields and cost of a filter.")
@click.argument("text", metavar="FILTER")
@type_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def explain(text: str, kind: str, as_json: bool) -> None:
    """Explain the meaning, fields and cost of FILTER. Exit code 1 means an invalid filter.

    \b
    tickertape filter explain "/a = 1 OR /b LIKE '^x' AND NOT /c IS NULL"
    tickertape filter explain "/55 = 'IBM'" --type fix
    """
    found = explain_filter(_compiled(text, kind))
    if as_json:
        click.echo(json.dumps(found._asdict()))
        return
    for line in found.lines():
        click.echo(line)


@filter.command("test", short_help="Print the lines that a filter matches.")
@click.argument("text", metavar="FILTER")
@click.argument("file", type=click.File("rb"), default="-", metavar="[FILE|-]")
@type_option
@click.option("--count", "-c", "only_count", is_flag=True, help="Print only the number of matching lines.")
def try_lines(text: str, file: BinaryIO, kind: str, only_count: bool) -> None:
    """Print the lines of FILE that match FILTER. Each line is a message body. Empty lines are skipped.

    A line that is not of the message type matches only a filter without fields. The command prints the number
    of such lines on standard error. If no line matches, the exit code is 1.

    \b
    tickertape filter test "/price > 10" orders.jsonl
    tickertape subscribe orders --bookmark epoch --until-caught-up | tickertape filter test "/qty > 5" -c
    """
    found = _compiled(text, kind)
    if found.needs:
        needs = ", ".join(sorted(found.needs))
        raise Failure(f"Cannot test the filter: it uses {needs}, which a line does not have. Remove them.")
    matched, out = 0, message_output()
    lines = _lines(file)
    while bodies := list(islice(lines, _LINES_AT_A_TIME)):
        hits = found.select(bodies)
        matched += len(hits)
        if not only_count:
            out.write(b"".join(bodies[i] + b"\n" for i in hits))
    if found.unreadable:
        lines_read = counted(found.unreadable, "line")
        click.echo(f"tickertape: {lines_read} could not be read as {found.type.name}", err=True)
    end_of_search(matched, only_count, "No line matches.")


def _lines(file: BinaryIO) -> Iterator[bytes]:
    for number, line in enumerate(iter(lambda: file.readline(message_bytes_max + 2), b""), 1):
        body = line.rstrip(b"\r\n")
        if len(body) > message_bytes_max:
            raise Failure(f"Line {number} is too long for a message (limit {message_bytes_max:,} bytes).")
        if body:
            yield body
