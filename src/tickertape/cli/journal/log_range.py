"""Range options of `dump` and `grep`, and a reader of that range with progress.

Only segments between `--from` and `--to` are read. At most one read of the log is in memory.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from tickertape.base.bookmarks import (
    BOOKMARK_FORM,
    LIST_FORM,
    RANGE_FORM,
    TIME_FORM,
    AtBookmarks,
    AtTime,
    Bookmark,
    Epoch,
    Range,
    StartPoint,
    parse_bookmark,
)
from tickertape.base.errors import BadBookmark, JournalError
from tickertape.base.text_format import did_you_mean, shown
from tickertape.cli.support.command_group import Failure
from tickertape.cli.support.option_types import START_WORDS, meant_time, topic_name
from tickertape.cli.support.tables import counted
from tickertape.cli.support.terminal import progress, remark

if TYPE_CHECKING:
    from tickertape.journal.offline.snapshot import SelectedMessages, SnapshotReader

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType

_HINT_PARTS_MAX: Final = 1_000
"""Commits that are read for a hint about a topic without messages."""
_POSITION: Final = re.compile(r"[0-9]{1,20}")

directory_argument = click.argument("directory", type=click.Path(exists=True, file_okay=False), metavar="DIR")


class Role(Enum):
    """Role of a point in a command."""

    FIRST = "first"
    LAST = "last"
    SINGLE = "single"


class Point(ParamType):
    """A position, a bookmark or a timestamp.

    A first point may also be `epoch`, `now`, a list of bookmarks or a range. A last point may be a list. A
    single point may be `epoch`.
    """

    name = "point"

    def __init__(self, role: Role) -> None:
        self._role = role
        first, last = role is Role.FIRST, role is Role.LAST
        self._kind = "start point" if first else "end point" if last else "point"
        words = {Role.FIRST: ("epoch", "now"), Role.LAST: (), Role.SINGLE: ("epoch",)}[role]
        self._words = {word: START_WORDS[word] for word in words}
        forms = ["a position (a number)", *self._words, BOOKMARK_FORM]
        forms += [LIST_FORM] if first or last else []
        forms += [TIME_FORM, RANGE_FORM] if first else [TIME_FORM]
        self._allowed = f"{', '.join(forms[:-1])}, or {forms[-1]}"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | StartPoint | Range:
        """Return the parsed point. An `int` is a position."""
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        if _POSITION.fullmatch(value):
            return int(value)
        try:
            point = parse_bookmark(self._words.get(value.lower(), value), self._allowed, self._kind)
        except BadBookmark as error:
            self.fail(f"{error}{meant_time(value)}", param, ctx)
        if isinstance(point, Range) and self._role is not Role.FIRST:
            self.fail(f"Invalid point {shown(value)}: a range. Use {self._allowed}.", param, ctx)
        if self._role is Role.SINGLE and not _is_one(point):
            self.fail(f"Invalid point {shown(value)}: not a single message. Use {self._allowed}.", param, ctx)
        return point


def _is_one(point: StartPoint | Range) -> bool:
    if isinstance(point, AtBookmarks):
        return len(point.bookmarks) == 1 and not point.unknown
    return isinstance(point, Epoch | AtTime)


def extent_options(command: F) -> F:
    """Add the options of the range to a command."""
    for option in (
        click.option("--unsynced", is_flag=True, help="Include data that may not be synced yet."),
        click.option(
            "--topic", metavar="TOPIC", callback=topic_name, help="Only messages of this topic (a name)."
        ),
        click.option(
            "--to",
            "last",
            type=Point(Role.LAST),
            metavar="POINT",
            help="Last message: a position, a bookmark, or a timestamp (inclusive).",
        ),
        click.option(
            "--from",
            "first",
            type=Point(Role.FIRST),
            metavar="POINT",
            help="First message: a position, epoch, now, a bookmark, a timestamp, or a range such as [A:B).",
        ),
    ):
        command = option(command)
    return command


class LogExtent(NamedTuple):
    """Range of the log that the options of a command select."""

    directory: str
    first: int | StartPoint | Range | None
    last: int | StartPoint | None
    topic: str | None
    unsynced: bool

    def selected(self, what: str) -> Iterator[SelectedMessages]:
        """Yield the messages with progress, without the server's control records.

        Raises an error at corruption."""
        from tickertape.journal.disk import SystemDisk
        from tickertape.journal.offline.snapshot import SnapshotReader, take_snapshot

        disk = SystemDisk(self.directory)
        snapshot = take_snapshot(disk, unsynced=self.unsynced)
        reader = SnapshotReader(disk, snapshot.view)
        with contextlib.closing(reader):
            _report_removed(reader, self.first)
            start, stop = self._positions(reader)
            begin = done = reader.bytes_before(start)
            empty = True
            with progress(what, max(0, reader.bytes_before(stop) - begin)) as advance:
                for selected in reader.selected(start, stop, self.topic):
                    empty = False
                    yield selected
                    passed = reader.bytes_before(selected.end_position)
                    advance(passed - done)
                    done = passed
            if empty and self.topic is not None:
                _hint_topic(reader, self.topic)
            elif empty and what == "dump":
                _hint_range(reader)
        if snapshot.damage is not None and stop >= snapshot.view.end_position:
            raise snapshot.damage
        if snapshot.unproven and stop >= snapshot.view.end_position:
            later = counted(snapshot.unproven, "later message")
            remark(f"{later} may not be synced yet. Pass --unsynced to include them.")

    def _positions(self, reader: SnapshotReader) -> tuple[int, int]:
        """Return the first position, and the position after the last message."""
        first, last = self.first, self.last
        end = reader.view.end_position
        _refuse_removed(reader, first.begin if isinstance(first, Range) else first)
        if isinstance(first, Range):
            if last is not None:
                raise click.UsageError(
                    "--to cannot be used with a range. Remove --to, or use a single --from."
                )
            start = _position(reader, first.begin, after=not first.begin_inclusive)
            return start, min(end, _position(reader, first.end, after=first.end_inclusive))
        start = reader.view.first_position if first is None else _position(reader, first, after=False)
        return start, end if last is None else min(end, _position(reader, last, after=True))


def _hint_range(reader: SnapshotReader) -> None:
    """Print the range of the log, because the options select none of its messages."""
    view = reader.view
    text = "The log is empty."
    if view.end_position > view.first_position:
        text = f"The log has the positions {view.first_position} to {view.end_position - 1}."
    click.echo(f"tickertape: No messages in this range. {text}", err=True)


def _hint_topic(reader: SnapshotReader, topic: str) -> None:
    """Print a hint if the start of the log does not have the topic, but similar ones."""
    view = reader.view
    names: set[str] = set()
    with contextlib.suppress(JournalError):  # the range itself may be intact
        for part in islice(reader.parts(view.first_position, view.end_position), _HINT_PARTS_MAX):
            names.update(part.batch.topics)
    guess = "" if topic in names else did_you_mean(topic, names)
    if guess:
        click.echo(f"tickertape: No messages of {shown(topic)} in this range.{guess}", err=True)


def _position(reader: SnapshotReader, point: int | StartPoint, *, after: bool) -> int:
    """Return the position of `point`, or with `after` the position after it."""
    from tickertape.journal.reading.log_reader import find_bookmark, find_time

    if isinstance(point, int):
        return point + after
    if isinstance(point, Epoch):
        return reader.view.first_position
    if isinstance(point, AtTime):
        return reader.find(find_time(reader.view, point.micros, inclusive=not after))
    if not isinstance(point, AtBookmarks):
        return reader.view.end_position
    found = [
        position
        for bookmark in point.bookmarks
        if (position := reader.find(find_bookmark(reader.view, *bookmark))) is not None
    ]
    if not found:
        raise Failure(_not_found(reader, point.bookmarks))
    return max(found) + 1 if after else min(found)


def _report_removed(reader: SnapshotReader, first: int | StartPoint | Range | None) -> None:
    """Print a notice if retention may have removed the start of the range."""
    view = reader.view
    begins_before = not isinstance(first, int) or first < view.first_position
    if view.retired is not None and begins_before:
        click.echo(f"{view.retired}. The log starts at position {view.first_position}.", err=True)


def _refuse_removed(reader: SnapshotReader, begin: int | StartPoint | None) -> None:
    """Raise `Failure` if retention has removed a bookmark of the start.

    The start of a list is its earliest bookmark, and the position of a removed bookmark is unknown."""
    from tickertape.journal.format.retired_state import is_expired

    bookmarks = begin.bookmarks if isinstance(begin, AtBookmarks) else ()
    gone = tuple(bookmark for bookmark in bookmarks if is_expired(reader.view.retired, bookmark))
    if gone:
        raise Failure(_not_found(reader, gone))


def _not_found(reader: SnapshotReader, bookmarks: tuple[Bookmark, ...]) -> str:
    from tickertape.journal.offline.snapshot import Absent, locate_bookmark

    if not bookmarks:
        return "Invalid bookmark: no log contains it."
    why = locate_bookmark(reader, bookmarks[0])
    return f"Cannot find the message: {why.reason}." if isinstance(why, Absent) else str(bookmarks[0])
