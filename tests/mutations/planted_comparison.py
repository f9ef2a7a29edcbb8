"""Planted defects of the comparison of two logs.

Must never hold one that a comparison of equal logs shows.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_COMPARISON: Final = "journal/offline/comparison.py"
_DIGESTS: Final = "journal/offline/digests.py"


def _of_logs(name: str, module: str, old: str, new: str) -> Mutation:
    """Return a defect that tests with two logs must detect."""
    tests = ("unit/journal/offline/test_comparison.py",)
    return Mutation(name, module, old, new, tests, promise="R8", tier="unit")


COMPARISON_MUTATIONS: Final = (
    _of_logs(
        "compared logs with exchanged contents are equal",
        _DIGESTS,
        "    mixed: UInt64s = (values * _FIRST) ^ (more + _FIRST)\n",
        "    return values * _FIRST + more\n    mixed: UInt64s = values\n",
    ),
    _of_logs(
        "compared logs with other keys of messages are equal",
        _DIGESTS,
        "enumerate((batch.keys, batch.correlation_ids, batch.headers), 1)",
        "enumerate((batch.correlation_ids, batch.headers), 2)",
    ),
    _of_logs(
        "expiries of records are compared",
        _DIGESTS,
        "            mask[row] = selection.takes_record(batch.topic(row), bytes(batch.body(row)))\n",
        '            mask[row] = batch.topic(row) == "$sow"\n',
    ),
    _of_logs(
        "a comparison counts messages on the way as differences",
        _COMPARISON,
        "            single &= ~outstanding\n",
        "",
    ),
    _of_logs(
        "a place behind the end of a start covers later messages",
        _COMPARISON,
        "            min(place.position, stops.get(place.start, self.view.end_position))\n",
        "            min(place.position, self.view.end_position)\n",
    ),
    _of_logs(
        "messages that retention removed from one log are missing",
        _COMPARISON,
        "                kept = rows.sequences > _highest_of(removed, rows.publishers)\n",
        "                kept = rows.sequences > _highest_of(NOTHING_HIGHEST, rows.publishers)\n",
    ),
    _of_logs(
        "a comparison ignores a message that is in a log twice",
        _COMPARISON,
        '        self._note("repeated", name, rows.taken(again.nonzero()[0]))\n',
        "",
    ),
    _of_logs(
        "the source of a link in one direction is compared as of an older time than the destination",
        _COMPARISON,
        "        if second.has_place_of(first) and not first.has_place_of(second):\n",
        "        if second.has_place_of(first) and first is None:\n",
    ),
    _of_logs(
        "a damaged log is compared up to the damage",
        _COMPARISON,
        "        if snapshot.damage is not None:\n",
        "        if snapshot is None:\n",
    ),
)
