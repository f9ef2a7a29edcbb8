"""Offline prune: removes archived segments of a stopped instance, like retention.

Invariants:
- A segment is removed only if the archive has all its messages, this run has verified them, and no queue and
  no checkpoint of a SOW topic needs the segment.
- The directory is locked, so no server runs on it.
- `retired.bin` is durable before the first segment is removed, so a server can start after a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from tickertape.archive.archive_writer import ArchiveWriter
from tickertape.archive.verify import Sums, sums_of
from tickertape.base.errors import ArchiveFailed, BadOption, JournalCorrupt, JournalLocked
from tickertape.base.text_format import did_you_mean, shown
from tickertape.engine.limits import retention_segments_max
from tickertape.engine.queues.state.checkpoint import decode_covered, needed_from
from tickertape.engine.queues.state.records import begun_in
from tickertape.engine.retention import RetentionPin
from tickertape.engine.sow.recovery import is_present
from tickertape.journal.commit.jobs import DiskJobExecutor, RetireSegments
from tickertape.journal.disk import SystemDisk
from tickertape.journal.format.files import open_file
from tickertape.journal.format.identity import open_identity
from tickertape.journal.format.queue_checkpoint import read_queues
from tickertape.journal.format.retired_state import RetiredManifest
from tickertape.journal.format.segment import CONTROL_TOPIC, JOURNAL_DIRECTORY, segment_number, segment_path
from tickertape.journal.format.sow_checkpoint import retired_manifest, state_directory
from tickertape.journal.offline.snapshot import SnapshotReader, take_snapshot
from tickertape.journal.reading.log_view import LogSegment, LogView
from tickertape.journal.recovery.state_files import (
    FoundState,
    find_states,
    make_durable,
    read_states,
)
from tickertape.journal.retention import (
    RetentionPolicy,
    due,
    find_last_message,
    gather,
    removable,
    unneeded,
)
from tickertape.server.startup import read_all, salt

Advance = Callable[[int], object]
"""Callback with the number of compared bytes."""

_FORGET: Final = "To prune without this SOW topic, pass --forget-sow with its name."
_RUNNING: Final = "Or let that server remove archived segments: configure [archive], and retain in [journal]."


class PrunePlan(NamedTuple):
    """Removable segments of a log, oldest first."""

    segments: list[LogSegment]
    first_position: int
    """Current first position of the log."""
    end_position: int
    archived: int
    """Number of completely archived sealed segments, from the oldest."""
    kept_by: str
    """Cause that keeps some archived segments. Empty if all of them are removable."""

    @property
    def bytes(self) -> int:
        """Size of their files."""
        return sum(segment.file_bytes for segment in self.segments)


class OfflinePrune:
    """The locked data directory of a stopped instance, and its archive.

    `forget`: SOW topics whose checkpoints keep no segment. Raises `JournalLocked` if a server runs on the
    directory, `NotAJournal`, `JournalCorrupt`, `WrongJournal` (archive of another journal) and
    `ArchiveFailed` (not an archive, or not of all topics)."""

    def __init__(
        self,
        directory: str,
        open_archive: Callable[[str], ArchiveWriter],
        forget: frozenset[str] = frozenset(),
    ) -> None:
        self._disk = SystemDisk(directory)
        self._forget = forget
        self._manifests: dict[str, RetiredManifest] = {}
        """Checkpoints of SOW topics, which are durable."""
        try:
            self.journal_id, self._view = self._opened()
            self._reader = SnapshotReader(self._disk, self._view)
            self.archive = open_archive(self.journal_id.hex())
            self._check()
        except BaseException:
            self._disk.close_all()
            raise

    def close(self) -> None:
        """Close the files and unlock the directory."""
        self._reader.close()
        self._disk.close_all()

    def plan(self, policy: RetentionPolicy, wall: int) -> PrunePlan:
        """Return the segments to remove: all archived segments that `policy` does not keep.

        `wall`: current time in microseconds since 1970 UTC. Raises `BadOption` for a forgotten SOW topic
        without files, `JournalCorrupt` or `OSError`."""
        view, coverage = self._view, self.archive.coverage
        if view.segments and view.last_message is None:
            view.found_last_message(read_all(self._disk, find_last_message(view)))
        sealed = removable(view, view.segments[-1].number - 1) if view.segments else []
        archived = 0
        if sealed and sealed[0].first_position >= coverage.begin:
            archived = unneeded(sealed, coverage.end)
        wanted, why = archived, ""
        if policy.active:
            total = sum(segment.file_bytes for segment in view.segments)
            wanted = min(archived, due(sealed, policy, wall, total))
            why = "--keep-age or --keep-size" if wanted < archived else ""
        pin = min([*self._pins(), *self._state_pins()], default=None)
        free = wanted if pin is None else unneeded(sealed[:wanted], pin.position)
        if pin is not None and free < wanted:
            why = f"{pin.who}, which needs the log from position {pin.position:,}"
        return PrunePlan(sealed[:free], view.first_position, view.end_position, archived, why)

    def compare(self, plan: PrunePlan, advance: Advance) -> None:
        """Compare the messages of the planned segments with the archive.

        Raises `ArchiveFailed` if they differ, or `JournalCorrupt`."""
        if not plan.segments:
            return
        begin, end = plan.segments[0].first_position, plan.segments[-1].end_position
        ours, done = Sums(), self._reader.bytes_before(begin)
        for selected in self._reader.selected(begin, end):
            ours = ours.plus(selected.positions, selected.batch)
            passed = self._reader.bytes_before(selected.end_position)
            advance(passed - done)
            done = passed
        theirs = sums_of(self.archive, begin, end)
        if ours != theirs:
            raise ArchiveFailed(
                f"Cannot prune: archive {self.archive.place.location!r} and the log differ at positions "
                f"{begin} to {end} (exclusive) ({theirs.messages:,} messages in the archive, "
                f"{ours.messages:,} in the log). Nothing was removed. Run `tickertape pipeline audit` to "
                "list the differences."
            )

    def remove(self, plan: PrunePlan) -> None:
        """Remove the segments of `plan`. Safe to repeat after any failure.

        Raises `JournalCorrupt` if the state of removed segments is unreadable, or `OSError`."""
        executor = DiskJobExecutor(self._disk, salt)
        left = len(plan.segments)
        while left:
            count = min(left, retention_segments_max)
            gathered = read_all(self._disk, gather(self._view, self.journal_id, count))
            retired = gathered.retired
            retired = retired._replace(manifests={**retired.manifests, **self._manifests})
            through = retired.through
            # Make the new start of the log durable before older segments are removed.
            self._sync(through + 1)
            numbers = self._numbers(through)
            self._reader.close()
            self._view.retire(retired, gathered.first, first_unknown=gathered.first_unknown)
            executor.run(RetireSegments(retired=retired, numbers=numbers))
            left -= count

    # -- internals ------------------------------------------------------------------------------------

    def _opened(self) -> tuple[bytes, LogView]:
        try:
            identity = open_identity(self._disk, owner="journal prune", create=False, new_id=b"")
        except JournalLocked as error:
            raise JournalLocked(f"{error} {_RUNNING}") from None
        snapshot = take_snapshot(self._disk, unsynced=True)
        if snapshot.damage is not None:
            raise snapshot.damage
        return identity.journal_id, snapshot.view

    def _check(self) -> None:
        coverage, where = self.archive.coverage, self.archive.place.location
        if coverage.topics:
            raise ArchiveFailed(
                f"Cannot prune: archive {where!r} has the topics {coverage.topics!r} only. Use an archive of "
                "all topics."
            )
        if coverage.end > self._view.end_position:
            raise ArchiveFailed(
                f"Cannot prune: archive {where!r} ends at position {coverage.end}, but the log in "
                f"{self._disk.where!r} ends at {self._view.end_position}. The log has lost archived "
                "messages, perhaps because it was restored from a copy. Nothing was removed. Create a new "
                "archive at another location."
            )

    def _pins(self) -> list[RetentionPin]:
        """Return the positions that queues need, from their checkpoint or their start."""
        try:
            body = read_queues(self._disk, self.journal_id)
            covered = None if body is None else decode_covered(body)
            end = self._view.end_position
            # A checkpoint beyond the end of the log is invalid. A server start ignores it, too.
            if covered is not None and all(max(one.messages, one.records) <= end for one in covered):
                return [RetentionPin(needed_from(one), f"queue {shown(one.queue)}") for one in covered]
        except ValueError:
            pass  # without a usable checkpoint, the queues pin the log from their start
        return [
            RetentionPin(begun.position, f"queue {shown(begun.queue)}") for begun in begun_in(self._control())
        ]

    def _state_pins(self) -> list[RetentionPin]:
        """Return P0 of the checkpoints of all SOW topics, and make them durable.

        Raises `JournalCorrupt` for one that cannot be read, because the log may be needed instead."""
        pins: list[RetentionPin] = []
        found = find_states(self._disk, self.journal_id)
        self._forget_states(found)
        for state in found.values():
            manifest = state.manifest
            damage = state.damage or ("" if manifest is None else read_states(self._disk, manifest).damage)
            if damage:
                raise JournalCorrupt(f"Cannot prune: {damage} Nothing was removed. {_FORGET}")
            if manifest is None:
                pins.append(RetentionPin(0, f"a SOW topic without a checkpoint in sow/{state.directory}"))
            else:
                if not read_all(self._disk, is_present(self._view, manifest)):
                    raise JournalCorrupt(
                        f"Cannot prune: the checkpoint of SOW topic {shown(manifest.topic)} ends with a "
                        "commit that the log does not have. Nothing was removed. Restore journal/ and sow/ "
                        f"from one backup. {_FORGET}"
                    )
                pins.append(RetentionPin(manifest.start, f"SOW topic {shown(manifest.topic)}"))
                self._manifests[manifest.topic] = retired_manifest(manifest, state.checksum)
        make_durable(self._disk, found.values())
        return pins

    def _forget_states(self, found: dict[str, FoundState]) -> None:
        """Remove forgotten SOW topics from `found`. Raises `BadOption` for one without files."""
        names = [state.manifest.topic for state in found.values() if state.manifest is not None]
        for name in sorted(self._forget):
            if found.pop(state_directory(name), None) is None:
                raise BadOption(
                    f"Cannot forget SOW topic {shown(name)}: sow/ has no files of it. Nothing was removed."
                    f"{did_you_mean(name, names)} `tickertape journal ls` lists the SOW topics."
                )

    def _control(self) -> list[bytes]:
        """Return the control records of the log, starting with the own ones of removed segments."""
        view = self._view
        records = [] if view.retired is None else [r for r in view.retired.records if isinstance(r, bytes)]
        for part in self._reader.parts(view.first_position, view.end_position, CONTROL_TOPIC):
            batch = part.batch
            if batch.kinds is None or CONTROL_TOPIC not in batch.topics:
                continue
            indices = batch.kinds.nonzero()[0].tolist()
            records += [bytes(batch.body(i)) for i in indices if batch.topic(i) == CONTROL_TOPIC]
        return records

    def _numbers(self, through: int) -> tuple[int, ...]:
        """Return the numbers of all segment files up to `through`, including files that an interrupted
        removal left."""
        found = (segment_number(name) for name in self._disk.names(JOURNAL_DIRECTORY))
        return tuple(sorted(number for number in found if number is not None and number <= through))

    def _sync(self, number: int) -> None:
        with open_file(self._disk, segment_path(number)) as handle:
            self._disk.sync(handle)
