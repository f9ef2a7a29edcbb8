"""Equality index: maps a field value to the filters that require it.

Values that `=` treats as equal have the same entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np

from tickertape.batch.format import Int64s
from tickertape.filter.contained_errors import DEFECTS
from tickertape.filter.functions.arrays import TooCostly, elements
from tickertape.filter.functions.values import Scalar, key, scalar
from tickertape.filter.index.columns import CostShare

_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
_WIDE: Final = 1 << 63
_NOBODY: Final[list[int]] = []


class EqualityIndex:
    """Slots of filters by the keys of values (see `values.key`)."""

    def __init__(self) -> None:
        self._slots: dict[Scalar, list[int]] = {}
        self._numbers = 0
        """Keys that are not texts."""
        self._wide = 0
        """Those beyond integers of 64 bits."""

    def __bool__(self) -> bool:
        return bool(self._slots)

    def crowd(self, keys: Iterable[Scalar]) -> int:
        """Return how many ask for the same, at most."""
        return max(len(self._slots.get(one, _NOBODY)) for one in keys)

    def add(self, keys: Iterable[Scalar], slot: int) -> None:
        """Add the values that the filter in `slot` requires."""
        for one in keys:
            slots = self._slots.get(one)
            if slots is None:
                self._slots[one] = [slot]
                self._count(one, 1)
            else:
                slots.append(slot)

    def discard(self, keys: Iterable[Scalar], slot: int) -> None:
        """It does no more."""
        for one in keys:
            slots = self._slots[one]
            slots.remove(slot)
            if not slots:
                del self._slots[one]
                self._count(one, -1)

    def _count(self, one: Scalar, change: int) -> None:
        if not isinstance(one, str):
            self._numbers += change
            self._wide += change * (one is not None and abs(one) >= _WIDE)

    def found(self, values: Sequence[Any], costly: set[int]) -> tuple[Int64s, Int64s]:
        """Return the slots that require one of `values`, and for each the place of its value, rising. The
        place of a too costly value is added to `costly`."""
        get = self._slots.get
        kinds = set(map(type, values))
        found: list[Collection[int]]
        if kinds <= _PLAIN and not self._wide:
            keys = values
            if self._numbers and str in kinds:
                keys = [key(value) if value.__class__ is str else value for value in values]
            found = [get(one, _NOBODY) for one in keys]
        else:
            found = [self._askers(value, at, costly) for at, value in enumerate(values)]
        counts = np.fromiter(map(len, found), np.int64, len(found))
        slots = np.fromiter(chain.from_iterable(found), np.int64, int(counts.sum()))
        return slots, np.repeat(np.arange(len(found)), counts)

    def _askers(self, value: Any, at: int, costly: set[int]) -> Collection[int]:
        try:
            if value.__class__ is not list:
                return self._slots.get(key(scalar(value)), _NOBODY)
            summed = elements(value, CostShare())
            wanted = [*summed.texts, *(summed.numbers if self._numbers else ())]
        except TooCostly:
            costly.add(at)
            return _NOBODY
        except Exception as error:  # noqa: BLE001 - the filters themselves are asked, and say who fails
            DEFECTS.note(error)
            costly.add(at)
            return _NOBODY
        return dict.fromkeys(chain.from_iterable(self._slots.get(one, _NOBODY) for one in wanted))
