"""Archive reader: the messages before the log, read from the archive by requests that are data.

For readers the archive is the log below its first position. Invariant: nothing is read on where archive and
log do not meet.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple

from tickertape.base.bookmarks import Bookmark, format_timestamp
from tickertape.base.errors import BookmarkExpired, TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.base.limits import archive_answer_bytes_max
from tickertape.journal.format.retired_state import expired, is_expired
from tickertape.journal.reading.archive_tier import ArchiveCoverage, ArchiveTier
from tickertape.journal.reading.log_reader import message_at
from tickertape.journal.reading.log_view import LogPart, LogView, ReadRequest

_NOTHING: Final = -1
_SMALL: Final = 4096
"""Size in bytes that an answer without messages counts as."""


class ReadArchive(NamedTuple):
    """Messages with positions in `[begin, end)`; answered with `ArchivedParts`."""

    scan: int
    """Number of a scan; each request of a scan continues where its last answer ended."""
    begin: int
    end: int
    topic: str | None
    """A topic or a pattern, None: all. The answer may hold other topics too."""
    size: int = archive_answer_bytes_max
    """Approximate bytes of bodies of the answer, at least one message."""


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


ArchiveRequest = ReadArchive | FindArchived | TimeArchived | LastArchived | ProbeArchive | CheckArchived
ArchiveAnswer = ArchivedParts | ArchivedPlace | ArchivedLast | ArchiveCoverage | ArchivedWhole
ArchiveSearch = Generator[ArchiveRequest, ArchiveAnswer, "ArchiveTier | None"]


class ArchivedLogReader:
    """Reads the archive from a position up to where the log begins; used as a `LogReader` is.

    `topic` is a name, a pattern, or None for all; `scan` a number of its own."""

    def __init__(
        self, view: LogView, archive: ArchiveTier, position: int, topic: str | None, scan: int
    ) -> None:
        self._view = view
        self._archive = archive
        self._topic = topic
        self._scan = scan
        self.position = position
        self._probed_at = _NOTHING
        """First position of the log at the last probe of the archive."""

    def poll(self) -> ReadArchive | ProbeArchive | None:
        """Return the next request, or None where the log continues. Raises `BookmarkExpired` when archive and
        log no longer meet."""
        first = self._view.first_position  # retention may have gone on
        if self.position >= first:
            return None
        if not self._archive.serves(self.position, first):
            if self._probed_at == first:
                raise gap_error(f"position {self.position}", self._view, self._archive)
            self._probed_at = first
            return ProbeArchive()  # it may have grown since the last probe
        return ReadArchive(self._scan, self.position, first, self._topic)

    def answer(self, answer: ArchivedParts | ArchiveCoverage) -> list[LogPart]:
        """The answer to the last request: perhaps no part."""
        if isinstance(answer, ArchiveCoverage):
            self._archive.cover(answer)
            return []
        self.position = answer.end
        return answer.parts


def oldest(view: LogView, topic: str | None) -> int:
    """The first position from which `topic`, a name or a pattern, can be read; None asks the log alone."""
    archive = view.archive
    if topic is None or archive is None or not archive.covered.holds(topic):
        return view.first_position
    begin = archive.covered.begin
    if begin is None or not archive.serves(begin, view.first_position):
        return view.first_position
    return begin


def look(view: LogView, topic: str | None) -> ArchiveSearch:
    """Return the archive if it has messages of `topic` before the log, else None.

    Raises `BookmarkExpired` when it ends before the log begins."""
    archive = view.archive
    if topic is None or archive is None or not view.first_position:
        return None
    begin = archive.covered.begin
    if begin is None or not archive.serves(min(begin, view.first_position), view.first_position):
        covered = yield ProbeArchive()  # it may have gone on
        assert isinstance(covered, ArchiveCoverage)
        archive.cover(covered)
        begin = covered.begin
    if begin is None or begin >= view.first_position or not archive.covered.holds(topic):
        return None
    if archive.covered.end < view.first_position:
        raise gap_error("a start before the log", view, archive)
    return archive


def difference(view: LogView, covered: ArchiveCoverage) -> Generator[ReadRequest, Buffer, str]:
    """Compare the log with the last message of an archive; returns the difference for a message, or "".

    "" also if retention has removed the message, or there is none. A log that has lost its end gives
    positions again and may have grown beyond the archive since; its publishers may reuse their sequences, but
    not at the same time."""
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


def gap_error(what: str, view: LogView, archive: ArchiveTier) -> BookmarkExpired:
    """Return the error for a position in neither archive nor log."""
    begins = f"the log begins at position {view.first_position}"
    if view.first is None:
        return BookmarkExpired(
            f"{what}: {archive}, and {begins}: what is between is in neither; start from NOW"
        )
    first = str(view.first.bookmark)
    return BookmarkExpired(
        f"{what}: {archive}, and {begins}, with {first} of {format_timestamp(view.first.timestamp)}: what is "
        "between is in neither. Decide what to do about it, then start from that bookmark",
        available=first,
    )


def expired_error(what: str, view: LogView) -> BookmarkExpired:
    """Return the error for a position before the log that no archive has."""
    return expired(what if view.archive is None else f"{what}: {view.archive}", view.retired, view.first)
