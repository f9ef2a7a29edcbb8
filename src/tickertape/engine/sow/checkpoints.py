"""State checkpoints: writes base and delta files of all SOW topics, one topic at a time.

A clean stop writes a last checkpoint of each topic after the seal, so that a start folds no message.

Invariants:
- A manifest is written only when the log is synced up to P1, and names the commit that ends there.
- The pin of a topic is P0 of its newest durable manifest.
- A name of a file is never used twice, so a failed attempt cannot harm the durable checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tickertape.base.interfaces import Buffer
from tickertape.engine.limits import (
    sow_advance_messages_min,
    sow_early_checkpoint_messages_min,
    sow_sync_bytes,
)
from tickertape.engine.retention import RetentionPin
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.runtime.scheduling import Pending
from tickertape.engine.sow.checkpoint_writer import StateCopy
from tickertape.engine.sow.log_fold import LogFold
from tickertape.engine.sow.recovery import TopicPlan
from tickertape.engine.sow.topic import StateTopic
from tickertape.journal.commit.group_commit import PersistedCommit
from tickertape.journal.commit.jobs import PublishState, WriteState
from tickertape.journal.format.retired_state import RetiredManifest
from tickertape.journal.format.segment import CommitHeader
from tickertape.journal.format.sow_checkpoint import (
    MANIFEST_NAME,
    UNFINISHED_NAME,
    StateFile,
    StateFileEntry,
    StateManifest,
    base_name,
    delta_name,
    encode_manifest,
    manifest_checksum,
    retired_manifest,
    state_path,
)
from tickertape.journal.journal import Journal
from tickertape.journal.limits import sow_files_max


class CommitEnd(NamedTuple):
    """The commit that ends at a position."""

    end: int
    number: int
    epoch: int
    checksum: int


class _Attempt(NamedTuple):
    """A manifest that is being written."""

    manifest: StateManifest
    data: bytes
    written: bool
    """Whether it has a new file."""


class CheckpointLook(NamedTuple):
    """The checkpoint of one topic, for monitoring."""

    manifest: StateManifest | None
    """The newest durable checkpoint. None before the first one."""
    saved_at: float
    """Time (monotonic) of the newest checkpoint, of the last look without changes, or of the start."""
    failures: int
    """Failed attempts since the start."""


class _TopicState:
    """Checkpoint of one topic."""

    def __init__(self, topic: StateTopic) -> None:
        self.topic = topic
        self.manifest: StateManifest | None = None
        """The newest checkpoint that a start would use."""
        self.checksum: int | None = None
        """Checksum of the manifest. None: no file has exactly this manifest."""
        self.leftovers: set[str] = set()
        """Names of files that no manifest needs."""
        self.due_at: float | None = None
        """Time (monotonic) of the next attempt."""
        self.urgent = False
        """Its pin holds segments, or lets a start fold much of the log."""
        self.named_end = 0
        """Highest P1 in the name of a file, also of failed attempts."""
        self.forced = False
        """The next file must be a base."""
        self.saved_at = 0.0
        """Time (monotonic) of the newest checkpoint, of the last look without changes, or of the start."""
        self.failures = 0

    @property
    def since(self) -> int:
        """P0 of the last file."""
        return self.manifest.files[-1].start if self.manifest is not None else 0

    @property
    def changed(self) -> bool:
        """Whether the records changed since P0 of the last file, or a file must be replaced."""
        return self.manifest is None or self.forced or self.topic.fold.changes.end > self.since

    @property
    def needs_base(self) -> bool:
        """Whether a delta would not suffice, or would save too little."""
        manifest = self.manifest
        if manifest is None or self.forced or self.topic.fold.deleted_keys.lost_below:
            return True
        base, *deltas = [entry.size for entry in manifest.files]
        return len(manifest.files) >= sow_files_max or 2 * sum(deltas) > base


class StateCheckpoints:
    """The checkpoints of all SOW topics."""

    def __init__(
        self,
        topics: Iterable[StateTopic],
        fold: LogFold,
        journal: Journal,
        outbox: Outbox,
        clock: EngineClock,
    ) -> None:
        self._fold = fold
        self._journal = journal
        self._outbox = outbox
        self._clock = clock
        self._states = {topic.name: _TopicState(topic) for topic in topics}
        self._ends: deque[CommitEnd] = deque()
        """Ends of the last commits, from `folded` on."""
        self._waiting: deque[_TopicState] = deque()
        """Topics whose turn follows."""
        self._current: _TopicState | None = None
        self._copy: StateCopy | None = None
        self._start = 0
        """P0 of the current checkpoint."""
        self._min_end = 0
        """Lowest possible P1: commits below it may be partly applied."""
        self._unsynced = 0
        self._offset = 0
        self._with_disk = False
        self._attempt: _Attempt | None = None
        """The manifest that waits for the sync of the log, or for the disk."""
        self._ready: list[_TopicState] = []
        self._untidy: list[_TopicState] = []
        """Topics with deleted keys to forget."""
        self.pending: Pending = (self._ready, self._untidy)
        """Not empty while `step` has records to copy."""
        self._freed = False
        self._last = False
        """Whether the last checkpoints of a clean stop have started."""
        self.written = 0
        """Manifests since the start."""
        self.failures = 0
        clock.announce(self)

    # -- start ------------------------------------------------------------------------------------------

    def begin(self, plans: Mapping[str, TopicPlan], last: CommitHeader | None) -> None:
        """Continue the checkpoints of an earlier run, after the recovery. `last`: the last commit of the
        log with messages."""
        if last is not None:
            self._ends.append(
                CommitEnd(last.first_position + last.messages, last.number, last.epoch, last.crc)
            )
        retired = self._journal.view.retired
        named = {} if retired is None else retired.manifests
        for name, state in self._states.items():
            plan = plans.get(name)
            if name in named:
                state.named_end = named[name].position
            if plan is not None:
                state.manifest = plan.manifest
                state.checksum = plan.checksum if plan.whole else None
                state.forced = plan.manifest is not None and not plan.whole
                state.leftovers.update(set(plan.leftovers) - {MANIFEST_NAME})
                if plan.manifest is not None:
                    state.named_end = max(state.named_end, plan.manifest.files[-1].end)
            state.saved_at = self._clock.mono
            start = self._journal.view.first_position if state.manifest is None else state.manifest.start
            state.urgent = self._fold.folded - start >= sow_early_checkpoint_messages_min
            state.due_at = state.saved_at
            if not state.urgent:
                state.due_at += state.topic.definition.checkpoint_interval
        self._clock.announce(self)

    def look(self, name: str) -> CheckpointLook:
        """Return the checkpoint of a SOW topic."""
        state = self._states[name]
        return CheckpointLook(state.manifest, state.saved_at, state.failures)

    # -- retention --------------------------------------------------------------------------------------

    def oldest_needed(self) -> RetentionPin | None:
        """Return the lowest position that a checkpoint needs in the log, as a pin."""
        if not self._states:
            return None
        return RetentionPin(min(map(self._pin, self._states.values())), "state of the world")

    def _pin(self, state: _TopicState) -> int:
        if state.manifest is None:
            return 0
        # Nothing names a shortened manifest, so the log must still have the commit at its end.
        return state.manifest.start if state.checksum is not None else max(state.manifest.start - 1, 0)

    def manifests(self) -> dict[str, RetiredManifest]:
        """Return the durable checkpoints of all topics, by SOW name."""
        found = {}
        for name, state in self._states.items():
            manifest = state.manifest
            if manifest is not None and state.checksum is not None:
                found[name] = retired_manifest(manifest, state.checksum)
        return found

    def hasten(self, position: int) -> None:
        """Start checkpoints of the topics whose pins are below a position, because they hold segments."""
        for state in self._states.values():
            if self._pin(state) < position and not state.urgent:
                state.urgent = True
                state.due_at = self._clock.mono
                self._clock.announce(self)

    def take_freed(self) -> bool:
        """Return whether a pin has moved since the last call."""
        freed, self._freed = self._freed, False
        return freed

    # -- inputs -----------------------------------------------------------------------------------------

    def persisted(self, commit: PersistedCommit) -> None:
        """Record the end of a persisted commit."""
        if self._fold.failure is not None:
            return
        end = commit.first_position + commit.batch.count
        self._ends.append(CommitEnd(end, commit.number, commit.epoch, commit.checksum))

    def log_advanced(self) -> None:
        """Continue a checkpoint that waited for the fold, or for a sync of the log."""
        ends = self._ends
        if self._fold.failure is not None:
            ends.clear()
            if not self._with_disk:
                self._give_up()
            return
        while len(ends) > 1 and ends[1].end <= self._fold.folded:
            ends.popleft()
        if self._journal.commits.closed and not self._last:
            self._start_last()
        elif self._attempt is not None and not self._with_disk:
            self._publish_synced()
        elif self._copy is not None and self._copy.over and not self._with_disk:
            self._end_file()

    def wake(self) -> None:
        """Start the checkpoints that are due."""
        if self._journal.commits.stopping or not self._can_write:
            return
        mono = self._clock.mono
        for state in self._states.values():
            if state.due_at is not None and state.due_at <= mono:
                state.due_at = None
                self._waiting.append(state)
        self._start_next()

    def step(self) -> None:
        """Copy the next records of the current topic, if the disk has written the previous ones."""
        if self._untidy:
            keys = self._untidy[0].topic.fold.deleted_keys
            if keys.has_forgettable:
                keys.forget_step()
            else:
                self._untidy.pop(0)
        if not self._ready or self._copy is None:
            return
        if not self._can_write:
            self._give_up()
            return
        copy = self._copy
        buffers = copy.step()
        if copy.over:
            self._min_end = max(self._fold.applied_end, copy.positions_end)
        if buffers:
            self._write(buffers, last=False)
        elif copy.over:
            self._ready.clear()
            self._end_file()

    def done(self, job: WriteState | PublishState, error: OSError | None) -> None:
        """Handle the answer of the disk."""
        self._with_disk = False
        if error is not None:
            self._failed(job, error)
        elif isinstance(job, PublishState):
            self._published()
        elif self._attempt is not None:
            self._publish_synced()
        elif not self._can_write:
            self._give_up()
        elif self._copy is not None:
            if self._copy.over:
                self._end_file()
            elif self._current is not None:
                self._ready.append(self._current)

    def next_deadline(self) -> float | None:
        """Return the monotonic time (seconds) at which to call `wake`, or None."""
        if self._journal.commits.stopping or not self._can_write:
            return None
        return min((s.due_at for s in self._states.values() if s.due_at is not None), default=None)

    # -- one checkpoint ---------------------------------------------------------------------------------

    @property
    def stop_pending(self) -> bool:
        """Whether a clean stop has not ended its last checkpoints yet."""
        if not self._states or not self._journal.commits.closing or self._broken:
            return False
        return not self._last or self._current is not None

    @property
    def _broken(self) -> bool:
        return self._journal.commits.failure is not None or self._fold.failure is not None

    @property
    def _can_write(self) -> bool:
        return not self._broken and (self._last or not self._journal.commits.closing)

    def _start_last(self) -> None:
        """Start the last checkpoints of a clean stop, once the sealed log is folded."""
        behind = not self._fold.whole or self._fold.folded < self._journal.commits.persisted_end
        if behind or self._with_disk:
            return
        self._last = True
        if self._attempt is None:
            self._give_up()
        for state in self._states.values():
            state.urgent = True  # a quiet topic advances
        self._waiting.extend(self._states.values())
        if self._attempt is None:
            self._start_next()
        else:
            self._publish_synced()

    def _start_next(self) -> None:
        while self._current is None and self._waiting and self._can_write:
            state = self._waiting.popleft()
            self._current = state
            if self._end_at(self._fold.folded) is None or self._fold.applied_end <= state.named_end:
                self._skip(state)  # nothing is new, or the last commit is unknown
            elif state.changed:
                self._start_copy(state)
            elif not self._start_advance(state):
                self._skip(state)

    def _start_advance(self, state: _TopicState) -> bool:
        """Move the manifest to a later commit. Return False if that is not necessary, or not possible."""
        manifest, folded = state.manifest, self._fold.folded
        assert manifest is not None
        end = self._end_at(folded)
        far = folded - manifest.start >= sow_advance_messages_min
        if end is None or not (state.urgent or far) or folded <= manifest.end or state.checksum is None:
            return False
        self._prepare(state, end, folded, manifest.files, written=False)
        return True

    def _start_copy(self, state: _TopicState) -> None:
        topic = state.topic
        file = StateFile(
            journal_id=self._journal.journal_id,
            topic=topic.name,
            fingerprint=topic.definition.fingerprint(),
            delta=not state.needs_base,
        )
        self._start = self._fold.folded
        self._offset = self._unsynced = 0
        self._copy = StateCopy(topic.fold, file, state.since)
        self._ready.append(state)

    def _end_file(self) -> None:
        """Write the end of the file, once the fold has passed everything that was copied."""
        state, copy = self._current, self._copy
        assert state is not None
        assert copy is not None
        if self._with_disk or not self._can_write:
            return
        end = self._end_at(self._fold.folded)
        if end is None or end.end < self._min_end or end.end <= state.named_end:
            return
        manifest = state.manifest
        delta = manifest is not None and copy.is_delta
        if delta and not copy.rows and state.topic.fold.changes.end <= self._start:
            assert manifest is not None
            if self._start > manifest.end and state.checksum is not None:
                self._copy = None
                self._prepare(state, end, end.end, manifest.files, written=False)
                return
        trailer = copy.end()
        name = delta_name(state.since, end.end) if delta else base_name(end.end)
        entry = StateFileEntry(
            name=name,
            size=copy.size,
            checksum=copy.checksum,
            start=self._start,
            end=end.end,
            commit=end.number,
            epoch=end.epoch,
            chain=end.checksum,
        )
        files = (*manifest.files, entry) if delta and manifest is not None else (entry,)
        state.named_end = end.end
        self._prepare(state, end, self._start, files, written=True)
        self._write([trailer], last=True)

    def _prepare(
        self,
        state: _TopicState,
        end: CommitEnd,
        start: int,
        files: tuple[StateFileEntry, ...],
        *,
        written: bool,
    ) -> None:
        """Make the manifest, which waits until its file and the log are synced."""
        topic = state.topic
        stamps = topic.fold.highest_order_stamp
        manifest = StateManifest(
            journal_id=self._journal.journal_id,
            start=start,
            end=end.end,
            commit=end.number,
            epoch=end.epoch,
            chain=end.checksum,
            topic=topic.name,
            fingerprint=topic.definition.fingerprint(),
            complete=not topic.incomplete_because,
            incomplete_because=topic.incomplete_because,
            records=topic.fold.records.record_count,
            order_stamp=stamps,
            files=files,
        )
        self._attempt = _Attempt(manifest, encode_manifest(manifest), written)
        if not written:
            self._publish_synced()

    def _publish_synced(self) -> None:
        """Write the manifest if the log is synced up to P1. Otherwise request the sync."""
        state, attempt = self._current, self._attempt
        assert state is not None
        assert attempt is not None
        if self._broken:
            self._give_up()
            return
        if not self._can_write:
            return  # after the seal
        manifest = attempt.manifest
        if self._journal.commits.synced_end < manifest.end:
            self._journal.commits.sync_soon(self._clock.now)
            self._clock.announce(self._journal.commits)
            return
        name, kept = state.topic.name, {entry.name for entry in manifest.files}
        before = () if state.manifest is None else state.manifest.files
        drop = (state.leftovers | {entry.name for entry in before}) - kept - {UNFINISHED_NAME}
        if not attempt.written:
            drop.add(UNFINISHED_NAME)  # of a scan that was ended
        self._with_disk = True
        job = PublishState(
            topic=name,
            written=state_path(name, UNFINISHED_NAME) if attempt.written else "",
            named=state_path(name, manifest.files[-1].name) if attempt.written else "",
            path=state_path(name, MANIFEST_NAME),
            manifest=attempt.data,
            drop=tuple([state_path(name, one) for one in sorted(drop)]),
        )
        self._outbox.submit([job])

    def _published(self) -> None:
        state, attempt = self._current, self._attempt
        assert state is not None
        assert attempt is not None
        state.manifest, state.checksum = attempt.manifest, manifest_checksum(attempt.data)
        state.saved_at = self._clock.mono
        state.leftovers.clear()
        state.forced = False
        state.topic.fold.deleted_keys.forget(state.since)
        if state not in self._untidy:
            self._untidy.append(state)
        self.written += 1
        self._freed = True
        self._finish()

    def _write(self, buffers: list[Buffer], *, last: bool) -> None:
        state = self._current
        assert state is not None
        size = sum([len(memoryview(buffer).cast("B")) for buffer in buffers])
        self._unsynced += size
        durable = last or self._unsynced >= sow_sync_bytes
        if durable:
            self._unsynced = 0
        self._ready.clear()
        self._with_disk = True
        job = WriteState(
            topic=state.topic.name,
            path=state_path(state.topic.name, UNFINISHED_NAME),
            offset=self._offset,
            buffers=buffers,
            bytes=size,
            durable=durable,
        )
        self._offset += size
        self._outbox.submit([job])

    def _failed(self, job: WriteState | PublishState, error: OSError) -> None:
        self.failures += 1
        state = self._current
        assert state is not None
        state.failures += 1
        if self._attempt is not None and self._attempt.written:
            # The manifest may name it already, so only a later manifest may remove it.
            state.leftovers.add(self._attempt.manifest.files[-1].name)
        self._outbox.log_event("sow_checkpoint_failed", True, {"topic": job.topic, "text": str(error)})
        self._finish()

    def _give_up(self) -> None:
        """End the current checkpoint, because the log or the fold stops."""
        self._ready.clear()
        self._waiting.clear()
        self._current = self._copy = self._attempt = None

    def _finish(self) -> None:
        """End the current checkpoint, and start the next one."""
        state = self._current
        assert state is not None
        self._copy = self._attempt = None
        self._ready.clear()
        self._skip(state)
        self._start_next()

    def _skip(self, state: _TopicState) -> None:
        """End the turn of a topic."""
        self._current = None
        state.urgent = False
        if not state.changed or not self._fold.applied_end:
            state.saved_at = self._clock.mono
        state.due_at = self._clock.mono + state.topic.definition.checkpoint_interval
        self._clock.announce(self)

    def _end_at(self, position: int) -> CommitEnd | None:
        """Return the commit that ends at a position from `folded` on, or None if it is unknown."""
        for end in self._ends:
            if end.end >= position:
                return end if end.end == position else None
        return None
