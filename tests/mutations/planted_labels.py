"""Planted defects of the correlation ids of records.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_ENGINE = "unit/engine/sow/test_labels.py"
_RECORDS = "property/test_state_records.py"
_QUERIES = "property/test_sow_query.py"

LABEL_MUTATIONS: Final = (
    Mutation(
        "a record without a correlation id gets the id of a later record",
        "engine/sow/state/labels.py",
        "            if len(before):\n                self._numbers[at] = 0\n            return\n",
        "            return\n",
        (_RECORDS,),
        promise="invariant 1",
        tier="property",
    ),
    Mutation(
        "a query returns the correlation id of a message above its position",
        "engine/sow/state/records.py",
        "        if self.labels is not None:\n            self.labels[at] = rows.labels\n",
        "",
        (_RECORDS, _QUERIES),
        promise="invariant 1",
        tier="property",
    ),
    Mutation(
        "a filter of records reads no correlation ids",
        "engine/sow/query/record_filter.py",
        "            inputs.correlation_ids = texts_of(rows.labels, count)\n",
        "            inputs.correlation_ids = [None] * count\n",
        (_ENGINE, _QUERIES),
        promise="behaviour 54",
        tier="unit",
    ),
    Mutation(
        "a result of several topics loses correlation ids",
        "engine/sow/query/result_rows.py",
        "        if self.labels or piece.rows.labels is not None:\n",
        "        if not first and piece.rows.labels is not None:\n",
        (_ENGINE, _QUERIES),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "a checkpoint has no correlation ids",
        "engine/sow/checkpoint_writer.py",
        "            correlation_ids=None if rows.labels is None else encoded(rows.labels),\n",
        "            correlation_ids=None,\n",
        (_ENGINE,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "a start reads no correlation ids from a checkpoint",
        "engine/sow/recovery.py",
        "        block.correlation_ids,\n",
        "        None,\n",
        (_ENGINE,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "a checkpoint with a correlation id that is not UTF-8 is read",
        "journal/format/sow_blocks.py",
        '        if fault:\n            raise FormatError(f"a correlation id {fault}")\n',
        "",
        ("unit/journal/format/test_sow_blocks.py",),
        promise="invariant 8",
        tier="unit",
    ),
    Mutation(
        "a delete by filter reads no correlation ids of messages that are not folded",
        "engine/sow/record_search.py",
        "        elif row.batch.columns & CORRELATION_IDS:\n",
        "        elif False:\n",
        (_ENGINE,),
        promise="behaviour 54",
        tier="unit",
    ),
    Mutation(
        "correlation ids of accepted messages do not count as memory",
        "engine/sow/accepted.py",
        "        labels = int(label_memory_of(batch, rows).sum())\n",
        "        labels = 0\n",
        (_ENGINE,),
        promise="invariant 22",
        tier="unit",
    ),
    Mutation(
        "the first correlation id of a topic needs no memory for the other records",
        "engine/sow/memory.py",
        "        places = LABEL_PLACE_BYTES * sum([fold.records.slot_end for fold in labelled])\n",
        "        places = 0\n",
        (_ENGINE,),
        promise="invariant 22",
        tier="unit",
    ),
    Mutation(
        "the fold of a topic decodes the correlation ids of messages of other topics",
        "engine/sow/state/labels.py",
        "    if high - low == len(rows):\n        return decoded(column, low, high)\n",
        "    if high > low:\n        return decoded(column, low, high)[rows - low]\n",
        (_ENGINE,),
        promise="invariant 22",
        tier="unit",
    ),
    Mutation(
        "new records of a topic with correlation ids need no memory for their places",
        "engine/sow/topic.py",
        "            further += LABEL_PLACE_BYTES\n",
        "            further += 0\n",
        (_ENGINE,),
        promise="invariant 22",
        tier="unit",
    ),
    Mutation(
        "correlation ids do not count towards the size of a result frame",
        "engine/sow/query/result.py",
        "        sizes = sizes + label_lengths(found.rows.labels)\n",
        "        sizes = sizes + 0\n",
        (_ENGINE,),
        promise="invariant 22",
        tier="unit",
    ),
    Mutation(
        "a slice of the records of a result loses correlation ids",
        "client/sow/record_batch.py",
        "            correlation_ids=self.correlation_ids,\n",
        "",
        ("unit/client/sow/test_record_batch.py",),
        promise="behaviour 54",
        tier="unit",
    ),
)
