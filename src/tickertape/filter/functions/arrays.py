"""Comparison of scalars and arrays. An array matches if any of its elements does.

An array is summarised once per message: sets for `=`, counts for `!=`, extremes for `<`. Each part is
computed at its first use, and elements are never compared pairwise. Work of more than a few nanoseconds per
element is charged to the message, and `TooCostly` is raised above the limit.

Each operator returns True, False or None (unknown). If an array has NULL elements and no other element makes
the comparison true, the result is unknown. Array summaries are passed in as `arrays` and live as long as the
caller keeps them.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection
from functools import cached_property
from itertools import accumulate
from math import inf, nan
from operator import ne
from typing import Any, Final, NamedTuple, TypeAlias

from tickertape.filter.functions.values import (
    NUMBER_FORM,
    NUMERIC,
    Number,
    Scalar,
    Truth,
    both,
    comparable_as_text,
    key,
    less_or_equal,
    number,
    scalar,
    text,
    text_number,
)
from tickertape.filter.functions.values import equal as equal_scalars
from tickertape.filter.functions.values import less as less_scalars
from tickertape.filter.functions.values import unequal as unequal_scalars
from tickertape.filter.language.ast import integer_max, integer_min
from tickertape.filter.limits import (
    array_search_work,
    array_text_work,
    array_work_max,
    text_result_characters_max,
)

_number_lines: Final = re.compile(f"^{NUMBER_FORM}$", re.MULTILINE).findall
_whole_lines: Final = re.compile(r"^[0-9]{1,18}$", re.MULTILINE).findall
_FEW: Final = 16
"""Up to this number, strings are processed one by one."""
_AS_THEY_STAND: Final = frozenset({str, int, float, bool, type(None)})
_SCALARS: Final = _AS_THEY_STAND | {bytes}


class Extremes(NamedTuple):
    """Lowest and highest of some values."""

    low: Any
    high: Any


class TooCostly(Exception):
    """The arrays of a message are too long for this filter."""


class Arrays(dict[int, tuple[list[Any], "ArrayView"]]):
    """The arrays of one message that a filter has used, by identity, and the remaining work budget.

    Each array is referenced, so that no other object can get its identity meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self._left = array_work_max

    def charge(self, work: int) -> None:
        """Charge `work`. Raises `TooCostly` above the limit."""
        self[0] = _SPENT  # not the identity of an array: it makes the object true, so that `forget` is called
        self._left -= work
        if self._left < 0:
            raise TooCostly

    def forget(self) -> None:
        """Reset for the next message."""
        self.clear()
        self._left = array_work_max


