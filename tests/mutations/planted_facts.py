"""Planted defects of the facts of a log: starts, places, origins, and reports of this log.

Must never hold one that the fold of the simulation permits.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_SIMULATION = "simulation/test_facts.py"
_FACTS = "unit/engine/replication/test_log_facts.py"
_ORIGINS = "unit/engine/replication/test_origins.py"
_WRITER = "unit/engine/replication/test_report_writer.py"
_PLACES = "unit/journal/reading/test_place_search.py"
_LOG_FACTS = "engine/replication/log_facts.py"
_REPORTS = "engine/replication/reports.py"
_RECORDS = "journal/format/link_records.py"
_SEARCH = "journal/reading/place_search.py"


def _of_facts(name: str, module: str, old: str, new: str, test: str, promise: str = "R9") -> Mutation:
    return Mutation(name, module, old, new, (test,), promise=promise, tier=test.split("/", maxsplit=1)[0])


FACT_MUTATIONS: Final = (
    _of_facts(
        "a removal forgets the places of removed rows",
        "journal/retention.py",
        "            links=tuple(encode_link(LinkRecord(*place)) for place in places),\n",
        "            links=before.links if before is not None else (),\n",
        _SIMULATION,
    ),
    _of_facts(
        "a start ignores the places of other sources in a link record",
        _SEARCH,
        "                    self._newest.add_all_earlier(record.places)\n",
        "                    self._newest.add_all_earlier([])\n",
        _SIMULATION,
    ),
    _of_facts(
        "an earlier place of a start replaces the last one",
        _RECORDS,
        "        if key in self._positions:\n",
        "        if key not in self._positions and place is None:\n",
        _SIMULATION,
    ),
    _of_facts(
        "a message of a client moves the place of a link",
        _SEARCH,
        "    control = batch.kinds == KIND_CONTROL\n",
        "    control = batch.kinds >= 0\n",
        _PLACES,
    ),
    _of_facts(
        "a start reads all link records of the log",
        _SEARCH,
        "                    return True\n",
        "                    return False\n",
        _PLACES,
        "invariant 20",
    ),
    _of_facts(
        "the search of places skips the last block",
        "journal/index/topic_index.py",
        'np.uint16(min(group, _GROUPS_MAX - 1)), side="right")) - 1\n',
        'np.uint16(min(group, _GROUPS_MAX - 1)), side="left")) - 1\n',
        _PLACES,
    ),
    _of_facts(
        "the first link record of a run lacks the other places",
        _LOG_FACTS,
        "        self._since_snapshot: int | None = None\n",
        "        self._since_snapshot: int | None = 0\n",
        _FACTS,
        "invariant 20",
    ),
    _of_facts(
        "records of all starts are kept for ever",
        "journal/format/replication_records.py",
        '    subject = f"started {number % link_starts_max}"\n',
        '    subject = f"started {number}"\n',
        _FACTS,
        "invariant 20",
    ),
    _of_facts(
        "a start takes the number of an earlier start",
        _LOG_FACTS,
        "            self._runs = max(self._runs, record.number + 1)\n",
        "            self._runs = max(self._runs, 1)\n",
        _SIMULATION,
    ),
    _of_facts(
        "a later report without a place of this log makes a reporter unknown",
        _LOG_FACTS,
        "for log in sorted(self.reporters - self._recorded)]\n",
        "for log in sorted(self._recorded - self.reporters)]\n",
        _SIMULATION,
    ),
    _of_facts(
        "a start record of another log is one of this log",
        _LOG_FACTS,
        "        elif record.log is not None:\n",
        "        elif isinstance(record, CoveredRecord) and record.log is not None:\n",
        _FACTS,
    ),
    _of_facts(
        "two logs send each other reports of reports without end",
        _REPORTS,
        '_ABOUT_REPORTS: Final = frozenset(("covered", "reporter"))\n',
        '_ABOUT_REPORTS: Final = frozenset(("reporter",))\n',
        _WRITER,
        "invariant 20",
    ),
    _of_facts(
        "reports of a restored copy have old numbers",
        _REPORTS,
        "        self._number = max(self._number + 1, now.wall)\n",
        "        self._number = self._number + 1\n",
        _WRITER,
    ),
    _of_facts(
        "a log reports after each row",
        _REPORTS,
        "self._next = False, now.mono + report_seconds_min\n",
        "self._next = False, now.mono\n",
        _WRITER,
        "invariant 20",
    ),
    _of_facts(
        "an origin number gets a second meaning after a restart",
        "engine/replication/origins.py",
        "        self._highest = max(self._highest, record.number)\n",
        "        self._highest = len(self._origins)\n",
        _ORIGINS,
    ),
)
