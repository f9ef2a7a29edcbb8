"""Calls of both clients that settle messages of queues, or delete records.

Settlements and deletes are published like messages. Only a delete of records waits for the server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from tickertape.base.errors import UsageError
from tickertape.base.text_format import wrong_type
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.batch.queue_lease import Lease
from tickertape.client.api.auto_ack import lease_in
from tickertape.client.api.driver import ClientDriver, Step
from tickertape.client.common.waiting import DEFAULT, Timeout, now
from tickertape.client.queues.settlements import Bookmarks, action_of, bookmarks_in, check_queue
from tickertape.client.sow.delete_arguments import check_delete_filter, check_selection, delete_body

Done = TypeVar("Done")
"""None, or an awaitable of None."""
Deleting = TypeVar("Deleting")
"""The result of a delete of records or None, or an awaitable of these."""


class QueueCalls(ABC, Generic[Done, Deleting]):
    """The queue calls of `Client` and `AsyncClient`. On `AsyncClient`, await each method."""

    _driver: ClientDriver

    @property
    def ack_batch_size(self) -> int:
        """Number of acknowledgements that the client collects and sends together, 1 to 16,384. Default 1.

        A batch is also complete when it has `max_backlog` acknowledgements of one subscription. So a consumer
        with a full backlog does not wait for `ack_timeout`.

        While the server has not answered earlier frames, the client delays a complete batch by up to 20 ms.
        Acknowledgements made during this time go into the same frame, which may then have more than
        `ack_batch_size`.

        The client sends an incomplete batch after `ack_timeout`, before a `cancel`, `expire` or `extend`, at
        the end of a stream, and in `unsubscribe`, `publish_flush` and `close`.

        Raises:
            BadOption: On assignment: the value is not an integer in that range.

        Example:
            >>> client.ack_batch_size = 100
            >>> client.ack_batch_size
            100
        """
        return self._driver.acks.batch_size

    @ack_batch_size.setter
    def ack_batch_size(self, size: int) -> None:
        self._driver.configure_acks(partial(self._driver.acks.configure, batch_size=size))

    @property
    def ack_timeout(self) -> float:
        """Longest time for which the client collects acknowledgements, in seconds. Default 1.

        Assign seconds or text (`"500ms"`). The time has no effect with an `ack_batch_size` of 1.

        Raises:
            BadOption: On assignment: the value is invalid.

        Example:
            >>> client.ack_timeout = "500ms"
            >>> client.ack_timeout
            0.5
        """
        return self._driver.acks.timeout

    @ack_timeout.setter
    def ack_timeout(self, timeout: float | str) -> None:
        self._driver.configure_acks(partial(self._driver.acks.configure, timeout=timeout))

    @property
    def auto_ack(self) -> bool:
        """Whether the client acknowledges queue messages automatically (default False).

        A new value applies to messages delivered later.

        - Handler: if it returns, the message is acknowledged. If it raises, the message is released to the
          queue.
        - Stream: the request for the next message or batch, by iteration or `get`, acknowledges the previous
          one. A `break` makes no such request, so call `ack` before it. Without the `ack`, the last message
          returns to the queue when the subscription ends or another `for` loop starts.

        After an explicit `ack`, `cancel` or `expire` of a message, the client does not acknowledge it
        automatically. After a `sow_delete` of the message, the automatic acknowledgement has no effect.

        Raises:
            UsageError: On assignment: the value is not True or False.

        Example:
            >>> client.auto_ack = True
            >>> client.publish_batch("jobs", [{"id": 1}, {"id": 2}])
            >>> with client.subscribe("jobs") as stream:
            ...     [stream.get(timeout=5).json()["id"] for _ in range(2)]
            [1, 2]
        """
        return self._driver.acks.automatic

    @auto_ack.setter
    def auto_ack(self, automatic: bool) -> None:
        if not isinstance(automatic, bool):
            raise UsageError(wrong_type("auto_ack", automatic, "True or False"))
        self._driver.acks.set_automatic(enabled=automatic)

    def ack(self, topic: str, bookmarks: Bookmarks, option: str | None = None) -> Done:
        """Acknowledge, release or reject messages of a queue by their bookmarks.

        The call does not wait for the server. It has no effect on messages that the queue does not have, or
        that another consumer has leased. It can acknowledge and reject messages without a lease, except in
        queues with strict leasing. If the server rejects the call, for example with `NotAQueue`, the error is
        reported like a rejected publish: see `set_failed_write_handler`.

        Args:
            topic: Name of the queue.
            bookmarks: A bookmark, text with several bookmarks separated by commas, a `Message`, a
                `MessageBatch`, or a list of these.
            option: None (default): acknowledge. `"cancel"`: return the messages to the queue. `"expire"`:
                remove them unprocessed, to the dead-letter topic if the queue has one.
                `"lease_extension=60s"`: let the leases of the messages end 60 seconds from now.

        Raises:
            BadTopic: The name of the queue is invalid.
            BadBookmark: The text is not a list of bookmarks.
            BadOption: The option is invalid.
            UsageError: `bookmarks` is empty or has another type.
            Disconnected: The client is not connected and has no publish store.
            StoreError: The publish store failed.
            PublisherTakenOver: Another process has published under this client name.
            Closed: The client is closed.

        Example:
            >>> client.publish("jobs", {"id": 1})
            >>> with client.subscribe("jobs") as stream:
            ...     message = stream.get(timeout=5)
            ...     client.ack("jobs", message)
            >>> client.publish_flush()
        """
        return self._settle_call(self._acknowledging(topic, bookmarks, option))

    def sow_delete(
        self,
        topic: str,
        *,
        filter: str | None = None,
        keys: Sequence[str] | None = None,
        data: object = None,
        bookmark: Bookmarks | None = None,
        options: str | None = None,
        timeout: Timeout = DEFAULT,
        wait: bool = True,
    ) -> Deleting:
        """Delete records if `topic` is a SOW topic, or settle messages if it is a queue.

        Pass exactly one of `filter`, `keys`, `data` and `bookmark`.

        Records: the server processes the publishes and deletes of a client in the order of the calls. So the
        call also deletes matching records that this client published before the call. It does not affect
        messages that the server accepts after the delete. With a publish store, the client stores and resends
        the delete like a message, and the delete takes effect once. Without a publish store, repeat the call
        after an error. The client repeats a delete of more than 250,000 records until all of them are
        deleted.

        Queues: `bookmark` and `filter` settle messages: acknowledge, release or reject them, as `options`
        requests. A filter also settles messages that other consumers have leased. In a queue with strict
        leasing, it settles only messages that this client has leased. The call does not wait for the server.
        If the server rejects the call, the error is reported like a rejected publish: see
        `set_failed_write_handler`. Before its first logon, a client does not know which topics are queues,
        and treats every call with `filter` as a call for a queue.

        Args:
            topic: Name of the SOW topic, or of the queue.
            filter: All records or messages that match this expression. `"TRUE"`: all.
            keys: The records with these keys (`Message.sow_key`): at most 100,000 keys, with 1 MiB in total.
            data: Body as in `publish`. It selects the record that a publish of this body would replace.
            bookmark: Queues: bookmarks of the messages, as in `ack`.
            options: Queues: as `option` of `ack`.
            timeout: Records: longest wait for the answer, in seconds or text. With a publish store, the
                delete may happen after the timeout. Default: the timeout of the client.
            wait: Records: wait for the answer (default True). False: return at once, without a result, as
                `publish` does. The server then deletes at most 250,000 records, and a rejected delete is
                reported like a rejected publish.

        Returns:
            A `DeleteResult`, for example with the number of deleted records (`records`). None for a queue,
            and without `wait`.

        Raises:
            UsageError: Not exactly one of `filter`, `keys`, `data` and `bookmark` is given. Or `options` is
                given for records. Or a blocking client would wait on its receive thread (in a handler): pass
                `wait=False` there.
            BadTopic: The topic is neither a SOW topic nor a queue.
            BadFilter: The filter is invalid.
            BadSowKey: A key or `data` is not valid for the topic.
            BadCommand: `keys` exceeds its limits.
            BadOption: `options` or `timeout` is invalid.
            TimedOut: No answer within `timeout`.
            Disconnected: The connection was lost before the answer. An HA client with a publish store waits
                for the answer on its next connection instead.

        All other errors: see `publish` and `ack`.

        Example:
            >>> client.publish_batch("positions", [{"id": 1, "qty": 5}, {"id": 2, "qty": 7}])
            >>> client.sow_delete("positions", filter="/qty > 6").records
            1
            >>> client.sow_delete("positions", data={"id": 1}).records
            1
        """
        check_selection(filter=filter, keys=keys, data=data, bookmark=bookmark)
        if bookmark is not None:
            return self._settled(self._acknowledging(topic, bookmark, options))
        if filter is not None and (options is not None or self._driver.names_queue(topic)):
            (action, extend_ms), condition = action_of(options), check_delete_filter(filter)
            acks, queue = self._driver.acks, check_queue(topic)
            return self._settled(partial(acks.settle_all, queue, action, condition, extend_ms))
        body = delete_body(topic, filter, keys, data, options)
        deleted: Deleting = self._driver.delete(body, timeout, wait=wait)
        return deleted

    # -- inside -----------------------------------------------------------------------------------------

    @abstractmethod
    def _settle_call(self, step: Step) -> Done:
        """Run a step of the acknowledgements as a call of the application."""

    def _settled(self, step: Step) -> Deleting:
        nothing: Any = self._settle_call(step)
        settled: Deleting = nothing
        return settled

    def _acknowledging(self, topic: str, bookmarks: Bookmarks, option: str | None) -> Step:
        queue, (action, extend_ms) = check_queue(topic), action_of(option)
        lease = _lease_on(bookmarks)
        marks = bookmarks_in(bookmarks)
        acks = self._driver.acks
        if action != "ack":
            return partial(acks.settle, queue, action, marks, extend_ms)
        gathering = None
        if isinstance(lease, Lease) and lease.queue == queue:  # A pickled message has no lease.
            gathering = lease.gathering
        return partial(acks.acknowledge, queue, marks, now(), gathering)


def _lease_on(bookmarks: object) -> Lease | None:
    if isinstance(bookmarks, Message):
        return lease_in(bookmarks.batch)
    return lease_in(bookmarks) if isinstance(bookmarks, MessageBatch) else None
