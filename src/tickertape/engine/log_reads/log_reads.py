"""Log reads: sends every read of the log and of the archive, and finds the owner of each answer.

An owner is the object that a read is for: a cursor, a reader of a queue, a task, or retention.

Invariants:
- An owner has at most one read under way, and its memory is reserved before the read is sent.
- A read is answered once. The answer of a dropped owner is ignored, and its memory counts until then.
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
from tickertape.journal.reading.archive_reader import ArchiveAnswer, ArchiveRequest
from tickertape.journal.reading.log_view import ReadRequest

T = TypeVar("T")

Steps: TypeAlias = Generator[ReadRequest | ArchiveRequest | None, Any, T]
"""Yields reads, and is sent their answers. It yields None to let others go first, and is sent `b""`."""


class ReadTask(Generic[T]):
    """A generator under way, for a connection. An error that it lets out is its outcome."""

    outcome: T | TickertapeError

    def __init__(self, steps: Steps[T], conn: int) -> None:
        self.conn = conn
        self.closed = False
        """It has its outcome, or was dropped."""
        self._steps = steps

    def advance(
        self, data: Buffer | ArchiveAnswer | TickertapeError | None
    ) -> ReadRequest | ArchiveRequest | None:
        """Go on with an answer (None at the start) and return the next read. None: it is done, which
        `closed` says, or lets others go first."""
        try:
            if isinstance(data, TickertapeError):
                return self._steps.throw(data)  # it knows whether it still needs what cannot be read
            return next(self._steps) if data is None else self._steps.send(data)
        except StopIteration as done:
            self.outcome = done.value
        except TickertapeError as error:
            self.outcome = error
        self.closed = True
        return None

    def close(self) -> None:
        """Drop the task: the outcome is not wanted any more."""
        self.closed = True
        self._steps.close()

    def result(self) -> T:
        """Return the outcome, or raise it when it is an error."""
        if isinstance(self.outcome, TickertapeError):
            raise self.outcome
        return self.outcome


class ReadResult(NamedTuple):
    """An answer and its owner."""

    owner: object
    result: Any
    """The answer or the error. Of a task, which is done, its `outcome`."""


class LogReads:
    """All reads."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.budgets = ReadBudgets(ReadBudget(read_ahead_bytes_max), ReadBudget(archive_ahead_bytes_max))
        """Memory of all readers."""
        self._owners: dict[int, object] = {}
        """Owners of the reads under way, by token."""
        self._waiting: set[object] = set()
        """The same owners: a connection may drop thousands at once."""
        self._dropped: set[object] = set()
        self._ready: deque[ReadTask[Any]] = deque()
        """Tasks that let others go first."""

    # -- reads ----------------------------------------------------------------------------------------

    def new_token(self) -> int:
        """Return a number that no read had before."""
        return self._outbox.next_token()

    def read(self, owner: object, request: ReadRequest | ArchiveRequest, conn: int = NO_CONNECTION) -> None:
        """Send a read for which memory is reserved."""
        self._owners[self._outbox.read(request, conn)] = owner
        self._waiting.add(owner)

    def read_when_free(
        self, owner: object, request: ReadRequest | ArchiveRequest, conn: int = NO_CONNECTION
    ) -> None:
        """Send a read as soon as there is memory for it."""
        if self.budgets.reserve(owner, request, lambda: self.read(owner, request, conn)):
            self.read(owner, request, conn)

    def answered(self, token: int, data: Buffer | ArchiveAnswer | TickertapeError) -> list[ReadResult]:
        """Take the answer to a read; return it with its owner, or the tasks that are done with it."""
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
        """Forget an owner: nothing more is read for it."""
        if isinstance(owner, ReadTask):
            owner.close()
        if owner in self._waiting:
            self._dropped.add(owner)
        else:
            self.budgets.forget(owner)

    # -- tasks ----------------------------------------------------------------------------------------

    def run(self, task: ReadTask[Any]) -> bool:
        """Start a task; return whether it is done at once. Otherwise `answered` or `step` return it."""
        return bool(self._go_on(task, None))

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return bool(self._ready)

    def step(self) -> list[ReadResult]:
        """Go on with one task that let others go first; return it when it is done."""
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
