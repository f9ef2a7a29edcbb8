"""Conversion of type-specific values to values that all message types have.

Results are None, bool, int, float, str, bytes, list and dict. Elements of a list have the same types.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes})
_PLAIN: Final = SCALARS | {list, dict}


def plain_by(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that keeps plain values and applies `convert` to others, also in lists.

    Nested lists are not converted: only the value at the end of a path and its elements are examined.
    """

    def plain(value: Any) -> Any:
        kind = type(value)
        if kind in SCALARS or kind is dict:
            return value
        if kind is list:
            if _PLAIN.issuperset(map(type, value)):
                return value
            return [element if type(element) in _PLAIN else convert(element) for element in value]
        return convert(value)

    return plain


def timestamp_text(moment: datetime) -> str:
    """Return an aware time as UTC text that sorts by time, `2026-11-20T10:00:00.000000Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
