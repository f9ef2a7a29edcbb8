"""`health`: check whether a running server accepts clients."""

from __future__ import annotations

import click
import msgspec

from tickertape.cli.support.admin_client import admin_option, fetch
from tickertape.cli.support.command_group import EXIT_ERROR, Failure
from tickertape.cli.support.output_options import output_option
from tickertape.cli.support.tables import safe, safe_whole


class _State(msgspec.Struct):
    """The answer of /ready."""

    status: str
    reason: str | None = None


@click.command(short_help="Check whether a server is ready (for scripts).")
@admin_option
@output_option
@click.pass_context
def health(ctx: click.Context, admin: str, as_json: bool) -> None:
    """Print the state of the server: ready, or another state with its reason.

    Exit codes: 0 ready, 1 not ready or not reachable, 2 bad usage, 3 timed out.

    \b
    tickertape health
    tickertape health --admin http://127.0.0.1:9008 --output json
    tickertape health && tickertape publish orders orders.jsonl
    """
    code, body = fetch(admin, "/ready", {200, 503})
    try:
        state = msgspec.json.decode(body, type=_State)
    except msgspec.MsgspecError:
        raise Failure(
            f"Cannot read the state of {admin}: the answer has an unknown format. Check --admin and the "
            "version of the server."
        ) from None
    if as_json:
        click.echo(body.rstrip())
    else:
        click.echo(safe(state.status) + (f": {safe_whole(state.reason)}" if state.reason else ""))
    ctx.exit(0 if code == 200 else EXIT_ERROR)
