"""Table of functions: names, arguments, results, and reasons why some are not supported.

It wraps each function so that NULL and arguments of the wrong type return NULL.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from tickertape.base.text_format import near_name, shown
from tickertape.filter.functions import arrays as array_functions
from tickertape.filter.functions import numbers
from tickertape.filter.functions import strings as texts
from tickertape.filter.functions.crc64 import crc64
from tickertape.filter.functions.values import Scalar, equal, less, number, text
from tickertape.filter.language.diagnostics import suggestion
from tickertape.filter.limits import text_result_characters_max


class Function(NamedTuple):
    """A function of the filter language."""

    name: str
    signature: str
    """A letter per argument: t string, n number, v any value, e string that may be empty or NULL, a array,
    p string literal. Arguments after `?` are optional, and the last one before `*` may be repeated."""
    call: Callable[..., Any]
    """Takes scalars (arrays unchanged). Returns a scalar, or True, False or None for a condition."""
    doc: str
    scan: bool = False
    """Whether it scans whole strings. The number of scans per filter is limited."""
    strict: bool = True
    """Whether NULL in any argument makes the result NULL."""

    @property
    def arguments(self) -> tuple[int, int]:
        """Minimum and maximum number of arguments."""
        letters = self.signature.replace("?", "").rstrip("*")
        return len(self.signature.split("?")[0].rstrip("*")), 1000 if "*" in self.signature else len(letters)

    def letter(self, at: int) -> str:
        """Return the letter of the argument `at`."""
        letters = self.signature.replace("?", "").rstrip("*")
        return letters[min(at, len(letters) - 1)]


def _empty_allowed(value: Scalar) -> str:
    return text(value) or ""


def _same(value: Any) -> Any:
    return value


_CONVERSIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "t": text, "n": number, "v": _same, "e": _empty_allowed, "a": _same, "p": text,
}  # fmt: skip


def _result(value: Any) -> Any:
    """Return a result, or NULL if it is out of bounds."""
    kind = value.__class__
    if kind is str:
        return value if 0 < len(value) <= text_result_characters_max else None
    return numbers.bounded(value) if kind is int or kind is float else value


def _strict(function: Function) -> Callable[..., Any]:
    """Wrap `function` for any scalars: NULL for NULL, for failed conversions and for failed evaluations."""
    call = function.call
    convert = [_CONVERSIONS[function.letter(at)] for at in range(function.arguments[1])]

    def guarded(*arguments: Any) -> Any:
        converted = []
        for conversion, argument in zip(convert, arguments, strict=False):
            value = conversion(argument)
            if value is None:
                return None
            converted.append(value)
        try:
            return _result(call(*converted))
        except (ValueError, OverflowError, ZeroDivisionError):
            return None

    return guarded


def _arrayed(function: Function) -> Callable[..., Any]:
    """Wrap `function` for an array, the arrays of the message, and further strings."""
    call = function.call

    def guarded(value: Any, arrays: Any, *others: Any) -> Any:
        further = [text(other) for other in others]
        if None in further:
            return None
        try:
            return _result(call(value, arrays, *further))
        except OverflowError:
            return None

    return guarded


def _extreme(values: Sequence[Scalar], lowest: bool) -> Scalar:
    found = values[0]
    for value in values[1:]:
        if less(value, found) if lowest else less(found, value):
            found = value
    return found


_ALL: Final = (
    Function("CONCAT", "tt*", texts.concat, "the strings, concatenated", scan=True),
    Function("UPPER", "t", str.upper, "in upper case", scan=True),
    Function("LOWER", "t", str.lower, "in lower case", scan=True),
    Function("TRIM", "t", lambda t: t.strip(texts.BLANKS), "without white space at both ends", scan=True),
    Function("LTRIM", "t", lambda t: t.lstrip(texts.BLANKS), "without white space at the start", scan=True),
    Function("RTRIM", "t", lambda t: t.rstrip(texts.BLANKS), "without white space at the end", scan=True),
    Function("LENGTH", "t", len, "number of characters"),
    Function("SUBSTR", "tn?n", texts.substr, "substring from a position, counted from 1"),
    Function("LEFT", "tn", texts.left, "the first n characters"),
    Function("RIGHT", "tn", texts.right, "the last n characters"),
    Function("REPLACE", "tte", texts.replace, "with each occurrence of a substring replaced", scan=True),
    Function("INSTR", "tt", texts.instr, "position of a substring, from 1, or 0 if it is absent", scan=True),
    Function("INSTR_I", "tt", texts.instr_i, "as INSTR, ignoring case", scan=True),
    Function("STREQUAL", "tt", operator.eq, "whether two values are equal as strings (numbers too)"),
    Function("STREQUAL_I", "tt", texts.streq_i, "as STREQUAL, ignoring case", scan=True),
    Function("REGEXP_MATCH", "tp", _same, "as LIKE", scan=True),
    Function("REGEXP_REPLACE", "tpe", _same, "with each match of a regular expression replaced", scan=True),
    Function("CRC32", "t", texts.crc32, "CRC-32 of its bytes in UTF-8", scan=True),
    Function("CRC64", "t", crc64, "CRC-64/XZ of its bytes in UTF-8", scan=True),
    Function("CHAR_VALUE", "n", texts.char_value, "the character of a Unicode code point"),
    Function("STRPTIME", "tp", texts.strptime, "seconds since 1970 (UTC) of a time in the given format"),
    Function("STRFTIME", "np", texts.strftime, "a time in seconds since 1970 (UTC), in the given format"),
    Function("ABS", "n", abs, "absolute value"),
    Function("SIGN", "n", numbers.sign, "-1, 0 or 1"),
    Function("ROUND", "n?n", numbers.rounded, "rounded to n decimals (default 0), halves away from zero"),
    Function("CEILING", "n", numbers.ceiling, "rounded up to an integer"),
    Function("FLOOR", "n", numbers.floor, "rounded down to an integer"),
    Function("SQRT", "n", math.sqrt, "square root"),
    Function("POWER", "nn", numbers.power, "the first to the power of the second"),
    Function("EXP", "n", math.exp, "e to the power of the argument"),
    Function("LN", "n", math.log, "natural logarithm"),
    Function("LOG2", "n", math.log2, "logarithm to base 2"),
    Function("LOG10", "n", math.log10, "logarithm to base 10"),
    Function("SIN", "n", math.sin, "sine, of radians"),
    Function("COS", "n", math.cos, "cosine"),
    Function("TAN", "n", math.tan, "tangent"),
    Function("ASIN", "n", math.asin, "arc sine, in radians"),
    Function("ACOS", "n", math.acos, "arc cosine"),
    Function("ATAN", "n", math.atan, "arc tangent"),
    Function("ATAN2", "nn", math.atan2, "arc tangent of y / x, in the correct quadrant"),
    Function("WIDTH_BUCKET", "nnnn", numbers.width_bucket,
             "of (x, low, high, n): number of the bucket of x, among n equal ones"),
    Function("GEO_DISTANCE", "nnnn", numbers.geo_distance, "metres between two (latitude, longitude)"),
    Function("GREATEST", "vv*", lambda *values: _extreme(values, False), "the highest argument"),
    Function("LEAST", "vv*", lambda *values: _extreme(values, True), "the lowest argument"),
    Function("NAN_VALUE", "", lambda: math.nan, "NaN"),
    Function("COALESCE", "vv*", lambda *values: next((v for v in values if v is not None), None),
             "the first argument that is not NULL", strict=False),
    Function("NULLIF", "vv", lambda value, other: None if equal(value, other) else value,
             "the first argument, or NULL if it equals the second", strict=False),
    Function("IF", "vvv", _same, "of (condition, a, b): a if the condition is true, else b", strict=False),
    Function("ARRAY_MIN", "a", array_functions.array_min, "the lowest element"),
    Function("ARRAY_MAX", "a", array_functions.array_max, "the highest element"),
    Function("ARRAY_SUM", "a", array_functions.array_sum, "the sum of the elements that are numbers"),
    Function("ARRAY_LENGTH", "a", array_functions.array_length, "number of elements"),
    Function("ARRAY_TO_STRING", "a?t", array_functions.array_to_string, "the elements, joined by a separator",
             scan=True),
    Function("TOPIC_NAME", "", _same, "topic of the message"),
    Function("BOOKMARK", "", _same, "bookmark of the message"),
    Function("CORRELATION_ID", "", _same, "correlation id set by the publisher"),
    Function("SOW_KEY", "", _same, "key set by the publisher"),
    Function("USER", "", _same, "user of the subscriber's connection"),
    Function("CLIENT_NAME", "", _same, "client name of the subscriber"),
    Function("CLIENT_VERSION", "", _same, "name and version of the subscriber's client software"),
    Function("UNIX_TIMESTAMP", "", _same, "time of evaluation, in seconds since 1970"),
)  # fmt: skip

FUNCTIONS: Final = {function.name: function for function in _ALL}
MESSAGE_FUNCTIONS: Final = {
    "TOPIC_NAME": "topics",
    "BOOKMARK": "bookmarks",
    "CORRELATION_ID": "correlation_ids",
    "SOW_KEY": "sow_keys",
}
"""Functions of a message, with the names of their columns in `FilterInputs`."""
SUBSCRIBER_FUNCTIONS: Final = {
    "USER": "user",
    "CLIENT_NAME": "client_name",
    "CLIENT_VERSION": "client_version",
    "UNIX_TIMESTAMP": "now",
}
"""Functions with the same result for all messages of a call, with their names in `FilterInputs`."""

_CALLS: Final[dict[str, Callable[..., Any]]] = {
    f.name: _arrayed(f) if "a" in f.signature else _strict(f) if f.strict else f.call for f in _ALL
}

_AGGREGATES: Final = (
    "AVG", "ANY", "COUNT", "COUNT_DISTINCT", "GROUP_CONCAT", "MIN", "MAX", "SUM", "STDDEV_POP", "STDDEV_SAMP",
    "UNIQUE",
)  # fmt: skip
_NOT_HERE: Final = {
    **dict.fromkeys(_AGGREGATES, "aggregates need several messages, and a filter sees one"),
    **dict.fromkeys(
        ("LAST_UPDATED", "LAST_READ", "SOW_KEY_HASH"), "filters cannot read this value of a record"
    ),
    **dict.fromkeys(("LEASE_COUNT", "LAST_LEASED"), "filters run before a queue leases a message"),
}


def call_of(name: str) -> Callable[..., Any]:
    """Return the function that evaluates `name`, taking scalars.

    A function of an array takes the array, the arrays of the message, and scalars."""
    return _CALLS[name]


def unsupported_reason(name: str) -> str | None:
    """Return the reason why `name` cannot be called, or None."""
    if name in FUNCTIONS:
        return None
    if name in _NOT_HERE:
        return f"{name} cannot be used: {_NOT_HERE[name]}. Remove it"
    near = near_name(name, FUNCTIONS)
    instead = suggestion(name) or (f". Did you mean {near}?" if near else "")
    return f"unknown function {shown(name)}{instead or '. Use a function of the filter language'}"
