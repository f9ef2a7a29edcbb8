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
    """Messages that are published all at once or not at all; `Client.transaction` makes it.

    At the end of its `with` block it is committed, or aborted when that raises; when a commit in the block
    did not come to know what came of it (`uncertain`), it can be committed again."""

    _driver: ThreadDriver
    _lock_type = Lock

    def commit(self, *, timeout: Timeout = DEFAULT) -> CommittedTransaction:
        """Publish it and wait until it is persisted. `timeout`: seconds or text.

        An `HAClient` asks again when its connection was lost. Raises `TimedOut` and `Disconnected` (whether
        it was committed is not known: call this again, or commit another one with the same name and the same
        messages, and it is in the log once), `TransactionUnknown` (what was staged was dropped meanwhile, and
        nothing is published: call this again), `JournalFull`, `StagingFull`, `BadTopic`, `BadBody`,
        `TransactionTooLarge`, `UsageError` when it was aborted. Several threads may call this: one commits,
        the others wait for it. A transaction that was committed returns its `result` again."""
        seconds = self._driver.seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._alone(seconds):
            return self.result or self._commit_alone(seconds, deadline)

    def abort(self, *, timeout: Timeout = DEFAULT) -> None:
        """Publish nothing of it. `timeout`: seconds or text.

        When an earlier `commit` staged something, the server is asked to drop it. Where the server does not
        answer, staged parts stay until their connection ends or until `expire_after`, and are never
        published. Raises `UsageError` once it was committed, or may have been, and `TimedOut` while another
        thread commits it."""
        seconds = self._driver.seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._alone(seconds):
            make = self.aborting()
            if make is not None:
                with suppress(TickertapeError):  # it is over in any case
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
        """Hold the lock; raises `TimedOut` when another thread holds it for longer."""
        lock = self._one_call
        if not lock.acquire(blocking=False):
            self._driver.check_may_wait("a transaction")  # the other thread may need this one for its answer
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
