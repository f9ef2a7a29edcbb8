"""Option types that several commands share."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any, Final, TypeVar

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
from tickertape.base.errors import UsageError
from tickertape.base.names import check_topic
from tickertape.base.units import parse_interval

T = TypeVar("T")

START_WORDS: Final = {"epoch": EPOCH, "now": NOW}
"""What may be written, in either case, for a start point that has a name."""
_START_FORMS: Final = f"epoch, now, {BOOKMARK_FORM}, {LIST_FORM}, {TIME_FORM}, or {RANGE_FORM}"


def parsed(parse: Callable[[Any], T]) -> Callable[[click.Context, click.Parameter, Any], T | None]:
    """Return the callback of an option whose value `parse` reads; what it refuses is bad usage."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> T | None:  # noqa: ARG001
        try:
            return None if value is None else parse(value)
        except UsageError as error:
            raise click.BadParameter(str(error)) from None

    return callback


interval = parsed(parse_interval)
"""Callback of an option: seconds, from a number or text with a unit such as 500ms."""

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


def _start(value: str) -> str:
    text = START_WORDS.get(value.lower(), value)
    parse_bookmark(text, _START_FORMS)
    return text


start = parsed(_start)
"""Callback of an option: where to start, `epoch`, `now`, a bookmark, a timestamp, a range."""


def _topic(value: str) -> str:
    check_topic(value)
    return value


topic_name = parsed(_topic)
"""Callback of an argument or option: the name of one topic or queue, in full."""


def client_name(command: str) -> str:
    """Return a client name for one run of a command: two runs at a time must not push each other off the
    server."""
    return f"tickertape-{command}-{socket.gethostname()}-{os.getpid()}"
