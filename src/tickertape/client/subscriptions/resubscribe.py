"""Resubscription: start and options of a subscription after a lost connection.

A bookmark subscription resumes after its recovery point, a range keeps its end, and a paused subscription
stays paused. Filter, topic and other options do not change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from tickertape.base.bookmarks import (
    EPOCH,
    MOST_RECENT,
    AtBookmarks,
    Bookmark,
    Epoch,
    Range,
    StartPoint,
    is_place,
    parse_bookmark,
    place_at,
)
from tickertape.base.errors import BadBookmark, BadCommand, TickertapeError
from tickertape.base.options import format_options, parse_options
from tickertape.client.bookmark_store.protocol import BookmarkStore
from tickertape.client.common.effects import Waiter
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.limits import resubscription_retries_max, resubscriptions_under_way_max
from tickertape.client.subscriptions.bookmark_tracker import BookmarkTracker, tracker_of

if TYPE_CHECKING:
    from tickertape.wire.link_rows import OpenHoles

_OWN: Final = ("pause", "replace")
"""Options of the subscribe itself, not of the subscription."""


@dataclass(eq=False, repr=False, slots=True)
class ReplayState:
    """State of a bookmark subscription: its start and its progress."""

    bookmark: str | None
    """Start point from the application, or None for a read by positions."""
    options: InitVar[str]
    tracker: BookmarkTracker | None
    """Tracker of deliveries, or None."""
    until_caught_up: bool
    not_found: str | None = field(init=False)
    begun: bool = False
    """Whether the server reported the start and the tracker recorded it."""
    after: Bookmark | None = None
    """A passed bookmark that the log holds: the start, or the last recovery point from the server."""
    places: Sequence[Bookmark] = ()
    """Places at `after`, from a server that replicates. The first one belongs to its log."""
    next_place: float = 0.0
    """When to record the place in the log of the server (monotonic seconds)."""
    came: bool = False
    """Whether any message was delivered."""
    completed: bool = False
    _start: Bookmark | None = None
    """Bookmark after which the subscription started for the first time."""
    _known: Sequence[Bookmark] = ()
    """Recovery point at the first start."""

    def __post_init__(self, options: str) -> None:
        self.not_found = parse_options(options).get("bookmark_not_found")

    def began(self, place: Bookmark | None, places: Sequence[Bookmark] = ()) -> None:
        """Record the start reported by the server, and its places. None means the start of the log.

        Raises the errors of the tracker.
        """
        if self.tracker is None:
            return
        self.tracker.started([*([] if place is None else [place]), *places])
        if not self.begun:
            self._start, self._known = place, self.tracker.most_recent()
        self.begun, self.after, self.places = True, place, places

    def answered(self, places: Sequence[Bookmark]) -> None:
        """Record the places of a server that reported no start. Those of an earlier server end."""
        self.places = places

    def passed(self, bookmark: Bookmark, position: int) -> None:
        """Record that all messages before a position of the log of the server were delivered.

        `bookmark` is the last one. Raises the errors of the tracker."""
        if self.tracker is not None and self.places:
            self.tracker.noticed(bookmark, [place_at(self.places[0].publisher, position)])

    def noticed(self, bookmark: Bookmark, places: Sequence[Bookmark], holes: Sequence[OpenHoles]) -> None:
        """Record a notice of the server. Raises the errors of the tracker."""
        if self.tracker is None:
            return
        if places:
            self.tracker.noticed(bookmark, places, holes)
        else:
            self.tracker.noticed(bookmark)
        self.begun, self.after, self.places = True, bookmark, places

    def begun_by_query(self, place: Bookmark | None) -> None:
        """Record the position of the result of a query: only later messages follow.

        Earlier progress is forgotten, also of an earlier subscription with this id. The records may be older
        than its messages, and dropping these messages again would lose updates.

        Raises the errors of the tracker.
        """
        self.begun = self.came = self.completed = False
        self.not_found = "fail"
        if self.tracker is not None:
            self.tracker.restart()
            self.began(place)
        self.begun, self.after = True, place

    @property
    def ends(self) -> bool:
        """Whether the replay has an end."""
        return self.until_caught_up or self.bookmark is None or self.bookmark.lstrip()[:1] in ("[", "(")

    def first(self, *, conflated: bool) -> str | None:
        """Return the bookmark on the wire for the first subscribe, with MOST_RECENT resolved."""
        if self.bookmark != MOST_RECENT:
            return self.bookmark
        points = [] if self.tracker is None else self.tracker.most_recent()
        return _text(_latest(points) if conflated else points)

    def again(self, *, conflated: bool, live: bool) -> str | None:
        """Return the bookmark on the wire for a resubscribe."""
        asked = None if self.bookmark in (None, MOST_RECENT) else parse_bookmark(str(self.bookmark))
        if isinstance(asked, Range) and not self.begun and not self.came:
            return self.bookmark
        points = self._points(asked)
        if conflated:
            points = _latest(points)
        elif live and self.begun and self.after not in points:
            # Messages delivered before they were persisted may be lost. The server uses the oldest known
            # bookmark of a list. Without a bookmark that the log holds, use the start of the log.
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
        """Return the bookmarks to resume from.

        The recovery point of a former subscription with this id may be older than the requested start. It
        applies only after a delivery, and for a range only if it has moved since.
        """
        points = [] if self.tracker is None else self.tracker.most_recent()
        place = None
        if asked is not None and not self.came:
            place = self.after
        elif isinstance(asked, Range) and points == self._known:
            place = self._start
        return points if place is None else [place, *self.places]


def replay_of(
    request: SubscribeRequest, store: BookmarkStore | None, *, fresh: bool, keep: bool
) -> ReplayState | None:
    """Return the replay of a subscription, or None without one. May raise errors of the store.

    `fresh`: no subscription has its id. `keep`: those with a handler outlive their connection.
    """
    # The messages after the result of a query are a bookmark subscription from its position.
    follows = request.query is not None and request.query.follow and not request.query.renewed
    bookmark = MOST_RECENT if follows else request.bookmark
    if bookmark is None and request.positions is None:
        return None
    tracker = None
    if bookmark is not None:
        made_up, kept = not request.named and fresh, keep and request.handled
        tracker = tracker_of(store, request.context.sub_id, made_up=made_up, kept=kept)
    return ReplayState(bookmark, request.options, tracker, until_caught_up=request.until_caught_up)


def _latest(points: list[Bookmark]) -> list[Bookmark]:
    """Return the resume point of a conflated subscription: only the latest bookmark.

    After another start, grouping gives messages other bookmarks, possibly those of discarded messages. Only
    the latest bookmark is after all of them.
    """
    messages = [point for point in points if not is_place(point)]
    return [*messages[-1:], *filter(is_place, points)]


def _text(points: Sequence[Bookmark]) -> str:
    return ",".join(map(str, points)) or EPOCH


def place_after(text: str) -> Bookmark | None:
    """Return the bookmark in `Ack.after`, or None for the start of the log. Raises `BadCommand`."""
    try:
        point = parse_bookmark(text)
    except BadBookmark as error:
        raise BadCommand(f"Invalid start in the server's answer: {error} Update the server.") from error
    if isinstance(point, Epoch):
        return None
    if not isinstance(point, AtBookmarks) or len(point.bookmarks) != 1 or point.unknown:
        raise BadCommand(
            f"Invalid start in the server's answer: {text!r} is not one bookmark or 0. Update the server."
        )
    return point.bookmarks[0]


class ServerTerms:
    """Options of a subscription, and whether it is paused."""

    __slots__ = ("conflated", "live", "options", "paused")

    def __init__(self, options: str) -> None:
        asked = parse_options(options)
        self.paused = "pause" in asked
        self.live = "live" in asked
        self.conflated = asked.get("conflation", "none") != "none"
        self.options = {name: value for name, value in asked.items() if name not in _OWN}

    def pause(self, *, paused: bool) -> None:
        """Record that the subscription is paused or resumed."""
        self.paused = paused

    def again(self, replay: ReplayState | None) -> str:
        """Return the options for a resubscribe."""
        options = dict(self.options)
        if replay is not None:
            options["bookmark"] = None
            if replay.not_found is not None:
                options["bookmark_not_found"] = replay.not_found
            if self.paused:
                options["pause"] = None
        return format_options(options)


Refusal = tuple[str, TickertapeError]
"""Subscription id, and the error of its resubscription."""


class ResubscribeRound:
    """Resubscription of all subscriptions on one connection, in order, with a limit of pending ones."""

    def __init__(self, token: Waiter, sub_ids: Sequence[str]) -> None:
        self.token = token
        self.refused: list[Refusal] = []
        self._left = deque(sub_ids)
        self._under_way = 0
        self._postponed: list[str] = []
        self._retries = 0

    def next(self) -> str | None:
        """Return the next id to resubscribe, or None while others must be answered first."""
        if not self._left or self._under_way >= resubscriptions_under_way_max:
            return None
        self._under_way += 1
        return self._left.popleft()

    def answered(self, sub_id: str, error: TickertapeError | None) -> None:
        """Record the answer for a subscription."""
        self._under_way -= 1
        if error is not None:
            self.refused.append((sub_id, error))

    def again(self, sub_id: str) -> None:
        """Resubscribe a subscription next, because another command is needed for it."""
        self._under_way -= 1
        self._left.appendleft(sub_id)

    def postpone(self, sub_id: str) -> bool:
        """Postpone a temporarily refused subscription until `retry`. Return False after too many retries."""
        if self._retries >= resubscription_retries_max:
            return False
        self._under_way -= 1
        self._postponed.append(sub_id)
        return True

    def retry(self) -> None:
        """Resume the postponed subscriptions."""
        self._retries += 1
        self._left.extend(self._postponed)
        self._postponed.clear()

    @property
    def over(self) -> bool:
        """Whether all subscriptions are answered."""
        return not self._left and not self._under_way and not self._postponed
