"""Planted defects of the keys of publish frames and of the fold of the log.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_REGISTRY = "unit/engine/sow/test_registry.py"
_PROGRAMS = "property/test_sow_fold.py"

SOW_FOLD_MUTATIONS: Final = (
    Mutation(
        "a resent message is refused for its key",
        "engine/commands/key_checks.py",
        "self._publisher, sequence)) is not None:\n",
        "self._publisher, sequence)) is None:\n",
        (_REGISTRY,),
        promise="invariant 5",
        tier="unit",
    ),
    Mutation(
        "a lost refusal of a message without a key is not repeated",
        "engine/sow/registry.py",
        "                    bad.update(state.accepted_keys(batch, rows[old]).bad)\n",
        "                    pass\n",
        (_REGISTRY,),
        promise="invariant 5",
        tier="unit",
    ),
    Mutation(
        "a resent frame whose new messages are refused counts as appended",
        "engine/commands/publish.py",
        "            if keys is not None and self._writer.end > before:",
        "            if keys is not None:",
        (_REGISTRY,),
        promise="invariant 5",
        tier="unit",
    ),
    Mutation(
        "a message key on a topic with generated keys is accepted",
        "engine/sow/topic.py",
        "        if not len(named):\n",
        "        if len(named):\n",
        (_REGISTRY,),
        promise="invariant 5",
        tier="unit",
    ),
    Mutation(
        "deletes of an earlier definition apply by key",
        "engine/sow/part_fold.py",
        "            if row.record.key_fingerprint == topic.key_fingerprint:\n",
        "            if True:\n",
        ("unit/engine/sow/test_redefinition.py",),
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "messages after an earlier delete are unknown to the next one",
        "engine/sow/state/fold.py",
        "            self._slots_by_message.add(slots)\n",
        "            pass\n",
        ("unit/engine/sow/test_redefinition.py",),
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "an updated record stays at the earlier value of its hash index",
        "engine/sow/state/hash_index.py",
        "            if before == bucket:\n",
        "            if before is not None and bucket is not None:\n",
        ("unit/engine/sow/query/test_record_indexes.py",),
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "a lookup in a hash index misses arrays",
        "engine/sow/query/record_indexes.py",
        "product(*values)), ANY_VALUE]\n",
        "product(*values))]\n",
        ("unit/engine/sow/query/test_record_indexes.py",),
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "a hash index of some fields of a filter is used for one value only",
        "engine/sow/query/record_indexes.py",
        "{*map(short, choice[0].keys)}\n",
        "{*map(short, [*choice[0].keys][:1])}\n",
        ("unit/engine/sow/query/test_record_indexes.py",),
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "changes of an ended query stay until the next message of its topic",
        "engine/sow/state/fold.py",
        "            self._untidy[self] = None\n",
        "            pass\n",
        ("unit/engine/sow/test_memory.py",),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "bodies that only queries need use up the memory of records",
        "engine/sow/state/fold.py",
        "        bodies = self.records.blocks.nbytes - self.changes.body_bytes\n",
        "        bodies = self.records.blocks.nbytes\n",
        ("unit/engine/sow/test_memory.py",),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "publishers outrun the fold",
        "engine/sow/registry.py",
        "        if self.fold.lag_bytes > state_lag_bytes_max:\n",
        "        if self.fold.lag_bytes < 0:\n",
        (_REGISTRY,),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "the first of equal keys in a step wins",
        "engine/sow/state/fold.py",
        "        latest = dict(zip(keys, range(len(keys)), strict=True))\n",
        "        latest = dict(zip(keys[::-1], range(len(keys))[::-1], strict=True))\n",
        (_PROGRAMS,),
        promise="invariant 1",
        tier="property",
    ),
    Mutation(
        "keys of a frame with a refused message belong to the messages behind it",
        "engine/commands/key_checks.py",
        "TopicKeys(topic, places[rows], names)",
        "TopicKeys(topic, rows, names)",
        (_REGISTRY, _PROGRAMS),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "messages behind a delete in one commit are applied before it",
        "engine/sow/part_fold.py",
        "        stop = self._records[0] if self._records else self._batch.count\n",
        "        stop = self._batch.count\n",
        (_REGISTRY,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "a step folds a whole commit",
        "engine/sow/part_fold.py",
        "        high = min(low + self._rows_max, stop)\n",
        "        high = stop\n",
        (_REGISTRY,),
        promise="invariant 22",
        tier="unit",
    ),
    Mutation(
        "the expiry of a message ends a later one of its key",
        "engine/sow/state/fold.py",
        "(named.publishers == current.publishers) & (named.sequences == current.sequences)\n",
        "named.publishers == current.publishers\n",
        (_REGISTRY,),
        promise="invariant 1",
        tier="unit",
    ),
)
