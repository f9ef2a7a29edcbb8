"""Planted defects of the fold of rows of several logs.

Must never hold one of the rule itself (`planted_sow_rule.py`).
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_FOLD: Final = "engine/sow/state/ranked_fold.py"
_PROPERTY: Final = ("property/test_ranked_fold.py",)


def _of_fold(name: str, old: str, new: str) -> Mutation:
    """Return a defect that random rows of several logs must detect."""
    return Mutation(name, _FOLD, old, new, _PROPERTY, promise="invariant 1", tier="property")


def _of_stamps(name: str, old: str, new: str) -> Mutation:
    """Return a defect of the forgetting by order stamps."""
    tests = ("unit/engine/sow/state/test_candidates.py",)
    module = "engine/sow/state/candidates.py"
    return Mutation(name, module, old, new, tests, promise="invariant 1", tier="unit")


RANKED_FOLD_MUTATIONS: Final = (
    _of_fold(
        "sequences of different publishers are compared",
        "            if publisher == row.publisher and sequence != row.sequence:\n",
        "            if sequence != row.sequence:\n",
    ),
    _of_fold(
        "a copy of the record is never entered",
        "            if publisher == row.publisher and sequence != row.sequence:\n",
        "            if publisher == row.publisher:\n",
    ),
    _of_fold(
        "a record forgets the log of its origin",
        "        self._origins[slot] = number\n",
        "        self._origins[slot] = _OWN\n",
    ),
    _of_fold(
        "a delete names messages of other logs as its own",
        "    logs = (log, *record.logs)\n",
        "    logs = (log,) * (1 + len(record.logs))\n",
    ),
    _of_fold(
        "a message that is a record again is not restated",
        "            if decision.kind is DecisionKind.RESTATED and decision.record is not None:\n",
        "            if decision.kind is DecisionKind.REMOVED and decision.record is not None:\n",
    ),
    _of_stamps(
        "candidates are forgotten by their positions alone",
        "            if stamp is None:\n",
        "            if stamp is None or stamp:\n",
    ),
    _of_stamps(
        "candidates are forgotten while another one of the key is not stable",
        "            if (position := _last_position(of_key)) >= stable:\n",
        "            if (position := _last_position(of_key)) >= stable and position < 0:\n",
    ),
)
