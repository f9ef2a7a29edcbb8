"""Owns where a bookmark subscription begins and ends: from the value a client sent to positions and log
times.

Must never start silently elsewhere than asked: the answer says whether the bookmark was found. What retention
removes during a search counts as removed before it. What each value means stands in
docs/reference/behaviours.md, 1 to 6.
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
from tickertape.base.ports import Buffer
from tickertape.base.texts import shown
from tickertape.journal.journal import Journal
from tickertape.journal.lookup import find_bookmark, find_time, last_before
from tickertape.journal.reading import ReadRequest
from tickertape.journal.retired import expired, is_expired

NOT_FOUND_POLICIES = ("now", "epoch", "fail")


class Extent(NamedTuple):
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


ExtentSearch = Generator[ReadRequest | None, Buffer, Extent]
"""Asks for reads; None lets others go first, and is answered with nothing (`b""`)."""

_BOOKMARKS_AT_A_TIME: Final = 16
"""A list is looked up in steps of this many: the whole of it may take longer than others can wait."""


_BOOKMARKS_NAMED: Final = 20
"""Of those that are not in the log, more than a text has room for."""


def resolve(
    journal: Journal, point: StartPoint | Range, accepted_end: int, not_found: str, log_time: int
) -> ExtentSearch:
    """Find the extent of `point` for a command that arrived when the log ended at `accepted_end`.

    `not_found` is now, epoch or fail. Raises `BookmarkUnknown`, and whatever it is `BookmarkExpired`: who
    names a message that retention has removed is given no other place."""
    if not_found not in NOT_FOUND_POLICIES:
        raise BadOption(f"bookmark_not_found={not_found}: use now, epoch or fail")
    if not isinstance(point, Range):
        extent = yield from _begin(journal, point, False, accepted_end, not_found)
        if isinstance(point, AtTime) and point.micros >= log_time:
            # A plain timestamp past the end of the log acts as NOW; only a range holds delivery back.
            extent = Extent(accepted_end)
        return extent
    extent = yield from _begin(journal, point.begin, point.begin_inclusive, accepted_end, not_found)
    if isinstance(point.end, AtTime):
        stop_time = point.end.micros + (1 if point.end_inclusive else 0)
        if extent.not_before is not None and stop_time <= extent.not_before:
            # Nothing can lie between, though both may be yet to come: it is over at once.
            return Extent(extent.start, found=extent.found, stop=extent.start)
        return extent._replace(stop_time=stop_time)
    positions = yield from _positions(journal, point.end.bookmarks, earliest=False)
    if not positions:
        raise BookmarkUnknown(
            f"the bookmark at the end of the range is not in the log: {_named(point.end)}; "
            "where to stop is unknown"
        )
    view = journal.view
    if extent.start < view.first_position:  # retention went on while the end was looked up
        of_epoch = not_found == "epoch" and not extent.found
        if not (of_epoch or isinstance(point.begin, Epoch | AtTime)):
            raise expired("the begin of the range", view.retired, view.first)
        extent = extent._replace(start=view.first_position)
    return extent._replace(stop=max(positions) + (1 if point.end_inclusive else 0))


def _begin(
    journal: Journal, point: StartPoint, inclusive: bool, accepted_end: int, not_found: str
) -> ExtentSearch:
    if isinstance(point, Epoch):
        return Extent(journal.view.first_position)
    if isinstance(point, FromNow):
        return Extent(accepted_end)
    if isinstance(point, AtTime):
        start = yield from find_time(journal.view, point.micros, inclusive=inclusive)
        return Extent(start, not_before=point.micros if inclusive else point.micros + 1)
    assert isinstance(point, AtBookmarks)
    positions = yield from _positions(journal, point.bookmarks, earliest=True)
    if positions:
        return Extent(min(positions) + (0 if inclusive else 1))
    if not_found == "fail":
        raise BookmarkUnknown(
            f"the log does not hold the bookmark: {_named(point)}; start from EPOCH or NOW, or let the "
            "option bookmark_not_found of the client decide"
        )
    return Extent(accepted_end if not_found == "now" else journal.view.first_position, found=False)


def _named(point: AtBookmarks) -> str:
    """What was looked for."""
    if not point.bookmarks:
        return "what was given is no publisher|sequence|, two numbers of 64 bits"
    return shown(",".join(map(str, point.bookmarks[:_BOOKMARKS_NAMED])))


def _positions(
    journal: Journal, bookmarks: tuple[Bookmark, ...], *, earliest: bool
) -> Generator[ReadRequest | None, Buffer, list[int]]:
    """Where those are that the log has. With `earliest` (the first of them counts) none may have expired,
    else not all."""
    found: dict[Bookmark, int] = {}
    gone: list[Bookmark] = []
    for number, bookmark in enumerate(bookmarks, 1):
        if number % _BOOKMARKS_AT_A_TIME == 0:
            yield None
        if is_expired(journal.view.retired, bookmark):
            gone.append(bookmark)
            continue
        position = yield from find_bookmark(journal.view, bookmark.publisher, bookmark.sequence)
        if position is not None:
            found[bookmark] = position
        elif is_expired(journal.view.retired, bookmark):
            gone.append(bookmark)
    # Retention may have gone on since an earlier one was found.
    gone += [bookmark for bookmark, position in found.items() if position < journal.view.first_position]
    positions = [position for position in found.values() if position >= journal.view.first_position]
    if gone and (earliest or not positions):
        what = f"the bookmark {_named(AtBookmarks(tuple(gone)))}"
        raise expired(what, journal.view.retired, journal.view.first)
    return positions


def with_place(
    journal: Journal, point: StartPoint | Range, search: ExtentSearch, log_time: int
) -> ExtentSearch:
    """Say after which message the extent of `point` begins, too. What cannot be read is not said: the
    subscription may well begin all the same. Of what is accepted and not yet persisted nothing is named: it
    may be lost. Raises `BookmarkExpired` when retention removes the place meanwhile."""
    extent = yield from search
    if extent.not_before is not None and extent.not_before > log_time:
        return extent
    view = journal.view
    try:
        last = yield from last_before(view, extent.start)
    except TickertapeError:
        after = ""
    else:
        after = EPOCH if last is None else str(last)
    if extent.start < view.first_position:
        begin = point.begin if isinstance(point, Range) else point
        if extent.found and isinstance(begin, AtBookmarks):
            raise expired("the begin", view.retired, view.first)
        extent = extent._replace(start=view.first_position)
        after = EPOCH
    return extent._replace(after=after)


def close_extent(journal: Journal, search: ExtentSearch) -> ExtentSearch:
    """Turn an extent into plain positions of what is persisted now: a start and a stop, nothing left to the
    clock.
    """
    end = journal.persisted_end
    extent = yield from search
    stop = end if extent.stop is None else min(extent.stop, end)
    if extent.stop_time is not None:
        stop = min(stop, (yield from find_time(journal.view, extent.stop_time, inclusive=True)))
    return Extent(min(extent.start, stop), stop=stop)
