"""Owns the functions that make one value of an array.

Must never cost more than its length, however long it is; what takes more than a little is charged to the
message.
"""

from __future__ import annotations

from math import nan
from typing import Any

from tickertape.base.limits import text_result_characters_max
from tickertape.filter.functions.arrays import Arrays, ArrayView, elements
from tickertape.filter.functions.values import Number, Scalar, scalar


def _extreme(value: Any, arrays: Arrays, at: int) -> Scalar:
    found: ArrayView = elements(value, arrays)
    if found.nan and not found.values:
        return nan
    if not found.texts:
        extremes = found.number_extremes
        lone: Scalar = extremes[at] if extremes else None
        return lone
    known: list[str] = [e[at] for e in (found.text_extremes, found.number_text_extremes) if e]
    return min(known) if at == 0 else max(known)


def array_min(value: Any, arrays: Arrays) -> Scalar:
    """The lowest element; as texts when one is no number. Elements without a value do not count."""
    return _extreme(value, arrays, 0)


def array_max(value: Any, arrays: Arrays) -> Scalar:
    """The highest element, as `array_min`."""
    return _extreme(value, arrays, 1)


def array_length(value: Any, _: Arrays) -> int | None:
    """How many elements there are, NULL ones too; 1 for what is no array, NULL for an empty one."""
    if value.__class__ is list:
        return len(value) or None
    return None if scalar(value) is None else 1


def array_sum(value: Any, arrays: Arrays) -> Number | None:
    """The sum of the elements that are numbers; NULL when there is none."""
    return elements(value, arrays).total


def array_to_string(value: Any, arrays: Arrays, separator: str = ",") -> str | None:
    """The elements with a value as texts, with a separator between."""
    written = elements(value, arrays).written
    if sum(map(len, written)) + len(separator) * len(written) > text_result_characters_max:
        return None
    return separator.join(written)
