"""Owns transactions as an application uses them, on the blocking client.

Must never tell of a commit before the server did; when a connection is lost meanwhile and comes back, the
whole is asked again, which commits it once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from types import TracebackType
from typing import Self

from tickertape.base.errors import Disconnected, TickertapeError
from tickertape.batch import MessageBatch
from tickertape.client.blocking.driver import ThreadDriver
from tickertape.client.common.waiting import DEFAULT, Timeout, no_answer, remaining
from tickertape.client.limits import block_abort_seconds_max
from tickertape.client.protocol.transactions import (
    CommittedTransaction,
    ConnectionPin,
    Make,
    TransactionBuffer,
    asking,
    before_retry,
    onward,
    refused_for_good,
)
from tickertape.wire.commands import Committed


class ClientTransaction(TransactionBuffer):
    """Messages that are published all at once or not at all; `Client.transaction` makes it.

    At the end of its `with` block it is committed, or aborted when that raises; when a commit in the block
    did not come to know what came of it (`uncertain`), it can be committed again."""

    _front: TransactionCalls
    _one_call: Lock
    """Held by the thread that commits or aborts it."""

    def commit(self, *, timeout: Timeout = DEFAULT) -> CommittedTransaction:
        """Publish it and wait until it is persisted. `timeout`: seconds or text.

        An `HAClient` asks again when its connection was lost. Raises `TimedOut` and `Disconnected` (whether
        it was committed is not known: call this again, or commit another one with the same name and the same
        messages, and it is in the log once), `TransactionUnknown` (what was staged was dropped meanwhile, and
        nothing is published: call this again), `JournalFull`, `StagingFull`, `BadTopic`, `BadBody`,
        `TransactionTooLarge`, `UsageError` when it was aborted. Several threads may call this: one commits,
        the others wait for it. A transaction that was committed returns its `result` again."""
        return self._front._commit_gathered(self, timeout)

    def abort(self, *, timeout: Timeout = DEFAULT) -> None:
        """Publish nothing of it. `timeout`: seconds or text.

        When an earlier `commit` staged something, the server is asked to drop it. Where the server does not
        answer, staged parts stay until their connection ends or until `expire_after`, and are never
        published. Raises `UsageError` once it was committed, or may have been, and `TimedOut` while another
        thread commits it."""
        self._front._abort_gathered(self, timeout)

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


class TransactionCalls(ThreadDriver):
    """The part of `Client` that commits transactions."""

    def transaction(
        self,
        name: str | None = None,
        *,
        publisher: str | None = None,
        space: str = "",
        bytes_max: int | str | None = None,
    ) -> ClientTransaction:
        """Begin a transaction: what is published to it is in the log all at once, or never.

        `name`: text of at most 255 bytes; what is committed under a name that was committed before is not
        published again (the last 16,384 names of a publisher are known; None: a name of its own).
        `publisher`: the client name under whose derived publisher id the messages come, this client's by
        default; names are its own. `space`: with one, names are numbers that rise, such as the batches of a
        query, and a number at or below the highest one committed is known for good. `bytes_max`: what it
        gathers in memory, bytes or text, 64 MB by default. Raises `BadOption`, `BadName`."""
        made = ClientTransaction(self.name if publisher is None else publisher, name, space, bytes_max)
        made._front, made._one_call = self, Lock()
        return made

    def _commit_gathered(self, gathered: ClientTransaction, timeout: Timeout) -> CommittedTransaction:
        seconds = self._seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._alone(gathered._one_call, seconds):
            return gathered.result or self._commit_alone(gathered, seconds, deadline)

    def _abort_gathered(self, gathered: ClientTransaction, timeout: Timeout) -> None:
        seconds = self._seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._alone(gathered._one_call, seconds):
            make = gathered.aborting()
            if make is not None:
                with suppress(TickertapeError):  # it is over in any case
                    self._ask(make, None, remaining(deadline))

    @contextmanager
    def _alone(self, lock: Lock, seconds: float | None) -> Iterator[None]:
        """Hold the lock; raises `TimedOut` when another thread holds it for longer."""
        if not lock.acquire(blocking=False):
            self._not_on_receive_thread("a transaction")  # which the other thread needs for its answer
            if not lock.acquire(timeout=-1 if seconds is None else seconds):
                raise no_answer("a transaction", seconds)
        try:
            yield
        finally:
            lock.release()

    def _commit_alone(
        self, gathered: TransactionBuffer, seconds: float | None, deadline: float | None
    ) -> CommittedTransaction:
        while True:
            steps, same = gathered.committing(), ConnectionPin()
            answer: object = None
            try:
                while True:
                    make, batch = onward(steps, answer)
                    try:
                        answer = self._ask(make, batch, remaining(deadline), same)
                    except TickertapeError as error:
                        answer = error
            except StopIteration as done:
                committed: Committed = done.value
                return gathered.committed(committed)
            except Disconnected as lost:
                if refused_for_good(lost) or not self._reconnects(seconds):
                    raise
                time.sleep(before_retry(deadline, seconds, lost))

    def _ask(
        self, make: Make, batch: MessageBatch | None, timeout: Timeout, same: ConnectionPin | None = None
    ) -> object:
        """Ask the server something, and wait for its answer; over the `same` connection as before."""
        return self._call(asking(self._core, make, batch, same), timeout, "a transaction")


def call_transaction(
    calls: TransactionCalls,
    make: Make,
    batch: MessageBatch | None,
    timeout: Timeout,
    same: ConnectionPin | None = None,
) -> object:
    """Send one command of a transaction and return its answer, for callers that take the steps themselves."""
    return calls._ask(make, batch, timeout, same)
