"""Planted defects of the rule of the state of the world: which message is the record of a key.

Must never hold one that leaves the records of all instances unchanged.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_CANDIDATES = "engine/sow/state/candidates.py"
_ORDER = "simulation/test_sow_order.py"
_UNIT = "unit/engine/sow/state/test_candidates.py"


def _of_rule(name: str, old: str, new: str) -> Mutation:
    """Return a defect that the schedules of every run must detect."""
    return Mutation(name, _CANDIDATES, old, new, (_ORDER,), promise="invariant 1", tier="simulation")


SOW_RULE_MUTATIONS: Final = (
    _of_rule(
        "the order of the log decides about the record, not the rank",
        "    return candidate.rank, candidate.dead\n",
        "    return candidate.position, candidate.dead\n",
    ),
    _of_rule(
        "candidates that lost are dropped before they are stable",
        "            del of_key.others[record.publisher]\n",
        "            of_key.others.clear()\n",
    ),
    _of_rule(
        "a delete is ranked by its own stamp",
        "            row.publisher, row.sequence, named, (row.stamp, row.log),",
        "            row.publisher, row.sequence, Rank(row.stamp, row.log, *row[1:3]), row[3:],",
    ),
    _of_rule(
        "a delete loses against the message that it names",
        "    return candidate.rank, candidate.dead\n",
        "    return candidate.rank, not candidate.dead\n",
    ),
    _of_rule(
        "a delete without candidates is ranked lowest",
        "            return self._end(key, row, current)\n",
        '            named = Rank(-1, b"", 0, 0)\n',
    ),
    _of_rule(
        "a delete without candidates is forgotten at once",
        "            of_key.ended[row.publisher] = row.sequence, row.position, row.stamp\n",
        "            of_key.ended.pop(row.publisher, None)\n",
    ),
    _of_rule(
        "an expiry names a key alone",
        "        found = of_key.others.get(publisher)\n"
        "        if found is not None and found.sequence == sequence:\n"
        "            of_key.others[publisher] =",
        "        found = current\n"
        "        if found is not None and sequence:\n"
        "            of_key.others[found.publisher] =",
    ),
    _of_rule(
        "the first message of a publisher on a key remains",
        "new.sequence > old.sequence or",
        "new.sequence < old.sequence or",
    ),
    _of_rule(
        "the higher of two copies counts",
        "(copied and new.stored < old.stored)",
        "(copied and new.stored > old.stored)",
    ),
    _of_rule(
        "a restated record is not reported",
        "DecisionKind.RECORD if record is entered else DecisionKind.RESTATED",
        "DecisionKind.RECORD if record is entered else DecisionKind.NONE",
    ),
    Mutation(
        "the messages of one run have one rank",
        _CANDIDATES,
        "    rank = Rank(row.stamp, row.log, row.publisher, row.sequence)\n",
        "    rank = Rank(row.stamp, row.log, row.publisher, 0)\n",
        (_UNIT,),
        promise="invariant 1",
        tier="unit",
    ),
)
