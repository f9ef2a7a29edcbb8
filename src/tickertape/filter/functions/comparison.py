"""Comparison operators on scalars and arrays; an array matches if any of its elements does.

Each operator returns True, False or None (unknown). If an array has NULL elements and no other element makes
the comparison true, the result is unknown. Array summaries are passed in as `arrays` and live as long as the
caller keeps them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any, TypeAlias

from tickertape.filter.functions.arrays import Arrays, ArrayView, Extremes, elements
from tickertape.filter.functions.values import (
    Scalar,
    Truth,
    both,
    comparable_as_text,
    key,
    less_or_equal,
    number,
    scalar,
    text,
)
from tickertape.filter.functions.values import equal as equal_scalars
from tickertape.filter.functions.values import less as less_scalars
from tickertape.filter.functions.values import unequal as unequal_scalars


def _unless_true(found: bool, *sides: ArrayView) -> Truth:
    return True if found else None if any(side.unknown for side in sides) else False


# -- = and != -----------------------------------------------------------------------------------------


def equal(left: Any, right: Any, arrays: Arrays) -> Truth:
    """`left = right`."""
    if left.__class__ is not list and right.__class__ is not list:
        return equal_scalars(scalar(left), scalar(right))
    a, b = elements(left, arrays), elements(right, arrays)
    if len(a.values) > len(b.values):
        a, b = b, a
    # Which texts of the larger one are numbers is asked only when there are numbers to look for.
    found = not b.values.isdisjoint(a.texts) or (bool(a.numbers) and not b.numbers.isdisjoint(a.numbers))
    return _unless_true(found, a, b)


def unequal(left: Any, right: Any, arrays: Arrays) -> Truth:
    """`left != right`: some pair differs."""
    if left.__class__ is not list and right.__class__ is not list:
        return unequal_scalars(scalar(left), scalar(right))
    a, b = elements(left, arrays), elements(right, arrays)
    # Only when all elements of both sides are one and the same does no pair differ.
    found = a.known and b.known and (a.nan or b.nan or len(_keys(a) | _keys(b)) > 1)
    return _unless_true(found, a, b)


def _keys(found: ArrayView) -> set[Any]:
    """Return up to two of its different keys; no more are needed."""
    if len(found.numbers) + len(found.texts) > 1:
        return {0, 1}
    return found.numbers | found.texts


def one_of(value: Any, keys: frozenset[Scalar], null: bool, arrays: Arrays) -> Truth:
    """`value IN (constants)`: `keys` are theirs, `null` says that one of them is NULL."""
    if value.__class__ is not list:
        one = scalar(value)
        if one is None:
            return None
        return True if key(one) in keys else None if null else False
    found = elements(value, arrays)
    hit = not found.values.isdisjoint(keys)
    if not hit and any(one.__class__ is not str for one in keys):
        hit = not found.numbers.isdisjoint(keys)
    return True if hit else None if null or found.unknown else False


# -- order --------------------------------------------------------------------------------------------

_Below: TypeAlias = Callable[[Extremes | None, Extremes | None], bool]


def less(left: Any, right: Any, arrays: Arrays) -> Truth:
    """`left < right`."""
    if left.__class__ is not list and right.__class__ is not list:
        return less_scalars(scalar(left), scalar(right))
    return _ordered(left, right, lambda a, b: bool(a and b and a.low < b.high), arrays)


def at_most(left: Any, right: Any, arrays: Arrays) -> Truth:
    """`left <= right`."""
    if left.__class__ is not list and right.__class__ is not list:
        return less_or_equal(scalar(left), scalar(right))
    return _ordered(left, right, lambda a, b: bool(a and b and a.low <= b.high), arrays)


def _ordered(left: Any, right: Any, below: _Below, arrays: Arrays) -> Truth:
    a, b = elements(left, arrays), elements(right, arrays)
    found = (
        below(a.number_extremes, b.number_extremes)
        or below(a.text_extremes, b.text_extremes)
        or (bool(b.texts) and below(a.number_text_extremes, b.text_extremes))
        or (bool(a.texts) and below(a.text_extremes, b.number_text_extremes))
    )
    return _unless_true(found, a, b)


def between(value: Any, low: Any, high: Any, arrays: Arrays) -> Truth:
    """`value BETWEEN low AND high`: of an array one element is neither below nor above."""
    floor, ceiling = scalar(low), scalar(high)
    if value.__class__ is not list:
        one = scalar(value)
        return both(less_or_equal(floor, one), less_or_equal(one, ceiling))
    found = elements(value, arrays)
    if floor is None or ceiling is None:
        # Never true; false when the other bound alone makes it false for every element.
        one_side = at_most(floor, value, arrays) if ceiling is None else at_most(value, ceiling, arrays)
        return False if one_side is False else None
    hit = _number_between(found, floor, ceiling)
    if not hit and found.texts and _has_order_as_text(floor) and _has_order_as_text(ceiling):
        hit = _some_between(found.texts_in_order, text(floor), text(ceiling))
    return _unless_true(hit, found)


def _number_between(found: ArrayView, floor: Scalar, ceiling: Scalar) -> bool:
    """Return whether a number among the elements is; a bound compares as a number if it is one, else as a
    text."""
    if not found.numbers:
        return False
    low, high = number(floor), number(ceiling)
    if low is not None and high is not None:
        return _some_between(found.in_order, low, high)
    if low is None and high is None:
        return _some_between(found.number_texts_in_order, floor, ceiling)
    finite = [n for n, _ in found.written_numbers]
    if low is not None:
        at = bisect_left(finite, low)
        return low == low and at < len(finite) and found.lowest_text_from[at] <= str(ceiling)
    assert high is not None
    at = bisect_right(finite, high)
    return high == high and at > 0 and found.highest_text_to[at - 1] >= str(floor)


def _has_order_as_text(bound: Scalar) -> bool:
    return comparable_as_text(number(bound))


def _some_between(ordered: list[Any], low: Any, high: Any) -> bool:
    at = bisect_left(ordered, low)
    return at < len(ordered) and bool(low <= ordered[at] <= high)  # a bound may be NaN


# -- texts --------------------------------------------------------------------------------------------


def affixed(value: Any, members: tuple[str, ...], ends: bool, null: bool, arrays: Arrays) -> Truth:
    """`value BEGINS WITH (members)`, or `ENDS WITH`; `null` says that one member is NULL."""
    if value.__class__ is not list:
        one = text(scalar(value))
        if one is None:
            return None
        hit = one.endswith(members) if ends else one.startswith(members)
        return True if hit else None if null else False
    found = elements(value, arrays)
    ordered = found.all_texts_reversed if ends else found.all_texts
    hit = any(_some_begins(ordered, member[::-1] if ends else member) for member in members)
    return True if hit else None if null or found.unknown else False


def _some_begins(ordered: list[str], prefix: str) -> bool:
    at = bisect_left(ordered, prefix)
    return at < len(ordered) and ordered[at].startswith(prefix)
