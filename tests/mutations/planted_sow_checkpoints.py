"""Planted defects of checkpoints of SOW topics: files, decisions at a start, retention.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_JOBS = "unit/journal/test_disk_jobs.py"

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
)