class ArrayView:
    """The distinct elements of an array that have a value, and whether other elements exist.

    NULL, nested arrays and objects have no value.
    """

    def __init__(self, values: list[Any], arrays: Arrays) -> None:
        self._arrays = arrays
        self._raw = values
        kinds = set(map(type, values))
        if kinds <= _AS_THEY_STAND and not _has_big(values, kinds):
            distinct = set(values)
        else:
            arrays.charge(len(values))
            distinct = _distinct(values, kinds)
        size = len(distinct)
        distinct.discard(None)
        distinct.discard("")
        self.unknown: bool = len(distinct) < size or not size
        """Whether an element has no value, or the array is empty."""
        self.nan: bool = False
        if float in kinds and any(map(ne, distinct, distinct)):
            distinct = {v for v in distinct if v == v}
            self.nan = True
        self.values: set[Any] = distinct
        """The distinct elements with a value, without NaN."""

    @classmethod
    def of(cls, value: Scalar, arrays: Arrays) -> ArrayView:
        """Return a scalar as an array with one element."""
        made = cls.__new__(cls)
        one = number(value)
        made._arrays = arrays
        made._raw = [value]
        made.nan = value != value
        made.unknown = value is None
        made.values = set() if value is None or made.nan else {value}
        known = made.__dict__  # preset the cached properties
        if not made.values:
            known["_divided"] = (made.values, {}, made.values)
        elif one is None:
            known["_divided"] = (set(), {}, made.values)
            known["number_extremes"], known["text_extremes"] = None, Extremes(value, value)
        else:
            known["_divided"] = ({one}, {value: one} if value.__class__ is str else {}, set())
            known["number_extremes"], known["text_extremes"] = Extremes(one, one), None
        return made

    @cached_property
    def _divided(self) -> tuple[set[Number], dict[str, Number], set[str]]:
        texts = {value for value in self.values if value.__class__ is str}
        if not texts:
            return self.values, {}, texts
        if len(texts) > _FEW:
            self._arrays.charge(2 * len(texts))
        numbers = self.values - texts
        numeric = _numeric(texts)
        return numbers.union(numeric.values()), numeric, texts.difference(numeric)

    @property
    def numbers(self) -> set[Number]:
        """The numbers among them, including strings that are numbers."""
        return self._divided[0]

    @property
    def texts(self) -> set[str]:
        """Strings that are not numbers."""
        return self._divided[2]

    @cached_property
    def known(self) -> bool:
        """Whether the array has an element to compare with."""
        return bool(self.values) or self.nan

    @cached_property
    def number_extremes(self) -> Extremes | None:
        """Extremes of the numbers."""
        return _extremes(self.numbers)

    @cached_property
    def text_extremes(self) -> Extremes | None:
        """Extremes of the strings that are not numbers."""
        return _extremes(self.texts)

    # -- more expensive parts --

    @cached_property
    def total(self) -> Number | None:
        """Sum of all elements that are numbers, including duplicates. None without one."""
        found = self._raw
        if not NUMERIC.issuperset(map(type, found)):
            self._arrays.charge(3 * len(found))
            found = [n for v in found if (n := number(_element(v))) is not None]
        return sum(found) if found else None

    @cached_property
    def written(self) -> list[str]:
        """All elements with a value as strings, including duplicates."""
        found = self._raw
        if {str}.issuperset(map(type, found)):
            return list(filter(None, found))
        self._arrays.charge(array_text_work * len(found))
        return [number_text(s) for v in found if (s := _element(v)) is not None]

    @cached_property
    def in_order(self) -> list[Number]:
        """The numbers, sorted."""
        self._arrays.charge(len(self.numbers))
        return sorted(self.numbers)

    @cached_property
    def texts_in_order(self) -> list[str]:
        """Strings that are not numbers, sorted."""
        self._arrays.charge(len(self.texts))
        return sorted(self.texts)

    @cached_property
    def _number_texts(self) -> list[tuple[Number, str]]:
        """The finite numbers with their strings. A number that was a string keeps its spelling."""
        self._arrays.charge(array_text_work * len(self.numbers))
        numeric = self._divided[1]
        plain = self.values - self.texts if numeric else self.numbers
        found = [(n, number_text(n)) for n in plain if n.__class__ is not str and -inf < n < inf]
        found.extend((n, t) for t, n in numeric.items())
        return found

    @cached_property
    def written_numbers(self) -> list[tuple[Number, str]]:
        """The finite numbers, sorted, with their texts."""
        self._arrays.charge(4 * len(self.values))
        return sorted(self._number_texts)

    @cached_property
    def number_texts_in_order(self) -> list[str]:
        """The strings of the numbers, sorted as strings."""
        self._arrays.charge(len(self.values))
        return sorted(t for _, t in self._number_texts)

    @cached_property
    def number_text_extremes(self) -> Extremes | None:
        """Extremes of the strings of the numbers."""
        return _extremes([t for _, t in self._number_texts])

    @cached_property
    def lowest_text_from(self) -> list[str]:
        """For each of `written_numbers`, the lowest string of it and of all higher ones."""
        self._arrays.charge(len(self.values))
        return list(accumulate((t for _, t in reversed(self.written_numbers)), min))[::-1]

    @cached_property
    def highest_text_to(self) -> list[str]:
        """For each of `written_numbers`, the highest string of it and of all lower ones."""
        self._arrays.charge(len(self.values))
        return list(accumulate((t for _, t in self.written_numbers), max))

    @cached_property
    def all_texts(self) -> list[str]:
        """All elements with a value as strings, sorted."""
        texts = sum(1 for v in self.values if v.__class__ is str)
        self._arrays.charge(2 * texts + array_text_work * (len(self.values) - texts))
        return sorted({v if v.__class__ is str else number_text(v) for v in self.values})

    def searchable_texts(self) -> list[str]:
        """Return all elements with a value as strings. Each call charges a search."""
        texts = sum(1 for v in self.values if v.__class__ is str)
        self._arrays.charge(
            array_search_work * len(self.values) + array_text_work * (len(self.values) - texts)
        )
        return [v if v.__class__ is str else number_text(v) for v in self.values]

    @cached_property
    def all_texts_reversed(self) -> list[str]:
        """Each of `all_texts` reversed, sorted."""
        self._arrays.charge(len(self.values))
        return sorted(one[::-1] for one in self.all_texts)


