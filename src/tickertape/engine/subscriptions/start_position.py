"""Start position: finds the replay range of a bookmark or a time in the log and the archive.

The meaning of each value is documented in docs/reference/behaviours.md, 1 to 6.

Invariants:
- If a subscription starts elsewhere than requested, the answer reports it.
- Messages that retention deletes during a search count as deleted before it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from tickertape.base.bookmarks import (
    EPOCH,
    AtBookmarks,
    AtTime,
    Bookmark,
    Epoch,
    FromNow,
    Range,
    StartPoint,
    is_place,
    sequences_and_holes,
)
from tickertape.base.errors import BadOption, BookmarkUnknown, TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.base.text_format import not_one_of, shown
from tickertape.journal.format.retired_state import is_expired
from tickertape.journal.journal import Journal
from tickertape.journal.reading.archive_reader import (
    ArchiveAnswer,
    ArchivedLast,
    ArchivedPlace,
    ArchiveRequest,
    FindArchived,
    LastArchived,
    TimeArchived,
    expired_error,
    look,
    oldest,
)
from tickertape.journal.reading.log_reader import find_bookmark, find_time, last_before
from tickertape.journal.reading.log_view import LogView, ReadRequest

if TYPE_CHECKING:
    from tickertape.engine.subscriptions.log_places import LogPlaces

NOT_FOUND_POLICIES = ("now", "epoch", "fail")


class ReplayRange(NamedTuple):
    """The part of the log that a subscription covers."""

    start: int
    """Position of the first message that may be delivered."""
    found: bool = True
    """Whether the requested bookmark was found."""
    not_before: int | None = None
    """Messages with an earlier timestamp (microseconds) are not delivered."""
    stop: int | None = None
    """Position at which the range ends (exclusive)."""
    stop_time: int | None = None
    """The range ends before the first message with this or a later timestamp (microseconds)."""
    after: str = ""
    """See `Ack.after`."""
    places: bytes = b""
    """See `Ack.places`."""


Asked = ReadRequest | ArchiveRequest | None
ExtentSearch = Generator[Asked, Buffer | ArchiveAnswer, ReplayRange]
"""Yields reads of the log and the archive. It yields None to let other work run first, and then receives
`b""`."""

_BOOKMARKS_AT_A_TIME: Final = 16
"""Number of bookmarks of a list to look up before other work may run."""


_SEQUENCE_MAX: Final = 2**64 - 1
_BOOKMARKS_NAMED: Final = 20
"""Maximum number of missing bookmarks in an error message."""


def resolve(
    journal: Journal,
    point: StartPoint | Range,
    accepted_end: int,
    not_found: str,
    log_time: int,
    topic: str | None = None,
    places: LogPlaces | None = None,
) -> ExtentSearch:
    """Find the range of `point` for a command that arrived when the log ended at `accepted_end`.

    `topic` is the name or pattern to read. The archive is searched for it. With None, the archive is not
    read. `not_found` is now, epoch or fail. `places` resolves places in lists of bookmarks. Raises
    `BookmarkUnknown` for fail. Raises `BookmarkExpired` in any case if messages of the bookmark were
    deleted."""
    if not_found not in NOT_FOUND_POLICIES:
        raise BadOption(not_one_of("Invalid bookmark_not_found", not_found, NOT_FOUND_POLICIES))
    begin = _Begin(journal, accepted_end, not_found, topic, places)
    if not isinstance(point, Range):
        extent = yield from begin.find(point, False)
        if isinstance(point, AtTime) and point.micros >= log_time:
            # A plain timestamp after the end of the log acts as NOW. Only a range delays delivery.
            extent = ReplayRange(accepted_end)
        return extent
    extent = yield from begin.find(point.begin, point.begin_inclusive)
    if isinstance(point.end, AtTime):
        stop_time = point.end.micros + (1 if point.end_inclusive else 0)
        if extent.not_before is not None and stop_time <= extent.not_before:
            # The range is empty even if both times are in the future, so it ends at once.
            return ReplayRange(extent.start, found=extent.found, stop=extent.start)
        return extent._replace(stop_time=stop_time)
    positions = yield from _positions(journal.view, point.end.bookmarks, topic, earliest=False)
    if not positions:
        raise BookmarkUnknown(
            f"{_missing('end bookmark', point.end)}. Use a bookmark that the log holds, or a time."
        )
    view = journal.view
    if extent.start < oldest(view, topic):  # retention deleted segments during the search
        of_epoch = not_found == "epoch" and not extent.found
        if not (of_epoch or isinstance(point.begin, Epoch | AtTime)):
            raise expired_error("the start of the range", view)
        extent = extent._replace(start=oldest(view, topic))
    return extent._replace(stop=max(positions) + (1 if point.end_inclusive else 0))


class _Begin(NamedTuple):
    """Search for the start of a range."""

    journal: Journal
    accepted_end: int
    not_found: str
    topic: str | None
    places: LogPlaces | None

    def find(self, point: StartPoint, inclusive: bool) -> ExtentSearch:
        """Return the range that starts at `point`, or right after it unless `inclusive`."""
        view = self.journal.view
        if isinstance(point, Epoch):
            return ReplayRange((yield from self._epoch()))
        if isinstance(point, FromNow):
            return ReplayRange(self.accepted_end)
        if isinstance(point, AtTime):
            start = yield from _time(view, point.micros, self.topic, inclusive=inclusive)
            return ReplayRange(start, not_before=point.micros if inclusive else point.micros + 1)
        assert isinstance(point, AtBookmarks)
        not_found = self.not_found
        if any(map(is_place, point.bookmarks)):
            if self.places is not None:
                return (yield from self._resume(point, self.places))
            not_found = "epoch" if not_found == "now" else not_found  # a subscription of another log
        positions = yield from _positions(view, point.bookmarks, self.topic, earliest=True)
        if positions:
            return ReplayRange(min(positions) + (0 if inclusive else 1))
        if not_found == "fail":
            raise BookmarkUnknown(
                f"{_missing('bookmark', point)}. Start from EPOCH or NOW, or set the option "
                "bookmark_not_found to now or epoch."
            )
        return ReplayRange(
            self.accepted_end if not_found == "now" else (yield from self._epoch()), found=False
        )

    def _resume(self, point: AtBookmarks, places: LogPlaces) -> ExtentSearch:
        """Return the range of a subscription with places, which may have read another log before.

        It starts at its place of this log, and without one at the first row: bookmarks alone do not say which
        messages of this log it has. It starts earlier if a message that it lacks is before the place."""
        from tickertape.journal.reading.sequence_search import first_between

        view = self.journal.view
        known = [at for one in point.bookmarks if is_place(one) and (at := places.position(one)) is not None]
        found = True
        if known:
            start = max(known)
            if start < oldest(view, self.topic):
                raise expired_error("the place of the subscription", view)
        else:
            found = view.retired is None
            if not found and self.not_found == "fail":
                raise BookmarkUnknown(
                    "Cannot resume the subscription: it has no place of this log, and messages were removed "
                    "from the log. Start from EPOCH or NOW, or set the option bookmark_not_found to epoch."
                )
            start = yield from self._epoch()
        for number, (publisher, low, high) in enumerate(_lacking(point.bookmarks), 1):
            if number % _BOOKMARKS_AT_A_TIME == 0:
                yield None
            start = min(start, (yield from first_between(view, publisher, low, high, start)))
        return ReplayRange(start, found=found)

    def _epoch(self) -> Generator[Asked, Buffer | ArchiveAnswer, int]:
        """Return the position of the oldest message in archive and log."""
        older = yield from look(self.journal.view, self.topic)
        return oldest(self.journal.view, None if older is None else self.topic)


def _lacking(bookmarks: Iterable[Bookmark]) -> list[tuple[int, int, int]]:
    """Return publishers with a range of sequences that a subscription with these bookmarks may lack: holes,
    and everything after the last message."""
    lacking = []
    messages = [one for one in bookmarks if not is_place(one)]
    for publisher, (last, holes) in sequences_and_holes(messages).items():
        lacking += [(publisher, low, high) for low, high in holes]
        lacking.append((publisher, last + 1, _SEQUENCE_MAX))
    return lacking


def _time(
    view: LogView, micros: int, topic: str | None, *, inclusive: bool
) -> Generator[Asked, Buffer | ArchiveAnswer, int]:
    """Return the result of `find_time` in archive and log."""
    after = micros if inclusive else micros + 1
    if view.retired is not None and after <= view.retired.last_time:
        older = yield from look(view, topic)
        if older is not None and older.covered.begin is not None:
            place = yield TimeArchived(after, older.covered.begin, view.first_position)
            assert isinstance(place, ArchivedPlace)
            if place.position is not None:
                return place.position
    return (yield from find_time(view, micros, inclusive=inclusive))


def _missing(what: str, point: AtBookmarks) -> str:
    """Return the start of the error for a bookmark that the log does not hold."""
    if not point.bookmarks:
        return f"Cannot find the {what}: it is not publisher|sequence| with two 64-bit numbers"
    return f"Cannot find the {what} {_named(point)} in the log"


def _named(point: AtBookmarks) -> str:
    """Return the bookmarks as text."""
    return shown(",".join(map(str, point.bookmarks[:_BOOKMARKS_NAMED])))


def _positions(
    view: LogView, bookmarks: tuple[Bookmark, ...], topic: str | None, *, earliest: bool
) -> Generator[Asked, Buffer | ArchiveAnswer, list[int]]:
    """Return the positions of the bookmarks that archive and log have.

    With `earliest`, the first of them counts, so none may have expired. Otherwise at least one must be
    left."""
    found: dict[Bookmark, int] = {}
    lost: list[Bookmark] = []
    for number, bookmark in enumerate(bookmarks, 1):
        if number % _BOOKMARKS_AT_A_TIME == 0:
            yield None
        position = None
        if not is_expired(view.retired, bookmark):
            position = yield from find_bookmark(view, bookmark.publisher, bookmark.sequence)
        if position is None and is_expired(view.retired, bookmark):
            position = yield from _in_archive(view, bookmark, topic)
            if position is None:
                lost.append(bookmark)
        if position is not None:
            found[bookmark] = position
    # Retention may have deleted messages that were found earlier.
    first = oldest(view, topic)
    lost += [bookmark for bookmark, position in found.items() if position < first]
    positions = [position for position in found.values() if position >= first]
    if lost and (earliest or not positions):
        raise expired_error(f"the bookmark {_named(AtBookmarks(tuple(lost)))}", view)
    return positions


def _in_archive(
    view: LogView, bookmark: Bookmark, topic: str | None
) -> Generator[Asked, Buffer | ArchiveAnswer, int | None]:
    """Return the position of a message in the archive, or None."""
    older = yield from look(view, topic)
    if older is None:
        return None
    place = yield FindArchived(bookmark, view.first_position)
    assert isinstance(place, ArchivedPlace)
    return place.position


def with_place(
    journal: Journal,
    point: StartPoint | Range,
    search: ExtentSearch,
    log_time: int,
    topic: str | None = None,
    places: LogPlaces | None = None,
) -> ExtentSearch:
    """Add the bookmark before the start (`Ack.after`) and its places to the range of `search`.

    The bookmark is omitted if it cannot be read, because the subscription may still start. It is never a
    message that is not persisted, because such a message may be lost. Raises `BookmarkExpired` when retention
    deletes the start meanwhile."""
    extent = yield from search
    if extent.not_before is not None and extent.not_before > log_time:
        return extent
    view = journal.view
    try:
        last = yield from _last_before(view, extent.start, topic)
    except TickertapeError:
        after = ""
    else:
        after = EPOCH if last is None else str(last)
    first = oldest(view, topic)
    if extent.start < first:
        begin = point.begin if isinstance(point, Range) else point
        if extent.found and isinstance(begin, AtBookmarks):
            raise expired_error("the start", view)
        extent = extent._replace(start=first)
        after = EPOCH
    rows = b"" if places is None else (yield from places.before(extent.start))
    return extent._replace(after=after, places=rows)


def _last_before(
    view: LogView, position: int, topic: str | None
) -> Generator[Asked, Buffer | ArchiveAnswer, Bookmark | None]:
    """Return the result of `last_before` in archive and log."""
    last: Bookmark | None = None
    if position > view.first_position:
        last = yield from last_before(view, position)
    if last is None and (older := (yield from look(view, topic))) is not None and older.known:
        answer = yield LastArchived(min(position, view.first_position))
        assert isinstance(answer, ArchivedLast)
        last = answer.bookmark
    return last


def close_range(journal: Journal, search: ExtentSearch, topic: str | None = None) -> ExtentSearch:
    """Convert a range to positions of messages persisted now. The result has a start and a stop, and no
    times."""
    end = journal.commits.persisted_end
    extent = yield from search
    stop = end if extent.stop is None else min(extent.stop, end)
    if extent.stop_time is not None:
        stop = min(stop, (yield from _time(journal.view, extent.stop_time, topic, inclusive=True)))
    return ReplayRange(min(extent.start, stop), stop=stop)
