"""Option types shared by several commands."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

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
"""Names of start points, in upper or lower case."""
_START_FORMS: Final = f"epoch, now, {BOOKMARK_FORM}, {LIST_FORM}, {TIME_FORM}, or {RANGE_FORM}"


def parsed(parse: Callable[[Any], T]) -> Callable[[click.Context, click.Parameter, Any], T | None]:
    """Return the callback of an option that parses its value with `parse`. A `UsageError` is bad usage.

    The error names the environment variable if the value is from there, else the option.
    """

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> T | None:
        try:
            return None if value is None else parse(value)
        except UsageError as error:
            raise click.BadParameter(str(error), param_hint=_source(ctx, param)) from None

    return callback


def _source(ctx: click.Context, param: click.Parameter) -> str | None:
    if ctx.get_parameter_source(param.name or "") is ParameterSource.ENVIRONMENT:
        return str(param.envvar)
    return f"'{param.opts[0]}'" if isinstance(param, click.Option) else None


interval = parsed(parse_interval)
"""Callback of an option that parses a duration: seconds, or text with a unit such as 500ms."""

filter_option = click.option(
    "--filter", metavar="F", help="Only messages that match this filter, such as \"/symbol = 'IBM'\"."
)
answer_timeout_option = click.option(
    "--timeout",
    callback=interval,
    default="30s",
    show_default=True,
    metavar="S",
    help="Timeout for answers of the server: seconds, or text such as 500ms.",
)


def _start(value: str) -> str:
    text = START_WORDS.get(value.lower(), value)
    parse_bookmark(text, _START_FORMS)
    return text


start = parsed(_start)
"""Callback of an option that parses a start point: `epoch`, `now`, a bookmark, a timestamp or a range."""


def _topic(value: str) -> str:
    check_topic(value)
    return value


topic_name = parsed(_topic)
"""Callback of an argument or option that validates the full name of a topic or queue."""


def client_name(command: str) -> str:
    """Return a unique client name for one run of a command, so that concurrent runs do not fence each
    other."""
    return f"tickertape-{command}-{socket.gethostname()}-{os.getpid()}"