_SPENT: Final[tuple[list[Any], Any]] = ([], None)


def elements(value: Any, arrays: Arrays) -> ArrayView:
    """Return the summary of an array, from `arrays` if present. Other values count as an array with one
    element."""
    if value.__class__ is not list:
        return ArrayView.of(scalar(value), arrays)
    known = arrays.get(id(value))
    if known is None:
        known = arrays[id(value)] = (value, ArrayView(value, arrays))
    return known[1]


def _extremes(values: Collection[Any]) -> Extremes | None:
    return Extremes(min(values), max(values)) if values else None


def _has_big(values: list[Any], kinds: set[type]) -> bool:
    """Return whether an integer exceeds 64 bits: a sender could choose many of these with one hash."""
    if int not in kinds:
        return False
    integers = values if len(kinds) == 1 else [value for value in values if value.__class__ is int]
    return max(integers) > integer_max or min(integers) < integer_min


def _distinct(values: list[Any], kinds: set[type]) -> set[Any]:
    """Return the distinct scalars. Values without a scalar become NULL."""
    found = {
        v if v.__class__ is not int or integer_min <= v <= integer_max else scalar(v)
        for v in values
        if v.__class__ in _AS_THEY_STAND
    }
    if not kinds <= _AS_THEY_STAND:
        found.update(scalar(v) for v in values if v.__class__ is bytes)
        if not kinds <= _SCALARS:
            found.add(None)
    return found


def _element(value: Any) -> Scalar:
    """Return the scalar of an element. A nested array has none."""
    return None if value.__class__ is list else scalar(value)


def _numeric(texts: set[str]) -> dict[str, Number]:
    """Return the numeric strings among `texts`, with their numbers."""
    if len(texts) <= _FEW:
        return {t: n for t in texts if (n := text_number(t)) is not None}
    # One search over all of them. A string with a line break is not a number.
    lines = "\n".join(texts)
    if lines.count("\n") >= len(texts):
        lines = "\n".join(t for t in texts if "\n" not in t)
    whole: list[str] = _whole_lines(lines)
    numbers: dict[str, Number] = dict(zip(whole, map(int, whole), strict=True))
    if len(whole) < len(texts):
        others: list[str] = _number_lines(lines)
        numbers.update((t, n) for t in others if t not in numbers and (n := text_number(t)) is not None)
    return numbers


def number_text(value: Scalar) -> str:
    """Return a number as a string."""
    found = text(value)
    assert found is not None
    return found


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
    """Return the lowest element, compared as strings if one is not a number. NULL elements do not count."""
    return _extreme(value, arrays, 0)


def array_max(value: Any, arrays: Arrays) -> Scalar:
    """Return the highest element. See `array_min`."""
    return _extreme(value, arrays, 1)


def array_length(value: Any, _: Arrays) -> int | None:
    """Return the number of elements, including NULL. 1 for a scalar, NULL for an empty array."""
    if value.__class__ is list:
        return len(value) or None
    return None if scalar(value) is None else 1


