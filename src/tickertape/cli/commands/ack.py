"""`ack`: settle queue messages by bookmark or filter.

Exit code 0 means that the server has persisted the settlement.
"""

from __future__ import annotations

from typing import Final

import click

from tickertape.base.bookmarks import BOOKMARK_FORM, AtBookmarks, parse_bookmark
from tickertape.base.errors import BadBookmark
from tickertape.base.text_format import shown
from tickertape.base.units import parse_interval
from tickertape.cli.support.connect_options import Server, server_options
from tickertape.cli.support.option_types import answer_timeout_option, client_name, parsed, topic_name
from tickertape.cli.support.terminal import remark

_EXTENSION: Final = "lease_extension"


def _bookmarks(value: str) -> list[str]:
    return [_bookmark(text.strip()) for text in value.split(",")]


def _bookmark(text: str) -> str:
    try:
        point = parse_bookmark(text)
    except BadBookmark:
        point = None
    if not isinstance(point, AtBookmarks) or point.unknown:
        raise click.BadParameter(f"{shown(text)} is not {BOOKMARK_FORM}")
    return text


def _option(value: str) -> str:
    name, _, length = value.partition("=")
    if value in ("cancel", "expire") or (name == _EXTENSION and parse_interval(length) > 0):
        return value
    raise click.BadParameter(f"{shown(value)} is not cancel, expire or {_EXTENSION}=60s")


@click.command(short_help="Say what became of messages of a queue: done, back, or expired.")
@click.argument("queue", callback=topic_name)
@click.argument("bookmarks", required=False, callback=parsed(_bookmarks))
@server_options
@click.option(
    "--option",
    callback=parsed(_option),
    metavar="O",
    help="cancel: they go back to the queue. expire: they leave it as dead letters do. lease_extension=60s: "
    "their lease ends so long from now. Default: they are done.",
)
@click.option(
    "--filter", metavar="F", help="Instead of BOOKMARKS: all messages of the queue whose content passes."
)
@answer_timeout_option
def ack(
    queue: str,
    bookmarks: list[str] | None,
    server: Server,
    option: str | None,
    filter: str | None,
    timeout: float,
) -> None:
    """Acknowledge messages of QUEUE: those with BOOKMARKS, a bookmark or several with commas between, or
    those that pass a filter.

    Which of them a caller without the lease may settle is a matter of the queue's leasing: a strict queue
    listens to the consumer that holds a message only, and that is never this command; a lenient one lets
    everybody settle what nobody has leased, and everything by filter. What has no effect is no error.

    \b
    tickertape ack work '4031722713208431|17|'
    tickertape ack work '4031722713208431|17|,4031722713208431|19|' --option expire
    tickertape ack work --filter "/symbol = 'IBM'"
    """
    if (bookmarks is None) == (filter is None):
        raise click.UsageError("give BOOKMARKS or --filter, one of the two")
    from tickertape.client.publish_store import MemoryPublishStore

    with server.client(client_name("ack"), publish_store=MemoryPublishStore(), timeout=timeout) as client:
        if bookmarks is not None:
            client.ack(queue, bookmarks, option)
        else:
            client.sow_delete(queue, filter=filter, options=option)
        client.publish_flush(timeout)
    remark("the server has it")
