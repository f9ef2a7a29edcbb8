"""Schedule the checkpoints of running queues.

Invariants: a checkpoint is written only after everything it covers is persisted, one at a time. The engine
makes a snapshot. The disk job encodes it, because that takes long for a deep queue.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from tickertape.base.interfaces import Now
from tickertape.engine.queues.registry import QueueRegistry
from tickertape.engine.queues.state.checkpoint import CheckpointSnapshot, encode_snapshots
from tickertape.engine.runtime.effects import DiskJob, Effect, LogEvent
from tickertape.journal.disk_jobs import WriteQueues
from tickertape.journal.journal import Journal

_INTERVAL_SECONDS: Final = 60.0


class CheckpointWriter:
    """Checkpoints once a minute while the log grows. Appends effects to the list it is given."""

    def __init__(self, queues: QueueRegistry, journal: Journal, effects: list[Effect]) -> None:
        self._queues = queues
        self._journal = journal
        self._effects = effects
        self._at: float | None = None
        self._end = -1
        """Where the log ended at the last one."""
        self._waiting: list[CheckpointSnapshot] | None = None
        """One that waits until the log is persisted up to `_end`."""
        self._with_disk = False
        self.written = 0
        self.failures = 0

    def moved(self, now: Now) -> None:
        """The log has grown."""
        if not self._queues:
            return
        if self._waiting is not None and self._end <= self._journal.persisted_end:
            encode, self._waiting = partial(encode_snapshots, self._waiting), None
            self._with_disk = True
            self._effects.append(DiskJob(WriteQueues(journal_id=self._journal.journal_id, encode=encode)))
        if self._at is None and not self._busy and self._end < self._journal.persisted_end:
            self._at = now.mono + _INTERVAL_SECONDS

    def wake(self, now: Now) -> None:
        """A deadline may have come."""
        if self._at is None or now.mono < self._at or self._busy:
            return
        self._at = None
        if self._journal.failure is None and not self._journal.closing:
            self._waiting, self._end = self._queues.snapshot(), self._journal.accepted_end
            self.moved(now)

    def done(self, error: OSError | None) -> None:
        """The disk's answer."""
        self._with_disk = False
        if error is None:
            self.written += 1
            return
        self.failures += 1
        self._effects.append(LogEvent("queue_checkpoint_failed", True, {"text": str(error)}))

    def next_deadline(self) -> float | None:
        """Monotonic second at which `wake` is wanted."""
        return None if self._busy else self._at

    @property
    def _busy(self) -> bool:
        return self._with_disk or self._waiting is not None
