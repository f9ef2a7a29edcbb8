"""Planted defects of deletes, expiry and deltas of records, with the tests that must detect them.

Must never hold one without an effect that a client could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_DELETE = "unit/engine/sow/state/test_delete.py"
_EXPIRY = "unit/engine/sow/state/test_expiry.py"
_MERGE = "unit/engine/sow/state/test_merge.py"

DELETE_MUTATIONS: Final = (
    Mutation(
        "a delete record may have a key twice",
        "engine/sow/state/key_order.py",
        "            if ((low > high) | (same & ended & (low_bytes >= high_bytes))).any():\n",
        "            if ((low > high) | (same & ended & (low_bytes > high_bytes))).any():\n",
        (_DELETE,),
        promise="invariant 17",
        tier="unit",
    ),
    Mutation(
        "a publisher number of a delete may be outside its table",
        "engine/sow/state/delete.py",
        "    if (numbers[named] >= len(record.publishers)).any():\n",
        "    if (numbers[named] > len(record.publishers)).any():\n",
        (_DELETE,),
        promise="invariant 17",
        tier="unit",
    ),
    Mutation(
        "a topic number of a delete may be outside its table",
        "engine/sow/state/delete.py",
        "    if (record.topic_numbers >= len(record.topics)).any():\n",
        "    if (record.topic_numbers > len(record.topics)).any():\n",
        (_DELETE,),
        promise="invariant 17",
        tier="unit",
    ),
    Mutation(
        "a log number of a delete may be outside its table",
        "engine/sow/state/delete.py",
        "    if (record.log_numbers > len(record.logs)).any():\n",
        "    if (record.log_numbers > len(record.logs) + 1).any():\n",
        (_DELETE,),
        promise="invariant 17",
        tier="unit",
    ),
    Mutation(
        "a delete of long keys is too large to be read back",
        "engine/sow/state/delete.py",
        "        if most and prefixes.encoded_bytes(most) > sow_delete_record_bytes_max:\n",
        "        if most and prefixes.encoded_bytes(most) > 2 * sow_delete_record_bytes_max:\n",
        (_DELETE, "property/test_sow_deletes.py"),
        promise="invariant 23",
        tier="unit",
    ),
    Mutation(
        "the first row of a key counts in a delete, not the last",
        "engine/sow/state/delete_rows.py",
        "        return self.select(order[~repeated])\n",
        "        return self.select(order[~np.roll(repeated, 1)])\n",
        (_DELETE, "property/test_sow_deletes.py"),
        promise="R11",
        tier="unit",
    ),
    Mutation(
        "the expiry of a replaced record is reported as current",
        "engine/sow/state/expiry.py",
        "        over: Bools = (due_us != 0) & (due_us <= now_us)\n",
        "        over: Bools = due_us != 0\n",
        (_EXPIRY, "property/test_sow_expiry.py"),
        promise="R1",
        tier="unit",
    ),
    Mutation(
        "a record that is replaced with a shorter life keeps the longer one",
        "engine/sow/state/expiry.py",
        "        later = (queued != 0) & (queued <= seconds)\n",
        "        later = queued != 0\n",
        (_EXPIRY, "property/test_sow_expiry.py"),
        promise="R21",
        tier="unit",
    ),
    Mutation(
        "each change of a record adds an entry to its life queue",
        "engine/sow/state/expiry.py",
        "        later = (queued != 0) & (queued <= seconds)\n",
        "        later = queued > seconds + NEVER // 2\n",
        (_EXPIRY,),
        promise="R14",
        tier="unit",
    ),
    Mutation(
        "one step expires all records that are due",
        "engine/sow/state/expiry.py",
        "            limit -= len(slots)\n",
        "            limit -= 0\n",
        (_EXPIRY,),
        promise="R14",
        tier="unit",
    ),
    Mutation(
        "a delta merges arrays by element",
        "payload/merge.py",
        "            if new is None or below is None:\n                fields[name] = value\n",
        "            if new is None or below is None:\n"
        "                old = None if before is _ABSENT else documents.elements(before)\n"
        "                one = documents.elements(value)\n"
        "                if old and one:\n"
        "                    value = documents.assemble([*one, *old[len(one) :]])\n"
        "                fields[name] = value\n",
        (_MERGE, "property/test_merge.py"),
        promise="R1",
        tier="unit",
    ),
    Mutation(
        "a nested object of a delta replaces the one of the record",
        "payload/merge.py",
        "            below = None if new is None else documents.members(before)\n",
        "            below = None\n",
        (_MERGE, "property/test_merge.py"),
        promise="R1",
        tier="unit",
    ),
    Mutation(
        "the work of a merge is not bounded",
        "payload/merge.py",
        "                if nested > merge_nested_bytes_max:\n",
        "                if nested < 0:\n",
        (_MERGE,),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "a repeated tag of a FIX delta leaves values of the record",
        "payload/formats/fix.py",
        "        elif values:\n            merged.append(values.popleft())\n    for",
        "        else:\n            merged.append(values.popleft() if values else field)\n    for",
        (_MERGE, "property/test_merge.py"),
        promise="R1",
        tier="unit",
    ),
    Mutation(
        "the merge of a large delete sorts all keys in one step",
        "engine/sow/state/delete_rows.py",
        "    step = max(1, sow_delete_sort_rows // _SAMPLE_ROWS)\n",
        "    step = len(bounds.lengths) + 1\n",
        (_DELETE,),
        promise="R14",
        tier="unit",
    ),
    Mutation(
        "a later row of a merged key does not replace it",
        "engine/sow/state/delete_rows.py",
        "        stays[places[equal]] = False\n",
        "        stays[places[:0]] = False\n",
        (_DELETE, "property/test_sow_deletes.py"),
        promise="R11",
        tier="unit",
    ),
)
