"""Hints about names: similar topics and queues, and patterns that look like shell wildcards.

The names of existing topics are read from the admin address, and only after a command found nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import click

from tickertape.base.errors import NotAQueue, PublishRejected, TickertapeError, TopicNotRecorded
from tickertape.base.names import is_pattern
from tickertape.base.text_format import did_you_mean, shown
from tickertape.cli.support.admin_client import stats_of
from tickertape.cli.support.command_group import Failure, UserMistake, failure_of

_EXPRESSION: Final = re.compile(r"[\^$|()\[\]{}\\+]|\.\*")
"""Syntax of regular expressions that shell wildcards lack."""


_SUGGESTION: Final = re.compile(r" Did you mean '[^']*'\?")


class _Names(NamedTuple):
    """Names that a server lists."""

    topics: list[str]
    queues: list[str]


def missing_topic(topic: str, admin: str | None) -> str:
    """Return a hint about a topic or pattern that the server at `admin` does not list.

    Empty if the server lists it. Without an answer from `admin` the hint names the command to use."""
    names = _names(admin)
    if names is None:
        return "Check the topic name: `tickertape topics --admin URL` lists the topics of a server."
    known = [*names.topics, *names.queues]
    if not is_pattern(topic):
        return (
            "" if topic in known else f"The server lists no topic {shown(topic)}.{did_you_mean(topic, known)}"
        )
    from tickertape.filter.compiler.regex import compile_pattern

    if any(map(compile_pattern(topic).search, known)):
        return ""
    return f"The server lists no topic that matches {shown(topic)}.{did_you_mean(topic, known)}"


def near_queue(name: str, admin: str | None) -> str:
    """Return a question that suggests similar queues of the server at `admin`, or an empty text."""
    names = _names(admin)
    return "" if names is None else did_you_mean(name, names.queues)


def no_queue(name: str, guess: str) -> UserMistake:
    """Return the error of a command for queues, about a name that is not a queue."""
    return UserMistake(
        f"The server has no queue {shown(name)}.{guess or ' Run `tickertape queue ls` to list the queues.'}"
    )


@contextmanager
def consuming(name: str, admin: str | None) -> Iterator[None]:
    """Report the reason of a rejected acknowledgement, and similar names of a missing queue."""
    try:
        yield
    except (NotAQueue, PublishRejected) as error:
        cause = error.__cause__ if isinstance(error, PublishRejected) else error
        if isinstance(cause, NotAQueue):
            raise no_queue(name, near_queue(name, admin) or _suggestion(cause)) from error
        raise failure_of(cause if isinstance(cause, TickertapeError) else error) from error


def _suggestion(error: TickertapeError) -> str:
    """Return the near name in the text of an error of the server, or an empty text."""
    found = _SUGGESTION.search(str(error))
    return found[0] if found else ""


@contextmanager
def suggesting(name: str, admin: str | None) -> Iterator[None]:
    """Add similar names to the error of a topic or queue that the server does not have."""
    try:
        yield
    except (NotAQueue, PublishRejected) as error:
        if not isinstance(error, NotAQueue) and not isinstance(error.__cause__, NotAQueue):
            raise
        raise UserMistake(_with_hint(error, near_queue(name, admin))) from error
    except TopicNotRecorded as error:
        names = _names(admin)
        known = [] if names is None or name in names.topics else names.topics
        raise UserMistake(_with_hint(error, did_you_mean(name, known))) from error


def _with_hint(error: TickertapeError, hint: str) -> str:
    """Return the text of an error with a hint, unless the server suggested a name already."""
    return str(error) if "Did you mean" in str(error) else f"{error}{hint}"


def _names(admin: str | None) -> _Names | None:
    """Return the names that the server at `admin` lists. None without an address or an answer."""
    from tickertape.engine.runtime.statistics import OTHER_TOPICS

    if admin is None:
        return None
    try:
        _, report = stats_of(admin)
    except Failure:
        return None
    topics = [topic.name for topic in report.topics if topic.name != OTHER_TOPICS]
    return _Names(topics, [queue.name for queue in report.queues])


def warn_of_wildcard(topic: str) -> None:
    """Print a warning if a topic pattern looks like a shell wildcard."""
    meant = meant_by_wildcard(topic)
    if meant is not None:
        click.echo(
            f"tickertape: warning: {shown(topic)} looks like a shell wildcard, but a topic pattern is a "
            f"regular expression. Did you mean {shown(meant)}?",
            err=True,
        )


def meant_by_wildcard(topic: str) -> str | None:
    """Return the regular expression for a shell wildcard. None if `topic` does not look like one."""
    if "*" not in topic or _EXPRESSION.search(topic):
        return None
    begin, end = "" if topic.startswith("*") else "^", "" if topic.endswith("*") else "$"
    inner = "".join({"*": ".*", "?": ".", ".": r"\."}.get(c, c) for c in topic.strip("*"))
    return f"{begin}{inner}{end}" or "^"
