"""Owns the calls of a client that read, and the general form of all calls: one face for both fronts.

Must never wait or send itself: the front does. What a call gives is the front's too: a stream, or something
to await that gives one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from tickertape.base.bookmarks import EPOCH
from tickertape.batch.message import Message
from tickertape.client.command import Command, check_command, one_sub_id, request_of
from tickertape.client.core import ClientCore
from tickertape.client.requests import StartPoint, make_request, refuse_not_built, start_text
from tickertape.client.subscriptions import Request
from tickertape.client.waiting import DEFAULT, Timeout

Handler = Callable[[Message], object]
Opened = TypeVar("Opened")
"""A stream, or what is awaited for one."""
Found = TypeVar("Found")
"""A journal and positions, or what is awaited for them."""
Done = TypeVar("Done")
"""None, or what is awaited until it is done."""


class SubscribingClient(ABC, Generic[Opened, Found, Done]):
    """The reading half of `Client` and of `AsyncClient`, whose calls are awaited."""

    _core: ClientCore
    _made_ids: Iterator[int]

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
    ) -> Opened:
        """Receive what is published to `topic` from now on; with `bookmark` it is a bookmark subscription.

        `topic`: a name. A pattern (with one of `* + ? [ ] ( ) { } ^ $ \\ |`) is not built yet: `BadTopic`.
        `sub_id`: its id on this connection; one is made up when it is None.
        `on_message`: called with each message, one after the other, on the receive thread (blocking client)
        or in a task of the event loop (asyncio client, where it may be a coroutine function); the stream
        returned then gives no messages.
        `timestamp`: messages show when the server accepted them. `bookmark_not_found`: what happens when
        the log does not hold the bookmark: `"fail"` (default), `"now"` or `"epoch"`.
        `options`: the option string of the reference, e.g. `"bookmark,timestamp"`.
        `depth`: credit, in bytes or text (`"2MB"`): how much may wait here for the application. `timeout`:
        for the server's answer, in seconds. `filter`, `conflation`, `conflation_key` and `select` are not
        built yet. Raises `BadTopic`, `BadOption`, `BadBookmark`, `BookmarkUnknown`, `BookmarkExpired`
        (retention has removed it, whatever `bookmark_not_found` says; its `available` is the first bookmark
        that is there), `TopicNotRecorded`, `SubscriptionExists`, `TimedOut`, `Disconnected`, `Closed`.
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
        return self._open(request, timeout, on_message)

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
    ) -> Opened:
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
            bookmark=start_text(bookmark),
            timestamp=timestamp,
            bookmark_not_found=bookmark_not_found,
            options=options,
            depth=depth,
        )
        return self._open(request, timeout, on_message)

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
    ) -> Opened:
        """Read the log of `topic` as it stands now, from `bookmark` on, and stop.

        It ends at the last message accepted when it was asked for, own publishes included; with a range at
        the range's stop when that comes first. Iteration raises what cut it short (`Disconnected`, ...): a
        quiet end means that all was read. Messages show bookmark and time. The rest is as in
        `bookmark_subscribe`.
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
            bookmark=start_text(bookmark),
            timestamp=timestamp,
            bookmark_not_found=bookmark_not_found,
            options=options,
            depth=depth,
            until_caught_up=True,
        )
        return self._open(request, timeout, None, limited=True)

    def read_positions(
        self,
        topic: str,
        start: int,
        end: int,
        journal: str,
        *,
        depth: int | str | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Opened:
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
        return self._open(request, timeout, None, limited=True)

    def resolve(self, topic: str, bookmark: StartPoint, *, timeout: Timeout = DEFAULT) -> Found:
        """The log's name and the positions, first and first not covered, that `bookmark` covers now in
        `topic`.

        Raises `BadBookmark`, `BookmarkUnknown`, `BookmarkExpired`, `TopicNotRecorded`, `TimedOut`,
        `Disconnected`, `Closed`.
        """
        return self._resolve(topic, start_text(bookmark), timeout)

    def unsubscribe(self, *sub_ids: str, timeout: Timeout = DEFAULT) -> Done:
        """End subscriptions, all in one command; their streams end. On the receive thread it does not wait.

        Raises `SubscriptionUnknown` (nothing was ended), `TimedOut`, `Disconnected`, `Closed`.
        """
        return self._end(sub_ids, timeout)

    def execute(self, command: Command, *, timeout: Timeout = DEFAULT) -> Opened:
        """Carry out a command in its general form; every other method is a short form of one.

        Returns the stream of a subscribe. The stream of a publish, a flush or an unsubscribe is over at
        once: its `end_reason` is `complete`. `timeout`: for the server's answer, in seconds or text. Raises
        `BadOption` for what does not exist, is not built yet or is not used by the command, and what the
        command's own method raises.
        """
        check_command(command)
        return self._execute(command, timeout, None)

    def execute_async(self, command: Command, handler: Handler, *, timeout: Timeout = DEFAULT) -> Opened:
        """As `execute`, but the messages go to `handler`, as they do to `on_message` of `subscribe`."""
        check_command(command)
        return self._execute(command, timeout, handler)

    # -- inside -----------------------------------------------------------------------------------------

    @abstractmethod
    def _open(
        self, request: Request, timeout: Timeout, on_message: Handler | None, *, limited: bool = False
    ) -> Opened:
        """Send a subscribe and wait until it stands."""

    @abstractmethod
    def _resolve(self, topic: str, bookmark: str, timeout: Timeout) -> Found:
        """Ask for the positions of a start point."""

    @abstractmethod
    def _end(self, sub_ids: tuple[str, ...], timeout: Timeout) -> Done:
        """Send an unsubscribe and wait until it is done."""

    @abstractmethod
    def _execute(self, command: Command, timeout: Timeout, handler: Handler | None) -> Opened:
        """Carry out a command that was checked."""

    def _asked_for(self, command: Command) -> tuple[Request, bool]:
        return request_of(command, self._sub_id(one_sub_id(command)))

    def _sub_id(self, sub_id: str | None) -> str:
        if sub_id is None:
            sub_id = f"{self._core.name}-{next(self._made_ids)}"
        return sub_id
