"""`pipeline init`: create a declarative pipeline project that is ready to run.

The directory must be empty. Spark is not needed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click
import msgspec

import tickertape
from tickertape.cli.support.command_group import UserMistake, given_paths
from tickertape.cli.support.connect_options import server_option
from tickertape.cli.support.option_types import NamedChoice
from tickertape.cli.support.output_options import output_option

EXAMPLES: Final = ("state", "delays", "weather")
_PROJECT: Final = Path(tickertape.__file__).parent / "spark" / "project"
_SUFFIX: Final = ".template"
_WORD: Final = re.compile(r"\{\{ [a-z ]+ \}\}")


@click.command(short_help="Create a declarative pipeline project.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--example",
    type=NamedChoice(EXAMPLES),
    default="state",
    show_default=True,
    help="state: the last value of each key, as of any bookmark. delays: hourly means, published to a topic. "
    "weather: a join of two streams.",
)
@server_option("The server that the project reads from.")
@output_option
def init(directory: Path, example: str, server: str, as_json: bool) -> None:
    """Create a project for Spark Declarative Pipelines in DIR, a new or empty directory.

    The project has the pipeline (transformations/), its functions (flights/), their tests (tests/) and a
    README with instructions. To run it: pip install 'tickertape[pipelines]'

    \b
    tickertape pipeline init last-flights
    tickertape pipeline init hourly --example delays --server tcp://127.0.0.1:9007
    """
    _make_room(directory)
    where = directory.resolve()
    words = {
        "{{ name }}": _quoted(where.name),
        "{{ storage }}": _quoted(f"{where.as_uri()}/pipeline-storage"),
        "{{ quoted server }}": _quoted(server),
        "{{ server }}": server,
    }
    made = 0
    for part in (_PROJECT / "common", _PROJECT / example):
        for source in sorted(part.rglob(f"*{_SUFFIX}")):
            text = source.read_text(encoding="utf-8")
            text = _WORD.sub(lambda found: words[found[0]], text)
            target = directory / source.relative_to(part).with_suffix("")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            made += 1
    if as_json:
        click.echo(msgspec.json.encode({"directory": str(directory), "files": made}))
    else:
        click.echo(f"{directory}: {made} files created. See README.md for the next steps.")


def _quoted(text: str) -> str:
    """Return `text` as a string literal that is valid in YAML and Python."""
    return '"' + "".join([_escaped(character) for character in text]) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def _make_room(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise UserMistake(
            f"Cannot create a project: '{directory}' is not a directory. Use a new or empty directory."
        )
    if directory.exists() and any(directory.iterdir()):
        raise UserMistake(
            f"Cannot create a project: '{directory}' is not empty. Use a new or empty directory."
        )
    with given_paths():
        directory.mkdir(parents=True, exist_ok=True)
