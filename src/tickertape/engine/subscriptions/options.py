"""Owns what a subscriber asks of the pace of its replay: the options `rate`, `rate_max_gap`, `conflation` and
`conflation_key`, read and checked.

Must never hold a clock or a message, or take a value that could not be kept: what is no rate, nothing, or
beyond every use is refused with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tickertape.base.errors import BadOption
from tickertape.base.limits import (
    conflation_fields_max,
    conflation_seconds_max,
    conflation_seconds_min,
    rate_bytes_max,
    rate_gap_seconds_max,
    rate_messages_max,
    rate_multiple_max,
    rate_per_second_min,
)
from tickertape.base.options import list_value
from tickertape.base.text_format import shown
from tickertape.base.units import SIZE_UNITS, parse_interval

_RATE: Final = re.compile(r"[ \t]*([0-9]{1,18}(?:\.[0-9]{1,9})?)[ \t]*([A-Za-z]*)[ \t]*", re.ASCII)
_BYTE_UNITS: Final = ("B", "KB", "MB", "GB")
_FORMS: Final = (
    "messages a second (1000), payload bytes a second (500KB), a multiple of the original pace (2x)"
)
_OFF: Final = "none"
_AUTO: Final = "auto"


class RateUnit(Enum):
    """What a rate counts."""

    MESSAGES = "messages a second"
    BYTES = "payload bytes a second"
    MULTIPLE = "times the original pace"


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast a subscription is delivered at most. Equal rates compare equal."""

    unit: RateUnit
    amount: float
    """In the unit; above 0."""

    def __str__(self) -> str:
        return f"{self.amount:.12g} {self.unit.value}"


@dataclass(frozen=True, slots=True)
class ReplayRate:
    """A rate, and the longest wait between two messages where the rate is a multiple."""

    rate: Rate
    max_gap: float | None = None
    """Seconds of waiting in the replay; None = as long as the pace says."""

    def __str__(self) -> str:
        return (
            str(self.rate) if self.max_gap is None else f"{self.rate}, gaps of {self.max_gap:.12g} s at most"
        )


@dataclass(frozen=True, slots=True)
class ConflationOptions:
    """Messages of one key within an interval of the recorded timeline are delivered as one."""

    interval_micros: int
    fields: tuple[str, ...] = ()
    """Identifiers that make the key, as they were written; none = the whole topic."""


def parse_rate(text: str) -> Rate:
    """The rate that `text` says: `1000`, `0.5` (messages a second), `500KB`, `1.5MB` (payload bytes a second,
    1024s), `2x`, `0.5X` (times the original pace).

    Raises `BadOption` for anything else, for 0, and for what is beyond the bounds in base/limits.py.
    """
    match = _RATE.fullmatch(text)
    letters = match[2].upper() if match else ""
    if match is None or letters not in ("", "X", *_BYTE_UNITS):
        raise BadOption(f"rate {shown(text)} is no rate: {_FORMS}")
    if letters == "X":
        unit, factor, most = RateUnit.MULTIPLE, 1, rate_multiple_max
    elif letters:
        unit, factor, most = RateUnit.BYTES, SIZE_UNITS[letters], rate_bytes_max
    else:
        unit, factor, most = RateUnit.MESSAGES, 1, rate_messages_max
    amount = float(match[1]) * factor
    if not rate_per_second_min <= amount <= most:
        raise BadOption(
            f"rate {shown(text)} is {amount:g} {unit.value}: it is from {rate_per_second_min:g} to {most:g}; "
            f"leave the option out for no limit"
        )
    return Rate(unit, amount)


def parse_gap(text: str) -> float:
    """Seconds of a `rate_max_gap` such as `10s`. Raises `BadOption`, for 0 and beyond a year too."""
    seconds = _interval("rate_max_gap", text)
    if not 0 < seconds <= rate_gap_seconds_max:
        raise BadOption(
            f"rate_max_gap {shown(text)} is {seconds:g} s: it is above 0 and at most "
            f"{rate_gap_seconds_max:.0f} s"
        )
    return seconds


def read_replay_rate(options: Mapping[str, str | None]) -> ReplayRate | None:
    """The pace that `options` ask for, None when they ask for none.

    Raises `BadOption`: a value that is none, and `rate_max_gap` without a rate that is a multiple, because
    only there the recorded timeline says how long to wait.
    """
    gap_text = _value(options, "rate_max_gap", "10s")
    max_gap = None if gap_text is None else parse_gap(gap_text)
    rate_text = _value(options, "rate", "1000, 500KB or 2x")
    if rate_text is None:
        if max_gap is not None:
            raise BadOption(
                "rate_max_gap needs a rate that is a multiple of the original pace, such as rate=1x"
            )
        return None
    rate = parse_rate(rate_text)
    if max_gap is not None and rate.unit is not RateUnit.MULTIPLE:
        raise BadOption(
            f"rate_max_gap goes with a rate that is a multiple of the original pace, such as 2x; "
            f"{shown(rate_text)} is {rate.unit.value}"
        )
    return ReplayRate(rate, max_gap)


def read_conflation(options: Mapping[str, str | None]) -> ConflationOptions | None:
    """The conflation that `options` ask for; None when they ask for none, or say `conflation=none`.

    Raises `BadOption`: an interval that is none or beyond its bounds, `auto`, a key without an interval, and
    a key that is no list of identifiers or has too many. Identifiers are not looked into.
    """
    fields_text = _value(options, "conflation_key", "[/symbol]")
    text = _value(options, "conflation", "1s")
    fields = () if fields_text is None else _fields(fields_text)
    if text is None or text == _OFF:
        if fields:
            raise BadOption(
                f"conflation_key needs an interval, such as conflation=1s; "
                f"{'none was given' if text is None else 'conflation=none switches it off'}"
            )
        return None
    if text == _AUTO:
        raise BadOption(
            "conflation=auto is not offered: an interval that follows how fast this client reads would give "
            "another result in every replay; give an interval, such as conflation=1s"
        )
    seconds = _interval("conflation", text)
    if not conflation_seconds_min <= seconds <= conflation_seconds_max:
        raise BadOption(
            f"conflation {shown(text)} is {seconds:g} s: it is from {conflation_seconds_min:g} to "
            f"{conflation_seconds_max:.0f} s, or none"
        )
    return ConflationOptions(round(seconds * 1e6), fields)


def _interval(name: str, text: str) -> float:
    try:
        return parse_interval(text)
    except BadOption as error:
        raise BadOption(f"{name}: {error}") from None


def _fields(text: str) -> tuple[str, ...]:
    fields = list_value(text)
    if len(fields) > conflation_fields_max:
        raise BadOption(
            f"conflation_key has {len(fields)} fields: at most {conflation_fields_max} make a key"
        )
    for field in fields:
        if not field.startswith("/"):
            raise BadOption(
                f"conflation_key {shown(field)} is no identifier: it begins with /, as in /symbol"
            )
    if len(set(fields)) < len(fields):
        raise BadOption(f"conflation_key {shown(text)} names a field twice")
    return fields


def _value(options: Mapping[str, str | None], name: str, example: str) -> str | None:
    """The value of an option that needs one, None when it is not there."""
    if name not in options:
        return None
    value = options[name]
    if value is None:
        raise BadOption(f"option {name} needs a value, such as {name}={example}")
    return value
