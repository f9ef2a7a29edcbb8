"""Planted defects of record keys and of the key index, with the tests that must detect them.

Must never hold one without an effect on records or on the time of a call.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_INDEX = "unit/engine/sow/state/test_key_index.py"
_KEYS = "unit/engine/sow/state/test_keys.py"
_PROGRAMS = "property/test_key_index.py"
_TABLE = "engine/sow/state/key_index.py"
_ENTRIES = "engine/sow/state/entry_table.py"
_RECORD_KEYS = "unit/engine/sow/test_record_keys.py"
_RECORD_KEY_PROGRAMS = "property/test_record_key_index.py"
_RECORD_KEY_INDEX = "engine/sow/state/record_key_index.py"

SOW_KEY_MUTATIONS: Final = (
    Mutation(
        "the hash of a record key is not mixed with the secret",
        _ENTRIES,
        "        self._secret = first, second | 1, third | 1\n",
        "        self._secret = 0 & first, 1, 1\n",
        (_INDEX,),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "record keys with equal hashes count as equal",
        _TABLE,
        "        same &= rest\n        return same\n",
        "        return same | ~same\n",
        (_INDEX,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "one record key with an equal hash counts as equal",
        _TABLE,
        "                if self._key(slot) == key:\n                    return slot\n",
        "                return slot\n",
        (_INDEX,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "the bytes of long record keys are not compared",
        _TABLE,
        "                rest[long] = self._long_keys.start_with(stored[long, 1].tolist(), long_keys)\n",
        "                rest[long] = len(long_keys) > 0\n",
        (_INDEX,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "the slot of a removed record is reused before its release",
        _TABLE,
        "        self._states[slots] = _REMOVED\n",
        "        self._states[slots] = _REMOVED\n        self.release(slots)\n",
        (_INDEX,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "growth of a key index loses an entry",
        _ENTRIES,
        "        entries: UInt64s = part[part != 0]\n",
        "        entries: UInt64s = part[part != 0][1:]\n",
        (_INDEX,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "growth of a key index moves everything in one call",
        _TABLE,
        "oldest.take(min(self._step_max, count) // ENTRIES)",
        "oldest.take(oldest.buckets)",
        (_INDEX,),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "removal of a record key ends the search for keys behind it",
        _ENTRIES,
        "homes[distances > distance]",
        "homes[distances >= distance]",
        (_INDEX, _PROGRAMS),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "compaction moves a long key whose slot has another key",
        _TABLE,
        "        current = (lengths > _INLINE_BYTES) & (views[:, 1] == places)\n",
        "        current = views[:, 1] == places\n",
        (_INDEX, _PROGRAMS),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "1 and 1.0 are keys of different records",
        "payload/canonical.py",
        "        if value.is_integer():\n",
        "        if value == 0:\n",
        (_KEYS,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "a record key may be an object",
        "engine/sow/state/keys.py",
        '_CONTAINERS: Final[dict[type, str]] = {list: "an array", dict: "an object"}\n',
        '_CONTAINERS: Final[dict[type, str]] = {list: "an array"}\n',
        (_KEYS,),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "domain and key of a generated key run into each other",
        "payload/canonical.py",
        "blake2b(encode_canonical(domain) + canonical,",
        "blake2b(domain.encode() + canonical,",
        (_KEYS,),
        promise="invariant 1",
        tier="unit",
    ),
    Mutation(
        "the index of record keys misses records that are new since its build",
        _RECORD_KEY_INDEX,
        "        self._pending |= _bitmap(slots[self._tags[slots] == 0])\n",
        "        pass\n",
        (
            _RECORD_KEYS,
            _RECORD_KEY_PROGRAMS,
        ),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "a deleted record stays in the index of record keys, and hides the next one in its slot",
        _RECORD_KEY_INDEX,
        "            self._tags[indexed] = 0\n",
        "            pass\n",
        (
            _RECORD_KEYS,
            _RECORD_KEY_PROGRAMS,
        ),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "pending records are not among the candidates of a key",
        _RECORD_KEY_INDEX,
        "np.concatenate((found, np.array(self._pending.to_array(), I8)))",
        "found",
        (_RECORD_KEY_PROGRAMS,),
        promise="R12",
        tier="property",
    ),
    Mutation(
        "a larger table of the index of record keys starts without the earlier ones",
        _RECORD_KEY_INDEX,
        "        self._pending = BitMap(range(records.slot_end))\n",
        "        self._pending = self._pending or BitMap(range(records.slot_end))\n",
        (_RECORD_KEYS,),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "queries by generated keys compute the keys of all records again",
        "engine/sow/selection.py",
        "            slots = record_keys.candidates(keys.names)\n",
        "            slots = None\n",
        (_RECORD_KEYS,),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "the hash of a generated key decides",
        "engine/sow/query/record_filter.py",
        "for at, name in enumerate(names) if name in wanted]",
        "for at, name in enumerate(names)]",
        (_RECORD_KEYS,),
        promise="behaviour 54",
        tier="unit",
    ),
    Mutation(
        "the memory of the index of record keys does not count",
        "engine/sow/state/fold.py",
        "return fields + (0 if self.record_keys is None else self.record_keys.nbytes)",
        "return fields",
        (_RECORD_KEYS,),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "a message is refused for the memory of an index of record keys",
        "engine/sow/memory.py",
        " and not self._give_up_indexes(growth):",
        ":",
        (_RECORD_KEYS,),
        promise="R12",
        tier="unit",
    ),
)
