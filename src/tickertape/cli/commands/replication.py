"""`replication`: list the replication links of a running server, read from its admin address."""

from __future__ import annotations

import click
import msgspec

from tickertape.cli.support.admin_client import admin_option, stats_of
from tickertape.cli.support.command_group import LazyGroup
from tickertape.cli.support.command_table import REPLICATION
from tickertape.cli.support.output_options import output_option
from tickertape.cli.support.tables import echo_table, number, safe, safe_whole
from tickertape.server.admin.schema import LinkStatus

_COLUMNS = ("link", "direction", "state", "address", "position", "behind", "messages", "bytes")


@click.group(
    cls=LazyGroup, table=REPLICATION, short_help="Inspect the replication links of a running server."
)
def replication() -> None:
    """Inspect the replication links of a running server.

    \b
    tickertape replication ls
    """


@click.command(short_help="List the links of a running server.")
@admin_option
@output_option
def ls(admin: str, as_json: bool) -> None:
    """List the links of a running server: its destinations (out), and its sources (in).

    The columns are: name of the other instance, direction, state, address of the connection or of the next
    attempt, position in the log of the source (the destination has everything before it), messages that the
    destination may lack, and messages and bytes since the server started. A line below the table has the last
    error of each link.

    States: live, resync (it brings older messages), opening, down (the server tries again), refused (an
    operator must act).

    \b
    tickertape replication ls
    tickertape replication ls --output json | jq 'select(.state != "live")'
    """
    _, report = stats_of(admin)
    if as_json:
        for link in report.links:
            click.echo(msgspec.json.encode(link))
    elif report.links:
        echo_table(_COLUMNS, [_row(link) for link in report.links], left=4)
        for link in report.links:
            if link.error and link.state not in ("live", "resync"):
                click.echo(f"{safe(link.name)} ({link.direction}): {safe_whole(link.error)}")
    else:
        click.echo("no replication link is configured, and no server has opened one")


def _row(link: LinkStatus) -> tuple[str, ...]:
    return (
        safe(link.name),
        link.direction,
        link.state,
        link.address or "-",
        str(link.position),
        number(link.behind_messages),
        number(link.messages),
        number(link.bytes),
    )
