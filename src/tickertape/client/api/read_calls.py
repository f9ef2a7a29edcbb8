"""Calls of both clients that read, and the general form of all calls.

The blocking client returns the result, the asyncio client a coroutine with the same result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tickertape.base.bookmarks import EPOCH
from tickertape.client.api.command import (
    Command,
    check_command,
    naming,
    one_sub_id,
    query_of,
    request_of,
    selection_of,
)
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
    start_text,
)
from tickertape.client.common.waiting import DEFAULT, Timeout

Opened = TypeVar("Opened")
"""A stream, or an awaitable of a stream."""
Done = TypeVar("Done")
"""None, or an awaitable of None."""


class ReadCalls(ABC, Generic[Opened, Done]):
    """The read calls of `Client` and `AsyncClient`. On `AsyncClient`, await each call."""

    _driver: ClientDriver
    publish: Callable[..., Any]
    delta_publish: Callable[..., Any]
    sow_delete: Callable[..., Any]
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
        """Subscribe to new messages of a topic or queue.

        With `bookmark` it is a bookmark subscription. Its arguments and errors: see `bookmark_subscribe`.

        Args:
            topic: Name of a topic or queue, or a pattern for all topics that match it: `"^orders/"`. A
                pattern is an unanchored RE2 expression with at least one of `* + ? [ ] ( ) { } ^ $ \\ |`.
            filter: Deliver only messages whose content matches this expression: `"/price > 10"`.
            sub_id: Id of the subscription on this connection. None (default): a generated id.
            on_message: Handler that the client calls for each message in turn. It runs on the receive thread
                (`Client`) or in a task (`AsyncClient`, where it may be a coroutine function). None
                (default): read the messages from the returned stream.
            bookmark: Start point of a bookmark subscription. None (default): new messages only.
            rate: Replay rate limit, as in `bookmark_subscribe`.
            rate_max_gap: Longest wait between two messages of a replay, as in `bookmark_subscribe`.
            conflation: Deliver at most the last message of each key per interval, in seconds or text.
            conflation_key: Fields of the conflation key: `["/symbol"]`. None (default): the key is the
                topic name.
            pause: Start a bookmark subscription paused (default False).
            timestamp: Deliver the time at which the server accepted each message (default False).
            live: After the replay of a bookmark subscription, deliver messages before they are synced to
                disk (default False).
            fully_durable: Deliver replicated messages only, as in `bookmark_subscribe` (default False).
            bookmark_not_found: Action for a bookmark that the log does not contain, as in
                `bookmark_subscribe`.
            select: Fields to send: `["-/", "+/symbol"]`. None (default): all.
            replace: Replace the running subscription `sub_id` without loss or duplicates (default False). The
                old stream keeps its messages and ends with the `end_reason` `replaced`. If the call fails,
                the old subscription continues.
            max_backlog: For a queue: number of messages that the subscription may hold unacknowledged
                (default 1). The server may grant fewer.
            browse: For a queue: deliver the available messages without consuming them, then end the stream
                (default False).
            options: Options as one string, such as `"rate=2x,timestamp"`. Do not pass an option that is
                also given as a keyword argument.
            depth: Flow-control credit, in bytes or text (`"2MB"`). Default 2 MB, at most 1 GB.
            timeout: Longest wait for the answer of the server, in seconds or text. None: as long as the
                connection lasts. Default: the timeout of the client.

        Returns:
            The stream of the messages. With `on_message` it delivers no messages. It shows the end of the
            subscription, and its `close` ends the subscription.

        Raises:
            BadTopic: The topic name or pattern is invalid.
            BadFilter: The filter is invalid.
            BadOption: An argument or option is invalid, conflicts with another, or is not supported.
            NotAQueue: `max_backlog` or `browse` was given, and `topic` is not a queue.
            SubscriptionExists: A subscription with this id runs, and `replace` is False. Or another call
                already replaces it.
            LimitReached: A limit of the server was reached.
            NotReady: The server is shutting down, or too many bookmark searches or replacements are in
                progress.
            TimedOut: No answer within `timeout`.
            Disconnected: The client is not connected, or the connection was lost.
            Closed: The client is closed.
            UsageError: A blocking client was called on its receive thread (in a handler).

        Example:
            >>> with client.subscribe("orders", filter="/id > 1") as stream:
            ...     client.publish_batch("orders", [{"id": 1}, {"id": 2}])
            ...     stream.get(timeout=5).json()
            {'id': 2}
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
        """Replay a topic from a start point, then continue with new messages.

        Args:
            topic: As in `subscribe`. A pattern skips topics that are not persistent.
            bookmark: The start point. `EPOCH`, `NOW`, or `MOST_RECENT` (the recovery point of `sub_id` in the
                bookmark store, or EPOCH if the store has none). Or a bookmark or a list of bookmarks. Or a
                UTC time (`YYYYmmddTHHMMSS[.ffffff][Z]` or `datetime`): the stream starts after this time. Or
                a range such as `"[20261120T090000:20261120T100000)"`: the stream ends at the end of the
                range.
            filter: Deliver only messages whose content matches this expression.
            sub_id: Id of the subscription, and its name in the bookmark store. None (default): a generated
                id.
            on_message: Handler for the messages, as in `subscribe`. None (default): read the stream.
            rate: Replay rate limit on matching messages: messages per second (a number), payload bytes per
                second (`"500KB"`), or a multiple of the recorded speed (`"2x"`). None (default): no limit.
            rate_max_gap: Longest wait between two messages, in seconds or text, for a `rate` such as `"2x"`.
                None (default): no limit.
            conflation: As in `subscribe`. During the replay, intervals refer to the recorded time.
            conflation_key: Fields of the conflation key. None (default): the key is the topic name.
            pause: Start paused: the server sends nothing before `resume` (default False).
            timestamp: Deliver the time at which the server accepted each message (default False).
            live: After the replay, deliver messages before they are synced to disk (default False).
            fully_durable: Deliver only messages that are on all synchronous replicas (default False).
                A server refuses it for topics with synchronous links, which is not supported yet.
            bookmark_not_found: Action for a bookmark that the log does not contain: `"fail"` (default) raises
                `BookmarkUnknown`, `"now"` starts at NOW, and `"epoch"` starts at EPOCH.
            select: Fields to send, as in `subscribe`.
            replace: Replace the running subscription `sub_id`, as in `subscribe` (default False).
            options: Options as one string, as in `subscribe`.
            depth: Flow-control credit, in bytes or text. Default 2 MB.
            timeout: Longest wait for the answer of the server, in seconds or text. None: as long as the
                connection lasts. Default: the timeout of the client.

        Returns:
            The stream of the messages.

        Raises:
            BadBookmark: The start point is invalid.
            BookmarkUnknown: The log does not contain the bookmark, and `bookmark_not_found` is `"fail"`. Or
                it does not contain the end of the range.
            BookmarkExpired: Retention has removed the start or the end from the log. `available` of the
                error is the first bookmark in the log.
            TopicNotRecorded: The topic is not persistent.
            ArchiveFailed: The server cannot read its archive.
            StoreError: The bookmark store failed or has no space (`BookmarkStoreFull`).

        All other errors: see `subscribe`.

        Example:
            >>> client.publish("orders", {"id": 1})
            >>> client.publish_flush()
            >>> with client.bookmark_subscribe("orders", tt.EPOCH) as stream:
            ...     client.publish("orders", {"id": 2})
            ...     [stream.get(timeout=5).json()["id"] for _ in range(2)]
            [1, 2]
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
        """Read the stored messages of a topic from a start point. Then the stream ends.

        The end is the last message that the server had accepted at the call, including earlier publishes of
        this client. With a range as `bookmark`, the stream may end earlier. If an error ends the replay
        early, iteration raises this error. If the stream ends without an error, everything was read.
        Messages have a bookmark.

        Args:
            topic: Name or pattern of the topics, as in `bookmark_subscribe`.
            bookmark: The start point, as in `bookmark_subscribe` (default `EPOCH`).
            filter: Deliver only messages whose content matches this expression.
            sub_id: Id of the subscription. None (default): a generated id.
            rate: Replay rate limit, as in `bookmark_subscribe`.
            rate_max_gap: Longest wait between two messages, in seconds or text, for a `rate` such as `"2x"`.
                None (default): no limit.
            conflation: Of all messages with one key and timestamps within one interval, deliver only the
                last.
            conflation_key: Fields of the conflation key. None (default): the key is the topic name.
            pause: Start paused (default False).
            timestamp: Deliver the time at which the server accepted each message (default True).
            live: Deliver the newest messages before they are synced (default False).
            fully_durable: As in `bookmark_subscribe` (default False).
            bookmark_not_found: As in `bookmark_subscribe` (default `"fail"`).
            select: Fields to send, as in `subscribe`.
            replace: Replace the running subscription `sub_id`, as in `subscribe` (default False).
            options: Options as one string, as in `subscribe`.
            depth: Flow-control credit, in bytes or text. Default 2 MB.
            timeout: Longest wait for the answer of the server, in seconds or text. None: as long as the
                connection lasts. Default: the timeout of the client.

        Returns:
            The stream of the messages.

        Raises:
            BookmarkUnknown: The log does not contain the bookmark, and `bookmark_not_found` is `"fail"`. Or
                it does not contain the end of the range.

        All other errors: see `bookmark_subscribe`.

        Example:
            >>> client.publish_batch("orders", [{"id": 1}, {"id": 2}])
            >>> client.publish_flush()
            >>> [message.json()["id"] for message in client.replay("orders")]
            [1, 2]
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

    def unsubscribe(self, *sub_ids: str, timeout: Timeout = DEFAULT) -> Done:
        """End subscriptions with one command. Their streams end.

        On the receive thread (in a handler of a blocking client) the call does not wait for the server.

        Args:
            sub_ids: Ids of the subscriptions.
            timeout: Longest wait in seconds or text. None: as long as the connection lasts. Default: the
                timeout of the client.

        Raises:
            SubscriptionUnknown: One of the subscriptions does not exist. The call ended none of them.
            BadOption: The timeout is invalid.
            UsageError: The call has no id, or an id is not text.
            TimedOut: No answer within `timeout`.
            Disconnected: The client is not connected, or the connection was lost.
            Closed: The client is closed.

        Example:
            >>> stream = client.subscribe("orders", sub_id="new-orders")
            >>> client.unsubscribe("new-orders")
            >>> list(stream), stream.end_reason
            ([], 'unsubscribed')
        """
        return self._name("unsubscribe", sub_ids, timeout)

    def pause(self, *sub_ids: str, timeout: Timeout = DEFAULT) -> Done:
        """Pause bookmark subscriptions with one command. They keep their positions.

        Messages that the server had already sent still arrive. New messages are not lost: the subscription
        reads them from the log after `resume`. On the receive thread (in a handler of a blocking client) the
        call does not wait for the server.

        Args:
            sub_ids: Ids of the subscriptions.
            timeout: Longest wait in seconds or text. None: as long as the connection lasts. Default: the
                timeout of the client.

        Raises:
            SubscriptionUnknown: One of the subscriptions does not exist. The call changed nothing.
            BadOption: One of them is not a bookmark subscription, and the call changed nothing. Or the
                timeout is invalid.
            UsageError: The call has no id, or an id is not text.
            TimedOut: No answer within `timeout`.
            Disconnected: The client is not connected, or the connection was lost.
            Closed: The client is closed.

        Example:
            >>> stream = client.bookmark_subscribe("orders", tt.EPOCH, sub_id="all-orders")
            >>> client.pause("all-orders")
            >>> client.resume("all-orders")
        """
        return self._name("pause", sub_ids, timeout)

    def resume(self, *sub_ids: str, timeout: Timeout = DEFAULT) -> Done:
        """Resume paused subscriptions with one command. Running subscriptions do not change.

        Up to 256 subscriptions at the same position and with the same rate are replayed together. Until they
        have caught up, their messages arrive in log order across these subscriptions. Handlers get them in
        this order too.

        Args:
            sub_ids: Ids of the subscriptions.
            timeout: Longest wait in seconds or text. None: as long as the connection lasts. Default: the
                timeout of the client.

        Raises:
            SubscriptionUnknown: One of the subscriptions does not exist. The call changed nothing.

        All other errors: see `pause`.

        Example:
            >>> stream = client.bookmark_subscribe("orders", tt.EPOCH, sub_id="all-orders", pause=True)
            >>> client.publish("orders", {"id": 1})
            >>> client.resume("all-orders")
            >>> stream.get(timeout=5).json()
            {'id': 1}
        """
        return self._name("resume", sub_ids, timeout)

    def execute(self, command: Command, *, timeout: Timeout = DEFAULT) -> Opened:
        """Execute a command that is given as a `Command`.

        Args:
            command: The command and its fields.
            timeout: Longest wait in seconds or text. None: as long as the connection lasts. Default: the
                timeout of the client.

        Returns:
            The stream of a subscribe or query. Any other command returns a stream that has ended, with the
            `end_reason` `complete`.

        Raises:
            BadOption: The command is unknown or unsupported, or has a field that it does not use.
            UsageError: `command` is not a `Command`, or a required field is missing.

        All other errors: see the method of the command.

        Example:
            >>> client.execute(tt.Command("publish", "orders", data={"id": 1})).end_reason
            'complete'
            >>> stream = client.execute(tt.Command("subscribe", "orders", bookmark=tt.EPOCH))
            >>> stream.get(timeout=5).json()
            {'id': 1}
        """
        check_command(command)
        return self._execute(command, timeout, None)

    def execute_async(self, command: Command, handler: Handler, *, timeout: Timeout = DEFAULT) -> Opened:
        """Execute a command and deliver its messages to a handler.

        Args:
            command: The command and its fields.
            handler: Handler for the messages, as `on_message` of `subscribe`.
            timeout: Longest wait in seconds or text. None: as long as the connection lasts. Default: the
                timeout of the client.

        Returns:
            The stream, as `execute` returns it, but without messages: the handler receives them.

        Raises:
            BadOption: The command is unknown or unsupported, or has a field that it does not use.
            UsageError: `command` is not a `Command`, or a required field is missing.

        All other errors: see the method of the command.

        Example:
            >>> import queue
            >>> messages = queue.SimpleQueue()
            >>> stream = client.execute_async(tt.Command("subscribe", "orders"), messages.put)
            >>> client.publish("orders", {"id": 1})
            >>> messages.get(timeout=5).json()
            {'id': 1}
        """
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
    def _over(self, done: Any) -> Opened:
        """Return an ended stream after the completion of `done`, a command without a stream."""

    def _execute(self, command: Command, timeout: Timeout, handler: Handler | None) -> Opened:
        named = naming(command, self._driver.subscriptions)
        if named is not None:
            return self._over(self._name(*named, timeout))
        if command.command == "subscribe":
            request = request_of(command, self._sub_id(one_sub_id(command)))
            return self._open(request, timeout, handler)
        if command.command in ("sow", "sow_and_subscribe"):
            request = query_of(command, self._sub_id(one_sub_id(command)))
            return self._open(request, timeout, handler)
        if command.command == "flush":
            return self._over(self.publish_flush(timeout, command.level or "persisted"))
        if command.command == "sow_delete":
            return self._over(self.sow_delete(command.topic, **selection_of(command), timeout=timeout))
        publish = self.delta_publish if command.command == "delta_publish" else self.publish
        published = publish(
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
