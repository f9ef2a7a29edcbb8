"""`ack`: acknowledge, release or reject queue messages by bookmark or filter.

Exit code 0 means that the server has persisted the acknowledgement.
"""

from __future__ import annotations

from typing import Final

import click

from tickertape.base.bookmarks import BOOKMARK_FORM, AtBookmarks, parse_bookmark
from tickertape.base.errors import BadBookmark
from tickertape.base.text_format import did_you_mean, shown
from tickertape.base.units import parse_interval
from tickertape.cli.support.admin_client import names_admin_option
from tickertape.cli.support.connect_options import Server, server_options
from tickertape.cli.support.name_hints import consuming
from tickertape.cli.support.option_types import answer_timeout_option, client_name, parsed, topic_name
from tickertape.cli.support.tables import counted
from tickertape.cli.support.terminal import remark

_ACTIONS: Final = {"cancel": "release", "expire": "rejection"}
"""Options without a value, and the names of their outcomes."""
_EXTENSION: Final = "lease_extension"


def _bookmarks(value: str) -> list[str]:
    return [_bookmark(text.strip()) for text in value.split(",")]


def _bookmark(text: str) -> str:
    try:
        point = parse_bookmark(text)
    except BadBookmark:
        point = None
    if not isinstance(point, AtBookmarks) or point.unknown:
        raise click.BadParameter(f"Invalid bookmark {shown(text)}. Use {BOOKMARK_FORM}.")
    return text


def _option(value: str) -> str:
    name, _, length = value.partition("=")
    if value in _ACTIONS or (name == _EXTENSION and length and parse_interval(length) > 0):
        return value
    guess = did_you_mean(name, (*_ACTIONS, _EXTENSION))
    raise click.BadParameter(f"Invalid option {shown(value)}.{guess} Use cancel, expire or {_EXTENSION}=60s.")


@click.command(short_help="Acknowledge, release or reject queue messages.")
@click.argument("queue", callback=topic_name)
@click.argument("bookmarks", required=False, callback=parsed(_bookmarks))
@server_options
@names_admin_option
@click.option(
    "--option",
    callback=parsed(_option),
    metavar="O",
    help="cancel: return the messages to the queue. expire: reject them (to the dead-letter topic, if any). "
    "lease_extension=60s: set their lease to end 60 s from now. Default: acknowledge.",
)
@click.option(
    "--filter", metavar="F", help="All messages of the queue that match this filter, instead of BOOKMARKS."
)
@answer_timeout_option
def ack(
    queue: str,
    bookmarks: list[str] | None,
    server: Server,
    admin: str | None,
    option: str | None,
    filter: str | None,
    timeout: float,
) -> None:
    """Acknowledge, release or reject messages of QUEUE by BOOKMARKS (separated by commas) or --filter.

    The leasing of the queue decides which messages this command can acknowledge. With strict leasing only the
    consumer with the lease can acknowledge a message, so this command has no effect. With lenient leasing
    this command can acknowledge messages without a lease by bookmark, and all messages by filter. An
    acknowledgement without effect is not an error.

    \b
    tickertape ack work '4031722713208431|17|'
    tickertape ack work '4031722713208431|17|,4031722713208431|19|' --option expire
    tickertape ack work --filter "/symbol = 'IBM'"
    """
    if (bookmarks is None) == (filter is None):
        raise click.UsageError("Pass BOOKMARKS or --filter, and not both.")
    from tickertape.client.publish_store import MemoryPublishStore

    with (
        consuming(queue, admin),
        server.client(client_name("ack"), publish_store=MemoryPublishStore(), timeout=timeout) as client,
    ):
        if bookmarks is not None:
            client.ack(queue, bookmarks, option)
        else:
            client.sow_delete(queue, filter=filter, options=option)
        client.publish_flush(timeout)
    # A queue may ignore an acknowledgement, so this does not count messages that left the queue.
    noun = "acknowledgement" if option is None else _ACTIONS.get(option, "lease extension")
    what = f"{noun} of all matching messages" if bookmarks is None else counted(len(bookmarks), noun)
    remark(f"{what} persisted")
