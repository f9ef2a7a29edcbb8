"""Planted defects of groups of replicating logs: places, reports, and the horizon of acknowledgements."""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_PLACES = "engine/replication/places.py"
_REPORTS = "engine/replication/reports.py"
_DURABILITY = "engine/runtime/durability.py"


def _of_group(name: str, module: str, old: str, new: str, test: str, promise: str) -> Mutation:
    return Mutation(name, module, old, new, (f"unit/engine/{test}.py",), promise=promise, tier="unit")


GROUP_MUTATIONS: Final = (
    _of_group(
        "a place below the last one of its start is ignored, so lost history is reported again",
        _PLACES,
        "        starts.pop(place.start, None)\n        starts[place.start] = place.position\n",
        "        starts[place.start] = max(place.position, starts.pop(place.start, 0))\n",
        "replication/test_places",
        "R9",
    ),
    _of_group(
        "a link continues beyond the end of a lost start",
        _PLACES,
        "                return min(place.position, stop)\n",
        "                return place.position\n",
        "replication/test_places",
        "R9",
    ),
    _of_group(
        "a link skips rows that retention removed",
        _PLACES,
        "            if position < source.first\n",
        "            if position < 0\n",
        "replication/test_places",
        "R9",
    ),
    _of_group(
        "an old copy without a place is taken for a new log",
        _PLACES,
        "    if source.first and destination in source.reporters:",
        "    if source.first and destination in ():",
        "replication/test_places",
        "R9",
    ),
    _of_group(
        "a report of a source counts before its link has passed it",
        _REPORTS,
        "        return report if _has_rows_before(member, report, group) else None\n",
        "        return report\n",
        "replication/test_reports",
        "R9",
    ),
    _of_group(
        "a report of another group counts",
        _REPORTS,
        "        if report is None or not _equal(report.members, group.members):\n",
        "        if report is None:\n",
        "replication/test_reports",
        "R9",
    ),
    _of_group(
        "a downgraded link holds up acknowledgements",
        _DURABILITY,
        "        counted = links & self._counted\n",
        "        counted = int(links)\n",
        "runtime/test_durability",
        "R1",
    ),
    _of_group(
        "an acknowledgement waits for the fastest link only",
        _DURABILITY,
        "positions[required - 1]",
        "positions[0]",
        "runtime/test_durability",
        "R1",
    ),
    _of_group(
        "the weaker sync policy of a destination is not in the level",
        _DURABILITY,
        'local == "written" or any(',
        'local == "written" and any(',
        "runtime/test_durability",
        "R1",
    ),
)