def array_sum(value: Any, arrays: Arrays) -> Number | None:
    """Return the sum of the elements that are numbers. NULL without one."""
    return elements(value, arrays).total


def array_to_string(value: Any, arrays: Arrays, separator: str = ",") -> str | None:
    """Return the elements with a value as strings, joined by a separator."""
    written = elements(value, arrays).written
    if sum(map(len, written)) + len(separator) * len(written) > text_result_characters_max:
        return None
    return separator.join(written)


# -- operators ----------------------------------------------------------------------------------------


def _unless_true(found: bool, *sides: ArrayView) -> Truth:
    return True if found else None if any(side.unknown for side in sides) else False


# -- = and != -----------------------------------------------------------------------------------------


def equal(left: Any, right: Any, arrays: Arrays) -> Truth:
    """Return `left = right`."""
    if left.__class__ is not list and right.__class__ is not list:
        return equal_scalars(scalar(left), scalar(right))
    a, b = elements(left, arrays), elements(right, arrays)
    if len(a.values) > len(b.values):
        a, b = b, a
    # The numeric strings of the larger side are needed only if the smaller side has numbers.
    found = not b.values.isdisjoint(a.texts) or (bool(a.numbers) and not b.numbers.isdisjoint(a.numbers))
    return _unless_true(found, a, b)


def unequal(left: Any, right: Any, arrays: Arrays) -> Truth:
    """Return `left != right`: true if some pair differs."""
    if left.__class__ is not list and right.__class__ is not list:
        return unequal_scalars(scalar(left), scalar(right))
    a, b = elements(left, arrays), elements(right, arrays)
    # No pair differs only if all elements of both sides are equal.
    found = a.known and b.known and (a.nan or b.nan or len(_keys(a) | _keys(b)) > 1)
    return _unless_true(found, a, b)


def _keys(found: ArrayView) -> set[Any]:
    """Return up to two distinct keys. More are not needed."""
    if len(found.numbers) + len(found.texts) > 1:
        return {0, 1}
    return found.numbers | found.texts


def one_of(value: Any, keys: frozenset[Scalar], null: bool, arrays: Arrays) -> Truth:
    """Return `value IN (constants)`. `keys` are the keys of the constants, `null`: NULL is among them."""
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
    """Return `left < right`."""
    if left.__class__ is not list and right.__class__ is not list:
        return less_scalars(scalar(left), scalar(right))
    return _ordered(left, right, lambda a, b: bool(a and b and a.low < b.high), arrays)


def at_most(left: Any, right: Any, arrays: Arrays) -> Truth:
    """Return `left <= right`."""
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
    """Return `value BETWEEN low AND high`. For an array, one element must be within both bounds."""
    floor, ceiling = scalar(low), scalar(high)
    if value.__class__ is not list:
        one = scalar(value)
        return both(less_or_equal(floor, one), less_or_equal(one, ceiling))
    found = elements(value, arrays)
    if floor is None or ceiling is None:
        # Never true. False if the other bound alone makes it false for every element.
        one_side = at_most(floor, value, arrays) if ceiling is None else at_most(value, ceiling, arrays)
        return False if one_side is False else None
    hit = _number_between(found, floor, ceiling)
    if not hit and found.texts and _has_order_as_text(floor) and _has_order_as_text(ceiling):
        hit = _some_between(found.texts_in_order, text(floor), text(ceiling))
    return _unless_true(hit, found)


def _number_between(found: ArrayView, floor: Scalar, ceiling: Scalar) -> bool:
    """Return whether a number among the elements is within the bounds.

    A bound compares as a number if it is one, else as a string."""
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


# -- strings ------------------------------------------------------------------------------------------


def affixed(value: Any, members: tuple[str, ...], ends: bool, null: bool, arrays: Arrays) -> Truth:
    """Return `value BEGINS WITH (members)`, or `ENDS WITH`. `null`: NULL is among the members."""
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
