"""Planted defects of holes: the filter of duplicates, late runs, and records of holes.

Must never hold one that the sets of integers of the simulation permit.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_HOLES = "engine/runtime/holes.py"
_WRITER = "engine/runtime/log_writer.py"
_EXACT = "engine/runtime/exact_append.py"
_SIMULATION = "simulation/test_holes.py"
_LOG = "unit/engine/runtime/test_holes_in_the_log.py"


def _of_filter(name: str, module: str, old: str, new: str, *, tier: str = "simulation") -> Mutation:
    """Return a defect that the simulation of holes must detect."""
    tests = (_LOG,) if tier == "unit" else (_SIMULATION,)
    return Mutation(name, module, old, new, tests, promise="invariant 11", tier=tier)


HOLE_MUTATIONS: Final = (
    _of_filter(
        "the last fill of a hole has no record of holes",
        _EXACT,
        "            for publisher in known.take_changed()\n",
        "            for publisher in [one for one in known.take_changed() if one in known] or [0]\n",
    ),
    _of_filter(
        "a fill does not cut its hole",
        _HOLES,
        "        self._replace(publisher, own, own.without(sequences))\n",
        "        self._replace(publisher, own, own)\n",
        tier="unit",
    ),
    _of_filter(
        "a fill is not flagged as late",
        _EXACT,
        "        part = as_late(select(batch, rows))\n",
        "        part = MessageBatch.parse(select(batch, rows).encode())\n",
        tier="unit",
    ),
    _of_filter(
        "the claim of a connection is ignored",
        _HOLES,
        "        if self.claim is not None and self.claim > highest:\n",
        "        if self.claim is not None and self.claim < 0:\n",
        tier="unit",
    ),
    _of_filter(
        "an unproven hole admits a client",
        _HOLES,
        "        return inside if from_link else inside & self.proven[at]\n",
        "        return inside\n",
        tier="unit",
    ),
    _of_filter(
        "a client that continues behind a link writes no record",
        _HOLES,
        "        elif highest and self.last != highest:\n",
        "        elif highest and self.last is None:\n",
        tier="unit",
    ),
    _of_filter(
        "holes of a batch are recorded in the commit before it",
        _EXACT,
        "        self.make_room(part)\n        self._fill(publisher, batch.sequences[rows])\n",
        "        self._fill(publisher, batch.sequences[rows])\n        self.make_room(part)\n",
    ),
    _of_filter(
        "a commit ends without its records of holes",
        "journal/commit/group_commit.py",
        "            if self._last_records is not None and self._pending.only_open:\n",
        "            if self._last_records is not None and self._pending.only_open and self.closing:\n",
        tier="unit",
    ),
    _of_filter(
        "messages in open holes of removed segments count as expired",
        "journal/retention.py",
        "                    holes[record.publisher] = _pairs(record.ranges)\n",
        "                    holes.pop(record.publisher, None)\n",
    ),
    _of_filter(
        "removed late messages are unknown, not expired",
        "journal/retention.py",
        "    highest = highest.with_later(*raised)\n",
        "    highest = highest.with_later(*[column[:0] for column in raised])\n",
    ),
    _of_filter(
        "a full disk accepts late messages without space for the record of holes",
        _WRITER,
        "can_accept(encoded_size(batch) + binding_bytes_max + last)",
        "can_accept(encoded_size(batch) + binding_bytes_max)",
        tier="unit",
    ),
    _of_filter(
        "a connection sends a sequence below an earlier one, and it fills a hole",
        _EXACT,
        "        late = late[sequences[late] > np.uint64(connection.received)]\n",
        "        late = late[sequences[late] > np.uint64(0)]\n",
        tier="unit",
    ),
    _of_filter(
        "a late message at the highest sequence replaces the claim",
        _EXACT,
        "        openings = connection.opens(known.highest(publisher), int(sequences[start]))\n",
        "        openings = []\n"
        "        if known.highest(publisher) != connection.last:\n"
        "            openings = connection.opens(known.highest(publisher), int(sequences[start]))\n",
        tier="unit",
    ),
    Mutation(
        "consecutive messages are looked up without late ones",
        "journal/reading/log_reader.py",
        "        return (yield from _positions_between(view, publisher, low, end - 1, before))\n",
        "        pass\n",
        (_SIMULATION,),
        promise="invariant 12",
        tier="simulation",
    ),
    Mutation(
        "a late message above all runs is reported as corruption",
        "journal/offline/segment_check.py",
        "        self._take_holes(batch)\n",
        "",
        (_SIMULATION,),
        promise="invariant 17",
        tier="simulation",
    ),
    Mutation(
        "a commit records any number of closed holes",
        _EXACT,
        "        return 0 if known.changed else known.close_before(position, count_max)\n",
        "        return known.close_before(position, count_max)\n",
        (_LOG,),
        promise="R14",
        tier="unit",
    ),
    Mutation(
        "known sequences of a resent frame are compared as floats",
        _WRITER,
        "searchsorted(np.uint64(highest), side=",
        "searchsorted(highest, side=",
        ("unit/engine/runtime/test_log_writer.py",),
        promise="invariant 11",
        tier="unit",
    ),
)
