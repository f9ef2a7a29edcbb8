"""Value semantics of filters: NULL, numbers and strings, and comparison of two scalars.

All evaluation uses these functions, so a value means the same in an operator, a function and an index. They
read at most one element of an array. `arrays.py` handles whole arrays.

A scalar is None (NULL), bool, int, float or a nonempty string. Conditions are True, False or None (unknown).
"""

from __future__ import annotations

import re
from math import inf
from typing import Any, Final, TypeAlias

from tickertape.filter.language.ast import integer_max, integer_min
from tickertape.filter.limits import number_characters_max

Scalar: TypeAlias = bool | int | float | str | None
Number: TypeAlias = int | float
Truth: TypeAlias = bool | None

NUMERIC: Final = frozenset({int, float, bool})
"""Classes of numeric values."""
ODD: Final = frozenset({list, bytes})
"""Classes of values that an operator must convert, although they may have a scalar."""
NUMBER_FORM: Final = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
"""Strings that are numbers, as a Python regular expression."""

_number: Final = re.compile(NUMBER_FORM).fullmatch
NUMBER_STARTS: Final = frozenset("0123456789+-.")
"""First characters of strings that may be numbers."""


def scalar(value: Any) -> Scalar:
    """Return the scalar of a body value. For an array this is its first element, or None without one.

    None, an empty string and an empty array are NULL. An object, a nested array and invalid UTF-8 are not
    scalars: they count as NULL except in `IS NULL`."""
    kind = value.__class__
    if kind is str:
        return value or None
    if kind is int:
        return value if integer_min <= value <= integer_max else _as_float(value)
    if kind in NUMERIC or value is None:
        return value  # type: ignore[no-any-return]
    if kind is list:
        return scalar(value[0]) if value and value[0].__class__ is not list else None
    return _decoded(value) if kind is bytes else None


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return inf if value > 0 else -inf


def _decoded(value: bytes) -> str | None:
    try:
        return value.decode() or None
    except UnicodeDecodeError:
        return None


def is_null(value: Any) -> bool:
    """Return `value IS NULL` for any body value. Objects and bytes are not NULL, although they have no
    scalar."""
    if value.__class__ is list:
        return not value or (value[0].__class__ is not list and is_null(value[0]))
    return value is None or value in {"", b""} if value.__class__ is not dict else False


def is_nan(value: Scalar) -> Truth:
    """Return `value IS NAN`. Unknown for NULL."""
    return None if value is None else value.__class__ is float and value != value


# -- numbers and strings ------------------------------------------------------------------------------


def number(value: Scalar) -> Number | None:
    """Return the number that a scalar is or can be converted to, or None.

    A string is a number if all of it has the form of one: sign, digits, point, exponent, without white space.
    """
    if isinstance(value, str):
        return text_number(value)
    return int(value) if isinstance(value, bool) else value


def text_number(text: str) -> Number | None:
    """Return the number in a string, or None."""
    if text[:1] not in NUMBER_STARTS or len(text) > number_characters_max or _number(text) is None:
        return None
    try:
        found = int(text)
        return found if integer_min <= found <= integer_max else float(found)
    except ValueError:
        value = float(text)
        return value if -inf < value < inf else None


def text(value: Scalar) -> str | None:
    """Return a scalar as a string. Whole floats have no point: 2.0 is `2`."""
    if value is None or isinstance(value, str):
        return value
    return _float_text(value) if isinstance(value, float) else str(int(value))


def _float_text(value: float) -> str:
    if value - value != 0:  # infinite or NaN
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "0"
    return repr(value).removesuffix(".0")


def key(value: Scalar) -> Scalar:
    """Return the key of a scalar for `=`: a number if possible. Two scalars are equal if their keys are."""
    if isinstance(value, str):
        found = text_number(value)
        return value if found is None else found
    return value


def truth(value: Scalar) -> Truth:
    """Return a scalar as a condition: a number is true unless it is 0. NaN and other strings are unknown."""
    found = number(value)
    return None if found is None or found != found else found != 0


# -- comparison of two scalars ------------------------------------------------------------------------


def equal(left: Scalar, right: Scalar) -> Truth:
    """Return `left = right`: as numbers if both can be converted, else as strings. NaN equals nothing."""
    if left is None or right is None:
        return None
    return key(left) == key(right)


def unequal(left: Scalar, right: Scalar) -> Truth:
    """Return `left != right`, the opposite of `equal`."""
    if left is None or right is None:
        return None
    return key(left) != key(right)


def less(left: Scalar, right: Scalar) -> Truth:
    """Return `left < right`: as numbers if both can be converted, else as strings by code points.

    NaN and infinity are neither below nor above a string.
    """
    if left is None or right is None:
        return None
    a, b = number(left), number(right)
    if a is not None and b is not None:
        return a < b
    if not (comparable_as_text(a) and comparable_as_text(b)):
        return False
    return text(left) < text(right)  # type: ignore[operator]


def less_or_equal(left: Scalar, right: Scalar) -> Truth:
    """Return `left <= right`. See `less`."""
    if left is None or right is None:
        return None
    a, b = number(left), number(right)
    if a is not None and b is not None:
        return a <= b
    if not (comparable_as_text(a) and comparable_as_text(b)):
        return False
    return text(left) <= text(right)  # type: ignore[operator]


def comparable_as_text(value: Number | None) -> bool:
    """Return whether a scalar with the number `value` (or None) can be ordered as a string."""
    return value is None or -inf < value < inf


# -- three-valued logic -------------------------------------------------------------------------------


def negated(value: Truth) -> Truth:
    """Return NOT `value`. Unknown stays unknown."""
    return None if value is None else not value


def both(left: Truth, right: Truth) -> Truth:
    """Return `left AND right`."""
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def either(left: Truth, right: Truth) -> Truth:
    """Return `left OR right`."""
    if left or right:
        return True
    return None if left is None or right is None else False
