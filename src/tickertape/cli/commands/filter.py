"""`filter`: explain a filter, and test it on the lines of a file, without a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO, Final

import click

from tickertape.base.limits import message_bytes_max
from tickertape.cli.support.command_group import Failure, LazyGroup, UserMistake, end_of_search
from tickertape.cli.support.command_table import FILTER
from tickertape.cli.support.json_lines import body_field, message_output
from tickertape.cli.support.option_types import InputFile, NamedChoice
from tickertape.cli.support.output_options import limit_option, output_option
from tickertape.cli.support.tables import counted
from tickertape.filter import Filter, compile_filter
from tickertape.filter.compiler.explain import explain as explain_filter
from tickertape.filter.functions.registry import MESSAGE_FUNCTIONS, SUBSCRIBER_FUNCTIONS
from tickertape.payload.registry import MESSAGE_TYPE_ALIASES, MESSAGE_TYPES, message_type

_LINES_AT_A_TIME: Final = 512

type_option = click.option(
    "--type",
    "kind",
    type=NamedChoice([*MESSAGE_TYPES, *MESSAGE_TYPE_ALIASES]),
    default="json",
    show_default=True,
    help="Message type of the bodies.",
)


@click.group(
    cls=LazyGroup,
    table=FILTER,
    short_help="Explain a filter, or test it on lines.",
)
def filter() -> None:  # noqa: A001 - the group finds a command by its name
    """Explain and test filters without a server.

    \b
    tickertape filter explain "/symbol = 'IBM' AND /price > 10"
    tickertape filter test "/price > 10" orders.jsonl
    """


def _compiled(text: str, kind: str) -> Filter:
    return compile_filter(text, message_type(kind))


@click.command(short_help="Explain the meaning, fields and cost of a filter.")
@click.argument("text", metavar="FILTER")
@type_option
@output_option
def explain(text: str, kind: str, as_json: bool) -> None:
    """Explain the meaning, fields and cost of FILTER.

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


@click.command("test", short_help="Print the lines that a filter matches.")
@click.argument("text", metavar="FILTER")
@click.argument("file", type=InputFile(), default="-", metavar="[FILE|-]")
@type_option
@click.option("--count", "-c", "only_count", is_flag=True, help="Print only the number of matching lines.")
@limit_option("Stop after N matching lines.")
@output_option
def test(text: str, file: BinaryIO, kind: str, only_count: bool, limit: int | None, as_json: bool) -> None:
    """Print the lines of FILE that match FILTER. Each line is a message body. Empty lines are skipped.

    A line that is not of the message type matches only a filter without fields. The command prints the number
    of such lines on standard error. If no line matches, the exit code is 1.

    \b
    tickertape filter test "/price > 10" orders.jsonl
    tickertape subscribe orders --bookmark epoch --until-caught-up | tickertape filter test "/qty > 5" -c
    """
    found = _compiled(text, kind)
    if found.needs:
        functions = MESSAGE_FUNCTIONS | SUBSCRIBER_FUNCTIONS
        used = " and ".join(f"{name}()" for name, need in functions.items() if need in found.needs)
        raise UserMistake(
            f"Cannot test the filter: it uses {used}, and each input line is only the body of a message. "
            "Remove the conditions with these functions."
        )
    matched, out = 0, message_output()
    lines = _lines(file)
    while matched != limit and (taken := list(islice(lines, _LINES_AT_A_TIME))):
        hits = list(found.select([body for _, body in taken]))
        hits = hits if limit is None else hits[: limit - matched]
        matched += len(hits)
        if not only_count:
            out.write(b"".join(_printed(*taken[i], as_json=as_json) for i in hits))
    if found.unreadable:
        invalid = counted(found.unreadable, "line")
        click.echo(f"tickertape: Not valid as {found.type.name}: {invalid}. Check --type.", err=True)
    end_of_search(matched, "No line matches.", only_count=only_count, as_json=as_json)


def _printed(number: int, body: bytes, *, as_json: bool) -> bytes:
    return b'{"line":%d,"%b":%b}\n' % (number, *body_field(body)) if as_json else body + b"\n"


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the body of each line that is not empty."""
    for number, line in enumerate(iter(lambda: file.readline(message_bytes_max + 2), b""), 1):
        body = line.rstrip(b"\r\n")
        if len(body) > message_bytes_max:
            raise Failure(
                f"Cannot test line {number}: it is too long for a message. "
                f"Use at most {message_bytes_max:,} bytes."
            )
        if body:
            yield number, body
