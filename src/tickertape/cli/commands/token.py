"""`token`: create access tokens and the lines of a token file.

A token is written only to the output that the user names, and to no file that others can read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TextIO

import click

from tickertape.base.errors import BadName, ConfigurationError
from tickertape.cli.support.command_group import Failure
from tickertape.security.tokens import new_token
from tickertape.server.access.tokens import read_tokens

_OWNER_ONLY = 0o600
_MINUTE = timedelta(minutes=1)


@click.group(short_help="Make tokens that clients log on with.")
def token() -> None:
    """Make tokens that clients log on with, for servers with [authentication].

    \b
    tickertape token new spark --add tokens.toml --out spark.token
    """


@token.command(short_help="Make a token: it is told once.")
@click.argument("name")
@click.option(
    "--add",
    "file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Put what the server keeps at the end of this tokens_file, which is made when it is missing. "
    "Default: show it on standard error.",
)
@click.option(
    "--out",
    "path",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write the token to this new file, which only you can read. Default: standard output.",
)
@click.option(
    "--clients",
    metavar="PATTERN",
    help='The token is for clients whose name this regular expression is found in, such as "^spark-".',
)
@click.option(
    "--expires", metavar="WHEN", help="The token is taken until this moment, such as 2027-01-31T00:00:00Z."
)
def new(name: str, file: str | None, path: str | None, clients: str | None, expires: str | None) -> None:
    """Make a token of that name: 256 random bits, told once, on standard output or in a new file. Who has it
    logs on as the user NAME.

    What the server keeps is a hash, from which nobody learns the token. A running server reads its tokens
    again when it gets SIGHUP.

    \b
    tickertape token new desk
    tickertape token new spark --add tokens.toml --out spark.token --clients "^spark-"
    tickertape token new audit --add tokens.toml --out audit.token --expires 2027-01-31T00:00:00Z
    """
    try:
        made = new_token(name)
    except BadName as error:
        raise click.BadParameter(str(error), param_hint="NAME") from None
    lines = [f'["{name}"]', f'sha256 = "{made.sha256}"']
    if clients is not None:
        lines.append(f"clients = {_quoted(clients)}")
    if expires is not None:
        lines.append(f"expires = {_moment(expires)}")
    table = "\n".join([*lines, ""])
    with _output(path) as out:
        if file is None:
            click.echo(f"# put this into the tokens_file of the server:\n{table}", err=True, nl=False)
        else:
            _add(Path(file), name, table)
        click.echo(made.text, out)
    if clients is None:
        click.echo(
            f"tickertape: warning: token {name} may use every client name, also those of other tokens. Give "
            'each token its own with --clients, such as --clients "^spark-".',
            err=True,
        )


def _quoted(text: str) -> str:
    if "'" in text or not text.isprintable():
        raise click.BadParameter("a pattern with ' or control characters is to be written by hand")
    return f"'{text}'"


def _moment(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    offset = None if moment is None else moment.utcoffset()
    if moment is None or offset is None or offset % _MINUTE:  # TOML knows no zones with seconds
        raise click.BadParameter(f"{text!r} is no moment with its zone, such as 2027-01-31T00:00:00Z")
    return moment.isoformat()


def _add(file: Path, name: str, table: str) -> None:
    """Put the table at the end of the file; when that does not make a good one, it is left as it was."""
    before, mode = "", _OWNER_ONLY
    if file.exists():
        if name in read_tokens(str(file)):  # whose errors are told before anything is written
            raise Failure(f"{file} has a token {name}: take it out first, or choose another name")
        before, mode = file.read_text(encoding="utf-8").rstrip("\n"), file.stat().st_mode & 0o777
        before += "\n\n" if before else ""
    beside = file.with_name(f"{file.name}.new")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _OWNER_ONLY), "w") as out:
        os.fchmod(out.fileno(), mode)
        out.write(before + table)
        out.flush()
        os.fsync(out.fileno())
    try:
        read_tokens(str(beside))
    except ConfigurationError as error:
        beside.unlink()
        raise Failure(str(error).replace(str(beside), str(file))) from None
    beside.replace(file)


@contextmanager
def _output(path: str | None) -> Iterator[TextIO | None]:
    """Where the token goes: None for standard output, or a new file that only its owner can read. The file
    is removed when no token was made."""
    if path is None:
        yield None
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    except FileExistsError:
        raise Failure(f"{path} is there already, and is left as it is") from None
    try:
        with open(descriptor, "w") as out:
            yield out
    except BaseException:
        os.unlink(path)
        raise
