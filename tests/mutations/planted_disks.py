"""Planted defects in the protection of the data directory.

They concern moved directories, removed locks, lost or zeroed files, and unreadable sectors. Must never hold
one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_DISK = "unit/journal/test_disk.py"
_JOBS = "unit/journal/test_disk_jobs.py"
_RECOVERY = "unit/journal/recovery/test_recovery.py"
_STAGING = "unit/journal/format/test_staging_file.py"

DISK_MUTATIONS: Final = (
    Mutation(
        "the data directory is found by its path each time",
        "journal/disk.py",
        "        fd = root = self._root_descriptor()\n",
        "        fd = root = os.open(self.root, _OPEN_DIRECTORY)\n",
        (_DISK,),
        promise="R1",
        tier="unit",
    ),
    Mutation(
        "the lock file alone excludes other servers",
        "journal/disk.py",
        "        held = self._lock_directory(parts)\n",
        "        held = os.dup(self._root_descriptor())\n",
        (_DISK,),
        promise="invariant 2",
        tier="unit",
    ),
    Mutation(
        "an empty segment counts as unused even before other segments",
        "journal/recovery/recovery.py",
        "        elif later:\n",
        "        elif later is None:\n",
        (_RECOVERY,),
        promise="invariant 17",
        tier="unit",
    ),
    Mutation(
        "a missing segment that was in use is not noticed",
        "journal/recovery/recovery.py",
        "    if last < last_begun:\n",
        "    if last_begun < 0:\n",
        (_RECOVERY,),
        promise="R1",
        tier="unit",
    ),
    Mutation(
        "the number of the last segment in use is written and not synced",
        "journal/commit/jobs.py",
        "        self._disk.sync(self._last_segment)\n",
        "",
        (_JOBS,),
        promise="R1",
        tier="unit",
    ),
    Mutation(
        "a segment is reserved behind one without a durable header",
        "journal/commit/group_commit.py",
        "            return  # a file after a segment proves",
        "            pass  # a file after a segment proves",
        ("simulation/test_journal_crashes.py",),
        promise="invariant 17",
        tier="simulation",
    ),
    Mutation(
        "every staged part is mapped, regardless of its size",
        "journal/format/staging_file.py",
        "            if self._held + size <= staged_memory_bytes_max:\n",
        "            if size < 0:\n",
        (_STAGING,),
        promise="R4",
        tier="unit",
    ),
    Mutation(
        "a prepared part with a damaged end is dropped without a report",
        "journal/format/staging_file.py",
        "        if counts is None and not prepared:\n",
        "        if counts is None:\n",
        (_STAGING,),
        promise="invariant 16",
        tier="unit",
    ),
    Mutation(
        "a segment of a publish store is mapped without a read",
        "client/publish_store/segments.py",
        "                    os.pread(fd, _PIECE_BYTES, offset)\n",
        "                    del offset\n",
        ("unit/client/publish_store/test_file.py",),
        promise="R4",
        tier="unit",
    ),
    # -- background syncs -----------------------------------------------------------------------------
    Mutation(
        "a small commit is answered before its sync",
        "server/storage/disk_worker.py",
        "            self._executor.begin_sync(job, syncs, partial(self._synced, job, began))",
        "            self._post(self._answer, job, None, 0)",
        ("unit/server/storage/test_disk_worker.py",),
        promise="R1",
        tier="unit",
    ),
    Mutation(
        "a failed background sync is answered as a success",
        "server/storage/disk_worker.py",
        "        self._measure(began)\n        self._answer(job, error, 0)",
        "        self._measure(began)\n        self._answer(job, None, 0)",
        ("unit/server/storage/test_disk_worker.py",),
        promise="R1",
        tier="unit",
    ),
    Mutation(
        "a commit whose background sync is not supported is not synced",
        "server/storage/disk_worker.py",
        "            self._commits.submit(job)\n            return\n",
        "            self._answer(job, None, 0)\n            return\n",
        ("unit/server/storage/test_disk_worker.py",),
        promise="R1",
        tier="unit",
    ),
    Mutation(
        "an input overtakes the delivery of acknowledged commits",
        "engine/broker.py",
        "        self._clock.set(now)\n        if self._acknowledged:\n            self._deliver()\n\n",
        "        self._clock.set(now)\n\n",
        ("simulation/test_engine_crashes.py", "simulation/test_handover.py"),
        promise="R3",
        tier="simulation",
    ),
)
