"""Subscription options: reads and checks the option string of a subscribe command.

Values that cannot be kept are refused with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from tickertape.base.errors import BadOption
from tickertape.base.limits import conflation_seconds_max, conflation_seconds_min, queue_backlog_max
from tickertape.base.options import list_value, parse_options
from tickertape.base.text_format import shown
from tickertape.base.units import SIZE_UNITS, parse_interval
from tickertape.engine.conflation.buffer import ConflationOptions
from tickertape.engine.limits import (
    conflation_fields_max,
    rate_bytes_max,
    rate_gap_seconds_max,
    rate_messages_max,
    rate_multiple_max,
    rate_per_second_min,
)
from tickertape.engine.subscriptions.start_position import NOT_FOUND_POLICIES

_RATE: Final = re.compile(r"[ \t]*([0-9]{1,18}(?:\.[0-9]{1,9})?)[ \t]*([A-Za-z]*)[ \t]*", re.ASCII)
_BYTE_UNITS: Final = ("B", "KB", "MB", "GB")
_FORMS: Final = (
    "messages a second (1000), payload bytes a second (500KB), a multiple of the original pace (2x)"
)
_OFF: Final = "none"
_AUTO: Final = "auto"


class RateUnit(Enum):
    """Unit of a rate."""

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


def parse_rate(text: str) -> Rate:
    """Parse a rate: `1000`, `0.5` (messages a second), `500KB`, `1.5MB` (payload bytes a second, 1024s),
    `2x`, `0.5X` (times the original pace). Raises `BadOption` for anything else, for 0, and beyond the bounds
    in engine/limits.py."""
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


_FLAGS: Final = frozenset({"bookmark", "browse", "fully_durable", "live", "pause", "replace", "timestamp"})
_REPLAY_ONLY: Final = frozenset(
    {"bookmark_not_found", "fully_durable", "live", "pause", "rate", "rate_max_gap"}
)
_WITHOUT_BOOKMARK: Final = {
    "pause": ": what is sent as it comes is kept for nobody. A bookmark subscription that is there is paused "
    "by the command pause",
}
_NOT_LIVE: Final = {
    "rate": "what is sent as it comes has no pace of its own",
    "rate_max_gap": "what is sent as it comes has no pace of its own",
    "pause": "what is not persisted is kept for nobody",
    "conflation": "what is held back is not sent as it comes",
    "fully_durable": "one asks for what is not persisted yet, the other for what is persisted everywhere",
}
_QUEUE_ONLY: Final = ("browse", "max_backlog")
_VALUES: Final = frozenset(
    {"bookmark_not_found", "conflation", "conflation_key", "max_backlog", "rate", "rate_max_gap", "select"}
)


class SubscribeOptions(NamedTuple):
    """Options, read and checked against each other."""

    not_found: str = "now"
    """Where an unknown bookmark starts: now, epoch or fail."""
    select: str | None = None
    """The select list, as it was written."""
    pace: ReplayRate | None = None
    conflation: ConflationOptions | None = None
    pause: bool = False
    """It begins paused."""
    live: bool = False
    """Once caught up, it is sent messages before they are persisted."""
    replace: bool = False
    """It replaces the subscription with its id, if there is one."""
    max_backlog: int | None = None
    """Of queues: how many unacknowledged messages it wants at most."""
    browse: bool = False
    """Of queues: ready messages are read, and none is taken."""


def subscribe_options(text: str, *, replay: bool) -> SubscribeOptions:
    """The options of a command, with a bookmark (or positions) when `replay`. Raises `BadOption`."""
    options = parse_options(text)
    for name, value in options.items():
        if name == "resume":
            raise BadOption("resume is no option of a subscribe but a command: it names what goes on")
        if name not in _FLAGS | _VALUES:
            raise BadOption(f"option {shown(name)} is unknown or not built yet")
        if name in _FLAGS and value is not None:
            raise BadOption(f"option {name} takes no value, not {shown(value)}")
        if name in _VALUES and value is None:
            raise BadOption(f"option {name} needs a value: {name}=...")
        if name in _QUEUE_ONLY and replay:
            raise BadOption(f"option {name} excludes a bookmark, which replays and takes nothing")
        if name in _REPLAY_ONLY and not replay:
            raise BadOption(f"option {name} needs a bookmark{_WITHOUT_BOOKMARK.get(name, '')}")
    if "live" in options:
        for name in _NOT_LIVE:
            if name in options:
                raise BadOption(f"live excludes {name}: {_NOT_LIVE[name]}")
    not_found = options.get("bookmark_not_found") or "now"
    if not_found not in NOT_FOUND_POLICIES:
        raise BadOption(f"bookmark_not_found={shown(not_found)}: use now, epoch or fail")
    return SubscribeOptions(
        not_found,
        options.get("select"),
        read_replay_rate(options),
        read_conflation(options),
        "pause" in options,
        "live" in options,
        "replace" in options,
        _backlog(options),
        "browse" in options,
    )


def check_queue_options(options: SubscribeOptions, *, queue: bool) -> None:
    """Raise `BadOption` for options that queues exclude or require."""
    if not queue:
        for name, given in (("browse", options.browse), ("max_backlog", options.max_backlog is not None)):
            if given:
                raise BadOption(f"option {name} is for queues, and what is subscribed to is none")
    elif options.conflation is not None:
        raise BadOption("conflation: each message of a queue is delivered, and acknowledged, by itself")
    elif options.browse and (options.max_backlog is not None or options.replace):
        raise BadOption("browse takes no max_backlog and replaces nothing: it reads, once")


def _backlog(options: Mapping[str, str | None]) -> int | None:
    text = options.get("max_backlog")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= queue_backlog_max):
        raise BadOption(f"max_backlog={shown(text)}: a whole number, 1 to {queue_backlog_max:,}")
    return int(text)
