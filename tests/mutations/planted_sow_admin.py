"""Planted defects of statistics and start options of SOW topics, with the tests that must detect them.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_STATISTICS = "unit/server/admin/test_sow_statistics.py"
_START = "unit/server/test_state_start.py"
_PRUNE = "unit/journal/offline/test_state_check.py"
_RECOVERY = "unit/engine/sow/test_recovery.py"

SOW_ADMIN_MUTATIONS: Final = (
    Mutation(
        "the checkpoint of records without changes seems to be old",
        "engine/sow/checkpoints.py",
        "        if not state.changed or not self._fold.applied_end:\n",
        "        if not self._fold.applied_end:\n",
        (_STATISTICS,),
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "a failed checkpoint seems to be a new one",
        "engine/sow/checkpoints.py",
        "        state.failures += 1\n",
        "        state.saved_at = self._clock.mono\n",
        (_STATISTICS,),
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "deletes before the start count as deletes of this run",
        "engine/sow/registry.py",
        "                topic.fold.recovered()\n",
        "                pass\n",
        (_STATISTICS,),
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "one step reads all SOW topics for the statistics",
        "server/admin/snapshot.py",
        "_portions(driver.broker.states.topics, snapshot_step_sow_topics_max)",
        "_portions(driver.broker.states.topics, 1 << 20)",
        (_STATISTICS,),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "results of ended queries seem to use memory",
        "engine/sow/result_memory.py",
        "        self._row_bytes += nbytes\n",
        "        self._row_bytes += max(nbytes, 0)\n",
        (_STATISTICS,),
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "a start ignores the SOW topics to rebuild",
        "server/startup.py",
        "plan_states(journal.view, definitions, StateFiles(found, files), rebuild)",
        "plan_states(journal.view, definitions, StateFiles(found, files))",
        (_START,),
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "a rebuild from a pruned log counts as complete",
        "engine/sow/recovery.py",
        'rest = _rest(facts, "--rebuild-sow") if facts.pruned else ""',
        'rest = ""',
        (_RECOVERY,),
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "an offline removal forgets every SOW topic",
        "server/offline_prune.py",
        "            if found.pop(state_directory(name), None) is None:\n",
        "            if not found or found.clear():\n",
        (_PRUNE,),
        promise="invariant 1",
        tier="unit",
    ),
)
