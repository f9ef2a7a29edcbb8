"""Simulated spill files for subscribers of non-persistent topics.

Must never act by itself: a test decides when each job runs and which jobs fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tickertape.base.interfaces import Buffer
from tickertape.engine.runtime.effects import SpillRead, SpillTrim, SpillWrite


class SpilledFiles:
    """The spill files: writes and reads wait for their turn, and fail when a test says so."""

    def __init__(self) -> None:
        self.jobs: deque[SpillWrite | SpillRead] = deque()
        self.files: dict[int, bytearray] = {}
        self.fails: Callable[[SpillWrite | SpillRead], OSError | None] = lambda _: None
        """The error of a job, or None."""
        self.damages: Callable[[bytes], bytes] = bytes
        """Turns written bytes into read bytes."""

    def take(self, effect: SpillWrite | SpillRead | SpillTrim) -> None:
        if isinstance(effect, SpillTrim):
            assert all(job.file != effect.file for job in self.jobs), "something is under way in it"
            self.files.pop(effect.file, None)
        else:
            self.jobs.append(effect)

    def run(self) -> tuple[int, Buffer | OSError | None]:
        """Run the oldest job, and return its token and its answer."""
        job = self.jobs.popleft()
        error = self.fails(job)
        if error is not None:
            return job.token, error
        if isinstance(job, SpillRead):
            data = bytes(self.files[job.file][job.offset : job.offset + job.size])
            return job.token, self.damages(data)
        file = self.files.setdefault(job.file, bytearray())
        data = b"".join(job.buffers)
        file[len(file) :] = bytes(max(job.offset - len(file), 0))
        file[job.offset : job.offset + len(data)] = data
        return job.token, None

    @property
    def bytes(self) -> int:
        """Return the size of the files."""
        return sum(map(len, self.files.values()))
