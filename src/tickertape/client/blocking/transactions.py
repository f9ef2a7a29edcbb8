"""Transaction of the blocking client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from types import TracebackType
from typing import Self

from tickertape.base.errors import TickertapeError
from tickertape.client.api.transactions import CommitStep, TransactionBase
from tickertape.client.blocking.driver import ThreadDriver
from tickertape.client.blocking.waiting import perform
from tickertape.client.common.waiting import DEFAULT, Timeout, no_answer, remaining
from tickertape.client.limits import block_abort_seconds_max
from tickertape.client.protocol.transactions import CommittedTransaction


class ClientTransaction(TransactionBase):
    """Messages that become visible atomically. `Client.transaction` creates it.

    The end of its `with` block commits it. An exception in the block aborts it, unless the outcome of an
    earlier commit is unknown (`uncertain`). In that case you can call `commit` again. `result` is the result
    of the commit, or None before it.

    Example:
        >>> with client.transaction() as transaction:
        ...     transaction.publish("orders", {"id": 1})
        ...     transaction.publish("payments", {"order": 1})
        >>> transaction.result.repeated
        False
    """

    _driver: ThreadDriver
    _lock_type = Lock

    def commit(self, *, timeout: Timeout = DEFAULT) -> CommittedTransaction:
        """Publish the messages atomically and wait until they are persisted.

        Several threads may call it: one commits, and the others wait for its result. For a committed
        transaction the call returns `result` again. An `HAClient` retries after a lost connection.

        After `TimedOut`, `Disconnected`, `Closed`, `TransactionBusy` and `LimitReached` the outcome may be
        unknown (`uncertain`). Call `commit` again, or commit another transaction with the same name and
        messages: the messages are published exactly once. After all other errors nothing is published, and
        you can call `commit` again, except after an abort.

        Args:
            timeout: Longest wait in seconds or text (`"30s"`). None: as long as the connection lasts.
                Default: the timeout of the client.

        Returns:
            The result, with `name`, `message_count`, `bookmark` (of the last message), and `repeated`: True
            if an earlier commit had this name, so that this commit published nothing.

        Raises:
            TimedOut: No answer within `timeout`. The outcome may be unknown.
            Disconnected: The connection was lost. The outcome may be unknown.
            TransactionUnknown: The server dropped messages of the transaction before the commit.
            TransactionBusy: Another commit of this name is in progress. Retry later.
            LimitReached: A limit of the server was reached. Retry later.
            TransactionTooLarge: The transaction is larger than the limit of the server.
            StagingFull: The server has no space for staged messages.
            StagingFailed: The server could not write or read staged messages.
            JournalFull: The disk of the server is full.
            NotReady: The server is shutting down.
            BadTopic: The server refused a topic.
            BadBody: A body does not have the format of its topic.
            MessageTooLarge: A body is larger than the limit of the server.
            AuthenticationFailed: The token is not valid for the `publisher` of the transaction.
            PublisherCollision: Another client name has the publisher id of the transaction.
            UsageError: The transaction was aborted. Or the call is on the receive thread (in a handler).
            BadOption: The timeout is invalid.
            Closed: The client is closed. The outcome may be unknown if it was closed during the call.

        Example:
            >>> transaction = client.transaction("transfer-17")
            >>> transaction.publish("orders", {"id": 1})
            >>> transaction.commit(timeout="30s").repeated
            False
        """
        seconds = self._driver.seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._alone(seconds):
            return self.result or self._commit_alone(seconds, deadline)

    def abort(self, *, timeout: Timeout = DEFAULT) -> None:
        """Drop the messages of the transaction.

        The server drops staged messages: those that an earlier `commit` sent, but did not publish. If the
        server does not answer, it may keep these messages after the end of the connection, for `expire_after`
        of its configuration (default 1 hour). They are never published.

        Args:
            timeout: Longest wait in seconds or text. None: as long as the connection lasts. Default: the
                timeout of the client.

        Raises:
            UsageError: The transaction was committed, or the outcome of its commit is unknown.
            TimedOut: Another thread is committing this transaction, and the commit did not end within
                `timeout`.
            BadOption: The timeout is invalid.

        Example:
            >>> transaction = client.transaction()
            >>> transaction.publish("orders", {"id": 1})
            >>> transaction.abort()
            >>> list(client.replay("orders"))
            []
        """
        seconds = self._driver.seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._alone(seconds):
            make = self._buffer.aborting()
            if make is not None:
                with suppress(TickertapeError):  # The transaction has ended in any case.
                    self._driver.ask(make, None, remaining(deadline))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.result is not None or self.aborted:
            return
        if kind is None:
            self.commit()
        elif not self.uncertain:
            self.abort(timeout=block_abort_seconds_max)

    @contextmanager
    def _alone(self, seconds: float | None) -> Iterator[None]:
        """Hold the lock. Raises `TimedOut` if another thread holds it for longer."""
        lock = self._one_call
        if not lock.acquire(blocking=False):
            self._driver.check_may_wait("a transaction")  # The other thread may wait for this one.
            if not lock.acquire(timeout=-1 if seconds is None else seconds):
                raise no_answer("a transaction", seconds)
        try:
            yield
        finally:
            lock.release()

    def _commit_alone(self, seconds: float | None, deadline: float | None) -> CommittedTransaction:
        def take(step: CommitStep) -> object:
            if isinstance(step, float):
                time.sleep(step)
                return None
            return self._driver.ask(*step, remaining(deadline), self._pin)

        return perform(self._commit_steps(seconds, deadline), take)
