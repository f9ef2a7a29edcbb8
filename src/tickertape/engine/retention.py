"""Retention: deletes old segments according to the policy, if they are no longer needed.

An attempt reads the facts that must outlive the segments, and verifies the files of a required archive. It
then removes the segments from the view of the readers. The disk records the removal and deletes the files.

Invariants:
- No required segment is deleted: pins are requested before the attempt, and again right before the segments
  leave the view.
- Failures are reported and retried. They do not affect anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from tickertape.base.errors import TickertapeError
from tickertape.engine.limits import retention_check_seconds, retention_retry_seconds, retention_segments_max
from tickertape.engine.log_reads.log_reads import LogReads, ReadTask, Steps
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.outbox import NO_CONNECTION, Outbox
from tickertape.journal.commit.jobs import RetireSegments
from tickertape.journal.format.retired_state import RetiredManifest, RetiredState
from tickertape.journal.journal import Journal
from tickertape.journal.reading.archive_reader import ArchiveAnswer, CheckArchived
from tickertape.journal.reading.log_view import LogPart
from tickertape.journal.retention import (
    RetentionPolicy,
    RetiredFacts,
    due,
    find_last_message,
    first_of,
    gather,
    removable,
    unneeded,
)


class HeldBy(Protocol):
    """Owner of a pin that can move it."""

    def oldest_needed(self) -> RetentionPin | None:
        """Return the lowest position that it needs, as a pin."""

    def hasten(self, position: int) -> None:
        """Move the pin above a position soon, because it holds segments below it."""

    def manifests(self) -> dict[str, RetiredManifest]:
        """Return the checkpoints to name with a removal, by SOW topic. All are durable."""


class RetentionTask(ReadTask[RetiredFacts | int]):
    """Reads the facts that must outlive the segments, or finds the last message."""


class RetentionPin(NamedTuple):
    """A position from which the log is needed."""

    position: int
    who: str
    """Name of the owner, for logs."""
    brief: bool = False
    """Whether the pin ends soon, so that no event is logged."""


class RetentionManager:
    """Deletes old segments that no pin needs."""

    def __init__(
        self,
        journal: Journal,
        policy: RetentionPolicy,
        outbox: Outbox,
        clock: EngineClock,
        reads: LogReads,
    ) -> None:
        self._journal = journal
        self._policy = policy
        self._outbox = outbox
        self._clock = clock
        self._reads = reads
        self._pins: list[Callable[[], RetentionPin | None]] = []
        self._states: HeldBy | None = None
        self._task: RetentionTask | None = None
        self._archive = journal.view.archive if policy.archive_required else None
        """The archive that must contain deleted messages, or None."""
        self._checking: RetiredFacts | None = None
        """Facts gathered before the archive check in progress."""
        self._job: RetireSegments | None = None
        """The removal in progress, or a failed removal to retry."""
        self._with_disk = False
        self._at: float | None = float("-inf") if policy.active or journal.leftovers else None
        self._put_off_since: float | None = None
        """Monotonic time since when only brief pins prevented a removal."""
        self.sealed_through = journal.commits.sealed_through
        """Number of the last sealed segment at the last check."""
        if journal.leftovers and journal.view.retired is not None:
            # Written once more: if its directory could not be synced, a power loss would remove the old file.
            self._job = RetireSegments(retired=journal.view.retired, numbers=journal.leftovers)
        self.removed_segments = 0
        """Files deleted since the start."""
        self.held_segments = 0
        """Segments that the policy would delete but that are still needed, at the last check."""
        self.held_bytes = 0
        self.held_by = ""
        """Name of the pin that needs the oldest of them."""
        self.failures = 0
        """Failed attempts since the start."""
        clock.announce(self)

    # -- inputs ---------------------------------------------------------------------------------------

    def pin(self, needed: Callable[[], RetentionPin | None]) -> None:
        """Register a function that returns a pin. It is called before each removal."""
        self._pins.append(needed)

    def pin_states(self, states: HeldBy) -> None:
        """Register the checkpoints of SOW topics, whose pin moves on request."""
        self._states = states
        self._pins.append(states.oldest_needed)

    def log_advanced(self) -> None:
        """Check whether segments can be deleted, after `sealed_through` of the journal has changed."""
        self.sealed_through = self._journal.commits.sealed_through
        if self._policy.active:
            self._look()

    def persisted(self, part: LogPart) -> None:
        """Record the first message of the log, if a persisted commit contains it."""
        view = self._journal.view
        if view.first is None and not view.first_unknown:
            view.set_first(first_of(part, view.first_position))

    def wake(self) -> None:
        """Check now if the deadline has passed."""
        if self._at is not None and self._clock.mono >= self._at:
            self._look()

    def freed(self) -> None:
        """Check again soon, because a pin may have moved."""
        if self._policy.active:
            self._at = self._clock.mono
            self._clock.announce(self)

    def task_done(self) -> None:
        """Handle the outcome of the task."""
        assert self._task is not None
        task, self._task = self._task, None
        self._clock.announce(self)
        try:
            found = task.result()
        except TickertapeError as error:
            self._failed(f"Cannot remove old segments: reading the facts to keep failed: {error}")
        else:
            if isinstance(found, RetiredFacts):
                self._gathered(found)
            else:
                self._found_last(found)

    def checked(self, answer: ArchiveAnswer | TickertapeError) -> None:
        """Handle the answer of the archive to a check."""
        assert self._checking is not None
        gathered, self._checking = self._checking, None
        self._clock.announce(self)
        if isinstance(answer, TickertapeError):
            self._failed(f"Cannot remove old segments: the archive does not have them: {answer}")
        else:
            self._remove(gathered)

    def done(self, job: RetireSegments, error: OSError | None) -> None:
        """Handle the answer of the disk to a removal."""
        self._with_disk = False
        self._clock.announce(self)
        if error is not None:
            self._failed(f"Cannot remove segments {job.numbers[0]} to {job.numbers[-1]}: {error}")
            return
        self._job = None
        self.removed_segments += len(job.numbers)
        view = self._journal.view
        fields: dict[str, str | int] = {
            "segments": len(job.numbers),
            "through": job.numbers[-1],
            "first_position": view.first_position,
        }
        if view.first is not None:
            fields["first_bookmark"] = str(view.first.bookmark)
        self._outbox.log_event("segments_removed", False, fields)
        self._at = self._clock.mono if self._policy.active else None  # more may be removable
        self._clock.announce(self)

    # -- outputs --------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return the monotonic time (seconds) at which to call `wake`, or None."""
        return None if self._busy else self._at

    # -- attempts -------------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        """Whether an attempt is in progress."""
        return self._task is not None or self._with_disk or self._checking is not None

    def _look(self) -> None:
        if self._busy:
            return
        if self._journal.commits.stopping:
            self._at = None
            return
        self._at = self._clock.mono + retention_check_seconds if self._policy.active or self._job else None
        self._clock.announce(self)
        if self._job is not None:
            self._send(self._job)
        elif self._policy.active:
            view = self._journal.view
            count = self._free()
            if count and view.last_message is None:
                # After a start. The last message is kept, and may precede control records. Check again then.
                self._run(find_last_message(view))
            elif count:
                self._run(gather(view, self._journal.journal_id, count))

    def _free(self) -> int:
        """Return how many of the oldest segments can be deleted now."""
        journal = self._journal
        segments = removable(journal.view, journal.commits.sealed_through)
        # Includes the next segment, so that the files stay below the limit.
        wanted = due(segments, self._policy, self._clock.wall, journal.file_bytes + journal.upcoming_bytes)
        pin = self._needed() if wanted else None
        free = wanted if pin is None else unneeded(segments[:wanted], pin.position)
        if pin is not None and pin.brief and free < wanted and self._put_off():
            self._at = self._clock.mono + retention_retry_seconds
            self._clock.announce(self)
        else:
            self._put_off_since = None
            held = segments[free:wanted]
            if held and self._states is not None:
                self._states.hasten(held[-1].end_position)
            self._hold(len(held), sum(s.file_bytes for s in held), pin.who if pin and held else "")
        return min(free, retention_segments_max)

    def _needed(self) -> RetentionPin | None:
        """Return the pin with the lowest position, including the archive, or None."""
        pins = [pin for ask in self._pins if (pin := ask()) is not None]
        if self._archive is not None:
            pins.append(RetentionPin(self._archive.end, "archive", brief=not self._archive.known))
        return min(pins, default=None)

    def _put_off(self) -> bool:
        """Return whether a brief pin may silently delay the removal, for a limited time."""
        if self._put_off_since is None:
            self._put_off_since = self._clock.mono
        return self._clock.mono < self._put_off_since + retention_check_seconds

    def _hold(self, segments: int, size: int, who: str) -> None:
        """Record the segments that are held. Log an event if the name of the pin changes."""
        if who != self.held_by:
            name = "retention_held" if segments else "retention_released"
            fields: dict[str, str | int] = {}
            if segments:
                fields = {"segments": segments, "bytes": size, "by": who}
            self._outbox.log_event(name, bool(segments), fields)
        self.held_segments, self.held_bytes, self.held_by = segments, size, who

    def _run(self, steps: Steps[RetiredFacts | int]) -> None:
        self._task = RetentionTask(steps, NO_CONNECTION)
        if self._reads.run(self._task):
            self.task_done()

    def _found_last(self, position: int) -> None:
        """Store the position of the last message, unless a later one is persisted by now."""
        view = self._journal.view
        if view.last_message is None:
            view.last_message = position
        self._look()

    def _gathered(self, gathered: RetiredFacts) -> None:
        """Continue after gathering: a required archive must contain the segments."""
        archive = self._archive
        begin = self._journal.view.first_position
        if archive is not None and archive.covered.begin is not None:
            begin = max(begin, archive.covered.begin)
        if archive is None or begin >= gathered.retired.first_position:
            self._remove(gathered)
            return
        self._checking = gathered
        self._reads.read(self, CheckArchived(begin, gathered.retired.first_position))

    def _remove(self, gathered: RetiredFacts) -> None:
        """Remove the segments from the view, unless a new pin needs them."""
        journal, retired = self._journal, self._with_manifests(gathered.retired)
        pin = self._needed()
        if pin is not None and pin.position < retired.first_position:
            self._at = self._clock.mono + retention_retry_seconds
            self._clock.announce(self)
            return
        if journal.commits.stopping:
            return
        gone = [s.number for s in journal.view.segments if s.number <= retired.through]
        journal.view.retire(retired, gathered.first, first_unknown=gathered.first_unknown)
        self._job = RetireSegments(retired=retired, numbers=tuple(gone))
        self._send(self._job)

    def _with_manifests(self, retired: RetiredState) -> RetiredState:
        """Add the durable checkpoints, whose commits may be removed with the segments.

        Entries of topics that are not configured are kept."""
        if self._states is None:
            return retired
        return retired._replace(manifests={**retired.manifests, **self._states.manifests()})

    def _send(self, job: RetireSegments) -> None:
        self._with_disk = True
        self._outbox.submit([job])

    def _failed(self, text: str) -> None:
        self.failures += 1
        self._outbox.log_event("retention_failed", True, {"text": text})
        self._at = self._clock.mono + retention_check_seconds
        self._clock.announce(self)
