"""Transaction calls of both clients: `Client.transaction`, and a commit as steps with its retries.

Invariant: a commit is reported only when the server has confirmed it. When the connection was lost
meanwhile, all of it is sent again, which commits it once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
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
"""With what a server ends a connection on which it was sent something that no client may send."""
CommitStep: TypeAlias = tuple[Make, MessageBatch | None] | float
"""A command to send, answered by what is sent in, or seconds to wait."""
CommitSteps: TypeAlias = Generator[CommitStep, object, CommittedTransaction]
Made = TypeVar("Made", bound="TransactionBase")


class TransactionBase(TransactionBuffer):
    """A transaction of one client; its fronts perform the steps of a commit."""

    _lock_type: Callable[[], Any]

    def __init__(
        self, driver: ClientDriver, publisher: str, name: str | None, space: str, bytes_max: int | str | None
    ) -> None:
        super().__init__(publisher, name, space, bytes_max)
        self._driver = driver
        self._one_call = self._lock_type()
        """Held by whoever commits or aborts it."""
        self._pin = ConnectionPin()
        """Keeps one attempt on one connection."""

    def __repr__(self) -> str:
        state = "aborted" if self.aborted else "open" if self.result is None else "committed"
        return f"<{type(self).__name__} {self.key.name!r}, {state}>"

    def _commit_steps(self, seconds: float | None, deadline: float | None) -> CommitSteps:
        while True:
            self._pin = ConnectionPin()
            try:
                answer = yield from self.committing()
            except Disconnected as lost:
                if refused_for_good(lost) or not self._driver.reconnects(seconds):
                    raise
                # The loss itself may not be reported yet: asking at once would keep it from being reported.
                yield before_retry(deadline, seconds, lost)
            else:
                return self.committed(answer)


def refused_for_good(lost: Disconnected) -> bool:
    """Whether the server ended the connection because of what it was sent: it would end the next one too."""
    cause: BaseException | None = lost
    while cause is not None and not isinstance(cause, _WRONG):
        cause = cause.__cause__
    return cause is not None


def before_retry(deadline: float | None, seconds: float | None, lost: Disconnected) -> float:
    """How long to wait before a commit that met a lost connection is tried again. Raises `TimedOut` when its
    time is over."""
    rest = remaining(deadline)
    if rest is None:
        return commit_retry_seconds
    if not rest:
        raise no_answer("a transaction", seconds) from lost
    return min(rest, commit_retry_seconds)


class TransactionCalls(Generic[Made]):
    """The part of `Client` and of `AsyncClient` that begins transactions."""

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
        """Begin a transaction: what is published to it is in the log all at once, or never.

        `name`: text of at most 255 bytes; what is committed under a name that was committed before is not
        published again (the last 16,384 names of a publisher are known; None: a name of its own).
        `publisher`: the client name under whose derived publisher id the messages come, this client's by
        default; names are its own. `space`: with one, names are numbers that rise, such as the batches of a
        query, and a number at or below the highest one committed is known for good. `bytes_max`: what it
        gathers in memory, bytes or text, 64 MB by default. Raises `BadOption`, `BadName`."""
        publisher = self._driver.core.name if publisher is None else publisher
        return self._transaction_type(self._driver, publisher, name, space, bytes_max)
