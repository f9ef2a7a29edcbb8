"""Read tasks: generators that ask for reads of the log until they have an outcome."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, TypeAlias, TypeVar

from tickertape.base.errors import TickertapeError
from tickertape.base.interfaces import Buffer
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
