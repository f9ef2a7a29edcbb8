"""Base of the message streams of both clients: all parts that do not wait."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, TypeVar

from tickertape.base.errors import TickertapeError, UsageError
from tickertape.client.api.auto_ack import AutoAckReader
from tickertape.client.common.request import SubscribeRequest, SubscriptionContext
from tickertape.client.subscriptions.message_buffer import MessageBuffer, Superseded
from tickertape.client.subscriptions.receiver import StreamReceiver

T = TypeVar("T")
NO_REQUEST: Final = SubscribeRequest(topic="", context=SubscriptionContext(sub_id=""))
"""Request of the empty stream of a command that is not a subscribe."""


class ResultCounts:
    """Numbers of records of the result of a query."""

    __slots__ = ()

    _buffer: MessageBuffer

    @property
    def matches(self) -> int | None:
        """Number of records that match the query, also beyond `top_n`. None before the end of the result."""
        return self._buffer.matches

    @property
    def topic_matches(self) -> int | None:
        """Number of all records of the queried topics. None before the end of the result."""
        return self._buffer.topic_matches

    @property
    def records_returned(self) -> int | None:
        """Number of records in the result. None before the end of the result."""
        return self._buffer.records


class StreamBase(ABC):
    """Base of the streams of both clients."""

    __slots__ = (
        "__weakref__",
        "_auto_ack",
        "_buffer",
        "_in_loop",
        "_owner",
        "_receiver",
        "_request",
        "sub_id",
        "timeout",
    )

    def __init__(self, receiver: StreamReceiver) -> None:
        self._receiver = receiver
        self._request = receiver.request
        self._buffer = receiver.buffer
        self._owner = receiver.owner
        self.sub_id = receiver.request.context.sub_id
        """Id of the subscription."""
        self.timeout: float | str | None = None
        """Default timeout of iteration, `get`, `batches` and `to_arrow` for the next message.

        Seconds or text (`"500ms"`). None (default): no timeout. After `TimedOut` the stream remains usable.
        """
        self._auto_ack = AutoAckReader()
        self._in_loop = False
        """Whether a loop is active: a new loop releases the message at which an earlier loop stopped."""

    def __repr__(self) -> str:
        state = "running" if self.end_reason is None else f"ended: {self.end_reason}"
        return f"<{type(self).__name__} {self.sub_id!r} on {self._request.topic!r}, {state}>"

    # -- the application --------------------------------------------------------------------------------

    @property
    def end_reason(self) -> str | None:
        """Reason of the end of the subscription, or None while it runs.

        `complete`, `unsubscribed`, `replaced`, `closed`, or the error code of `end_error`. If `end_error` is
        a `Disconnected` with an error of the server as its cause, the reason is the code of that error, such
        as `name_in_use`. Messages that arrived before the end can be read after it.

        Example:
            >>> stream = client.replay("orders")
            >>> len(list(stream)), stream.end_reason
            (0, 'complete')
        """
        return self._buffer.end_reason

    @property
    def end_error(self) -> TickertapeError | None:
        """The error that ended the subscription, or None."""
        return self._buffer.end_error

    @property
    def started_after(self) -> str | None:
        """Bookmark of the last message before the actual start of a bookmark subscription.

        EPOCH if the subscription started at the beginning of the log. After a reconnect, the property refers
        to the start on the new connection. None for a subscription without a start point, and if the
        server did not report the bookmark.
        """
        return self._buffer.started_after

    @property
    def bookmark_found(self) -> bool | None:
        """Whether the log contains the requested start bookmark. None for a plain subscription.

        If False, the subscription started at the place that its option `bookmark_not_found` names.
        """
        return self._buffer.bookmark_found

    @property
    def as_of(self) -> str | None:
        """Bookmark of the newest message, of any topic, that the query result reflects.

        The result has the records as they were right after this message. EPOCH if the log had no message,
        or if the query covers only queues. None for a stream without a query.
        """
        return self._buffer.as_of

    @property
    def as_of_position(self) -> int | None:
        """Position of the query result in the log of the server.

        The result reflects all messages, deletes and expiries below this position, and no others. For
        example, it reflects a delete on the same server if the `DeleteResult.position` of that delete is
        below this position. None for a stream without a query, and for a pattern that matches neither a SOW
        topic nor a queue.
        """
        return self._buffer.as_of_position

    @property
    def restarts(self) -> int:
        """Number of times that an HA client repeated the query. Each time, a complete new result follows."""
        return self._buffer.restarts

    @property
    def recovery_point(self) -> str | None:
        """Bookmark from which a new bookmark subscription continues without a gap, or None if unknown.

        It starts at `started_after`, and advances when the application has read all messages of a batch and
        requests more. It also advances about once a second while no message matches and the stream is
        empty. A new subscription from this bookmark receives the current batch again.
        """
        return self._buffer.recovery_point

    def conflate(self, by: str = "sow_key") -> None:
        """From now on, keep only the newest unread message of each key.

        Use it for a consumer that is slower than the stream and needs current values only. Superseded
        messages are dropped, and discarded in the bookmark store. The other messages keep their log order.
        Messages of the batch that is being read are not conflated.

        Args:
            by: The key. `"sow_key"` (default): topic and message key (`sow_key` of the publisher). Messages
                without a key are all kept. `"topic"`: the topic.

        Raises:
            UsageError: `by` has another value, or the messages go to a handler (`on_message`).
            Forked: The process is a forked child.

        Example:
            >>> for bid in (1, 2):
            ...     client.publish("prices", {"bid": bid}, sow_key="EURUSD")
            >>> client.publish_flush()
            >>> stream = client.bookmark_subscribe("prices", tt.EPOCH)
            >>> stream.conflate()
            >>> stream.wait_caught_up()
            >>> stream.get(timeout=5).json()
            {'bid': 2}
        """
        superseded = self._receiver.locked(self._begin_conflation, by)
        self._receiver.discard(superseded)
        self._pay(early=self._buffer.credit_early)

    # -- inside -----------------------------------------------------------------------------------------

    @abstractmethod
    def _drop_current(self) -> None:
        """Drop the rest of the current batch."""

    def _begin_loop(self) -> None:
        """Start a loop. Releases the message at which an earlier loop stopped."""
        if self._in_loop:
            self._auto_ack.failed()
        self._in_loop = True

    def _end_subscription(self) -> None:
        if self._receiver.forked:
            return
        running = self._receiver.locked(self._buffer.close)
        self._drop_current()
        if running:
            self._owner.leave(self._request)

    def _pay(self, *, early: int, due: int = 0) -> None:
        if early or due:
            self._owner.consumed(self._request, early + due)
            # After the report: an exception from it means that nothing was reported.
            self._buffer.paid(early=early, due=due)

    def _begin_conflation(self, by: str) -> Superseded | None:
        if self._request.handled:
            raise UsageError(
                f"Cannot conflate subscription {self.sub_id!r}: its messages go to on_message. "
                "Subscribe without on_message, or set the option 'conflation' in the call that subscribes."
            )
        self._buffer.conflate(by)
        return self._buffer.take_superseded()

    def _check_query(self) -> None:
        if self._request.query is None:
            raise UsageError(
                f"Cannot wait for records of stream {self.sub_id!r}: it has no query. Use wait_caught_up()."
            )

    def _refuse_in_child(self) -> None:
        """Refuse every call except `close`: this process is a forked child."""
        self._receiver.refuse()
        self._drop_current()

    def _goes_to_handler(self) -> UsageError:
        return UsageError(
            f"Cannot read subscription {self.sub_id!r}: its messages go to on_message. Subscribe without "
            "on_message to read them."
        )
