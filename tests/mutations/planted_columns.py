"""Planted defects of the columns of fields that filters compare repeatedly.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_COLUMNS = "engine/sow/query/field_columns.py"
_MEMORY = "engine/sow/query/column_memory.py"
_UNIT = "unit/engine/sow/query/test_field_columns.py"
_PROPERTIES = "property/test_field_columns.py"
_RECORD_MEMORY = "unit/engine/sow/test_memory.py"


def _planted(name: str, module: str, old: str, new: str, test: str) -> Mutation:
    return Mutation(name, module, old, new, (test,), promise="R11", tier=test.partition("/")[0])


COLUMN_MUTATIONS: Final = (
    _planted(
        "a search in columns loses values that columns cannot have",
        _COLUMNS,
        "            one |= segment.asks[:count]\n",
        "            pass\n",
        _PROPERTIES,
    ),
    _planted(
        "a search in columns loses records that changed after its position",
        "engine/sow/query/record_copy.py",
        "        elif self._search is not None:\n            self._add_earlier(",
        "        elif self._fold is None:\n            self._add_earlier(",
        _PROPERTIES,
    ),
    _planted(
        "changes during an update of a column count as read",
        _COLUMNS,
        "                segment.end = segment.next_end\n",
        "                segment.end = records.position_end\n",
        _PROPERTIES,
    ),
    _planted(
        "a column keeps the mark of a value that was replaced",
        _MEMORY,
        "        self.asks[at] = False\n",
        "        pass\n",
        _UNIT,
    ),
    _planted(
        "an unreadable body has no value in a column",
        _COLUMNS,
        "np.concatenate([at[others], unread])\n",
        "at[others]\n",
        _UNIT,
    ),
    _planted(
        "only the first element of an array is in a column",
        _COLUMNS,
        "others = [at for at, one in enumerate(values) if one.__class__ is list] if list in kinds else []\n",
        "others: list[int] = []\n",
        _PROPERTIES,
    ),
    _planted(
        "a column has no record at the bound of a range",
        _COLUMNS,
        "(values >= self.low)",
        "(values > self.low)",
        _UNIT,
    ),
    _planted(
        "a search in columns uses one side of an OR",
        _COLUMNS,
        "        mask = one if mask is None else mask | one\n",
        "        mask = one if mask is None else mask\n",
        _UNIT,
    ),
    _planted(
        "a record of an earlier position is missing in columns",
        _COLUMNS,
        "column.late_puts != late_puts:\n",
        "column.late_puts > late_puts:\n",
        _UNIT,
    ),
    _planted(
        "the first query of a field makes a column",
        _COLUMNS,
        "        if before is None or now",
        "        if before is not None and now",
        _UNIT,
    ),
    _planted(
        "columns keep memory that records need",
        "engine/sow/memory.py",
        "        self._columns.fit(self.bytes_max - self.expected)\n",
        "",
        _RECORD_MEMORY,
    ),
    _planted(
        "a column that no query uses is kept",
        _MEMORY,
        "            if column.used > unused:\n",
        "            if column.used:\n",
        _UNIT,
    ),
)
