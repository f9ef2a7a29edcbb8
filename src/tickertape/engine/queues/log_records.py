"""Queue log: writes outcomes and dead letters of queues to the log.

Invariants:
- Nothing is written while the journal is full, has failed or is closing. Callers ask `can_write` before they
  decide anything.
"""

from __future__ import annotations

from typing import Final

from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.queues.state.records import Outcome, record_bodies
from tickertape.engine.runtime.log_writer import LogWriter
from tickertape.journal.journal import Journal
from tickertape.wire.settlement import QUEUE_TOPIC

_RESERVE_BYTES: Final = 1 << 16
"""Approximate size of a record in bytes."""


class QueueLog:
    """Appends to the log for queues."""

    def __init__(self, journal: Journal, writer: LogWriter) -> None:
        self._journal = journal
        self._writer = writer

    def can_write(self, size: int = _RESERVE_BYTES) -> bool:
        """Return whether `size` bytes can be written now."""
        journal = self._journal
        return not journal.commits.stopping and journal.commits.can_accept(size)

    def write(self, queue: str, outcomes: list[Outcome]) -> int:
        """Append outcomes. They are persisted when the log is persisted up to the returned position."""
        return self.write_bodies(record_bodies(queue, outcomes))

    def write_bodies(self, bodies: list[bytes]) -> int:
        """Append encoded records. Return the same position as `write`."""
        for body in bodies:
            builder = BatchBuilder()
            builder.add(QUEUE_TOPIC, body, kind=1)
            self.append(builder.build())
        return self._journal.commits.accepted_end

    def append(self, batch: MessageBatch) -> None:
        """Append messages of the server."""
        self._writer.append_control(batch)
