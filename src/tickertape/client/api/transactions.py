"""Transaction calls of both clients: `Client.transaction`, and the steps of a commit with its retries.

Invariant: a commit is reported only after the server has confirmed it. After a lost connection everything is
sent again, which commits the transaction exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, Generic, TypeAlias, TypeVar

from tickertape.base.errors import BadBatch, BadCommand, Disconnected, FrameTooLarge
from tickertape.batch import MessageBatch
from tickertape.client.api.driver import ClientDriver
from tickertape.client.common.waiting import no_answer, remaining
from tickertape.client.limits import commit_retry_seconds
from tickertape.client.protocol.transactions import (
    CommittedTransaction,
    ConnectionPin,
    Make,
    TransactionBuffer,
)

_WRONG: Final = (BadBatch, BadCommand, FrameTooLarge)
"""Errors with which a server closes a connection after an invalid frame."""
CommitStep: TypeAlias = tuple[Make, MessageBatch | None] | float
"""A command to send, with its batch, or a number of seconds to wait."""
CommitSteps: TypeAlias = Generator[CommitStep, object, CommittedTransaction]
Made = TypeVar("Made", bound="TransactionBase")


class TransactionBase:
    """Base of the transactions of both clients, which perform the steps of a commit."""

    _lock_type: Callable[[], Any]

    def __init__(
        self, driver: ClientDriver, publisher: str, name: str | None, space: str, bytes_max: int | str | None
    ) -> None:
        self._buffer = TransactionBuffer(publisher, name, space, bytes_max)
        self._driver = driver
        self._one_call = self._lock_type()
        """Held during a commit or abort."""
        self._pin = ConnectionPin()
        """Binds one attempt to one connection."""

    def __repr__(self) -> str:
        state = "aborted" if self.aborted else "open" if self.result is None else "committed"
        return f"<{type(self).__name__} {self._buffer.key.name!r}, {state}>"

    @property
    def result(self) -> CommittedTransaction | None:
        """The result of the commit, or None before the commit."""
        return self._buffer.result

    @property
    def aborted(self) -> bool:
        """Whether the transaction was aborted."""
        return self._buffer.aborted

    @property
    def uncertain(self) -> bool:
        """Whether the outcome of a commit is unknown. If so, call `commit` again."""
        return self._buffer.uncertain

    def publish(
        self,
        topic: str,
        data: object,
        *,
        expiration: float | str | None = None,
        correlation_id: str | None = None,
        sow_key: str | None = None,
    ) -> None:
        """Add one message, without waiting. Call it without `await`, also on an `AsyncClientTransaction`.

        Args:
            topic: Name of the topic.
            data: The body, as in `Client.publish`.
            expiration: Lifetime in a queue, as in `Client.publish`.
            correlation_id: Text that subscribers receive with the message, as in `Client.publish`.
            sow_key: Message key, as in `Client.publish`.

        Raises:
            TransactionTooLarge: The transaction would exceed `bytes_max`. The message is not added.
            BadTopic: The topic name is invalid.
            BadMessage: The body, `correlation_id` or `sow_key` cannot be encoded.
            MessageTooLarge: The body is too large.
            BadOption: `expiration` is invalid.
            UsageError: The transaction is finished or `uncertain`. Or `correlation_id` or `sow_key` is not
                text.

        Example:
            >>> with client.transaction() as transaction:
            ...     transaction.publish("orders", {"id": 1}, sow_key="1")
        """
        self._buffer.publish(
            topic, data, expiration=expiration, correlation_id=correlation_id, sow_key=sow_key
        )

    def publish_batch(self, topic: str, messages: Iterable[object]) -> None:
        """Add many messages. If the call raises, the transaction may have some of the messages.

        Args:
            topic: Name of the topic.
            messages: The bodies, as in `Client.publish_batch`.

        Raises:
            UsageError: `messages` is not iterable.

        All other errors: see `publish`.

        Example:
            >>> with client.transaction() as transaction:
            ...     transaction.publish_batch("orders", [{"id": 1}, {"id": 2}])
        """
        self._buffer.publish_batch(topic, messages)

    def publish_arrow(self, topic: str, table: object, *, column: str | None = None) -> None:
        """Add each value of an Arrow column, as `Client.publish_arrow` does.

        If the call raises, the transaction may have some of the values.

        Args:
            topic: Name of the topic.
            table: The table, as in `Client.publish_arrow`.
            column: Name of the column, as in `Client.publish_arrow`.

        Raises:
            UsageError: The column does not exist, or `table` has no Arrow data.
            BadMessage: The column has an unsupported type, nulls or invalid offsets.

        All other errors: see `publish`.

        Example:
            >>> import pyarrow as pa
            >>> with client.transaction() as transaction:
            ...     transaction.publish_arrow("orders", pa.table({"data": ['{"id": 1}']}))
        """
        self._buffer.publish_arrow(topic, table, column=column)

    def __len__(self) -> int:
        """Return the number of added messages."""
        return len(self._buffer)

    def _commit_steps(self, seconds: float | None, deadline: float | None) -> CommitSteps:
        while True:
            self._pin = ConnectionPin()
            try:
                answer = yield from self._buffer.committing()
            except Disconnected as lost:
                if refused_for_good(lost) or not self._driver.reconnects(seconds):
                    raise
                # The loss may not be processed yet. An immediate retry would delay its processing.
                yield before_retry(deadline, seconds, lost)
            else:
                return self._buffer.committed(answer)


def refused_for_good(lost: Disconnected) -> bool:
    """Return whether an invalid frame caused the loss. A retry would end the next connection too."""
    cause: BaseException | None = lost
    while cause is not None and not isinstance(cause, _WRONG):
        cause = cause.__cause__
    return cause is not None


def before_retry(deadline: float | None, seconds: float | None, lost: Disconnected) -> float:
    """Return the seconds before the retry of a commit after a lost connection.

    Raises `TimedOut` at the end of the timeout.
    """
    rest = remaining(deadline)
    if rest is None:
        return commit_retry_seconds
    if not rest:
        raise no_answer("a transaction", seconds) from lost
    return min(rest, commit_retry_seconds)


class TransactionCalls(Generic[Made]):
    """The transaction call of `Client` and `AsyncClient`."""

    _driver: ClientDriver
    _transaction_type: Callable[..., Made]

    def transaction(
        self,
        name: str | None = None,
        *,
        publisher: str | None = None,
        space: str = "",
        bytes_max: int | str | None = None,
    ) -> Made:
        """Create a transaction: its messages become visible atomically with its commit.

        The call does not wait. Do not await it on `AsyncClient`. Use the result in a `with` block
        (`async with` on `AsyncClient`), or call its `commit`.

        Args:
            name: Idempotency key of at most 255 bytes. A second commit under a committed name publishes
                nothing. The server remembers up to 16,384 names per publisher, and 131,072 in total. None
                (default): a unique name.
            publisher: Client name under which the messages are published. It determines their publisher id.
                Each publisher has its own transaction names. Default: the name of this client.
            space: Name of a series of numbered transactions, such as the batches of one Spark query. `name`
                must then be a decimal number, which increases (`"1"`, `"2"`). The server remembers only the
                highest committed number of each space, and all lower numbers count as committed. Default
                `""`: no series.
            bytes_max: Memory limit for the messages of the transaction, in bytes or text. Above the limit
                `publish` raises `TransactionTooLarge`. Default 64 MB.

        Returns:
            The transaction, for `publish`, `publish_batch` and `publish_arrow`.

        Raises:
            BadOption: `name`, `space` or `bytes_max` is invalid.
            BadName: `publisher` is not a valid client name.

        Example:
            >>> with client.transaction("transfer-17") as transaction:
            ...     transaction.publish("orders", {"id": 1})
            ...     transaction.publish("orders", {"id": 2})
            >>> transaction.result.repeated
            False
        """
        publisher = self._driver.core.name if publisher is None else publisher
        return self._transaction_type(self._driver, publisher, name, space, bytes_max)
