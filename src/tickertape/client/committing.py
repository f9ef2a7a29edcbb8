"""Owns transactions as an application uses them, on the blocking client.

Must never tell of a commit before the server did; when a connection is lost meanwhile and comes back, the
whole is asked again, which commits it once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tickertape.base.errors import Disconnected, TickertapeError
from tickertape.batch import MessageBatch
from tickertape.client.thread_driver import ThreadDriver
from tickertape.client.transaction import (
    CommittedTransaction,
    Gathering,
    Make,
    SameConnection,
    asking,
    before_retry,
    onward,
)
from tickertape.client.waiting import DEFAULT, Timeout, left
from tickertape.wire.commands import Committed


class ClientTransaction(Gathering):
    """Messages that are published all at once or not at all; `Client.transaction` makes it.

    At the end of its `with` block it is committed, or aborted when that raises; when a commit in the block
    did not come to know what came of it (`uncertain`), it can be committed again."""

    _commit: Callable[[Gathering, Timeout], CommittedTransaction]

    def commit(self, *, timeout: Timeout = DEFAULT) -> CommittedTransaction:
        """Publish it and wait until it is persisted. `timeout`: seconds or text.

        An `HAClient` asks again when its connection was lost. Raises `TimedOut` and `Disconnected` (whether
        it was committed is not known: call this again, or commit another one with the same name and the same
        messages, and it is in the log once), `TransactionUnknown` (what was staged was dropped meanwhile, and
        nothing is published: call this again), `JournalFull`, `StagingFull`, `BadTopic`, `BadBody`,
        `TransactionTooLarge`, `UsageError` when it is over."""
        return self._commit(self, timeout)

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
            self.abort()


class Transacting(ThreadDriver):
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
        gathers in memory, bytes or text, 64 MB by default. Raises `BadOption`."""
        made = ClientTransaction(self.name if publisher is None else publisher, name, space, bytes_max)
        made._commit = self._commit_gathered
        return made

    def _commit_gathered(self, gathered: Gathering, timeout: Timeout) -> CommittedTransaction:
        seconds = self._seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            steps, same = gathered.committing(), SameConnection()
            answer: object = None
            try:
                while True:
                    make, batch = onward(steps, answer)
                    try:
                        answer = self._ask(make, batch, left(deadline), same)
                    except TickertapeError as error:
                        answer = error
            except StopIteration as done:
                committed: Committed = done.value
                return gathered.committed(committed)
            except Disconnected as lost:
                if not self._reconnects(seconds):
                    raise
                time.sleep(before_retry(deadline, seconds, lost))

    def _ask(
        self, make: Make, batch: MessageBatch | None, timeout: Timeout, same: SameConnection | None = None
    ) -> object:
        """Ask the server something, and wait for its answer; over the `same` connection as before."""
        return self._call(asking(self._core, make, batch, same), timeout, "a transaction")
