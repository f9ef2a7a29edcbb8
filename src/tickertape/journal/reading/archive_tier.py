"""Owns what lies before the log: what the archive has of it, and what is asked of the archive, as data.

To readers the archive is the log below its first position. Must never say that the archive holds what it was
not told of, or read on where archive and log do not meet.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, NamedTuple

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import BookmarkExpired, TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.base.limits import archive_answer_bytes_max
from tickertape.base.timestamps import format_timestamp
from tickertape.journal.format.retired_state import expired, is_expired
from tickertape.journal.reading.log_view import LogPart, LogView, ReadRequest
from tickertape.journal.reading.lookup import StoredMessage, message_at

_NOTHING: Final = -1
_SMALL: Final = 4096
"""What an answer that is no messages counts as, in bytes."""


class ReadArchive(NamedTuple):
    """Messages with positions in `[begin, end)`; answered with `ArchivedParts`."""

    scan: int
    """Requests with the same number follow one another: each goes on where the last answer ended."""
    begin: int
    end: int
    topic: str | None
    """A name, or a pattern; what is answered may hold other topics too. None: all."""
    size: int = archive_answer_bytes_max
    """About so many bytes of bodies, or one message."""


class FindArchived(NamedTuple):
    """The position, below `end`, of the message of a bookmark; answered with `ArchivedPlace`."""

    bookmark: Bookmark
    end: int
    size: int = _SMALL


class TimeArchived(NamedTuple):
    """The first position in `[begin, end)` stamped at `micros` or later; answered with `ArchivedPlace`."""

    micros: int
    begin: int
    end: int
    size: int = _SMALL


class LastArchived(NamedTuple):
    """The last message before `position`; answered with `ArchivedLast`."""

    position: int
    size: int = _SMALL


class ProbeArchive(NamedTuple):
    """How far the archive reaches now; answered with `ArchiveCoverage`."""

    size: int = _SMALL


class CheckArchived(NamedTuple):
    """Whether the files with positions in `[begin, end)` are as the table names them; answered with
    `ArchivedWhole`, or an error that names the first that is not."""

    begin: int
    end: int
    size: int = _SMALL


class ArchivedParts(NamedTuple):
    """Messages that follow one another."""

    parts: list[LogPart]
    end: int
    """Everything that was asked for below this position was given."""


class ArchivedPlace(NamedTuple):
    """A position; None: the archive has none."""

    position: int | None


class ArchivedLast(NamedTuple):
    """A bookmark; None: the archive has none."""

    bookmark: Bookmark | None


class ArchivedWhole(NamedTuple):
    """All files exist, with their sizes."""


class ArchiveCoverage(NamedTuple):
    """What the archive covers."""

    begin: int | None
    """None: there is no table yet."""
    end: int = 0
    holds: Callable[[str], bool] = bool
    """Whether it has all messages to a topic, or to the topics of a pattern."""
    topics: str = ""
    """Which topics it has, for people; empty: all."""
    last: tuple[int, StoredMessage] | None = None
    """Position of the last message in it, and which it is; None: it has none."""


ArchiveRequest = ReadArchive | FindArchived | TimeArchived | LastArchived | ProbeArchive | CheckArchived
ArchiveAnswer = ArchivedParts | ArchivedPlace | ArchivedLast | ArchiveCoverage | ArchivedWhole
ArchiveSearch = Generator[ArchiveRequest, ArchiveAnswer, "ArchiveTier | None"]


class ArchiveTier:
    """The archive, as far as the log knows of it. `where` names it for people."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.known = False
        """It was looked at."""
        self.covered = ArchiveCoverage(None)

    def cover(self, covered: ArchiveCoverage) -> None:
        """It was looked at, and covers this."""
        self.known = True
        self.covered = covered

    @property
    def end(self) -> int:
        """Below which it has everything; 0 while it has nothing."""
        return 0 if self.covered.begin is None else self.covered.end

    def serves(self, position: int, first: int) -> bool:
        """Whether it has everything from `position` up to `first`, where the log begins."""
        begin = self.covered.begin
        return begin is not None and begin <= position <= first <= self.covered.end

    def __str__(self) -> str:
        begin, end, _, topics, _ = self.covered
        if begin is None:
            return f"the archive {self.where} has no table yet" if self.known else f"the archive {self.where}"
        which = f" of the topics {topics!r}" if topics else ""
        return f"the archive {self.where} has positions {begin} to below {end}{which}"


