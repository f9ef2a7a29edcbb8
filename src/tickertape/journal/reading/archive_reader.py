"""Archive reader: reads messages before the start of the log from the archive.

Pure: requests are data. For readers, the archive is the log below its first position.

Invariant: a reader never skips a gap between archive and log.
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
"""Size in bytes charged for an answer without messages."""


class ReadArchive(NamedTuple):
    """Request messages with positions in `[begin, end)`. The answer is `ArchivedParts`."""

    scan: int
    """Number of a scan. Each request of a scan continues at the end of its last answer."""
    begin: int
    end: int
    topic: str | None
    """A topic, a pattern, or None for all. The answer may also hold other topics."""
    size: int = archive_answer_bytes_max
    """Approximate body bytes of the answer. It has at least one message."""


class FindArchived(NamedTuple):
    """Request the position, below `end`, of the message of a bookmark. The answer is `ArchivedPlace`."""

    bookmark: Bookmark
    end: int
    size: int = _SMALL


class TimeArchived(NamedTuple):
    """Request the first position in `[begin, end)` with a timestamp of at least `micros`.

    The answer is `ArchivedPlace`."""

    micros: int
    begin: int
    end: int
    size: int = _SMALL


class LastArchived(NamedTuple):
    """Request the last message before `position`. The answer is `ArchivedLast`."""

    position: int
    size: int = _SMALL


class ProbeArchive(NamedTuple):
    """Request the current position range of the archive. The answer is `ArchiveCoverage`."""

    size: int = _SMALL


class CheckArchived(NamedTuple):
    """Check that the files with positions in `[begin, end)` match the table.

    The answer is `ArchivedWhole`, or an error that names the first file that does not match."""

    begin: int
    end: int
    size: int = _SMALL


class ArchivedParts(NamedTuple):
    """Consecutive messages."""

    parts: list[LogPart]
    end: int
    """All requested messages below this position were returned."""


class ArchivedPlace(NamedTuple):
    """A position, or None if the archive has none."""

    position: int | None


class ArchivedLast(NamedTuple):
    """A bookmark, or None if the archive has none."""

    bookmark: Bookmark | None


class ArchivedWhole(NamedTuple):
    """All files exist and have their recorded sizes."""


ArchiveRequest = ReadArchive | FindArchived | TimeArchived | LastArchived | ProbeArchive | CheckArchived
ArchiveAnswer = ArchivedParts | ArchivedPlace | ArchivedLast | ArchiveCoverage | ArchivedWhole
ArchiveSearch = Generator[ArchiveRequest, ArchiveAnswer, "ArchiveTier | None"]


class ArchivedLogReader:
    """Reads the archive from a position up to the start of the log. Used like a `LogReader`.

    `topic` is a name, a pattern, or None for all. `scan` is a unique number."""

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
        """Return the next request, or None where the log continues.

        Raises `BookmarkExpired` if a gap between archive and log has appeared."""
        first = self._view.first_position  # retention may have removed segments
        if self.position >= first:
            return None
        if not self._archive.serves(self.position, first):
            if self._probed_at == first:
                raise gap_error(f"position {self.position}", self._view, self._archive)
            self._probed_at = first
            return ProbeArchive()  # the archive may have grown since the last probe
        return ReadArchive(self._scan, self.position, first, self._topic)

    def answer(self, answer: ArchivedParts | ArchiveCoverage) -> list[LogPart]:
        """Process the answer to the last request. Return its parts, perhaps none."""
        if isinstance(answer, ArchiveCoverage):
            self._archive.cover(answer)
            return []
        self.position = answer.end
        return answer.parts


def oldest(view: LogView, topic: str | None) -> int:
    """Return the first position from which `topic`, a name or a pattern, can be read.

    With None, the archive is ignored."""
    archive = view.archive
    if topic is None or archive is None or not archive.covered.holds(topic):
        return view.first_position
    begin = archive.covered.begin
    if begin is None or not archive.serves(begin, view.first_position):
        return view.first_position
    return begin


def look(view: LogView, topic: str | None) -> ArchiveSearch:
    """Return the archive if it has messages of `topic` before the log, else None.

    Raises `BookmarkExpired` when the archive ends before the log starts."""
    archive = view.archive
    if topic is None or archive is None or not view.first_position:
        return None
    begin = archive.covered.begin
    if begin is None or not archive.serves(min(begin, view.first_position), view.first_position):
        covered = yield ProbeArchive()  # the archive may have grown
        assert isinstance(covered, ArchiveCoverage)
        archive.cover(covered)
        begin = covered.begin
    if begin is None or begin >= view.first_position or not archive.covered.holds(topic):
        return None
    if archive.covered.end < view.first_position:
        raise gap_error("a position before the log", view, archive)
    return archive


def difference(view: LogView, covered: ArchiveCoverage) -> Generator[ReadRequest, Buffer, str]:
    """Compare the log with the last message of an archive. Return the difference as text, or "".

    Returns "" also if retention has removed the message, or the archive is empty. A log that lost its end
    assigns positions again and may have outgrown the archive since. Its publishers may reuse sequences, but
    not with the same timestamps."""
    if covered.last is None:
        return ""
    position, message = covered.last
    try:
        found = yield from message_at(view, position)
    except TickertapeError:
        if position >= view.first_position:
            raise
        found = None
    if position < view.first_position:  # also if retention removed it meanwhile
        return "" if is_expired(view.retired, message.bookmark) else "never had it"
    if found is None:
        return "has no message there"
    if found == message:
        return ""
    return f"has {found.bookmark} of {format_timestamp(found.timestamp)} there"


def gap_error(what: str, view: LogView, archive: ArchiveTier) -> BookmarkExpired:
    """Return the error for a position that is in neither archive nor log."""
    begins = f"the log begins at position {view.first_position}"
    if view.first is None:
        return BookmarkExpired(
            f"Cannot start at {what}: {archive}, and {begins}. The messages "
            "between are in neither. Start from NOW."
        )
    first = str(view.first.bookmark)
    return BookmarkExpired(
        f"Cannot start at {what}: {archive}, and {begins}, with {first} of "
        f"{format_timestamp(view.first.timestamp)}. "
        "The messages between are in neither. Handle the missing messages, then start from that bookmark.",
        available=first,
    )


def expired_error(what: str, view: LogView) -> BookmarkExpired:
    """Return the error for a position that is before the log and not archived."""
    return expired(what if view.archive is None else f"{what}: {view.archive}", view.retired, view.first)
