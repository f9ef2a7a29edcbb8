"""Option types shared by several commands."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from tickertape.base.bookmarks import EPOCH, NOW, parse_bookmark
from tickertape.base.errors import BadBookmark, BadOption, UsageError
from tickertape.base.names import check_topic
from tickertape.base.text_format import did_you_mean, listed, not_one_of, shown
from tickertape.base.units import parse_interval

T = TypeVar("T")

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
    ClickChoice = click.Choice[str]
else:
    ParamType = click.ParamType
    ClickChoice = click.Choice


class Count(click.IntRange):
    """A number of things, at least 1."""

    def __init__(self) -> None:
        super().__init__(min=1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        try:
            count = int(value)
        except ValueError:
            count = 0
        if count < 1:
            self.fail(f"Invalid number {shown(str(value))}. Use an integer of at least 1.", param, ctx)
        return count


class PositiveRate(ParamType):
    """A rate per second, above 0."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        try:
            rate = float(value)
        except ValueError:
            rate = 0.0
        if not 0 < rate < math.inf:
            self.fail(f"Invalid rate {shown(str(value))}. Use a number above 0, such as 100.", param, ctx)
        return rate


class InputFile(click.File):
    """A file to read, or `-` for standard input."""

    def __init__(self, hint: str = "") -> None:
        super().__init__("rb")
        self._hint = hint

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the open file."""
        if isinstance(value, str) and value != "-":
            if not os.path.exists(value):
                self.fail(f"File {shown(value)} does not exist.{self._hint}", param, ctx)
            if os.path.isdir(value):
                self.fail(f"File {shown(value)} is a directory.", param, ctx)
        return super().convert(value, param, ctx)


class NamedChoice(ClickChoice):
    """A name of a closed set. The error suggests a similar name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name."""
        if value not in self.choices:
            self.fail(not_one_of("Unknown value", value, self.choices), param, ctx)
        return str(value)

    def get_missing_message(self, *_: Any, **__: Any) -> str:
        """Return the names, on one line."""
        return f"Use {listed(self.choices)}."


START_WORDS: Final = {"epoch": EPOCH, "now": NOW}
"""Names of start points, in upper or lower case."""


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


def _interval_text(value: str) -> str:
    parse_interval(value)
    return value


interval_text = parsed(_interval_text)
"""Callback of an option that validates a duration and returns its text."""


def _conflation_text(value: str) -> str:
    if value not in ("none", "auto"):  # a server refuses auto with a reason
        parse_interval(value)
    return value


conflation_text = parsed(_conflation_text)
"""Callback of an option that validates a conflation interval and returns its text."""


def _timeout(value: str) -> float:
    seconds = parse_interval(value)
    if not seconds:
        raise BadOption(f"Invalid timeout {shown(value)}. Use a time above 0, such as 500ms.")
    return seconds


timeout_value = parsed(_timeout)
"""Callback of an option that parses a timeout above 0."""

filter_option = click.option(
    "--filter", metavar="F", help="Only messages that match this filter, such as \"/symbol = 'IBM'\"."
)
answer_timeout_option = click.option(
    "--timeout",
    callback=timeout_value,
    default="30s",
    show_default=True,
    metavar="S",
    help="Timeout for answers of the server: seconds, or text such as 500ms.",
)


def _start(value: str) -> str:
    text = START_WORDS.get(value.lower(), value)
    try:
        parse_bookmark(text)
    except BadBookmark as error:
        word = "" if "Did you mean" in str(error) else _meant_word(value)
        raise BadBookmark(f"{error}{word}{meant_time(value)}") from None
    return text


_START_SYNONYMS: Final = {
    "epoch": ("earliest", "beginning", "begin", "start", "first", "oldest", "0"),
    "now": ("latest", "end", "newest", "last", "new", "$"),
}
"""Start points of other programs."""


def _meant_word(value: str) -> str:
    """Return a question with the name of the start point that was probably meant, or an empty text."""
    for word, others in _START_SYNONYMS.items():
        if value.lower() in others:
            return f" Did you mean {word!r}?"
    return did_you_mean(value, START_WORDS)


def meant_time(value: str) -> str:
    """Return a question with the UTC timestamp of an ISO 8601 time, or an empty text."""
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return ""
    if time.tzinfo is not None:
        time = time.astimezone(UTC)
    fraction = f".{time:%f}" if time.microsecond else ""
    return f" Did you mean {f'{time:%Y%m%dT%H%M%S}{fraction}'!r}?"


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
