"""Arithmetic and number functions.

They do not raise for any number. A result outside 64-bit integers and finite floats is NULL.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from tickertape.filter.functions.values import Number, Scalar, number
from tickertape.filter.language.ast import integer_max, integer_min

EARTH_RADIUS_METRES: Final = 6_371_008.8


def bounded(value: Number | None) -> Number | None:
    """Return `value`, or None if it is an integer beyond 64 bits or an infinite float. NaN is kept."""
    if isinstance(value, int):
        return value if integer_min <= value <= integer_max else None
    return None if value in {math.inf, -math.inf} else value


def _calculated(
    left: Scalar, right: Scalar, operate: Callable[[Number, Number], Number | None]
) -> Number | None:
    a, b = number(left), number(right)
    if a is None or b is None:
        return None
    try:
        return bounded(operate(a, b))
    except OverflowError:
        return None


def _quotient(a: Number, b: Number) -> Number | None:
    if b == 0:
        return None
    if a.__class__ is int and b.__class__ is int:
        whole, rest = divmod(a, b)
        if not rest:
            return whole
    return a / b


def _remainder(a: Number, b: Number) -> Number | None:
    if b == 0 or a in {math.inf, -math.inf}:
        return None
    if a.__class__ is int and b.__class__ is int:
        rest = abs(a) % abs(b)
        return rest if a >= 0 else -rest
    return math.fmod(a, b)


def add(left: Scalar, right: Scalar) -> Number | None:
    """Return `left + right`, or NULL on overflow or if an argument is NULL or not a number."""
    return _calculated(left, right, lambda a, b: a + b)


def subtract(left: Scalar, right: Scalar) -> Number | None:
    """Return `left - right`. NULL as for `add`."""
    return _calculated(left, right, lambda a, b: a - b)


def multiply(left: Scalar, right: Scalar) -> Number | None:
    """Return `left * right`. NULL as for `add`."""
    return _calculated(left, right, lambda a, b: a * b)


def divide(left: Scalar, right: Scalar) -> Number | None:
    """Return `left / right`: an integer if both are and it is exact, else a float. NULL for a zero
    divisor."""
    return _calculated(left, right, _quotient)


def modulo(left: Scalar, right: Scalar) -> Number | None:
    """Return `left % right` with the sign of `left`. NULL for a zero divisor."""
    return _calculated(left, right, _remainder)


def negative(value: Scalar) -> Number | None:
    """Return `-value`."""
    return -value if isinstance(value, float) else subtract(0, value)


ARITHMETIC: Final = {"+": add, "-": subtract, "*": multiply, "/": divide, "%": modulo}


# -- functions ----------------------------------------------------------------------------------------


def rounded(value: Number, digits: Number = 0) -> Number | None:
    """Return `value` rounded to `digits` decimal places (negative: before the point), halves away from
    zero."""
    places = int(digits)
    if not -20 <= places <= 20:
        return None
    if isinstance(value, int):
        return value if places >= 0 else _whole_rounded(value, 10**-places)
    scale = 10.0 ** abs(places)
    scaled = abs(value) * scale if places >= 0 else abs(value) / scale
    if not scaled < 2.0**52:
        if places < 0 and math.isfinite(value):  # too large for decimal places
            return float(_whole_rounded(int(value), 10**-places))
        return value  # no digits are left to round
    whole = math.floor(scaled + 0.5)
    found = whole / scale if places > 0 else whole * (1 if places == 0 else int(scale))
    return math.copysign(found, value) if found.__class__ is float else int(math.copysign(1, value)) * found


def _whole_rounded(value: int, unit: int) -> int:
    """Return the nearest multiple of `unit`, halves away from zero."""
    size = (abs(value) + unit // 2) // unit * unit
    return size if value >= 0 else -size


def ceiling(value: Number) -> Number:
    """Return `value` rounded up to an integer."""
    return math.ceil(value) if -math.inf < value < math.inf else value


def floor(value: Number) -> Number:
    """Return `value` rounded down to an integer."""
    return math.floor(value) if -math.inf < value < math.inf else value


def sign(value: Number) -> Number:
    """Return -1, 0 or 1."""
    return value if value != value else (value > 0) - (value < 0)


def power(base: Number, exponent: Number) -> Number | None:
    """Return `base` to the power of `exponent`, as an integer if that is exact."""
    if base.__class__ is int and exponent.__class__ is int and exponent >= 0:
        if abs(base) > 1 and exponent > 64:
            return None
        return base ** int(exponent)  # type: ignore[no-any-return]
    return math.pow(base, exponent)


def width_bucket(value: Number, low: Number, high: Number, buckets: Number) -> Number | None:
    """Return the number of the bucket that holds `value`, among `buckets` equal parts of low..high.

    Buckets are numbered from 1. The result is 0 below `low`, and `buckets` + 1 at or above `high`."""
    if not (low < high and 1 <= buckets <= 2**31) or value != value:
        return None
    if value < low:
        return 0
    return int(buckets) + 1 if value >= high else int((value - low) * int(buckets) / (high - low)) + 1


def geo_distance(
    latitude: Number, longitude: Number, other_latitude: Number, other_longitude: Number
) -> Number:
    """Return the metres between two points in degrees, on a sphere with the mean radius of the earth."""
    a, b = math.radians(latitude), math.radians(other_latitude)
    across = math.sin((b - a) / 2) ** 2
    along = math.sin(math.radians(other_longitude - longitude) / 2) ** 2
    return (
        2 * EARTH_RADIUS_METRES * math.asin(min(1.0, math.sqrt(across + math.cos(a) * math.cos(b) * along)))
    )
