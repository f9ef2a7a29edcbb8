"""`error`: explain an error code."""

from __future__ import annotations

import inspect
from importlib.resources import files
from typing import NamedTuple

import click
import msgspec

from tickertape.base.errors import all_codes
from tickertape.base.text_format import did_you_mean, shown
from tickertape.cli.support.output_options import output_option


class ErrorExplanation(NamedTuple):
    """Explanation of an error code: a row of `error_codes.tsv`, and the class of the code.

    The error page of the documentation is generated from the same rows."""

    code: str
    family: str
    name: str
    """Name of the Python class."""
    meaning: str
    """First paragraph of the docstring of the class."""
    cause: str
    cure: str
    see: str
    """Page below `docs/` that explains more, or empty."""


def explanations() -> dict[str, ErrorExplanation]:
    """Return all error codes with their explanations, in the order of the documentation."""
    lines = files("tickertape.cli").joinpath("error_codes.tsv").read_text("utf-8").splitlines()
    classes = all_codes()
    found = {}
    for line in lines[1:]:
        code, family, see, cause, cure = line.split("\t")
        kind = classes[code]
        meaning = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())
        found[code] = ErrorExplanation(code, family, kind.__name__, meaning, cause, cure, see)
    return found


@click.command(short_help="Explain an error code.")
@click.argument("code", required=False)
@output_option
def error(code: str | None, as_json: bool) -> None:
    """Explain an error CODE from a log or from `TickertapeError.code`. Without CODE, list all codes.

    \b
    tickertape error
    tickertape error slow_client
    tickertape error --output json | jq .code
    """
    known = explanations()
    if code is None:
        if as_json:
            for each in known.values():
                click.echo(msgspec.json.encode(each._asdict()))
            return
        width = max(map(len, known))
        for each in known.values():
            click.echo(f"{each.code:<{width}}  {each.family}: {each.name}")
        return
    row = known.get(code) or next((each for each in known.values() if each.name == code), None)
    if row is None:
        guess = did_you_mean(code, known) or " Run `tickertape error` to list all codes."
        raise click.BadParameter(f"Unknown error code {shown(code)}.{guess}", param_hint="'CODE'")
    if as_json:
        click.echo(msgspec.json.encode(row._asdict()))
        return
    click.echo(f"{row.code} ({row.name}, {row.family})\n")
    click.echo(f"Meaning: {row.meaning}")
    click.echo(f"Cause:   {row.cause}")
    click.echo(f"Cure:    {row.cure}")
    if row.see:
        click.echo(f"See:     docs/{row.see}")
