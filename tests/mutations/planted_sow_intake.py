"""Planted defects of deletes, deltas, expiry and transactions on SOW topics.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_EXPIRY = "unit/engine/sow/test_expiry.py"
_TRANSACTIONS = "unit/engine/sow/test_transactions.py"

SOW_INTAKE_MUTATIONS: Final = (
    Mutation(
        "a message of a SOW topic is staged",
        "engine/transactions/coordinator.py",
        "        self._checks.check_stateless(batch.topics)\n",
        "",
        (_TRANSACTIONS,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "a part from before the configuration of a SOW is committed",
        "engine/transactions/coordinator.py",
        "            self._checks.check_stateless(sorted(topics))\n",
        "",
        (_TRANSACTIONS,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "a record expires at a step of the wall clock",
        "engine/sow/expiry.py",
        "        return self._clock.wall\n",
        "        return 1_760_000_000_000_000 + int((self._clock.mono - 100) * 1e6)\n",
        (_EXPIRY,),
        promise="invariant 25",
        tier="unit",
    ),
    Mutation(
        "an expiry is applied before it is persisted",
        "engine/sow/expiry.py",
        "        self._accepted.appended(batch, (), [TopicDelete(topic, 0, record)])\n",
        "        topic.fold.keys.remove(slots)\n        topic.fold.records.drop(slots)\n",
        (_EXPIRY,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "records expire before the end of their own life",
        "engine/sow/topic.py",
        "due_times(rows.order_stamps, rows.lives, self.fold.life_ms)",
        "due_times(rows.order_stamps, None, self.fold.life_ms)",
        (_EXPIRY,),
        promise="invariant 25",
        tier="unit",
    ),
    Mutation(
        "records beyond the bytes of an expiry record never expire",
        "engine/sow/expiry.py",
        "        self._queue(topic, slots[count:])\n",
        "",
        (_EXPIRY,),
        promise="invariant 22",
        tier="unit",
    ),
    Mutation(
        "records that are due while the log is full never expire",
        "engine/sow/expiry.py",
        "            self._queue(topic, slots)\n            return False\n",
        "            return False\n",
        (_EXPIRY,),
        promise="R16",
        tier="unit",
    ),
    Mutation(
        "overdue records wait for the first publish after a start",
        "engine/sow/registry.py",
        "        self.fold.begin(self._journal.commits.persisted_end)\n        self.expiry.announce()\n",
        "        self.fold.begin(self._journal.commits.persisted_end)\n",
        (_EXPIRY,),
        promise="invariant 25",
        tier="unit",
    ),
)
