"""`replication`: list and control the replication links of a running server (admin address)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import click
import msgspec

from tickertape.base.errors import BadOption, error_from_code
from tickertape.cli.support.admin_client import admin_option, fetch, stats_of
from tickertape.cli.support.command_group import Failure, LazyGroup
from tickertape.cli.support.command_table import REPLICATION
from tickertape.cli.support.output_options import output_option
from tickertape.cli.support.tables import echo_table, number, safe, safe_whole
from tickertape.security.tokens import TOKEN_VARIABLE, read_token
from tickertape.server.admin.schema import PAUSED, HolesList, HoleStatus, LinkStatus

_COLUMNS: Final = (
    "link", "direction", "level", "state", "address", "position", "behind", "seconds", "messages", "bytes",
)  # fmt: skip
_LEFT: Final = 5
"""Columns of text."""
_TOKEN_HELP: Final = (
    f"File with a token of clients (mode 0600), for a server with tokens. Default: the variable "
    f"{TOKEN_VARIABLE}."
)


class _RefusedAnswer(msgspec.Struct):
    """The answer to a refused command."""

    code: str
    text: str


class _ChangedLink(msgspec.Struct):
    """The answer to a command."""

    level: str
    paused: bool


@click.group(
    cls=LazyGroup,
    table=REPLICATION,
    short_help="Inspect and control replication links, and compare logs.",
)
def replication() -> None:
    """Inspect and control the replication links of a running server, and compare logs.

    \b
    tickertape replication ls
    tickertape replication downgrade ny-2
    tickertape replication compare /srv/ny-1 /srv/ny-2
    """


@click.command(short_help="List the links of a running server.")
@admin_option
@output_option
def ls(admin: str, as_json: bool) -> None:
    """List the links of a running server: its destinations (out), and its sources (in).

    The columns are: name of the other instance, direction, level, state, address of the connection or of the
    next attempt, position in the log of the source (the destination has everything before it), messages that
    the destination may lack, seconds since the oldest of them was persisted, and messages and bytes since the
    server started. A line below the table has the last error of each link.

    Levels: sync (acknowledgements wait for the destination), downgraded (they do not, until an upgrade),
    async. A source has no level.

    States: live, resync (it brings older messages), opening, down (the server tries again), paused (by an
    operator), refused (an operator must act).

    \b
    tickertape replication ls
    tickertape replication ls --output json | jq 'select(.state != "live")'
    """
    _, report = stats_of(admin)
    if as_json:
        for link in report.links:
            click.echo(msgspec.json.encode(link))
    elif report.links:
        echo_table(_COLUMNS, [_row(link) for link in report.links], left=_LEFT)
        for link in report.links:
            if link.error and link.state not in ("live", "resync"):
                click.echo(f"{safe(link.name)} ({link.direction}): {safe_whole(link.error)}")
    else:
        click.echo("no replication link is configured, and no server has opened one")


def _row(link: LinkStatus) -> tuple[str, ...]:
    return (
        safe(link.name),
        link.direction,
        link.level or "-",
        "paused" if link.paused == PAUSED else link.state,
        link.address or "-",
        str(link.position),
        number(link.behind_messages),
        f"{link.behind_seconds:.1f}",
        number(link.messages),
        number(link.bytes),
    )


@click.command(short_help="List the messages that other servers have, and a running server lacks.")
@click.option("--publisher", metavar="NAME", help="Only those of the client NAME.")
@admin_option
@output_option
def holes(publisher: str | None, admin: str, as_json: bool) -> None:
    """List the open holes of a running server: sequences of publishers that other servers have, or may have.

    A hole is closed when its messages arrive, or when no server can send them any more. The columns are: name
    of the publisher, first and last sequence, and whether other servers have the messages for certain.

    \b
    tickertape replication holes
    tickertape replication holes --publisher orders-gw
    """
    _, body = fetch(admin, "/holes", {200})
    try:
        report = msgspec.json.decode(body, type=HolesList)
    except msgspec.MsgspecError as error:
        raise Failure(
            f"Cannot read the holes of {admin}: the answer has an unknown format ({error}). Check --admin "
            "and the version of the server."
        ) from None
    found = [hole for hole in report.holes if publisher is None or hole.client == publisher]
    if as_json:
        for hole in found:
            click.echo(msgspec.json.encode(hole))
    elif found:
        rows = [_hole(hole) for hole in found]
        echo_table(("publisher", "first", "last", "proven"), rows, left=1)
    else:
        click.echo("no open hole" if publisher is None else f"no open hole of {safe(publisher)}")
    if report.left_out:
        click.echo(f"{report.left_out:,} more holes are not listed", err=True)


def _hole(hole: HoleStatus) -> tuple[str, ...]:
    name = safe(hole.client) if hole.client else str(hole.publisher)
    return name, str(hole.first), str(hole.last), "yes" if hole.proven else "no"


def _command(name: str, short: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Return the decorator of a command to one link."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        for option in (
            output_option,
            click.option("--token-file", metavar="FILE", help=_TOKEN_HELP),
            admin_option,
            click.argument("destination"),
        ):
            function = option(function)
        return click.command(name, short_help=short)(function)

    return decorate


@_command("downgrade", "Let acknowledgements no longer wait for a destination.")
def downgrade(destination: str, admin: str, token_file: str | None, as_json: bool) -> None:
    """Let acknowledgements no longer wait for the synchronous destination DESTINATION.

    Acknowledgements and `fully_durable` deliveries that wait for it are sent at once. Messages are still
    replicated to it, and retention keeps them for it. The downgrade is recorded: it survives a restart, and
    ends with `tickertape replication upgrade` only.

    \b
    tickertape replication downgrade ny-2
    """
    _send("downgrade", destination, admin, token_file, as_json=as_json)


@_command("upgrade", "Let acknowledgements wait for a destination again.")
def upgrade(destination: str, admin: str, token_file: str | None, as_json: bool) -> None:
    """Let acknowledgements wait for the synchronous destination DESTINATION again.

    The command is refused while the destination lacks messages from before the downgrade.

    \b
    tickertape replication upgrade ny-2
    """
    _send("upgrade", destination, admin, token_file, as_json=as_json)


@_command("pause", "Send nothing to a destination until it is resumed.")
def pause(destination: str, admin: str, token_file: str | None, as_json: bool) -> None:
    """Send nothing to DESTINATION until it is resumed, or until the next start of the server.

    The link stays open, and retention keeps the messages for it. Acknowledgements of synchronous topics wait
    until the link is resumed or downgraded.

    \b
    tickertape replication pause ny-2
    """
    _send("pause", destination, admin, token_file, as_json=as_json)


@_command("resume", "Resume a paused link.")
def resume(destination: str, admin: str, token_file: str | None, as_json: bool) -> None:
    """Resume the paused link to DESTINATION.

    \b
    tickertape replication resume ny-2
    """
    _send("resume", destination, admin, token_file, as_json=as_json)


def _send(action: str, destination: str, admin: str, token_file: str | None, *, as_json: bool) -> None:
    """Send a command to a server, and print the state of the link after it."""
    token = os.environ.get(TOKEN_VARIABLE) or None
    if token_file is not None:
        token = read_token(token_file, BadOption)
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    path = f"/replication/{quote(destination, safe='')}/{action}"
    status, body = fetch(admin, path, {200, 400, 401, 404, 405, 503}, "POST", headers)
    if status != 200:
        raise _refusal(status, body)
    change = msgspec.json.decode(body, type=_ChangedLink)
    if as_json:
        click.echo(body.rstrip())
    else:
        paused = ", paused" if change.paused else ""
        click.echo(f"{safe(destination)}: {safe(change.level)}{paused}")


def _refusal(status: int, body: bytes) -> Exception:
    """Return the error of a refused command."""
    if status == 405:
        return Failure("Cannot control links: this server has no [replication]. Check --admin.")
    try:
        refusal = msgspec.json.decode(body, type=_RefusedAnswer)
    except msgspec.MsgspecError:
        return Failure("Cannot read the answer: the server has an unknown version. Check --admin.")
    return error_from_code(refusal.code, refusal.text)
