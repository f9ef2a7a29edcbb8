"""Calls of both clients that read, and the general form of all calls.

What a call returns depends on the front: a stream, or a coroutine that returns one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tickertape.base.bookmarks import EPOCH
from tickertape.client.api.command import Command, check_command, naming, one_sub_id, request_of
from tickertape.client.api.driver import ClientDriver
from tickertape.client.common.handlers import Handler
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.subscribe_arguments import (
    Fields,
    Interval,
    Rate,
    StartPoint,
    make_request,
    manner_given,
    not_found_given,
    pace_given,
    resolve_command,
    start_text,
    wire_text,
)
from tickertape.client.common.waiting import DEFAULT, Timeout
from tickertape.wire.commands import Resolve

Opened = TypeVar("Opened")
"""A stream, or what is awaited for one."""
Found = TypeVar("Found")
"""A journal and positions, or what is awaited for them."""
Located = TypeVar("Located")
"""A `Resolved`, or what is awaited for it."""
Done = TypeVar("Done")
"""None, or what is awaited until it is done."""


class ReadCalls(ABC, Generic[Opened, Found, Located, Done]):
    """The reading half of `Client` and of `AsyncClient`, whose calls are awaited."""

    _driver: ClientDriver
    publish: Callable[..., Any]
    publish_flush: Callable[..., Any]

    def subscribe(
        self,
        topic: str,
        *,
        filter: str | None = None,
        sub_id: str | None = None,
        on_message: Handler | None = None,
        bookmark: StartPoint | None = None,
        rate: Rate | None = None,
        rate_max_gap: Interval | None = None,
        conflation: Interval | None = None,
        conflation_key: Fields | None = None,
        pause: bool = False,
        timestamp: bool = False,
        live: bool = False,
        fully_durable: bool = False,
        bookmark_not_found: str = "fail",
        select: Fields | None = None,
        replace: bool = False,
        max_backlog: int | None = None,
        browse: bool = False,
        options: str | None = None,
        depth: int | str | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Opened:
        """Receive what is published to `topic` from now on, or as `bookmark_subscribe`, which tells about
        `bookmark`, `rate`, `rate_max_gap`, `pause`, `live`, `fully_durable`, `bookmark_not_found`.

        `topic`: a name, or a pattern (RE2, with one of `* + ? [ ] ( ) { } ^ $ \\ |` in it) for all topics
        that it is found in: `"^orders/"`. `filter`: only messages whose content passes it. `sub_id`: its id
        on this connection; one is made up when it is None. `timestamp`: messages show when they were
        accepted. `on_message`: called with each message, one after the other, on the receive thread (blocking
        client) or in a task of the event loop (asyncio client, where it may be a coroutine function).
        `conflation`: at most one message of a key in an interval (seconds or text), the last one; the key is
        the topic, or the fields of `conflation_key`. `select`: which fields are sent: `["-/", "+/symbol"]`.
        `replace`: take the place of `sub_id`: nothing is lost or comes twice. The old stream keeps what it
        has and ends as `replaced`; when this is refused it goes on. `max_backlog`, where `topic` is a queue:
        how many messages it may hold unsettled (`Message.ack`; default 1). `browse`: look at what it has, and
        end. `options`: the option string of the reference, no keyword twice. `depth`: credit (`"2MB"`).
        Raises `BadTopic`, `BadFilter`, `BadOption`, `SubscriptionExists`, `TimedOut`, `Disconnected`, ...
        """
        request = make_request(
            topic,
            self._sub_id(sub_id),
            bookmark=bookmark,
            filter=filter,
            options=options,
            depth=depth,
            given={
                "timestamp": timestamp,
                "bookmark_not_found": not_found_given(bookmark_not_found),
                **pace_given(rate, rate_max_gap, conflation, conflation_key),
                **manner_given(pause=pause, live=live, fully_durable=fully_durable),
                "select": select,
                "replace": replace,
                "max_backlog": max_backlog,
                "browse": browse,
            },
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
        rate: Rate | None = None,
        rate_max_gap: Interval | None = None,
        conflation: Interval | None = None,
        conflation_key: Fields | None = None,
        pause: bool = False,
        timestamp: bool = False,
        live: bool = False,
        fully_durable: bool = False,
        bookmark_not_found: str = "fail",
        select: Fields | None = None,
        replace: bool = False,
        options: str | None = None,
        depth: int | str | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Opened:
        """Receive `topic` from the log, from `bookmark` on, then what is published.

        `bookmark`: `EPOCH`, `NOW`, `MOST_RECENT` (where `sub_id` left off, as the bookmark store says; else
        EPOCH), a bookmark or a list of them, a timestamp (`YYYYmmddTHHMMSS[Z]` or `datetime`; starts strictly
        after it), or a range such as `[20261120T090000:20261120T100000)`, which ends the stream at its stop.
        `rate`: how fast at most, as long as it lasts: messages a second (a number), payload bytes a second
        (`"500KB"`) or a multiple of the original pace (`"2x"`); of what passes the filter. `rate_max_gap`:
        the longest wait of a multiple between two messages, in seconds or text. `pause`: begin, but send
        nothing before `resume`. `live`: once it has caught up, deliver before messages are on disk.
        `fully_durable`: deliver only what all synchronous destinations have; without one it changes nothing.
        `bookmark_not_found`: where to begin when the log does not hold the bookmark: `"fail"` (default),
        `"now"` or `"epoch"`. Intervals of `conflation` are of the recorded time while it replays. The rest is
        as in `subscribe`; raises `BadBookmark`, `BookmarkUnknown`, `BookmarkExpired` (retention has removed
        it; its `available` is the first bookmark that is there) and `TopicNotRecorded` too.
        """
        request = make_request(
            topic,
            self._sub_id(sub_id),
            bookmark=start_text(bookmark),
            filter=filter,
            options=options,
            depth=depth,
            given={
                "timestamp": timestamp,
                "bookmark_not_found": not_found_given(bookmark_not_found),
                **pace_given(rate, rate_max_gap, conflation, conflation_key),
                **manner_given(pause=pause, live=live, fully_durable=fully_durable),
                "select": select,
                "replace": replace,
            },
        )
        return self._open(request, timeout, on_message)

    def replay(
        self,
        topic: str,
        bookmark: StartPoint = EPOCH,
        *,
        filter: str | None = None,
        sub_id: str | None = None,
        rate: Rate | None = None,
        rate_max_gap: Interval | None = None,
        conflation: Interval | None = None,
        conflation_key: Fields | None = None,
        pause: bool = False,
        timestamp: bool = True,
        live: bool = False,
        fully_durable: bool = False,
        bookmark_not_found: str = "fail",
        select: Fields | None = None,
        replace: bool = False,
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
        request = make_request(
            topic,
            self._sub_id(sub_id),
            bookmark=start_text(bookmark),
            filter=filter,
            timestamp=timestamp,
            options=options,
            depth=depth,
            given={
                "bookmark_not_found": not_found_given(bookmark_not_found),
                **pace_given(rate, rate_max_gap, conflation, conflation_key),
                **manner_given(pause=pause, live=live, fully_durable=fully_durable),
                "select": select,
                "replace": replace,
            },
            until_caught_up=True,
        )
        return self._open(request, timeout)

    def read_positions(
        self,
        topic: str,
        start: int,
        end: int,
        journal: str,
        *,
        filter: str | None = None,
        numbered: bool = False,
        depth: int | str | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Opened:
        """Read the positions `start` (first) to `end` (first not read) of `topic` in the log `journal`, and
        stop.

        `resolve` gives them. `topic` may be a pattern. With `numbered` the batches have `positions`. Use
        `batches()` of the stream returned; it raises what cut it short. Raises `WrongJournal` when the server
        holds another log, `BookmarkExpired` for what retention has removed, and what `subscribe` raises.
        """
        request = make_request(
            topic,
            self._sub_id(None),
            timestamp=True,
            filter=filter,
            depth=depth,
            positions=(start, end),
            journal=journal,
            numbered=numbered,
        )
        return self._open(request, timeout)

    def resolve(self, topic: str, bookmark: StartPoint, *, timeout: Timeout = DEFAULT) -> Found:
        """The log's name and the positions, first and first not covered, that `bookmark` covers now in
        `topic`.

        Raises `BadBookmark`, `BookmarkUnknown`, `BookmarkExpired`, `TopicNotRecorded`, `TimedOut`,
        `Disconnected`, `Closed`.
        """
        return self._resolve(resolve_command(topic, bookmark=wire_text(bookmark)), timeout)

    def locate(
        self,
        topic: str,
        bookmark: StartPoint | None = None,
        *,
        filter: str | None = None,
        positions: tuple[int, int] | None = None,
        journal: str | None = None,
        messages_max: int = 0,
        bytes_max: int = 0,
        timeout: Timeout = DEFAULT,
    ) -> Located:
        """As `resolve`, with all that the server says: fields `journal`, `start`, `end`, `topic`, `types`.

        Instead of a `bookmark`, `positions` (start, end) of the log `journal`: the answer's `end` is then how
        far a reading of them gets that takes at most `messages_max` messages of `topic`, and bodies of
        `bytes_max` together; 0 is any number, one message is always taken. `filter` is only checked. Raises
        as `resolve`, and `BadFilter`, `WrongJournal`, `BadOption`.
        """
        command = resolve_command(
            topic,
            bookmark="" if bookmark is None else wire_text(bookmark),
            filter=filter,
            positions=positions,
            journal=journal,
            messages_max=messages_max,
            bytes_max=bytes_max,
        )
        return self._locate(command, timeout)

    def unsubscribe(self, *sub_ids: str, timeout: Timeout = DEFAULT) -> Done:
        """End subscriptions, all in one command; their streams end. On the receive thread it does not wait.

        Raises `SubscriptionUnknown` (nothing was ended), `TimedOut`, `Disconnected`, `Closed`.
        """
        return self._name("unsubscribe", sub_ids, timeout)

    def pause(self, *sub_ids: str, timeout: Timeout = DEFAULT) -> Done:
        """Let the server send nothing more to bookmark subscriptions, and keep their places: one command.

        What was sent before still arrives; live messages are not lost, they come from the log later. On the
        receive thread it does not wait. Raises `SubscriptionUnknown` and `BadOption` (not a bookmark
        subscription; in both cases none was touched), `TimedOut`, `Disconnected`, `Closed`.
        """
        return self._name("pause", sub_ids, timeout)

    def resume(self, *sub_ids: str, timeout: Timeout = DEFAULT) -> Done:
        """Go on with subscriptions that were paused, all in one command; others go on as they do.

        Those of them that stand at the same place and have the same rate are replayed together: until they
        have caught up, messages come in the order of the log across them, to handlers too. Raises as `pause`.
        """
        return self._name("resume", sub_ids, timeout)

    def execute(self, command: Command, *, timeout: Timeout = DEFAULT) -> Opened:
        """Carry out a command in its general form; every other method is a short form of one.

        Returns the stream of a subscribe. That of any other command, also of a subscribe that pauses or
        resumes others, is over at once: its `end_reason` is `complete`. `timeout`: for the server's answer,
        in seconds or text. Raises `BadOption` for what does not exist, is not built yet or is not used by the
        command, and what the command's own method raises.
        """
        check_command(command)
        return self._execute(command, timeout, None)

    def execute_async(self, command: Command, handler: Handler, *, timeout: Timeout = DEFAULT) -> Opened:
        """As `execute`, but the messages go to `handler`, as they do to `on_message` of `subscribe`."""
        check_command(command)
        return self._execute(command, timeout, handler)

    # -- inside -----------------------------------------------------------------------------------------

    def _open(self, request: SubscribeRequest, timeout: Timeout, on_message: Handler | None = None) -> Opened:
        opened: Opened = self._driver.open_stream(request, timeout, on_message)
        return opened

    def _name(self, command: str, sub_ids: tuple[str, ...], timeout: Timeout) -> Done:
        done: Done = self._driver.name_subscriptions(command, sub_ids, timeout)
        return done

    @abstractmethod
    def _resolve(self, asked: Resolve, timeout: Timeout) -> Found:
        """Ask for the positions of a start point."""

    @abstractmethod
    def _locate(self, asked: Resolve, timeout: Timeout) -> Located:
        """As `_resolve`, for all of the answer."""

    @abstractmethod
    def _over(self, done: Any) -> Opened:
        """Return a stream that is over, as soon as a command is `done` that has none."""

    def _execute(self, command: Command, timeout: Timeout, handler: Handler | None) -> Opened:
        named = naming(command, self._driver.subscriptions)
        if named is not None:
            return self._over(self._name(*named, timeout))
        if command.command == "subscribe":
            request = request_of(command, self._sub_id(one_sub_id(command)))
            return self._open(request, timeout, handler)
        if command.command == "flush":
            return self._over(self.publish_flush(timeout, command.level or "persisted"))
        published = self.publish(
            command.topic,
            command.data,
            expiration=command.expiration,
            correlation_id=command.correlation_id,
            sow_key=command.sow_key,
            timeout=timeout,
        )
        return self._over(published)

    def _sub_id(self, sub_id: str | None) -> str:
        return self._driver.new_sub_id() if sub_id is None else sub_id
