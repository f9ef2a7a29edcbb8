"""Option types that several commands share."""

from __future__ import annotations

import os
import socket
from typing import Final

import click

from tickertape.base.bookmarks import (
    BOOKMARK_FORM,
    EPOCH,
    LIST_FORM,
    NOW,
    RANGE_FORM,
    TIME_FORM,
    parse_bookmark,
)
from tickertape.base.errors import BadBookmark, BadOption, BadTopic
from tickertape.base.names import check_topic
from tickertape.base.units import parse_interval

START_WORDS: Final = {"epoch": EPOCH, "now": NOW}
"""What may be written, in either case, for a start point that has a name."""
_START_FORMS: Final = f"epoch, now, {BOOKMARK_FORM}, {LIST_FORM}, {TIME_FORM}, or {RANGE_FORM}"


def interval(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:  # noqa: ARG001
    """Callback of an option: seconds, from a number or text with a unit such as 500ms."""
    if value is None:
        return None
    try:
        return parse_interval(value)
    except BadOption as error:
        raise click.BadParameter(str(error)) from None


filter_option = click.option(
    "--filter", metavar="F", help="Only messages whose content passes, such as \"/symbol = 'IBM'\"."
)
answer_timeout_option = click.option(
    "--timeout",
    callback=interval,
    default="30s",
    show_default=True,
    metavar="S",
    help="Give up when the server does not answer for that long: seconds, or text such as 500ms.",
)


def start(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:  # noqa: ARG001
    """Callback of an option: where to start, `epoch`, `now`, a bookmark, a timestamp, a range."""
    if value is None:
        return None
    text = START_WORDS.get(value.lower(), value)
    try:
        parse_bookmark(text, _START_FORMS)
    except BadBookmark as error:
        raise click.BadParameter(str(error)) from None
    return text


def queue_name(ctx: click.Context, param: click.Parameter, value: str) -> str:  # noqa: ARG001
    """Callback of an argument: the name of one queue, in full."""
    try:
        check_topic(value)
    except BadTopic as error:
        raise click.BadParameter(str(error)) from None
    return value


def client_name(command: str) -> str:
    """Return a client name for one run of a command: two runs at a time must not push each other off the
    server."""
    return f"tickertape-{command}-{socket.gethostname()}-{os.getpid()}"
