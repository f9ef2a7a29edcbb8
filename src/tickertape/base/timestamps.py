"""Convert timestamps between `YYYYmmddTHHMMSS[.ffffff][Z]`, microseconds since 1970 and `datetime`.

All times are UTC. The only zone accepted is the letter `Z`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from tickertape.base.errors import BadBookmark
from tickertape.base.text_format import shown

TIMESTAMP_FORM: Final = (
    "YYYYmmddTHHMMSS, then optionally a fraction of 1 to 6 digits, then optionally Z (UTC always)"
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SHAPE: Final = re.compile(
    r"([0-9]{4})([0-9]{2})([0-9]{2})T([0-9]{2})([0-9]{2})([0-9]{2})(?:\.([0-9]{1,6}))?Z?"
)

timestamp_micros_min: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The first moment of the year 1, the earliest that has a text form."""
timestamp_micros_max: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The last microsecond of the year 9999, the latest that has a text form."""


def parse_timestamp(text: str) -> int:
    """Microseconds since 1970 UTC of `text`, which must be a whole timestamp without blanks around it.

    Raises `BadBookmark` for another shape, a date or time that does not exist, and any zone but `Z`.
    """
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise BadBookmark(f"{shown(text)} is not a timestamp: the form is {TIMESTAMP_FORM}")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    micro = int((match[7] or "0").ljust(6, "0"))
    try:
        moment = datetime(year, month, day, hour, minute, second, micro, tzinfo=UTC)
    except ValueError as error:
        raise BadBookmark(f"{shown(text)} is not a timestamp: {error}") from None
    return (moment - _EPOCH) // _MICROSECOND


def format_timestamp(micros: int) -> str:
    """`YYYYmmddTHHMMSS.ffffffZ` of `micros` since 1970 UTC; `parse_timestamp` reads the same number back.

    Raises `BadBookmark` outside the years 1 to 9999.
    """
    moment = to_datetime(micros)
    return (
        f"{moment.year:04}{moment.month:02}{moment.day:02}T"
        f"{moment.hour:02}{moment.minute:02}{moment.second:02}.{moment.microsecond:06}Z"
    )


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970 UTC. An aware `moment` is converted, a naive one is UTC (never local time)."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MICROSECOND


def to_datetime(micros: int) -> datetime:
    """Return the aware UTC `datetime` of `micros`. Raises `BadBookmark` outside the years 1 to 9999."""
    if not timestamp_micros_min <= micros <= timestamp_micros_max:
        raise BadBookmark(f"{micros} microseconds is outside the years 1 to 9999, which have a timestamp")
    return _EPOCH + timedelta(microseconds=micros)
