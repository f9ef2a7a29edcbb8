"""Planted defects of the records of a state: changes, slots, bodies and compaction.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_CHANGE = "unit/engine/sow/state/test_change.py"
_RECORDS = "unit/engine/sow/state/test_records.py"
_BLOCKS = "unit/engine/sow/state/test_blocks.py"
_PROGRAMS = "property/test_state_records.py"

RECORD_MUTATIONS: Final = (
    Mutation(
        "changes above the position of a scan are not undone",
        "engine/sow/state/change.py",
        "        return range(self._scans[scan].first, self._forgotten + len(self._pieces))\n",
        "        return range(0)\n",
        (_CHANGE, _PROGRAMS),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "the latest change of a slot hides the earliest one",
        "engine/sow/state/change.py",
        "        slots, first = np.unique(self._slots[: self.count], return_index=True)\n",
        "        slots, first = np.unique(self._slots[: self.count][::-1], return_index=True)\n"
        "        first = self.count - 1 - first\n",
        (_CHANGE, _PROGRAMS),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "a slot is used for another key while a scan needs its record",
        "engine/sow/state/change.py",
        "        return ChangeEffects(_NO_SLOTS, self._end_oldest())\n",
        "        return ChangeEffects(change.slots[change.kinds != SET], self._end_oldest())\n",
        (_PROGRAMS,),
        promise="invariant 1",
        tier="property",
    ),
    Mutation(
        "a replaced body counts as live",
        "engine/sow/state/change.py",
        "            self._blocks.drop(self._table.put(slots, rows).views)\n",
        "            self._table.put(slots, rows)\n",
        (_CHANGE, _PROGRAMS),
        promise="invariant 22",
        tier="unit",
    ),
    Mutation(
        "bodies of forgotten changes stay in memory",
        "engine/sow/state/change.py",
        "        self._blocks.drop(piece.rows.views(np.arange(piece.count)))\n",
        "",
        (_CHANGE, _PROGRAMS),
        promise="invariant 22",
        tier="unit",
    ),
    Mutation(
        "compaction moves a record that was replaced",
        "engine/sow/state/records.py",
        "        slots = slots[in_block(self._columns.views(slots), number)]\n",
        "",
        (_RECORDS,),
        promise="invariant 22",
        tier="unit",
    ),
    Mutation(
        "compaction moves a record twice that was replaced within a block",
        "engine/sow/state/records.py",
        "        slots = _distinct(slots)\n",
        "",
        (_RECORDS, _PROGRAMS),
        promise="invariant 22",
        tier="unit",
    ),
    Mutation(
        "bodies that are copied together lose their ends",
        "engine/sow/state/blocks.py",
        "            places[to + rest] = parts[first + rest]\n",
        "",
        (_BLOCKS,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "a short body has the zeros of its view at its end",
        "engine/sow/state/blocks.py",
        '"little")[:length])\n',
        '"little"))\n',
        (_BLOCKS,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "freed blocks that pins hold do not count",
        "engine/sow/state/blocks.py",
        "            self.held_bytes += capacity\n",
        "            self.held_bytes += 0\n",
        (_BLOCKS,),
        promise="invariant 22",
        tier="unit",
    ),
    Mutation(
        "kept changes exceed their memory",
        "engine/sow/state/change.py",
        "        while self._scans and self._needed_bytes() > self._bytes_max:\n",
        "        while not self._scans and self._needed_bytes() > self._bytes_max:\n",
        (_CHANGE,),
        promise="invariant 22",
        tier="unit",
    ),
)