class ArchivedLogReader:
    """Reads the archive from a position up to where the log begins; used as a `LogReader` is.

    `topic` is a name, a pattern, or None for all; `scan` a number of its own."""

    def __init__(
        self, view: LogView, older: ArchiveTier, position: int, topic: str | None, scan: int
    ) -> None:
        self._view = view
        self._older = older
        self._topic = topic
        self._scan = scan
        self.position = position
        self._looked_for = _NOTHING
        """Where the log began when it was looked again how far the archive reaches."""

    def poll(self) -> ReadArchive | ProbeArchive | None:
        """What comes next: a request, or None where the log goes on. Raises `BookmarkExpired` when archive
        and log do not meet any more."""
        first = self._view.first_position  # retention may have gone on
        if self.position >= first:
            return None
        if not self._older.serves(self.position, first):
            if self._looked_for == first:
                raise gap_error(f"position {self.position}", self._view, self._older)
            self._looked_for = first
            return ProbeArchive()  # it may have gone on since somebody looked
        return ReadArchive(self._scan, self.position, first, self._topic)

    def answer(self, answer: ArchivedParts | ArchiveCoverage) -> list[LogPart]:
        """The answer to the last request: perhaps no part."""
        if isinstance(answer, ArchiveCoverage):
            self._older.cover(answer)
            return []
        self.position = answer.end
        return answer.parts


def oldest(view: LogView, topic: str | None) -> int:
    """The first position from which `topic`, a name or a pattern, can be read; None asks the log alone."""
    older = view.older
    if topic is None or older is None or not older.covered.holds(topic):
        return view.first_position
    begin = older.covered.begin
    if begin is None or not older.serves(begin, view.first_position):
        return view.first_position
    return begin


def look(view: LogView, topic: str | None) -> ArchiveSearch:
    """The archive, if it has what lies before the log of `topic`; None when it has not, or nothing does.

    Raises `BookmarkExpired` when it ends before the log begins."""
    older = view.older
    if topic is None or older is None or not view.first_position:
        return None
    begin = older.covered.begin
    if begin is None or not older.serves(min(begin, view.first_position), view.first_position):
        covered = yield ProbeArchive()  # it may have gone on
        assert isinstance(covered, ArchiveCoverage)
        older.cover(covered)
        begin = covered.begin
    if begin is None or begin >= view.first_position or not older.covered.holds(topic):
        return None
    if older.covered.end < view.first_position:
        raise gap_error("a start before the log", view, older)
    return older


def difference(view: LogView, covered: ArchiveCoverage) -> Generator[ReadRequest, Buffer, str]:
    """What the log has, for people, where the last message of an archive stands; empty when it is that
    message, or retention has removed it, or there is none.

    A log that has lost its end gives the positions again, and may have grown beyond the archive since; who
    published before may go on with the same sequences, but not at the same time."""
    if covered.last is None:
        return ""
    position, message = covered.last
    try:
        found = yield from message_at(view, position)
    except TickertapeError:
        if position >= view.first_position:
            raise
        found = None
    if position < view.first_position:  # also when retention went on meanwhile
        return "" if is_expired(view.retired, message.bookmark) else "never had it"
    if found is None:
        return "has no message there"
    if found == message:
        return ""
    return f"has {found.bookmark} of {format_timestamp(found.timestamp)} there"


def gap_error(what: str, view: LogView, older: ArchiveTier) -> BookmarkExpired:
    """The error of what neither archive nor log has."""
    begins = f"the log begins at position {view.first_position}"
    if view.first is None:
        return BookmarkExpired(
            f"{what}: {older}, and {begins}: what is between is in neither; start from NOW"
        )
    first = str(view.first.bookmark)
    return BookmarkExpired(
        f"{what}: {older}, and {begins}, with {first} of {format_timestamp(view.first.timestamp)}: what is "
        "between is in neither. Decide what to do about it, then start from that bookmark",
        available=first,
    )


def expired_error(what: str, view: LogView) -> BookmarkExpired:
    """The error of what lies before the log, and is not in the archive either, if there is one."""
    return expired(what if view.older is None else f"{what}: {view.older}", view.retired, view.first)
