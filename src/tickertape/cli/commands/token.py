"""`token`: create access tokens and the lines of a token file.

A token is written only to standard output or to the file of `--out`, which only its owner can read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TextIO

import click
import msgspec

from tickertape.base.errors import BadName, ConfigurationError
from tickertape.cli.support.command_group import LazyGroup, UserMistake, given_paths
from tickertape.cli.support.command_table import TOKEN
from tickertape.cli.support.output_options import output_option
from tickertape.security.tokens import new_token
from tickertape.server.access.tokens import read_tokens, tokens_in

_OWNER_ONLY = 0o600
_ENTRY = "the new entry"
_PREFIX = f"Invalid tokens_file '{_ENTRY}': "
_MINUTE = timedelta(minutes=1)


@click.group(
    cls=LazyGroup,
    table=TOKEN,
    short_help="Create access tokens for clients and links.",
)
def token() -> None:
    """Create access tokens for clients and replication links of a server with [authentication].

    \b
    tickertape token new spark --add tokens.toml --out spark.token
    """


@click.command(short_help="Create an access token (shown only once).")
@click.argument("name")
@click.option(
    "--add",
    "file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Append the server's entry (with the hash) to this tokens_file, and create a missing file. Default: "
    "print the entry on standard error.",
)
@click.option(
    "--out",
    "path",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write the token to this new file (mode 0600). Default: standard output.",
)
@click.option(
    "--clients",
    metavar="PATTERN",
    help='Restrict the token to client names that match this regular expression, such as "^spark-".',
)
@click.option(
    "--links",
    metavar="PATTERN",
    help="Create a token for replication links of instances whose names match this regular expression, such "
    'as "^ny-". Clients cannot use it.',
)
@click.option("--expires", metavar="WHEN", help="Expiration time of the token, such as 2027-01-31T00:00:00Z.")
@output_option
def new(
    name: str,
    file: str | None,
    path: str | None,
    clients: str | None,
    links: str | None,
    expires: str | None,
    as_json: bool,
) -> None:
    """Create an access token for the user NAME: 256 random bits, shown only once.

    The server stores only a hash of the token. A running server reloads its tokens on SIGHUP.

    \b
    tickertape token new desk
    tickertape token new spark --add tokens.toml --out spark.token --clients "^spark-"
    tickertape token new audit --add tokens.toml --out audit.token --expires 2027-01-31T00:00:00Z
    tickertape token new ny-1 --add tokens.toml --out ny-2.token --links "^ny-1$"
    """
    if clients is not None and links is not None:
        raise click.UsageError("Cannot use --clients with --links: a token is for clients or for links.")
    try:
        made = new_token(name)
    except BadName as error:
        raise click.BadParameter(str(error), param_hint="'NAME'") from None
    lines = [f'["{name}"]', f'sha256 = "{made.sha256}"']
    if clients is not None:
        lines.append(f"clients = {_quoted(clients, '--clients')}")
    if links is not None:
        lines.append(f"links = {_quoted(links, '--links')}")
    if expires is not None:
        lines.append(f"expires = {_moment(expires)}")
    table = "\n".join([*lines, ""])
    try:
        tokens_in(table.encode(), _ENTRY)  # the errors of `check`
    except ConfigurationError as error:
        text = str(error)
        raise UserMistake(text.replace(_PREFIX, "Cannot create a token: ")) from None
    with given_paths(), _output(path) as out:
        if file is not None:
            _add(Path(file), name, table)
        elif not as_json:
            click.echo(f"# add this to the tokens_file of the server:\n{table}", err=True, nl=False)
        if not as_json or out is not None:
            click.echo(made.text, out)
    if as_json:
        fields = {"name": name, "token": made.text if path is None else None, "entry": table}
        click.echo(msgspec.json.encode(fields))
    if clients is None and links is None:
        click.echo(
            f"tickertape: warning: token {name!r} may use every client name, including those of other "
            'tokens. Restrict it with --clients, such as --clients "^spark-".',
            err=True,
        )


def _quoted(text: str, option: str) -> str:
    if "'" in text or not text.isprintable():
        raise click.BadParameter(
            f"Invalid pattern {text!r}: it has ' or control characters. Add it to the tokens_file by hand.",
            param_hint=f"'{option}'",
        )
    return f"'{text}'"


def _moment(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    offset = None if moment is None else moment.utcoffset()
    if moment is None or offset is None or offset % _MINUTE:  # TOML has no time zones with seconds
        raise click.BadParameter(
            f"Invalid time {text!r}. Use a time with a time zone, such as 2027-01-31T00:00:00Z.",
            param_hint="'--expires'",
        )
    if moment <= datetime.now(UTC):
        raise click.BadParameter(
            f"Invalid time {text!r}: it is in the past. Use a later time.", param_hint="'--expires'"
        )
    return moment.isoformat()


def _add(file: Path, name: str, table: str) -> None:
    """Append the table to the file. If the result is invalid, leave the file unchanged."""
    before, mode = "", _OWNER_ONLY
    if file.exists():
        if name in read_tokens(str(file)):  # raises before anything is written
            raise UserMistake(
                f"Cannot add token '{name}': {str(file)!r} already has a token of this name. "
                "Remove that token, or use another name."
            )
        before, mode = file.read_text(encoding="utf-8").rstrip("\n"), file.stat().st_mode & 0o777
        before += "\n\n" if before else ""
    beside = file.with_name(f"{file.name}.new")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _OWNER_ONLY)
    except OSError as error:
        error.filename = str(file)
        raise
    with open(descriptor, "w") as out:
        os.fchmod(out.fileno(), mode)
        out.write(before + table)
        out.flush()
        os.fsync(out.fileno())
    try:
        read_tokens(str(beside))
    except ConfigurationError as error:
        beside.unlink()
        raise UserMistake(str(error).replace(str(beside), str(file))) from None
    beside.replace(file)


@contextmanager
def _output(path: str | None) -> Iterator[TextIO | None]:
    """Open the output of the token: None for standard output, or a new file that only its owner can read.

    The file is removed if no token was created."""
    if path is None:
        yield None
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    except FileExistsError:
        raise UserMistake(f"Cannot write {str(path)!r}: the file exists. Use another file name.") from None
    try:
        with open(descriptor, "w") as out:
            yield out
    except BaseException:
        os.unlink(path)
        raise
