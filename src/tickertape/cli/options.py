"""Owns the options that several commands share, and their texts as values.

Must never give a value a meaning that differs from command to command.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Final

import click

from tickertape.base.bookmarks import EPOCH, NOW, parse_bookmark
from tickertape.base.errors import BadBookmark, BadOption
from tickertape.base.units import parse_interval

SERVER_DEFAULT: Final = "tcp://127.0.0.1:9007"

server_option = click.option(
    "--server",
    metavar="URI",
    default=SERVER_DEFAULT,
    show_default=True,
    help="Where the server is: tcp://HOST:PORT or unix:///PATH.",
)


class Interval(click.ParamType):
    """Seconds: a number, or text with a unit such as 500ms."""

    name = "interval"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds of `value`."""
        text = str(value)
        try:
            return parse_interval(text)
        except BadOption as error:
            self.fail(str(error), param, ctx)


class Start(click.ParamType):
    """Where to start reading: `epoch`, `now`, a bookmark, a timestamp, a range."""

    name = "start"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text for the wire."""
        text = {"epoch": EPOCH, "now": NOW}.get(str(value).lower(), str(value))
        try:
            parse_bookmark(text)
        except BadBookmark as error:
            self.fail(str(error), param, ctx)
        return text


def client_name(command: str) -> str:
    """A client name for one run of a command: two runs at a time must not push each other off the server."""
    return f"tickertape-{command}-{socket.gethostname()}-{os.getpid()}"
