"""Log fold: folds the persisted log into the states of all SOW topics, in bounded steps.

Invariants:
- The states have folded the log up to `folded`, which is the end of a commit and not above the persisted end.
- While `whole`, they have no later message.
"""

from __future__ import annotations

from collections import deque

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import TickertapeError
from tickertape.batch import KIND_MESSAGE, MessageBatch
from tickertape.engine.limits import fold_step_parts_max, recovery_step_rows_max
from tickertape.engine.log_reads.log_reads import LogReads
from tickertape.engine.log_reads.log_scan import LogScan
from tickertape.engine.sow.accepted import AcceptedRows
from tickertape.engine.sow.memory import StateMemory
from tickertape.engine.sow.part_fold import PartFold, States
from tickertape.engine.sow.state.fold import StateFold
from tickertape.journal.journal import Journal
from tickertape.journal.reading.log_view import LogPart


class LogFold:
    """The fold of the log."""

    def __init__(
        self,
        journal: Journal,
        reads: LogReads,
        accepted: AcceptedRows,
        states: States,
        memory: StateMemory,
        untidy: dict[StateFold, None],
    ) -> None:
        self._journal = journal
        self._reads = reads
        self._accepted = accepted
        self._states = states
        self._memory = memory
        self.folded = 0
        """Position up to which the log is folded."""
        self.last: Bookmark | None = None
        """Bookmark of the last message below `folded`. None without one."""
        self.failure: TickertapeError | None = None
        """Why the log cannot be folded any more."""
        self.lag_bytes = 0
        """Encoded bytes of the persisted commits that are not folded."""
        self._scan = LogScan(journal.view, reads, 0, None, self)
        self._parts: deque[LogPart] = deque()
        self._current: PartFold | None = None
        """Fold of the first part."""
        self._untidy = untidy
        """Folds of SOW topics that may have care to do."""

    @property
    def applied_end(self) -> int:
        """End of the last commit whose messages may already be in the states, at or above `folded`."""
        return self.folded if self._current is None else self._parts[0].end_position

    @property
    def whole(self) -> bool:
        """Whether the states are those at `folded`, and not in the middle of the next commit."""
        return self._current is None

    def begin_after(self, last: Bookmark | None) -> None:
        """Set the last message before the folded part of the log, in the recovery."""
        self.last = last

    def begin(self, folded: int) -> None:
        """Start at a position, after the recovery."""
        self.folded = folded
        self._scan = LogScan(self._journal.view, self._reads, folded, None, self)

    def persisted(self, nbytes: int) -> None:
        """Count a persisted commit."""
        if self.failure is None:
            self.lag_bytes += nbytes

    def stop(self, failure: TickertapeError) -> None:
        """Fold nothing more, because the log is damaged. Publishers and memory do not wait for the fold."""
        self.failure = failure
        self.lag_bytes = 0
        self._accepted.stop()

    def take(self, part: LogPart) -> None:
        """Fold a whole part, in the recovery. Raises `JournalCorrupt`."""
        current = PartFold(part, self._states, self._accepted, recovery_step_rows_max)
        while current.concerns and not current.over:
            current.step()
        for topic in current.topics:
            while topic.fold.has_care:
                topic.fold.care()
        self._passed(part)

    def step(self) -> bool:
        """Execute one bounded step. Return whether another step could do something now."""
        if self.failure is not None:
            return self._care()
        try:
            folded = self._step()
        except TickertapeError as error:
            self.stop(error)
            return False
        return self._care() or folded

    def _step(self) -> bool:
        passed = 0
        while self._current is None:
            if not self._parts and not self._read():
                return False
            if passed == fold_step_parts_max:
                return True
            passed += 1
            current = PartFold(self._parts[0], self._states, self._accepted)
            if current.concerns:
                self._current = current
            else:
                self._ended()
        self._current.step()
        folds = [topic.fold for topic in self._current.topics]
        self._untidy.update(dict.fromkeys(folds))
        self._memory.measure(folds)
        if self._current.over:
            self._current = None
            self._ended()
        return True

    def _care(self) -> bool:
        """Execute one step of the care of a SOW topic. Return whether it did something."""
        while self._untidy:
            fold = next(iter(self._untidy))
            if fold.has_care:
                fold.care()
                self._memory.measure((fold,))
                return True
            del self._untidy[fold]
        return False

    def _read(self) -> bool:
        """Get the next parts. Return False without any."""
        self._parts.extend(self._scan.parts())
        if self._parts:
            return True
        if self._scan.failure is not None:
            raise self._scan.failure
        if not self._scan.waiting:
            self.folded = max(self.folded, min(self._scan.position, self._journal.commits.persisted_end))
            self._accepted.forget(self.folded)
            self.lag_bytes = 0
        return False

    def _ended(self) -> None:
        part = self._parts.popleft()
        self._passed(part)
        self._accepted.forget(self.folded)
        self.lag_bytes = max(self.lag_bytes - part.batch.nbytes, 0)

    def _passed(self, part: LogPart) -> None:
        self.folded = part.end_position
        self.last = _last_message(part.batch) or self.last


def _last_message(batch: MessageBatch) -> Bookmark | None:
    """Return the bookmark of the last message that is not a control record, or None."""
    last = batch.count - 1
    if batch.kinds is not None:
        messages = (batch.kinds == KIND_MESSAGE).nonzero()[0]
        last = int(messages[-1]) if len(messages) else -1
    return Bookmark(batch.publisher(last), batch.sequence(last)) if last >= 0 else None
