"""Calls of both clients that settle messages of queues.

A settlement is published, so no call waits for the server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Generic, TypeVar

from tickertape.base.errors import UsageError
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.batch.queue_lease import Lease
from tickertape.client.api.auto_ack import lease_in
from tickertape.client.api.driver import ClientDriver, Step
from tickertape.client.common.waiting import now
from tickertape.client.queues.settlements import Bookmarks, action_of, bookmarks_in, check_filter, check_queue

Done = TypeVar("Done")
"""None, or what is awaited until it is done."""


class QueueCalls(ABC, Generic[Done]):
    """The half of `Client` and of `AsyncClient` that settles messages of queues."""

    _driver: ClientDriver

    @property
    def ack_batch_size(self) -> int:
        """How many acknowledgements are gathered before they are sent together, 1 to 16,384.

        1 (default): each is sent at once. Never more are gathered than a subscription may hold unacknowledged
        messages (`max_backlog`), so that no consumer waits for its own acknowledgements. Above 1, more than
        that travel together where they wait for the answer to earlier ones anyway. What is gathered is
        also sent after `ack_timeout`, before anything else is said of messages of queues, and by
        `unsubscribe`, `publish_flush`, `close` and the end of a stream. Setting it raises `BadOption`.
        """
        return self._driver.acks.batch_size

    @ack_batch_size.setter
    def ack_batch_size(self, size: int) -> None:
        self._driver.configure_acks(partial(self._driver.acks.configure, batch_size=size))

    @property
    def ack_timeout(self) -> float:
        """How long acknowledgements are gathered at most, in seconds; default 1. It may be set in text too
        (`"500ms"`). It means something where `ack_batch_size` is above 1. Setting it raises `BadOption`."""
        return self._driver.acks.timeout

    @ack_timeout.setter
    def ack_timeout(self, timeout: float | str) -> None:
        self._driver.configure_acks(partial(self._driver.acks.configure, timeout=timeout))

    @property
    def auto_ack(self) -> bool:
        """Whether messages of queues are settled by themselves; default False. It holds for what is delivered
        after it was set.

        A handler that returns has its message acknowledged, one that raises has it cancelled. Of a stream,
        the message (or batch) given last is acknowledged when the next one is asked for. It is cancelled when
        the `with` block of the stream is left by an exception, and when another loop begins after one that
        was left in the middle; else it goes back to the queue with the end of the subscription. What the
        application itself said of a message first (`ack`, `cancel`, `expire`) counts, unless it said it by a
        filter. Setting it raises `UsageError` for what is not True or False.
        """
        return self._driver.acks.automatic

    @auto_ack.setter
    def auto_ack(self, automatic: bool) -> None:
        if not isinstance(automatic, bool):
            raise UsageError(f"auto_ack is True or False, not {type(automatic).__name__}")
        self._driver.acks.set_automatic(enabled=automatic)

    def ack(self, topic: str, bookmarks: Bookmarks, option: str | None = None) -> Done:
        """Say what became of messages of the queue `topic`, by their bookmarks.

        `bookmarks`: one, text with commas between several, a `Message`, a `MessageBatch`, or a list of any of
        these. `option`: None (they are processed), `"cancel"` (they go back to the queue), `"expire"` (they
        leave it unprocessed), or `"lease_extension=60s"` (their leases end so long from now). An unknown
        bookmark, one that was settled before, and one that another consumer holds has no effect. It does not
        wait for the server; what the server refuses goes where refused publishes go (`NotAQueue`, when
        `topic` is no queue). Raises `BadTopic`, `BadBookmark`, `BadOption`, `UsageError`, and as
        `Message.ack`.
        """
        return self._settle_call(self._acknowledging(topic, bookmarks, option))

    def sow_delete(
        self,
        topic: str,
        *,
        bookmark: Bookmarks | None = None,
        filter: str | None = None,
        options: str | None = None,
    ) -> Done:
        """As `ack`, the general form: messages of the queue `topic` by `bookmark`, or all that pass `filter`.

        By a filter it settles messages that others hold as well, unless the queue's leasing is strict: then
        only what this client holds. `filter="TRUE"`: all. Raises as `ack`, and `BadFilter`; `UsageError` for
        deletes from a SOW, which are not built yet.
        """
        if filter is None:
            if bookmark is None:
                raise UsageError(
                    "sow_delete needs the bookmark of messages of a queue, or a filter; other forms are not "
                    "built yet"
                )
            return self._settle_call(self._acknowledging(topic, bookmark, options))
        if bookmark is not None:
            raise UsageError("sow_delete takes a bookmark or a filter, not both")
        action, extend_ms = action_of(options)
        return self._settle_call(
            partial(self._driver.acks.settle_all, check_queue(topic), action, check_filter(filter), extend_ms)
        )

    # -- inside -----------------------------------------------------------------------------------------

    @abstractmethod
    def _settle_call(self, step: Step) -> Done:
        """Take a step of the acknowledgements, as a call of the application."""

    def _acknowledging(self, topic: str, bookmarks: Bookmarks, option: str | None) -> Step:
        queue, (action, extend_ms) = check_queue(topic), action_of(option)
        lease = _lease_on(bookmarks)
        marks = bookmarks_in(bookmarks)
        acks = self._driver.acks
        if action != "ack":
            return partial(acks.settle, queue, action, marks, extend_ms)
        gathering = None
        if isinstance(lease, Lease) and lease.queue == queue:  # a pickled message has none
            gathering = lease.gathering
        return partial(acks.acknowledge, queue, marks, now(), gathering)


def _lease_on(bookmarks: object) -> Lease | None:
    if isinstance(bookmarks, Message):
        return lease_in(bookmarks.batch)
    return lease_in(bookmarks) if isinstance(bookmarks, MessageBatch) else None
