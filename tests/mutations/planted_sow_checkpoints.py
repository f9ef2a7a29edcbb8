"""Planted defects of checkpoints of SOW topics: files, decisions at a start, retention.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_JOBS = "unit/journal/test_disk_jobs.py"
_RECOVERY = "unit/engine/sow/test_recovery.py"
_CHECKPOINTS = "unit/engine/sow/test_checkpoints.py"
_STATE_CHECK = "unit/journal/offline/test_state_check.py"
_WORLD = "simulation/test_sow_checkpoints.py"

SOW_CHECKPOINT_MUTATIONS: Final = (
    Mutation(
        "a manifest is written before the names of its files are durable",
        "journal/commit/jobs.py",
        '        for one in (".", SOW_DIRECTORY, directory):\n',
        '        for one in (".", SOW_DIRECTORY):\n',
        (_JOBS,),
        promise="invariant 4",
        tier="unit",
    ),
    Mutation(
        "files of the earlier checkpoint are removed before the manifest",
        "journal/commit/jobs.py",
        "        replace_file(self._disk, job.path, [job.manifest])\n        for path in job.drop:\n"
        "            with contextlib.suppress(FileNotFoundError):  # an earlier attempt removed it\n"
        "                self._disk.remove(path)\n",
        "        for path in job.drop:\n            with contextlib.suppress(FileNotFoundError):\n"
        "                self._disk.remove(path)\n"
        "        replace_file(self._disk, job.path, [job.manifest])\n",
        (_JOBS,),
        promise="R1",
        tier="unit",
    ),
    Mutation(
        "the last piece of a checkpoint is not synced",
        "journal/commit/jobs.py",
        "            if job.durable:\n",
        "            if job.durable and not job.buffers:\n",
        (_JOBS,),
        promise="R1",
        tier="unit",
    ),
    Mutation(
        "pieces of checkpoints do not wait for commits",
        "server/storage/checkpoint_pace.py",
        "        if since is None or now - since <= commit_owed_seconds_max:\n",
        "        if since is None or now >= since:\n",
        ("unit/server/storage/test_checkpoint_pace.py",),
        promise="R14",
        tier="unit",
    ),
    Mutation(
        "a commit search accepts a commit that ends behind the position",
        "journal/reading/commit_search.py",
        "                return header if after == end else None\n",
        "                return header\n",
        ("unit/journal/reading/test_commit_search.py",),
        promise="invariant 6",
        tier="unit",
    ),
    Mutation(
        "a start folds the log from the end of the last scan",
        "engine/sow/registry.py",
        "                    begin = planned.manifest.start\n",
        "                    begin = planned.manifest.end\n",
        (_WORLD,),
        promise="invariant 1",
        tier="simulation",
    ),
    Mutation(
        "deleted keys are forgotten up to the end of the last scan",
        "engine/sow/checkpoints.py",
        "        state.topic.fold.deleted_keys.forget(state.since)\n",
        "        state.topic.fold.deleted_keys.forget(attempt.manifest.end)\n",
        (_WORLD,),
        promise="invariant 1",
        tier="simulation",
    ),
    Mutation(
        "a delta has the records from the end of the last scan on",
        "engine/sow/checkpoints.py",
        "StateCopy(topic.fold, file, state.since)",
        "StateCopy(topic.fold, file, state.named_end)",
        (_WORLD,),
        promise="invariant 1",
        tier="simulation",
    ),
    Mutation(
        "keys of an earlier delta are deleted once more",
        "engine/sow/state/deleted_keys.py",
        "yield [key for key, position in piece if position >= since]",
        "yield [key for key, position in piece if position >= 0 * since]",
        (_WORLD, "unit/engine/sow/state/test_deleted_keys.py"),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "dead keys of a delta are applied behind its records",
        "engine/sow/recovery.py",
        "    for blocks in files:\n        for block in blocks:\n",
        "    for blocks in files:\n"
        "        for block in sorted(blocks, key=lambda block: isinstance(block, DeadKeys)):\n",
        (_WORLD,),
        promise="invariant 1",
        tier="simulation",
    ),
    Mutation(
        "a slot that is reused during a scan keeps its earlier key in the file",
        "engine/sow/checkpoint_writer.py",
        "        keys = self._fold.keys.keys_of(slots)\n        count",
        "        own = self._fold.keys\n        old = table.live_slots(0, table.slot_end)\n"
        "        names = vars(self).setdefault('_names', dict(zip(old.tolist(), own.keys_of(old))))\n"
        "        keys = [names.get(s, k) for s, k in zip(slots.tolist(), own.keys_of(slots))]\n        count",
        (_WORLD,),
        promise="invariant 1",
        tier="simulation",
    ),
    Mutation(
        "a checkpoint counts without a look at the chain of the log",
        "engine/sow/recovery.py",
        "(header.number, header.epoch, header.crc) == end.commit\n",
        "header.number == end.commit[0]\n",
        (_RECOVERY, _WORLD),
        promise="invariant 6",
        tier="unit",
    ),
    Mutation(
        "a manifest is written before the log is synced up to its end",
        "engine/sow/checkpoints.py",
        "        if self._journal.commits.synced_end < manifest.end:\n",
        "        if self._journal.commits.synced_end < 0:\n",
        (_CHECKPOINTS,),
        promise="R1",
        tier="unit",
    ),
    Mutation(
        "the pin of a checkpoint is one too high",
        "engine/sow/checkpoints.py",
        "        return state.manifest.start if state.checksum is not None",
        "        return state.manifest.start + 1 if state.checksum is not None",
        (_CHECKPOINTS,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "a removal names a checkpoint that is not durable",
        "engine/sow/checkpoints.py",
        "            manifest = state.manifest\n            if manifest",
        "            manifest = self._attempt.manifest if self._attempt else state.manifest\n"
        "            if manifest",
        (_CHECKPOINTS, _WORLD),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "a removal names no checkpoints",
        "engine/retention.py",
        "manifests={**retired.manifests, **self._states.manifests()}",
        "manifests=dict(retired.manifests)",
        (_CHECKPOINTS, _RECOVERY),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "a quiet topic holds segments for ever",
        "engine/retention.py",
        "                self._states.hasten(held[-1].end_position)\n",
        "                self._states.hasten(0)\n",
        (_CHECKPOINTS,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "an older copy of a checkpoint is loaded",
        "engine/sow/recovery.py",
        "    if named.position > at.end:\n        return True\n",
        "    if named.position > at.end:\n        return False\n",
        (_RECOVERY,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "a delta without all deleted keys is written",
        "engine/sow/checkpoints.py",
        "self.forced or self.topic.fold.deleted_keys.lost_below:",
        "self.forced:",
        (_CHECKPOINTS,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "a start relies on a manifest that power loss may take",
        "journal/recovery/state_files.py",
        '        disk.sync_directory(f"{SOW_DIRECTORY}/{state.directory}")\n',
        "        disk.sync_directory(SOW_DIRECTORY)\n",
        ("unit/journal/recovery/test_state_files.py",),
        promise="invariant 4",
        tier="unit",
    ),
    Mutation(
        "the offline removal ignores the checkpoints of SOW topics",
        "server/offline_prune.py",
        "        pin = min([*self._pins(), *self._state_pins()], default=None)\n",
        "        pin = min(self._pins(), default=None)\n",
        (_STATE_CHECK,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "the offline removal names no checkpoints",
        "server/offline_prune.py",
        "manifests={**retired.manifests, **self._manifests}",
        "manifests=dict(retired.manifests)",
        (_STATE_CHECK,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "verify does not read the files of checkpoints",
        "journal/offline/state_check.py",
        "        if not reason and through and state.manifest is not None:\n",
        "        if reason and through and state.manifest is not None:\n",
        (_STATE_CHECK,),
        promise="invariant 17",
        tier="unit",
    ),
    Mutation(
        "checkpoints are examined after the first segment of a start",
        "server/startup.py",
        "    plan = plan_records(disk, journal, config.sow, rebuild)\n    begin_run(journal, executor)\n",
        "    begin_run(journal, executor)\n    plan = plan_records(disk, journal, config.sow, rebuild)\n",
        ("unit/server/test_state_start.py",),
        promise="invariant 15",
        tier="unit",
    ),
    Mutation(
        "nothing keeps segments for a topic that never had a checkpoint",
        "journal/recovery/state_files.py",
        '            disk.make_directory(f"{SOW_DIRECTORY}/{directory}")\n',
        "            pass\n",
        ("unit/journal/offline/test_state_check.py",),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "a clean stop writes no checkpoints of SOW topics",
        "engine/sow/checkpoints.py",
        "        self._waiting.extend(self._states.values())\n",
        "        self._waiting.clear()\n",
        (_CHECKPOINTS,),
        promise="invariant 4",
        tier="unit",
    ),
    Mutation(
        "a clean stop writes checkpoints before the sealed log is folded",
        "engine/sow/checkpoints.py",
        "        if behind or self._with_disk:\n",
        "        if self._with_disk:\n",
        (_CHECKPOINTS,),
        promise="invariant 4",
        tier="unit",
    ),
    Mutation(
        "a clean stop starts its checkpoints while an earlier one is with the disk",
        "engine/sow/checkpoints.py",
        "        if behind or self._with_disk:\n",
        "        if behind:\n",
        (_CHECKPOINTS,),
        promise="invariant 4",
        tier="unit",
    ),
)
