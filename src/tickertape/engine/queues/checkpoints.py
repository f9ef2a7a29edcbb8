"""Queue checkpoints: recovery of all queues at the start, and a checkpoint once a minute.

Recovery reads the log once for all queues, from the lowest position that any queue needs.

Invariants:
- A step of the event loop copies at most `checkpoint_step_queues_max` queues for a checkpoint.
- Checkpoints only save time. A missing, corrupt or outdated checkpoint is replaced by reading the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from tickertape.base.bookmarks import AtTime, FromNow, Range, parse_bookmark
from tickertape.base.errors import BadBookmark, BookmarkExpired, BookmarkUnknown, JournalCorrupt
from tickertape.base.interfaces import Buffer, Now
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.limits import checkpoint_step_queues_max
from tickertape.engine.queues.registry import QueueRegistry
from tickertape.engine.queues.state.checkpoint import (
    NO_FINGERPRINT,
    CheckpointSnapshot,
    QueueCheckpoint,
    encode_snapshots,
    restore,
)
from tickertape.engine.queues.state.records import QueueBegun, begun_in, decode_record, encode_record
from tickertape.engine.queues.worker import QueueWorker
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.runtime.publisher_ids import CONTROL_TOPIC
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.engine.runtime.scheduling import Pending
from tickertape.engine.subscriptions.start_position import resolve
from tickertape.journal.commit.jobs import WriteQueues
from tickertape.journal.journal import Journal
from tickertape.journal.reading.log_reader import LogReader
from tickertape.journal.reading.log_view import LogPart, ReadRequest
from tickertape.wire.settlement import QUEUE_TOPIC

Recovery = Generator[ReadRequest, Buffer, "RecoveredQueues"]


class RecoveredQueues(NamedTuple):
    """Result of a queue recovery."""

    read_from: int
    """Position from which the log was read."""
    begun: list[QueueBegun]
    """Queues that are new or have a new recovery point."""
    report: list[str]
    """Lines for the log of the server."""


class _QueueFold(NamedTuple):
    """State of one queue during the recovery pass."""

    worker: QueueWorker
    messages_from: int
    records_from: int


def recover_queues(
    queues: QueueRegistry,
    journal: Journal,
    control: Sequence[bytes],
    covered: Mapping[str, QueueCheckpoint],
    now: Now,
) -> Recovery:
    """Recover all queues from the log. `control` contains control records of other kinds, `covered` the
    checkpoints.

    Raises `BookmarkUnknown` for a recovery point that is not in the log, and `JournalCorrupt` if a recovery
    point cannot be read."""
    beginnings = begun_in(control)
    known = {(begun.queue, begun.recovery_point): begun for begun in beginnings}
    latest = {begun.queue: begun for begun in beginnings}
    folds: list[_QueueFold] = []
    new: list[QueueBegun] = []
    report: list[str] = []
    for worker in queues.workers:
        definition = worker.queue.definition
        begun = known.get((definition.name, definition.recovery_point))
        checkpoint = None
        if begun is None or latest[definition.name] is not begun:
            position = yield from _beginning(journal, definition, now)
            begun = QueueBegun(
                queue=definition.name, recovery_point=definition.recovery_point, position=position
            )
            new.append(begun)
        elif (known_state := covered.get(definition.name)) is not None:
            checkpoint = _usable(queues, worker, known_state, journal, report)
        try:
            fold = _begin(worker, begun, checkpoint, journal.view.first_position)
        except ValueError as error:
            report.append(
                f"Cannot use the checkpoint of queue {definition.name!r}: {error}. The log is read instead."
            )
            worker.queue.start_over()
            fold = _begin(worker, begun, None, journal.view.first_position)
        folds.append(fold)
    starts = [min(fold.messages_from, fold.records_from) for fold in folds]
    read_from = min(starts, default=journal.commits.persisted_end)
    try:
        yield from _read(folds, journal, read_from)
    except JournalCorrupt as error:
        # The state of the queues is unknown. Everything else in the log is served.
        report.append(f"Queues are not served: {str(error).rstrip('.')}.")
        for fold in folds:
            fold.worker.failure = error
        return RecoveredQueues(read_from, new, report)
    for fold in folds:
        fold.worker.queue.considered = max(fold.worker.queue.considered, journal.commits.persisted_end)
    return RecoveredQueues(read_from, new, report)


def _usable(
    queues: QueueRegistry,
    worker: QueueWorker,
    checkpoint: QueueCheckpoint,
    journal: Journal,
    report: list[str],
) -> QueueCheckpoint | None:
    """Return the checkpoint of a queue, or None if it does not match the definition or the log."""
    if checkpoint.fingerprint == NO_FINGERPRINT:
        return None
    name = worker.queue.definition.name
    if checkpoint.fingerprint != queues.fingerprint(worker):
        report.append(f"The definition of queue {name!r} has changed. The log is read instead.")
        return None
    if max(checkpoint.messages, checkpoint.records) > journal.commits.persisted_end:
        # Unsynced messages are lost, and their positions will be assigned again.
        report.append(f"The checkpoint of queue {name!r} is beyond the log. The log is read instead.")
        return None
    return checkpoint


def beginnings(begun: Sequence[QueueBegun]) -> MessageBatch:
    """Return the control records of new queues."""
    builder = BatchBuilder()
    for record in begun:
        builder.add(CONTROL_TOPIC, encode_record(record), kind=1)
    return builder.build()


def _begin(worker: QueueWorker, begun: QueueBegun, covered: QueueCheckpoint | None, first: int) -> _QueueFold:
    queue = worker.queue
    if covered is None:
        queue.considered = max(begun.position, first)
        return _QueueFold(worker, queue.considered, queue.considered)
    if covered.state is not None:
        restore(queue, covered)
        oldest = queue.state.oldest()
        if oldest is not None and oldest < first:  # nothing retained it while the queue was not configured
            raise ValueError(f"it has messages before position {first}, which retention has deleted")
    queue.considered = max(covered.messages, begun.position, first)
    return _QueueFold(worker, queue.considered, max(covered.records, first))


def _beginning(
    journal: Journal, definition: QueueDefinition, now: Now
) -> Generator[ReadRequest, Buffer, int]:
    """Return the position of the recovery point of a queue. Errors name the queue."""
    try:
        return (yield from _position(journal, definition.recovery_point, now))
    except (BookmarkUnknown, BookmarkExpired) as error:
        kind = "was deleted from the log" if isinstance(error, BookmarkExpired) else "is not in the log"
        raise BookmarkUnknown(
            f"Cannot recover queue {definition.name!r}: recovery_point {definition.recovery_point!r} {kind}. "
            "Set another recovery_point."
        ) from None


def _position(journal: Journal, text: str, now: Now) -> Generator[ReadRequest, Buffer, int]:
    """Return the position of a recovery point."""
    if text == "now":
        return journal.commits.accepted_end
    point = parse_bookmark("0" if text == "epoch" else text)
    if isinstance(point, Range):
        raise BadBookmark(f"Invalid recovery_point {text!r}. Use a time, a bookmark, epoch or now.")
    if isinstance(point, FromNow):
        return journal.commits.accepted_end
    if isinstance(point, AtTime) and point.micros >= journal.log_time(now):
        return journal.commits.accepted_end
    search = resolve(journal, point, journal.commits.persisted_end, "fail", journal.log_time(now))
    try:
        request = next(search)
        while True:
            assert request is None or isinstance(request, ReadRequest)  # the archive is not read
            request = search.send(b"" if request is None else (yield request))
    except StopIteration as done:
        extent = done.value
    start: int = extent.start
    return start


def _read(folds: list[_QueueFold], journal: Journal, position: int) -> Generator[ReadRequest, Buffer, None]:
    reader = LogReader(journal.view, position)
    while (step := reader.poll()) is not None:
        parts = reader.answer((yield step)) if isinstance(step, ReadRequest) else step
        for part in parts:
            _take(folds, part)


def _take(folds: list[_QueueFold], part: LogPart) -> None:
    for fold in folds:
        if part.end_position > fold.messages_from and fold.worker.admission.wants(part.batch):
            _admit(fold, part)
    kinds = part.batch.kinds
    if kinds is None or QUEUE_TOPIC not in part.batch.topics:
        return
    by_name = {fold.worker.queue.name: fold for fold in folds}
    for index in np.flatnonzero(kinds).tolist():
        if part.batch.topic(index) != QUEUE_TOPIC:
            continue
        position = part.first_position + index if part.positions is None else int(part.positions[index])
        try:
            record = decode_record(bytes(part.batch.body(index)))
        except JournalCorrupt as error:
            raise JournalCorrupt(
                f"Cannot read position {position}, which the queues need: {error}. Run `tickertape journal "
                "verify`."
            ) from None
        own = by_name.get(record.queue)
        if own is not None and position >= own.records_from:
            for outcome in record.outcomes:
                own.worker.queue.apply(outcome)


def _admit(fold: _QueueFold, part: LogPart) -> None:
    low = part.index_at(fold.messages_from)
    while low < part.batch.count:
        entered, low = fold.worker.admission.look(part, low)
        if entered is not None:
            fold.worker.queue.enter(entered)


_INTERVAL_SECONDS: Final = 60.0


class CheckpointWriter:
    """Writes checkpoints once a minute while the log grows."""

    def __init__(self, queues: QueueRegistry, journal: Journal, outbox: Outbox, clock: EngineClock) -> None:
        self._queues = queues
        self._journal = journal
        self._outbox = outbox
        self._clock = clock
        self._at: float | None = None
        self._end = -1
        """End of the accepted messages when the last queue was copied for the last checkpoint."""
        self._left: deque[QueueWorker] = deque()
        """Queues that are not copied yet, of the checkpoint that is being taken."""
        self._copied: list[CheckpointSnapshot] = []
        """The other queues of this checkpoint. Each is valid from its own position of the log."""
        self.pending: Pending = (self._left,)
        """Not empty while `step` has queues to copy."""
        self._waiting: list[CheckpointSnapshot] | None = None
        """A checkpoint that waits until the log is persisted up to `_end`."""
        self._with_disk = False
        self.written = 0
        self.failures = 0

    def log_advanced(self) -> None:
        """Submit a waiting checkpoint, or schedule the next one: the log has grown."""
        if not self._queues:
            return
        if self._waiting is not None and self._end <= self._journal.commits.persisted_end:
            encode, self._waiting = partial(encode_snapshots, self._waiting), None
            self._with_disk = True
            self._outbox.submit([WriteQueues(journal_id=self._journal.journal_id, encode=encode)])
        if self._at is None and not self._busy and self._end < self._journal.commits.persisted_end:
            self._at = self._clock.mono + _INTERVAL_SECONDS
            self._clock.announce(self)

    def wake(self) -> None:
        """Start a checkpoint if the deadline has passed."""
        if self._at is None or self._clock.mono < self._at or self._busy:
            return
        self._at = None
        self._left.extend(self._queues.workers)
        self.step()

    def step(self) -> None:
        """Copy the next queues for the checkpoint."""
        if not self._left:
            return
        if self._journal.commits.stopping:
            self._left.clear()
            self._copied.clear()
            return
        for _ in range(min(len(self._left), checkpoint_step_queues_max)):
            self._copied.append(self._queues.snapshot(self._left.popleft()))
        self._end = self._journal.commits.accepted_end
        if not self._left:
            self._waiting, self._copied = self._copied, []
            self.log_advanced()

    def done(self, error: OSError | None) -> None:
        """Handle the answer of the disk."""
        self._with_disk = False
        self._clock.announce(self)
        if error is None:
            self.written += 1
            return
        self.failures += 1
        self._outbox.log_event("queue_checkpoint_failed", True, {"text": str(error)})

    def next_deadline(self) -> float | None:
        """Return the monotonic time (seconds) at which to call `wake`, or None."""
        return None if self._busy else self._at

    @property
    def _busy(self) -> bool:
        return self._with_disk or self._waiting is not None or bool(self._left)
