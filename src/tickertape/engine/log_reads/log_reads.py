"""Log reads: sends each read of the log and the archive, and routes each answer to its owner.

The owner of a read is a cursor, a queue reader, a task, or retention.

Invariants:
- An owner has at most one read in progress. Its memory is reserved before the read is sent.
- Each read is answered once. The answer for a dropped owner is ignored, and its memory counts until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from tickertape.base.errors import TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.engine.limits import archive_ahead_bytes_max, read_ahead_bytes_max
from tickertape.engine.log_reads.budget import ReadBudget, ReadBudgets
from tickertape.engine.runtime.outbox import NO_CONNECTION, Outbox
from tickertape.engine.runtime.scheduling import Pending
from tickertape.journal.reading.archive_reader import ArchiveAnswer, ArchiveRequest
from tickertape.journal.reading.log_view import ReadRequest

T = TypeVar("T")

Steps: TypeAlias = Generator[ReadRequest | ArchiveRequest | None, Any, T]
"""A generator that yields reads and receives their answers. It yields None to let other tasks run first, and
then receives `b""`."""


class ReadTask(Generic[T]):
    """A running generator that reads for a connection. An error raised by the generator is its outcome."""

    outcome: T | TickertapeError

    def __init__(self, steps: Steps[T], conn: int) -> None:
        self.conn = conn
        self.closed = False
        """Whether the task is done or was dropped."""
        self._steps = steps

    def advance(
        self, data: Buffer | ArchiveAnswer | TickertapeError | None
    ) -> ReadRequest | ArchiveRequest | None:
        """Resume with an answer (None at the start) and return the next read.

        None means that the task is done (`closed` is True) or lets other tasks run first."""
        try:
            if isinstance(data, TickertapeError):
                return self._steps.throw(data)  # the generator decides whether it still needs the data
            return next(self._steps) if data is None else self._steps.send(data)
        except StopIteration as done:
            self.outcome = done.value
        except TickertapeError as error:
            self.outcome = error
        self.closed = True
        return None

    def close(self) -> None:
        """Drop the task and its outcome."""
        self.closed = True
        self._steps.close()

    def result(self) -> T:
        """Return the outcome, or raise it if it is an error."""
        if isinstance(self.outcome, TickertapeError):
            raise self.outcome
        return self.outcome


class ReadResult(NamedTuple):
    """An answer and its owner."""

    owner: object
    result: Any
    """The answer or the error. For a finished task, its `outcome`."""


class LogReads:
    """All reads in progress, and the tasks that request them."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.budgets = ReadBudgets(ReadBudget(read_ahead_bytes_max), ReadBudget(archive_ahead_bytes_max))
        """Memory reserved by all readers."""
        self._owners: dict[int, object] = {}
        """Owners of the reads in progress, by token."""
        self._waiting: set[object] = set()
        """The same owners as a set, because a connection may drop thousands at once."""
        self._dropped: set[object] = set()
        self._ready: deque[ReadTask[Any]] = deque()
        """Tasks that let other tasks run first."""
        self.pending: Pending = (self._ready,)
        """Not empty while `step` has a task to resume."""

    # -- reads ----------------------------------------------------------------------------------------

    def new_token(self) -> int:
        """Return a token that no other read has."""
        return self._outbox.next_token()

    def read(self, owner: object, request: ReadRequest | ArchiveRequest, conn: int = NO_CONNECTION) -> None:
        """Send a read. Its memory is already reserved."""
        self._owners[self._outbox.read(request, conn)] = owner
        self._waiting.add(owner)

    def read_when_free(
        self, owner: object, request: ReadRequest | ArchiveRequest, conn: int = NO_CONNECTION
    ) -> None:
        """Send a read as soon as its memory is reserved."""
        if self.budgets.reserve(owner, request, lambda: self.read(owner, request, conn)):
            self.read(owner, request, conn)

    def answered(self, token: int, data: Buffer | ArchiveAnswer | TickertapeError) -> list[ReadResult]:
        """Handle the answer to a read. Return it with its owner, or return the task that it finishes."""
        owner = self._owners.pop(token, None)
        self._waiting.discard(owner)
        if owner in self._dropped:
            self._dropped.discard(owner)
            self.budgets.forget(owner)
            return []
        if not isinstance(owner, ReadTask):
            return [] if owner is None else [ReadResult(owner, data)]
        self.budgets.forget(owner)
        return self._go_on(owner, data)

    def drop(self, owner: object) -> None:
        """Drop an owner. Nothing more is read for it."""
        if isinstance(owner, ReadTask):
            owner.close()
        if owner in self._waiting:
            self._dropped.add(owner)
        else:
            self.budgets.forget(owner)

    # -- tasks ----------------------------------------------------------------------------------------

    def run(self, task: ReadTask[Any]) -> bool:
        """Start a task. Return whether it is done at once. Otherwise `answered` or `step` returns it
        later."""
        return bool(self._go_on(task, None))

    def step(self) -> list[ReadResult]:
        """Resume one task that let other tasks run first. Return it if it is done."""
        task = self._ready.popleft() if self._ready else None
        return [] if task is None or task.closed else self._go_on(task, b"")

    def _go_on(
        self, task: ReadTask[Any], data: Buffer | ArchiveAnswer | TickertapeError | None
    ) -> list[ReadResult]:
        request = task.advance(data)
        if task.closed:
            return [ReadResult(task, task.outcome)]
        if request is None:
            self._ready.append(task)
        else:
            self.read_when_free(task, request, task.conn)
        return []
