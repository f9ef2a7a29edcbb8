"""Resubscription: where and with which options a subscription is placed again after a loss.

A bookmark subscription resumes after what is known of it; a range keeps its end; what was paused is paused
again; filter, topic and other options do not change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import Final

import msgspec

from tickertape.base.bookmarks import (
    EPOCH,
    MOST_RECENT,
    AtBookmarks,
    Bookmark,
    Epoch,
    Range,
    StartPoint,
    parse_bookmark,
)
from tickertape.base.errors import BadBookmark, BadCommand, TickertapeError
from tickertape.base.options import format_options, parse_options
from tickertape.client.common.effects import Waiter
from tickertape.client.limits import resubscription_retries_max, resubscriptions_under_way_max
from tickertape.client.subscriptions.bookmark_tracker import BookmarkTracker

_OWN: Final = ("pause", "replace")
"""Options that say how a subscription is placed, not what it is."""


@dataclass(eq=False, repr=False, slots=True)
class ReplayState:
    """State of a bookmark subscription: its start, and how far it has come."""

    bookmark: str | None
    """Start point from the application; None for one that reads positions."""
    options: InitVar[str]
    tracker: BookmarkTracker | None
    """None where nobody keeps account of it."""
    until_caught_up: bool
    not_found: str | None = field(init=False)
    begun: bool = False
    """The server said where it begins, and the tracker knows."""
    after: Bookmark | None = None
    """Something that is surely in the log and that it has passed: its begin, or the last notice."""
    came: bool = False
    """Whether anything was delivered."""
    completed: bool = False
    _start: Bookmark | None = None
    """After which message it began the first time."""
    _known: Sequence[Bookmark] = ()
    """The bookmarks from which it would have resumed then."""

    def __post_init__(self, options: str) -> None:
        self.not_found = parse_options(options).get("bookmark_not_found")

    def began(self, place: Bookmark | None) -> None:
        """The server says after which message it begins; None: at the beginning of the log. Raises what the
        tracker raises."""
        if self.tracker is None:
            return
        self.tracker.started([] if place is None else [place])
        if not self.begun:
            self._start, self._known = place, self.tracker.most_recent()
        self.begun, self.after = True, place

    @property
    def ends(self) -> bool:
        """Whether it has a stop."""
        return self.until_caught_up or self.bookmark is None or self.bookmark.lstrip()[:1] in ("[", "(")

    def first(self, *, conflated: bool) -> str | None:
        """Its bookmark on the wire when it is placed for the first time: MOST_RECENT is looked up."""
        if self.bookmark != MOST_RECENT:
            return self.bookmark
        points = [] if self.tracker is None else self.tracker.most_recent()
        return _text(_latest(points) if conflated else points)

    def again(self, *, conflated: bool, live: bool) -> str | None:
        """Its bookmark on the wire when it is placed again."""
        asked = None if self.bookmark in (None, MOST_RECENT) else parse_bookmark(str(self.bookmark))
        if isinstance(asked, Range) and not self.begun and not self.came:
            return self.bookmark
        points = self._points(asked)
        if conflated:
            points = _latest(points)
        elif live and self.begun and self.after not in points:
            # What came before it was persisted may be lost; of a list the oldest that is known counts. Where
            # nothing is surely there, that is the beginning of the log.
            points = [] if self.after is None else [*points, self.after]
        if not points and not self.begun and self.bookmark != MOST_RECENT:
            return self.bookmark
        begin = _text(points)
        if not isinstance(asked, Range):
            return begin
        point = parse_bookmark(begin)
        assert isinstance(point, StartPoint)
        return str(msgspec.structs.replace(asked, begin=point, begin_inclusive=False))

    def _points(self, asked: StartPoint | Range | None) -> list[Bookmark]:
        """Where to go on. What is known of an id from before may be older than the begin that was asked for:
        it counts when something has come, and for a range when it has moved since."""
        points = [] if self.tracker is None else self.tracker.most_recent()
        place = None
        if asked is not None and not self.came:
            place = self.after
        elif isinstance(asked, Range) and points == self._known:
            place = self._start
        return points if place is None else [place]


def _latest(points: list[Bookmark]) -> list[Bookmark]:
    """Where a conflated subscription goes on. Grouped from another place, messages have other bookmarks,
    those of messages that were discarded among them: only the latest has all of these behind it."""
    return points[-1:]


def _text(points: Sequence[Bookmark]) -> str:
    return ",".join(map(str, points)) or EPOCH


def place_after(text: str) -> Bookmark | None:
    """The bookmark in `Ack.after`; None for the beginning of the log. Raises `BadCommand`."""
    try:
        point = parse_bookmark(text)
    except BadBookmark as error:
        raise BadCommand(f"the server named a place that is none: {error}") from error
    if isinstance(point, Epoch):
        return None
    if not isinstance(point, AtBookmarks) or len(point.bookmarks) != 1 or point.unknown:
        raise BadCommand("the server named a place that is no bookmark")
    return point.bookmarks[0]


class ServerTerms:
    """The options of a subscription, and whether it is paused."""

    __slots__ = ("conflated", "live", "options", "paused")

    def __init__(self, options: str) -> None:
        asked = parse_options(options)
        self.paused = "pause" in asked
        self.live = "live" in asked
        self.conflated = asked.get("conflation", "none") != "none"
        self.options = {name: value for name, value in asked.items() if name not in _OWN}

    def pause(self, *, paused: bool) -> None:
        """It is paused from now on, or goes on."""
        self.paused = paused

    def again(self, replay: ReplayState | None) -> str:
        """The options with which it is placed again."""
        options = dict(self.options)
        if replay is not None:
            options["bookmark"] = None
            if replay.not_found is not None:
                options["bookmark_not_found"] = replay.not_found
            if self.paused:
                options["pause"] = None
        return format_options(options)


Refusal = tuple[str, TickertapeError]
"""The id of a subscription, and why it could not be placed again."""


class ResubscribeRound:
    """All subscriptions that are placed again on one connection: in order, some at a time."""

    def __init__(self, token: Waiter, sub_ids: Sequence[str]) -> None:
        self.token = token
        self.refused: list[Refusal] = []
        self._left = deque(sub_ids)
        self._under_way = 0
        self._postponed: list[str] = []
        self._retries = 0

    def next(self) -> str | None:
        """The id of the next one to be placed; None when others have to be answered first."""
        if not self._left or self._under_way >= resubscriptions_under_way_max:
            return None
        self._under_way += 1
        return self._left.popleft()

    def answered(self, sub_id: str, error: TickertapeError | None) -> None:
        """One was answered."""
        self._under_way -= 1
        if error is not None:
            self.refused.append((sub_id, error))

    def postpone(self, sub_id: str) -> bool:
        """One was refused for now: it is tried again after `retry`. False when that was done too often."""
        if self._retries >= resubscription_retries_max:
            return False
        self._under_way -= 1
        self._postponed.append(sub_id)
        return True

    def retry(self) -> None:
        """A moment has passed."""
        self._retries += 1
        self._left.extend(self._postponed)
        self._postponed.clear()

    @property
    def over(self) -> bool:
        """Whether all were answered."""
        return not self._left and not self._under_way and not self._postponed
