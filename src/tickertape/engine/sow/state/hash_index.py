"""Hash index: the slots whose records have equal values in some fields.

Invariants:
- A slot is in one bucket, or in none. Slots of one bucket share the object of its key.
- A bucket may have slots of other values: long texts are represented by their hash.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from pyroaring import BitMap

from tickertape.filter.functions.values import NUMBER_STARTS, Scalar, key, scalar

Bucket: TypeAlias = Hashable
"""Key of a bucket: the value of one field, or the tuple of several."""

ANY_VALUE: Final = object()
"""Bucket of slots that any lookup returns."""

_TEXT_MAX: Final = 32
_SLOT_BYTES: Final = 8
_BUCKET_BYTES: Final = 100
"""Approximate memory of a bucket: an entry of the dict and its slot."""
_FIELD_BYTES: Final = 81
"""Memory of one value of at most `_TEXT_MAX` ASCII characters."""
_TUPLE_BYTES: Final = 40
_MANY_BYTES: Final = 100
"""Approximate memory of a bitmap."""
_MEMBER_BYTES: Final = 4


def value_of(value: Any) -> Scalar | object:
    """Return the value in the key of a bucket for the value of a field. None: no comparison finds it.

    Any element of an array may be equal, so arrays have `ANY_VALUE`."""
    if value.__class__ is list:
        return ANY_VALUE
    if value.__class__ is str and value[:1] not in NUMBER_STARTS:
        return short(value or None)
    found = key(scalar(value))
    return short(found) if found == found else None


def short(value: Scalar) -> Scalar:
    """Return a value of bounded size for the key of a filter or record (`values.key`)."""
    return hash(value) if isinstance(value, str) and len(value) > _TEXT_MAX else value


class HashIndex:
    """Slots by the values of `fields` fields."""

    def __init__(self, fields: int) -> None:
        self._bucket_bytes = _BUCKET_BYTES + _FIELD_BYTES * fields
        if fields > 1:
            self._bucket_bytes += _TUPLE_BYTES + 8 * fields
        self._slots: dict[Bucket, int | BitMap] = {}
        """A bucket of one slot is its number."""
        self._bucket_of: list[Bucket] = []
        """By slot. None: in no bucket."""
        self._many = 0
        """Bitmaps."""
        self._members = 0
        """Slots in bitmaps."""

    @property
    def nbytes(self) -> int:
        """Approximate memory."""
        buckets = len(self._slots) * self._bucket_bytes + self._many * _MANY_BYTES
        return buckets + self._members * _MEMBER_BYTES + len(self._bucket_of) * _SLOT_BYTES

    @property
    def row_bytes(self) -> int:
        """Memory of a record with a value of its own."""
        return self._bucket_bytes + _SLOT_BYTES

    def put(self, slots: Sequence[int], buckets: Iterable[Bucket]) -> None:
        """Put slots into buckets. A bucket that has None as a value becomes None: in no bucket."""
        bucket_of = self._bucket_of
        end = max(slots, default=-1) + 1
        if end > len(bucket_of):
            bucket_of.extend([None] * (end - len(bucket_of)))
        for slot, bucket in zip(slots, buckets, strict=True):
            before = bucket_of[slot]
            if before == bucket:
                continue
            if before is not None:
                self._remove(slot, before)
            bucket_of[slot] = None if bucket is None else self._add(slot, bucket)

    def drop(self, slots: Sequence[int]) -> None:
        """Remove slots whose records have ended."""
        self.put(slots, [None] * len(slots))

    def count(self, buckets: Iterable[Bucket]) -> int:
        """Return the number of slots in distinct buckets."""
        found = (self._slots.get(bucket) for bucket in buckets)
        return sum(1 if isinstance(one, int) else len(one) for one in found if one is not None)

    def slots(self, buckets: Iterable[Bucket]) -> BitMap:
        """Return the slots in some buckets."""
        found = BitMap()
        for bucket in buckets:
            one = self._slots.get(bucket)
            if isinstance(one, int):
                found.add(one)
            elif one is not None:
                found |= one
        return found

    def _add(self, slot: int, bucket: Bucket) -> Bucket:
        """Add a slot to a bucket. Return the object that all slots of the bucket share."""
        there = self._slots.get(bucket)
        if there is None:
            self._slots[bucket] = slot
            return bucket
        if isinstance(there, int):
            bucket = self._bucket_of[there]
            self._slots[bucket] = BitMap((there, slot))
            self._many += 1
            self._members += 2
        else:
            bucket = self._bucket_of[there[0]]
            there.add(slot)
            self._members += 1
        return bucket

    def _remove(self, slot: int, bucket: Bucket) -> None:
        there = self._slots[bucket]
        if isinstance(there, int):
            del self._slots[bucket]
            return
        there.remove(slot)
        self._members -= 1
        if len(there) == 1:
            self._slots[bucket] = there[0]
            self._many -= 1
            self._members -= 1
