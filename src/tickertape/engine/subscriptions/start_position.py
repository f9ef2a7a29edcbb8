"""Start position: finds the replay range of a bookmark or a time in the log and the archive.

docs/reference/behaviours.md, 1 to 6, says what each value means.

Invariants:
- A subscription starts nowhere else than asked without the answer saying so.
- Messages that retention removes during a search count as removed before it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple

from tickertape.base.bookmarks import (
    EPOCH,
    AtBookmarks,
    AtTime,
    Bookmark,
    Epoch,
    FromNow,
    Range,
    StartPoint,
)
from tickertape.base.errors import BadOption, BookmarkUnknown, TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.base.text_format import shown
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

NOT_FOUND_POLICIES = ("now", "epoch", "fail")


class ReplayRange(NamedTuple):
    """The part of the log a subscription covers."""

    start: int
    """Position of the first message it may deliver."""
    found: bool = True
    """Whether the bookmark asked for was known."""
    not_before: int | None = None
    """Messages stamped earlier than this (microseconds) are not delivered."""
    stop: int | None = None
    """Position before which it ends."""
    stop_time: int | None = None
    """It ends before the first message stamped at or after this (microseconds)."""
    after: str = ""
    """See `Ack.after`."""


Asked = ReadRequest | ArchiveRequest | None
ExtentSearch = Generator[Asked, Buffer | ArchiveAnswer, ReplayRange]
"""Asks for reads, of the log and of the archive; None lets others go first, and is answered with nothing
(`b""`)."""

_BOOKMARKS_AT_A_TIME: Final = 16
"""Bookmarks of a list that are looked up before others may go first."""


_BOOKMARKS_NAMED: Final = 20
"""Of those that are not in the log, more than a text has room for."""


def resolve(
    journal: Journal,
    point: StartPoint | Range,
    accepted_end: int,
    not_found: str,
    log_time: int,
    topic: str | None = None,
) -> ExtentSearch:
    """Find the extent of `point` for a command that arrived when the log ended at `accepted_end`.

    `topic`, a name or a pattern, is what is to be read: the archive is asked for what lies before the log;
    None: it is not. `not_found` is now, epoch or fail. Raises `BookmarkUnknown`, and whatever it is
    `BookmarkExpired`: who names a message that is gone is given no other place."""
    if not_found not in NOT_FOUND_POLICIES:
        raise BadOption(f"bookmark_not_found={not_found}: use now, epoch or fail")
    begin = _Begin(journal, accepted_end, not_found, topic)
    if not isinstance(point, Range):
        extent = yield from begin.find(point, False)
        if isinstance(point, AtTime) and point.micros >= log_time:
            # A plain timestamp past the end of the log acts as NOW; only a range holds delivery back.
            extent = ReplayRange(accepted_end)
        return extent
    extent = yield from begin.find(point.begin, point.begin_inclusive)
    if isinstance(point.end, AtTime):
        stop_time = point.end.micros + (1 if point.end_inclusive else 0)
        if extent.not_before is not None and stop_time <= extent.not_before:
            # Nothing can lie between, though both may be yet to come: it is over at once.
            return ReplayRange(extent.start, found=extent.found, stop=extent.start)
        return extent._replace(stop_time=stop_time)
    positions = yield from _positions(journal.view, point.end.bookmarks, topic, earliest=False)
    if not positions:
        raise BookmarkUnknown(
            f"the bookmark at the end of the range is not in the log: {_named(point.end)}; "
            "where to stop is unknown"
        )
    view = journal.view
    if extent.start < oldest(view, topic):  # retention went on while the end was looked up
        of_epoch = not_found == "epoch" and not extent.found
        if not (of_epoch or isinstance(point.begin, Epoch | AtTime)):
            raise expired_error("the begin of the range", view)
        extent = extent._replace(start=oldest(view, topic))
    return extent._replace(stop=max(positions) + (1 if point.end_inclusive else 0))


class _Begin(NamedTuple):
    """Search for the start of a range."""

    journal: Journal
    accepted_end: int
    not_found: str
    topic: str | None

    def find(self, point: StartPoint, inclusive: bool) -> ExtentSearch:
        """The extent from `point` on, or from right after it unless `inclusive`."""
        view = self.journal.view
        if isinstance(point, Epoch):
            return ReplayRange((yield from self._epoch()))
        if isinstance(point, FromNow):
            return ReplayRange(self.accepted_end)
        if isinstance(point, AtTime):
            start = yield from _time(view, point.micros, self.topic, inclusive=inclusive)
            return ReplayRange(start, not_before=point.micros if inclusive else point.micros + 1)
        assert isinstance(point, AtBookmarks)
        positions = yield from _positions(view, point.bookmarks, self.topic, earliest=True)
        if positions:
            return ReplayRange(min(positions) + (0 if inclusive else 1))
        if self.not_found == "fail":
            raise BookmarkUnknown(
                f"the log does not hold the bookmark: {_named(point)}; start from EPOCH or NOW, or let the "
                "option bookmark_not_found of the client decide"
            )
        return ReplayRange(
            self.accepted_end if self.not_found == "now" else (yield from self._epoch()), found=False
        )

    def _epoch(self) -> Generator[Asked, Buffer | ArchiveAnswer, int]:
        """Where everything begins."""
        older = yield from look(self.journal.view, self.topic)
        return oldest(self.journal.view, None if older is None else self.topic)


def _time(
    view: LogView, micros: int, topic: str | None, *, inclusive: bool
) -> Generator[Asked, Buffer | ArchiveAnswer, int]:
    """As `find_time`, in archive and log."""
    after = micros if inclusive else micros + 1
    if view.retired is not None and after <= view.retired.last_time:
        older = yield from look(view, topic)
        if older is not None and older.covered.begin is not None:
            place = yield TimeArchived(after, older.covered.begin, view.first_position)
            assert isinstance(place, ArchivedPlace)
            if place.position is not None:
                return place.position
    return (yield from find_time(view, micros, inclusive=inclusive))


def _named(point: AtBookmarks) -> str:
    """Return the bookmarks as text."""
    if not point.bookmarks:
        return "what was given is no publisher|sequence|, two numbers of 64 bits"
    return shown(",".join(map(str, point.bookmarks[:_BOOKMARKS_NAMED])))


def _positions(
    view: LogView, bookmarks: tuple[Bookmark, ...], topic: str | None, *, earliest: bool
) -> Generator[Asked, Buffer | ArchiveAnswer, list[int]]:
    """Where those are that archive and log have. With `earliest` (the first of them counts) none may have
    expired, else not all."""
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
    # Retention may have gone on since an earlier one was found.
    first = oldest(view, topic)
    lost += [bookmark for bookmark, position in found.items() if position < first]
    positions = [position for position in found.values() if position >= first]
    if lost and (earliest or not positions):
        raise expired_error(f"the bookmark {_named(AtBookmarks(tuple(lost)))}", view)
    return positions


def _in_archive(
    view: LogView, bookmark: Bookmark, topic: str | None
) -> Generator[Asked, Buffer | ArchiveAnswer, int | None]:
    """Position of a message that the log has no more; None: the archive has it neither."""
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
) -> ExtentSearch:
    """Say after which message the extent of `point` begins, too. What cannot be read is not said: the
    subscription may well begin all the same. Of what is accepted and not yet persisted nothing is named: it
    may be lost. Raises `BookmarkExpired` when retention removes the place meanwhile."""
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
            raise expired_error("the begin", view)
        extent = extent._replace(start=first)
        after = EPOCH
    return extent._replace(after=after)


def _last_before(
    view: LogView, position: int, topic: str | None
) -> Generator[Asked, Buffer | ArchiveAnswer, Bookmark | None]:
    """As `last_before`, in archive and log."""
    last: Bookmark | None = None
    if position > view.first_position:
        last = yield from last_before(view, position)
    if last is None and (older := (yield from look(view, topic))) is not None and older.known:
        answer = yield LastArchived(min(position, view.first_position))
        assert isinstance(answer, ArchivedLast)
        last = answer.bookmark
    return last


def close_range(journal: Journal, search: ExtentSearch, topic: str | None = None) -> ExtentSearch:
    """Turn a range into plain positions of what is persisted now: a start and a stop, nothing left to the
    clock."""
    end = journal.commits.persisted_end
    extent = yield from search
    stop = end if extent.stop is None else min(extent.stop, end)
    if extent.stop_time is not None:
        stop = min(stop, (yield from _time(journal.view, extent.stop_time, topic, inclusive=True)))
    return ReplayRange(min(extent.start, stop), stop=stop)
