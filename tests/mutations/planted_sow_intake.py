"""Planted defects of deletes, deltas, expiry and transactions on SOW topics.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

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
)
