"""`health`: ask a running server whether it accepts clients."""

from __future__ import annotations

import click
import msgspec

from tickertape.cli.support.admin_client import admin_option, fetch, json_option
from tickertape.cli.support.command_group import EXIT_ERROR, Failure
from tickertape.cli.support.tables import safe, safe_whole


class _State(msgspec.Struct):
    """The answer of /ready."""

    status: str
    reason: str | None = None


@click.command(short_help="Is a running server ready? For scripts and health checks.")
@admin_option
@json_option
@click.pass_context
def health(ctx: click.Context, admin: str, as_json: bool) -> None:
    """Print whether the server accepts clients: ready, or why not.

    Exit codes: 0 ready, 1 not ready or no server answers, 2 bad usage, 3 no answer in time.

    \b
    tickertape health
    tickertape health --admin http://127.0.0.1:9008 --json
    tickertape health && tickertape publish orders orders.jsonl
    """
    code, body = fetch(admin, "/ready", {200, 503})
    try:
        state = msgspec.json.decode(body, type=_State)
    except msgspec.MsgspecError:
        raise Failure(f"Cannot read the answer of {admin}: not a tickertape server of this version") from None
    if as_json:
        click.echo(body)
    else:
        click.echo(safe(state.status) + (f": {safe_whole(state.reason)}" if state.reason else ""))
    ctx.exit(0 if code == 200 else EXIT_ERROR)
