"""`error`: explain an error code."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.resources import files
from typing import NamedTuple

import click

from tickertape.base.text_format import shown


class ErrorExplanation(NamedTuple):
    """A row of `error_codes.tsv`. docs/reference/errors.md has the same table."""

    code: str
    family: str
    name: str
    """Name of the Python class."""
    meaning: str
    cure: str


def explanations() -> dict[str, ErrorExplanation]:
    """Return all error codes with their explanations, in the order of the documentation."""
    lines = files("tickertape.cli").joinpath("error_codes.tsv").read_text("utf-8").splitlines()
    rows = (ErrorExplanation(*line.split("\t")) for line in lines[1:])
    return {row.code: row for row in rows}


@click.command(short_help="Explain an error code.")
@click.argument("code", required=False)
def error(code: str | None) -> None:
    """Explain an error CODE from a log or from `TickertapeError.code`. Without CODE, list all codes.

    \b
    tickertape error
    tickertape error slow_client
    """
    known = explanations()
    if code is None:
        width = max(map(len, known))
        for each in known.values():
            click.echo(f"{each.code:<{width}}  {each.family}: {each.name}")
        return
    row = known.get(code) or next((each for each in known.values() if each.name == code), None)
    if row is None:
        near = get_close_matches(code.lower(), known, n=1)
        guess = f" Did you mean {near[0]!r}?" if near else " Run `tickertape error` to list all codes."
        raise click.BadParameter(f"Unknown error code {shown(code)}.{guess}", param_hint="CODE")
    click.echo(f"{row.code} ({row.name}, {row.family})\n")
    click.echo(f"Meaning: {row.meaning}.")
    click.echo(f"Cure:    {row.cure}.")
