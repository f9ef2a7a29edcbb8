"""Planted defects of tables, with the tests that must detect them.

Must never hold one without an effect that an application could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_STATE = "unit/client/sow/test_table.py"
_PROTOCOL = "unit/client/sow/test_query_protocol.py"
_MODEL = "property/test_tables.py"
_FAULTS = "property/test_client_tables.py"

TABLE_MUTATIONS: Final = (
    Mutation(
        "a table keeps records of its earlier result",
        "client/sow/table.py",
        "        self._records, self._next, self._next_changed = self._next, None, set()\n",
        "        after.update(before | after)\n"
        "        self._records, self._next, self._next_changed = self._next, None, set()\n",
        (_STATE, _MODEL),
        promise="behaviour 55",
        tier="unit",
    ),
    Mutation(
        "a table shows an incomplete result",
        "client/sow/table.py",
        "        target = self._records if self._next is None else self._next\n",
        "        target = self._records\n",
        (_STATE, _MODEL),
        promise="behaviour 55",
        tier="unit",
    ),
    Mutation(
        "a table of an HA client continues without a new result",
        "client/subscriptions/subscription.py",
        "        if request.query is not None and request.query.renewed:\n",
        "        if request.query is None:\n",
        (_PROTOCOL,),
        promise="behaviour 55",
        tier="unit",
    ),
    Mutation(
        "a table of an HA client ends with a connection that is lost before the result",
        "client/protocol/calls.py",
        " or request.query.renewed:\n",
        ":\n",
        (_PROTOCOL,),
        promise="behaviour 55",
        tier="unit",
    ),
    Mutation(
        "a refresh counts an earlier result",
        "client/api/table.py",
        "state.over or feed.complete)",
        "state.over or state.results > results)",
        (_FAULTS,),
        promise="behaviour 55",
        tier="property",
    ),
    Mutation(
        "a table does not report the changes of a new result",
        "client/sow/table.py",
        "        for key in self._next_changed:\n",
        "        for key in ():\n",
        (_STATE, _MODEL),
        promise="behaviour 56",
        tier="unit",
    ),
    Mutation(
        "a table does not report removed records",
        "client/sow/table.py",
        "            self._note_removed(key)\n",
        "            continue\n",
        (_STATE, _MODEL),
        promise="behaviour 56",
        tier="unit",
    ),
    Mutation(
        "a table loses changed keys while it is read",
        "client/sow/table.py",
        "                self._changed.setdefault(key, key in before)\n",
        "                self._changed = {key: key in before}\n",
        (_STATE, _MODEL),
        promise="behaviour 56",
        tier="unit",
    ),
    Mutation(
        "a table grows above its limit",
        "client/sow/table.py",
        "        if len(by_key) + new > self._max_records:\n",
        "        if len(by_key) > self._max_records:\n",
        (_STATE,),
        promise="behaviour 55",
        tier="unit",
    ),
    Mutation(
        "a table keeps whole batches for a few records",
        "client/sow/table.py",
        "        if not count or count == batch.count or",
        "        if not count or count or",
        (_STATE, _MODEL),
        promise="behaviour 55",
        tier="unit",
    ),
)
