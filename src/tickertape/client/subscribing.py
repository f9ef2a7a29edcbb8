"""Owns the calls of a blocking client that read: subscriptions, replays and positions.

Must never wait or send itself: the client (`blocking.py`) does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from tickertape.base.bookmarks import EPOCH
from tickertape.base.errors import Disconnected, SubscriptionUnknown, TimedOut
from tickertape.client.core import ClientCore
from tickertape.client.handlers import Handlers
from tickertape.client.requests import StartPoint, is_range, make_request, refuse_not_built, start_text
from tickertape.client.streams import HandledStream, Handler, MessageStream
from tickertape.client.subscriptions import Request
from tickertape.client.waiting import DEFAULT, Call, Timeout
from tickertape.wire.commands import Resolved


class SubscribingClient(ABC):
    """The reading half of `Client`."""

    _core: ClientCore
    _handlers: Handlers
    _last_sub_id: int

    def subscribe(
        self,
        topic: str,
        *,
        filter: str | None = None,
        sub_id: str | None = None,
        on_message: Handler | None = None,
        bookmark: StartPoint | None = None,
        timestamp: bool = False,
        bookmark_not_found: str = "fail",
        conflation: object = None,
        conflation_key: object = None,
        select: object = None,
        options: str | None = None,
        depth: int | str | None = None,
        timeout: Timeout = DEFAULT,
    ) -> MessageStream:
        """Receive what is published to `topic` from now on; with `bookmark` it is a bookmark subscription.

        `topic`: a name, or a pattern (a name with one of `* + ? [ ] ( ) { } ^ $ \\ |`).
        `sub_id`: its id on this connection; one is made up when it is None.
        `on_message`: called with each message on the receive thread; the stream returned then gives no
        messages.
        `timestamp`: messages show when the server accepted them. `bookmark_not_found`: what happens when
        the log does not hold the bookmark: `"fail"` (default), `"now"` or `"epoch"`.
        `options`: the option string of the reference, e.g. `"bookmark,timestamp"`.
        `depth`: credit, in bytes or text (`"2MB"`): how much may wait here for the application. `timeout`:
        for the server's answer, in seconds. `filter`, `conflation`, `conflation_key` and `select` are not
        built yet. Raises `BadTopic`, `BadOption`, `BadBookmark`, `BookmarkUnknown`, `TopicNotRecorded`,
        `SubscriptionExists`,
        `TimedOut`, `Disconnected`, `Closed`.
        """
        refuse_not_built(
            {"filter": filter, "conflation": conflation, "conflation_key": conflation_key, "select": select}
        )
        request = make_request(
            topic,
            self._sub_id(sub_id),
            bookmark=bookmark,
            timestamp=timestamp,
            bookmark_not_found=bookmark_not_found,
            options=options,
            depth=depth,
        )
        return self._subscribe(request, timeout, on_message)

    def bookmark_subscribe(
        self,
        topic: str,
        bookmark: StartPoint,
        *,
        filter: str | None = None,
        sub_id: str | None = None,
        on_message: Handler | None = None,
        rate: object = None,
        rate_max_gap: object = None,
        conflation: object = None,
        conflation_key: object = None,
        pause: bool = False,
        timestamp: bool = False,
        live: bool = False,
        fully_durable: bool = False,
        bookmark_not_found: str = "fail",
        select: object = None,
        options: str | None = None,
        depth: int | str | None = None,
        timeout: Timeout = DEFAULT,
    ) -> MessageStream:
        """Receive `topic` from the log, from `bookmark` on, then what is published.

        `bookmark`: `EPOCH`, `NOW`, `MOST_RECENT` (EPOCH while there is no bookmark store), a bookmark or a
        list of them, a timestamp (`YYYYmmddTHHMMSS[Z]` or `datetime`; starts strictly after it), or a range
        such as
        `[20261120T090000:20261120T100000)`, which ends the stream at its stop.
        The rest is as in `subscribe`; `rate`, `rate_max_gap`, `pause`, `live` and `fully_durable` are not
        built yet.
        """
        refuse_not_built(
            {
                "filter": filter,
                "rate": rate,
                "rate_max_gap": rate_max_gap,
                "conflation": conflation,
                "conflation_key": conflation_key,
                "pause": pause,
                "live": live,
                "fully_durable": fully_durable,
                "select": select,
            }
        )
        request = make_request(
            topic,
            self._sub_id(sub_id),
            bookmark=bookmark,
            timestamp=timestamp,
            bookmark_not_found=bookmark_not_found,
            options=options,
            depth=depth,
        )
        return self._subscribe(request, timeout, on_message)

    def replay(
        self,
        topic: str,
        bookmark: StartPoint = EPOCH,
        *,
        filter: str | None = None,
        sub_id: str | None = None,
        rate: object = None,
        rate_max_gap: object = None,
        conflation: object = None,
        conflation_key: object = None,
        timestamp: bool = True,
        bookmark_not_found: str = "fail",
        select: object = None,
        options: str | None = None,
        depth: int | str | None = None,
        timeout: Timeout = DEFAULT,
    ) -> MessageStream:
        """Read the log of `topic` as it stands now, from `bookmark` on, and stop.

        It ends at the last message accepted when it was asked for, own publishes included; with a range at
        the range's stop. Iteration raises what cut it short (`Disconnected`, ...): a quiet end means that
        all was read. Messages show bookmark and time. The rest is as in `bookmark_subscribe`.
        """
        refuse_not_built(
            {
                "filter": filter,
                "rate": rate,
                "rate_max_gap": rate_max_gap,
                "conflation": conflation,
                "conflation_key": conflation_key,
                "select": select,
            }
        )
        request = make_request(
            topic,
            self._sub_id(sub_id),
            bookmark=bookmark,
            timestamp=timestamp,
            bookmark_not_found=bookmark_not_found,
            options=options,
            depth=depth,
            until_caught_up=not is_range(start_text(bookmark)),
        )
        return self._subscribe(request, timeout, None, limited=True)

    def read_positions(
        self,
        topic: str,
        start: int,
        end: int,
        journal: str,
        *,
        depth: int | str | None = None,
        timeout: Timeout = DEFAULT,
    ) -> MessageStream:
        """Read the positions `start` (first) to `end` (first not read) of `topic` in the log `journal`, and
        stop.

        `resolve` gives them. Use `batches()` of the stream returned; it raises what cut it short. Raises
        `WrongJournal` when the server holds another log, and what `subscribe` raises.
        """
        request = make_request(
            topic,
            self._sub_id(None),
            timestamp=True,
            depth=depth,
            positions=(start, end),
            journal=journal,
        )
        return self._subscribe(request, timeout, None, limited=True)

    def resolve(
        self, topic: str, bookmark: StartPoint, *, timeout: Timeout = DEFAULT
    ) -> tuple[str, int, int]:
        """The log's name and the positions, first and first not covered, that `bookmark` covers now in
        `topic`.

        Raises `BadBookmark`, `BookmarkUnknown`, `TopicNotRecorded`, `TimedOut`, `Disconnected`, `Closed`.
        """
        text = start_text(bookmark)
        answer = self._call(lambda call: self._core.resolve(call, topic, text), timeout, "resolve")
        assert isinstance(answer, Resolved)
        return answer.journal, answer.start, answer.end

    def unsubscribe(self, *sub_ids: str, timeout: Timeout = DEFAULT) -> None:
        """End subscriptions, all in one command; their streams end. On the receive thread it does not wait.

        Raises `SubscriptionUnknown` (nothing was ended), `TimedOut`, `Disconnected`, `Closed`.
        """
        if self._on_receive_thread():
            self._post(lambda call: self._core.unsubscribe(call, sub_ids))
        else:
            self._call(lambda call: self._core.unsubscribe(call, sub_ids), timeout, "unsubscribe")

    # -- inside -----------------------------------------------------------------------------------------

    @abstractmethod
    def _call(self, begin: Callable[[Call], None], timeout: Timeout, what: str) -> object:
        """Send a command and wait for its outcome."""

    @abstractmethod
    def _post(self, begin: Callable[[Call], None]) -> None:
        """Send a command and do not wait."""

    @abstractmethod
    def _consumed(self, sub_id: str, cost: int) -> None:
        """The application took that much of a subscription."""

    @abstractmethod
    def _on_receive_thread(self) -> bool:
        """Whether the caller must not wait for an answer."""

    def _sub_id(self, sub_id: str | None) -> str:
        if sub_id is None:
            self._last_sub_id += 1
            sub_id = f"{self._core.name}-{self._last_sub_id}"
        return sub_id

    def _subscribe(
        self, request: Request, timeout: Timeout, on_message: Handler | None, *, limited: bool = False
    ) -> MessageStream:
        sub_id = request.context.sub_id
        common: dict[str, Any] = {"consumed": self._consumed, "unsubscribe": self._end_quietly}
        if on_message is None:
            stream = MessageStream(sub_id, limited=limited, **common)
        else:
            stream = HandledStream(sub_id, handler=on_message, handlers=self._handlers, **common)
        try:
            self._call(
                lambda call: self._core.subscribe(call, request, stream), timeout, f"subscribe {sub_id}"
            )
        except TimedOut:
            self._end_quietly(sub_id)  # nobody holds the stream: it must not fill up
            raise
        return stream

    def _end_quietly(self, sub_id: str) -> None:
        # It may have ended meanwhile, and a lost connection has ended it.
        try:
            self._post(lambda call: self._core.unsubscribe(call, (sub_id,)))
        except (SubscriptionUnknown, Disconnected):
            return
