"""Record key index: slots of records by their keys as clients see them, such as generated keys.

A generated key is a digest, so only a search of all records, or this index, finds its record. The index holds
a part of the hash of each key, and the caller compares the keys of the slots that it returns.

The first lookup builds the index in bounded steps. Later records wait until the next lookup, so publishers do
not pay for digests. It is kept until records need its memory: without lookups it costs no time.

Invariants:
- A record with the key is among the candidates, so the index changes no result.
- A slot with a record is indexed or pending. A pending slot may have no record.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from tickertape.batch.format import I8, U8, Int64s, UInt64s
from tickertape.engine.limits import record_key_scalar_max, record_key_step_max, sow_growth_rows
from tickertape.engine.sow.state.entry_table import EntryTable, HashMixer, bits_for
from tickertape.engine.sow.state.key_index import KeyIndex
from tickertape.engine.sow.state.records import RecordTable

_TAG: Final = np.dtype("<u4")
_TAG_SHIFT: Final = np.uint64(32)
_TAG_BYTES: Final = 4
_ROW_BYTES: Final = 26
"""Memory of a tag, and of an entry in a table that has just grown."""


class VisibleKeys(Protocol):
    """Keys of records as clients see them (`RecordTopics`)."""

    def record_keys(self, keys: Sequence[bytes], /) -> list[str]:
        """Return the explicit or generated key of each record, from its canonical key."""


class RecordKeyIndex:
    """Index of the records of one SOW topic. `secret` is the secret of the process for hashes."""

    def __init__(self, record_keys: VisibleKeys, secret: bytes) -> None:
        self._record_keys = record_keys
        self._mixer = HashMixer(secret)
        self._table: EntryTable | None = None
        """None: the index is not in use."""
        self._tags: npt.NDArray[np.uint32] = np.zeros(0, _TAG)
        """Upper half of the entry of each indexed slot, 0 for other slots."""
        self._pending = BitMap()
        """Slots that are not in the table."""

    @property
    def active(self) -> bool:
        """Whether the index is in use, or being built."""
        return self._table is not None

    @property
    def ready(self) -> bool:
        """Whether it has all records."""
        return self._table is not None and not self._pending

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return 0 if self._table is None else self._table.nbytes + self._tags.nbytes

    @property
    def row_bytes(self) -> int:
        """Memory of one more record at most."""
        return 0 if self._table is None else _ROW_BYTES

    @staticmethod
    def nbytes_for(slots: int) -> int:
        """Return the memory of an index of some slots."""
        return EntryTable.nbytes_of(bits_for(slots)) + _rows_for(slots) * _TAG_BYTES

    # -- changes ----------------------------------------------------------------------------------------

    def begin(self, records: RecordTable) -> None:
        """Start to build the index of all records."""
        self._tags = np.zeros(0, _TAG)
        self._restart(records)

    def give_up(self) -> None:
        """Free the memory of the index. It is not in use until the next `begin`."""
        self._table, self._tags, self._pending = None, np.zeros(0, _TAG), BitMap()

    def added(self, slots: Int64s) -> None:
        """Index slots with new records. Slots whose record only has another body are ignored."""
        if self._table is None:
            return
        self._reserve(int(slots.max(initial=-1)) + 1)
        self._pending |= _bitmap(slots[self._tags[slots] == 0])

    def removed(self, slots: Int64s) -> None:
        """Forget slots whose records have ended. A later key may use them."""
        if self._table is None:
            return
        self._reserve(int(slots.max(initial=-1)) + 1)
        tags = self._tags[slots]
        indexed = slots[tags != 0]
        if len(indexed):
            self._table.discard(_entries(self._tags[indexed], indexed))
            self._tags[indexed] = 0
        self._pending.difference_update(_bitmap(slots))

    def step(self, keys: KeyIndex, records: RecordTable) -> None:
        """Index some pending slots, given the canonical keys and the records. Call it until `ready`."""
        table = self._table
        if table is None:
            return
        if records.record_count > table.entries_max:
            table = self._restart(records)
        pending = np.fromiter(islice(self._pending, record_key_step_max), I8)
        if not len(pending):
            return
        self._pending.difference_update(_bitmap(pending))
        slots = pending[records.live(pending)]
        if not len(slots):
            return
        self._reserve(int(slots[-1]) + 1)
        unknown = slots[self._tags[slots] == 0]
        if len(unknown):
            names = self._record_keys.record_keys(keys.keys_of(unknown))
            self._tags[unknown] = self._hashes(names) >> _TAG_SHIFT
        table.add(_entries(self._tags[slots], slots))

    def _restart(self, records: RecordTable) -> EntryTable:
        """Replace the table with an empty one, and let all slots be pending. Known tags stay."""
        self._pending = BitMap(range(records.slot_end))
        self._table = EntryTable(bits_for(records.record_count))
        return self._table

    def _reserve(self, slots: int) -> None:
        if slots > len(self._tags):
            self._tags.resize(_rows_for(slots))

    # -- lookup -----------------------------------------------------------------------------------------

    def candidates(self, names: Collection[str]) -> Int64s | None:
        """Return the slots whose records may have one of these keys, ascending. None while not in use."""
        table = self._table
        if table is None:
            return None
        if len(names) < record_key_scalar_max:
            one = self._mixer.one
            found = np.array([slot for name in names for slot in table.slots_of(one(hash(name)))], I8)
        else:
            found = table.find(self._hashes(names))
        return np.unique(np.concatenate((found, np.array(self._pending.to_array(), I8))))

    def _hashes(self, names: Collection[str]) -> UInt64s:
        return self._mixer.many(np.fromiter(map(hash, names), I8, len(names)))


def _entries(tags: npt.NDArray[np.uint32], slots: Int64s) -> UInt64s:
    """Return the entries of slots in the table."""
    entries: UInt64s = tags.astype(U8) << _TAG_SHIFT | (slots + 1).view(U8)
    return entries


def _bitmap(slots: Int64s) -> BitMap:
    return BitMap(slots.astype(np.uint32))


def _rows_for(slots: int) -> int:
    return -(-slots // sow_growth_rows) * sow_growth_rows
